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
    """By hand: multiply-adds by speed, then bytes of both directions over the line."""
    lines = [1.0, 2.0, 4.0, 8.0, 16.0]
    table = tiny(rounds=3, budget={"speed": speed, "mbps": lines}, algorithm__epochs=2)
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
        assert modelled == pytest.approx(max(seconds), rel=1e-6)
