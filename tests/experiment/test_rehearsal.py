"""What a plan measures: costs by batches and validation images, in rounds with few of them."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.types import Augment, Message, Reply
from fedtailor.data.federation import Federation, load_federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.experiment import planning, rehearsal
from fedtailor.experiment.planning import plan
from fedtailor.experiment.rehearsal import Amount, Cost, fit_cost, shortened
from fedtailor.networks import cost
from fedtailor.runs.config import make_config
from tests.helpers import known_costs

Tiny = Callable[..., dict[str, Any]]
THREE = [Amount(1, 20), Amount(3, 20), Amount(1, 60)]
BATCH = 16


def charging(tiny: Tiny, **more: Any) -> dict[str, Any]:
    """Return a config of four unequal clients whose training computes nothing."""
    made = tiny(
        algorithm={"name": f"{known_costs.__file__}:Charges", "batch": BATCH, "finetune_epochs": 0}
        | more,
        data={"clients": 4, "partition": "dirichlet", "alpha": 0.5, "min_size": 60},
        budget={"speed": [1e6, 2e6], "mbps": [1.0, 2.0, 4.0]},
    )
    del made["cohort"]
    return made


# Costs


@pytest.mark.parametrize(
    "true", [(7e12, 3e9, 5e7), (0, 3e9, 0), (0, 0, 5e7), (1, 0, 0), (0.25, 0.5, 0.001), (0, 0, 0)]
)
def test_known_costs_are_found(true: tuple[float, float, float]):
    known = Cost(*true)
    found = fit_cost(THREE, [known.of(amount) for amount in THREE])
    for amount in (*THREE, Amount(17.25, 333), Amount(0.5, 1)):
        assert found.of(amount) == pytest.approx(known.of(amount), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("measured", [(5.0, 4.0, 5.0), (5.0, 9.0, 4.0), (1.0, 9.0, 9.0)])
def test_no_cost_is_below_zero_and_none_other_explains_more(measured: Sequence[float]):
    """Clocks are noisy: more batches may take less time, nothing at all less than nothing."""

    def miss(known: Cost) -> float:
        return sum((known.of(a) - m) ** 2 for a, m in zip(THREE, measured, strict=True))

    found = fit_cost(THREE, measured)
    assert min(found.fixed, found.per_batch, found.per_val_image) >= 0
    rng = np.random.default_rng(0)
    some = np.array([6.0, 4.0, 0.3]) * rng.random((4000, 3)) * (rng.random((4000, 3)) < 0.6)
    assert miss(found) <= min(miss(Cost(*each)) for each in some.tolist())


def test_what_cannot_be_told_apart_grows_with_the_data():
    one_size = fit_cost([Amount(1, 20)], [6.0])
    assert one_size.of(Amount(5, 7)) == pytest.approx(30), "all of it by batches"
    same_images = fit_cost([Amount(1, 20), Amount(3, 20)], [6.0, 10.0])  # 2 a batch, 4 beside
    assert same_images.of(Amount(2, 20)) == pytest.approx(8)
    assert same_images.of(Amount(2, 40)) == pytest.approx(12)
    one_batch = fit_cost([Amount(1, 20), Amount(1, 60)], [6.0, 10.0])  # 0.1 an image, 4 beside
    assert one_batch.of(Amount(1, 40)) == pytest.approx(8)
    assert one_batch.of(Amount(2, 40)) == pytest.approx(12)
    no_images = fit_cost([Amount(1, 0), Amount(3, 0)], [6.0, 10.0])
    assert no_images.of(Amount(5, 0)) == pytest.approx(14), "4 in any case"


# Images


def clients_of(*sizes: Sequence[int]) -> Federation:
    """Return a federation whose clients have so many train, val and test images."""
    ends = torch.tensor([n for client in sizes for n in client]).cumsum(0)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), ends[:-1]])
    bounds = torch.cat([starts.view(-1, 3)[:, :1], ends.view(-1, 3)], dim=1)
    count = int(ends[-1])
    images, rows = torch.zeros(count, 1, 2, 2), torch.arange(count).flip(0)
    return Federation(
        images, torch.zeros(count), rows, bounds, ("a",), (0.0,), (1.0,), Augment(), len(sizes), 0
    )


@pytest.mark.parametrize(
    ("has", "batch", "sizes"),
    [
        ((1000, 500, 500), 32, [(32, 32, 32), (96, 32, 32), (32, 96, 96)]),
        ((1000, 100, 300), 32, [(32, 16, 48), (96, 16, 48), (32, 48, 144)]),
        ((95, 30, 60), 32, [(32, 10, 20), (64, 10, 20), (32, 30, 60)]),
        ((63, 3, 3), 32, [(32, 1, 1), (32, 3, 3)]),  # less than two batches
        ((64, 1, 5), 32, [(32, 1, 1), (64, 1, 1)]),  # one validation image
        ((20, 1, 1), 20, [(20, 1, 1)]),  # less than a batch: then that is one
        ((64, 1, 1000), 32, [(32, 1, 63), (64, 1, 63)]),
    ],
)
def test_a_client_rehearses_with_its_own_images_and_no_more(
    has: tuple[int, int, int], batch: int, sizes: list[tuple[int, int, int]]
):
    federation = clients_of(has, (500, 500, 500))
    found = shortened(federation, batch)
    assert [tuple(each.bounds[0].diff().tolist()) for each in found] == sizes
    for each in found:
        assert len(each.bounds) == 1
        for split in ("train", "val", "test"):
            few, own = each.examples(0, split).index, federation.examples(0, split).index
            assert torch.equal(few, own[: len(few)])


# The whole plan


def work(plan: dict[str, Any]) -> list[Amount]:
    """Return every client's batches and validation images."""
    return [Amount(size["train"] / BATCH, size["val"]) for size in plan["sizes"]]


def test_multiply_adds_are_those_of_every_clients_own_images(tiny: Tiny):
    charged = {"fixed": 3e6, "per_batch": 2e5, "per_val_image": 7e3}
    config = make_config(charging(tiny, **charged))
    found, known = plan(config), Cost(**charged)
    spent = [known.of(amount) for amount in work(found)]
    assert len({size["train"] for size in found["sizes"]}) == 4
    assert found["training_macs_per_client_round"] == pytest.approx(sum(spent) / 4, rel=1e-9)
    sent = sum(found["bytes_per_client_round"].values())
    devices = zip(spent, (1e6, 2e6, 1e6, 2e6), (1.0, 2.0, 4.0, 1.0), strict=True)
    seconds = [macs / speed + sent * 8 / (mbps * 1e6) for macs, speed, mbps in devices]
    expected = {"mean": sum(seconds) / 4, "slowest": max(seconds)}
    assert found["modelled_round_s"] == pytest.approx(expected, rel=1e-9)


def test_a_methods_own_multiply_adds_are_counted_by_images(tiny: Tiny):
    """FedAvg charges images alone, twice the epochs twice as many."""
    found = plan(make_config(tiny(algorithm__epochs=2)))
    space = make_config(tiny()).space
    each = cost.training_macs(space, (), load_federation(make_config(tiny()).data).task)
    images = sum(size["train"] for size in found["sizes"]) / 5
    assert found["training_macs_per_client_round"] == pytest.approx(2 * images * each, rel=1e-9)


def test_seconds_are_those_of_second_times_and_of_every_clients_images(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
):
    """By a clock that is told what to say: training 2 + 0.5 batches + 0.01 images, and so on."""
    seen: dict[tuple[str, tuple[int, ...]], int] = {}

    def perform(host: ClientHost, ticket: Ticket, message: Message) -> Done:
        train, val, test = sizes = tuple(host.federation.bounds[0].diff().tolist())
        times = seen[ticket.step, sizes] = seen.get((ticket.step, sizes), 0) + 1
        seconds = {
            "train": 2 + 0.5 * train / BATCH + 0.01 * val,
            "evaluate": 0.002 * (val + test),
            "deploy": 0.002 * (val + test) + 0.25 * train / BATCH,
        }[ticket.step]
        reply = Reply(Message(message.tensors))
        return Done(reply, 0.0, seconds if times == 2 else 1000.0)

    monkeypatch.setattr(rehearsal, "perform", perform)
    monkeypatch.setattr(planning, "cores", lambda: 2)
    config = make_config(charging(tiny))
    config = replace(config, rounds=10, eval_every=3, cohort=3)
    found = plan(replace(config, engine=replace(config.engine, workers=2)))
    assert set(seen.values()) == {2} and len(seen) == 5
    rounds = [2 + 0.5 * amount.batches + 0.01 * amount.val for amount in work(found)]
    tested = sum(size["val"] + size["test"] for size in found["sizes"])
    times = {
        "training": 10 * 3 * sum(rounds) / 4 / 2,
        "testing": 4 * 0.002 * tested / 2,
        "tuning": 2 * sum(0.25 * amount.batches for amount in work(found)) / 2,
    }
    expected = times | {"total": sum(times.values())}
    assert found["estimated_s"] == pytest.approx(expected, abs=0.051)
    assert min(expected.values()) > 1
    seen.clear()
    many = plan(replace(config, engine=replace(config.engine, workers=8)))
    assert many["estimated_s"] == found["estimated_s"] and many["cores"] == {"used": 2, "there": 2}
    assert many["notes"] == ["engine.workers: 8 share 2 cores; more than 2 are no faster"]
