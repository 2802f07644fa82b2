"""The loop over rounds: who takes part, and how long a round takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.space import Task
from fedtailor.core.types import ClientInfo
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.rounds import draw_cohort
from fedtailor.networks import cost
from fedtailor.runs.config import read_config

Tiny = Callable[..., dict[str, Any]]
CLIENTS = tuple(ClientInfo(i, 10) for i in range(40))


def ids(seed: int, round: int, size: int = 8) -> list[int]:
    return [info.id for info in draw_cohort(CLIENTS, size, seed, round)]


def test_a_cohort_is_sorted_and_follows_seed_and_round():
    assert ids(0, 1) == ids(0, 1) == sorted(set(ids(0, 1)))
    draws = {tuple(ids(seed, round)) for seed in range(10) for round in range(1, 11)}
    assert len(draws) == 100
    assert all(list(draw) == sorted(draw) for draw in draws)


def test_every_client_is_drawn_as_often_as_any_other():
    draws = [ids(0, round) for round in range(1, 501)]
    counts = [sum(i in draw for draw in draws) for i in range(40)]
    assert min(counts) > 60 and max(counts) < 140  # 100 on average, 9 of standard deviation


def test_a_cohort_of_all_is_all():
    assert ids(3, 1, 40) == ids(3, 1, 99) == list(range(40))


@pytest.mark.parametrize("speed", [[1e6, 3e6, 2e6, 4e6, 5e6], 1e12])
def test_a_round_takes_as_long_as_its_slowest_client_downloads_included(
    tiny: Tiny, tmp_path: Path, speed: Any
):
    """By hand: multiply-adds by speed, bytes of both directions over the line, then the server.

    It does a multiply-add for each number of three clients' messages, both ways.
    """
    lines, server_speed = [1.0, 2.0, 4.0, 8.0, 16.0], 1e6
    devices = {"speed": speed, "mbps": lines, "server_speed": server_speed}
    table = tiny(rounds=3, budget=devices, algorithm__epochs=2)
    made = run(table, tmp_path / "run")
    space, task = read_config(made.path / "config.toml").space, Task((1, 8, 8), 10)
    speeds = speed if isinstance(speed, list) else [speed] * 5
    sizes = (made.partition()["bounds"][:, 1] - made.partition()["bounds"][:, 0]).tolist()
    per_image = cost.training_macs(space, (), task)
    sent = cost.wire_bytes(space, (), task)
    for round, modelled in made.db.query("SELECT round, modelled_s FROM state WHERE round > 0"):
        cohort = draw_cohort(tuple(ClientInfo(i, n) for i, n in enumerate(sizes)), 3, 0, round)
        seconds = [
            2 * info.examples * per_image / speeds[info.id] + 2 * sent * 8 / lines[info.id] / 1e6
            for info in cohort
        ]
        server = len(cohort) * 2 * (sent // 4) / server_speed
        assert modelled == pytest.approx(max(seconds) + server, rel=1e-6)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_server_s_own_work_is_told_from_that_of_clients(
    workers: int, tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    """Without workers clients work in the server's thread, while it takes in their results."""
    table = tiny(
        algorithm__name=misbehaving("Busy"), algorithm__client_s=0.1, rounds=2, eval_every=9,
        algorithm__configure_s=0.02, algorithm__aggregate_s=0.05, engine__workers=workers,
    )  # fmt: skip
    made = run(table, tmp_path / "run")
    server = made.db.query("SELECT round, part, seconds, macs FROM timing WHERE client IS NULL")
    wanted = [(1, "configure"), (1, "aggregate"), (2, "configure"), (2, "aggregate")]
    assert [row[:2] for row in server] == wanted
    for _, part, seconds, macs in server:
        busy = {"configure": 0.02, "aggregate": 0.05}[part]
        assert busy <= seconds < busy + 0.25 and macs == 0, "three clients take 0.3"
    clients = made.db.query("SELECT part, seconds, macs FROM timing WHERE client NOT NULL")
    assert len(clients) == 6
    for part, seconds, macs in clients:
        assert part == "step" and macs > 0
        assert seconds >= 0.1


def test_a_round_that_nobody_answers_has_nothing_to_aggregate(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    table = tiny(algorithm__name=misbehaving("Leaks"), rounds=1, on_failure="skip")
    rows = run(table, tmp_path / "run").db.query("SELECT round, client, part FROM timing")
    assert rows == [(1, None, "configure")]
