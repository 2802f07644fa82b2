"""What a round costs: means by hand, of rows written by hand."""

import math
from pathlib import Path

import pytest

from fedtailor.core.types import Log, Spent
from fedtailor.runs import database
from fedtailor.runs.cost_summary import costs
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord
from fedtailor.runs.summary import summarise
from tests.helpers.sample_runs import made_up


@pytest.fixture
def made(tmp_path: Path) -> Run:
    """Write what two clients did in two rounds, of which client 2 missed one."""
    run = made_up(tmp_path / "run", rounds=0)
    first, second = RoundRecord(1), RoundRecord(2)
    first.spent(None, Spent("configure", 0.1))
    first.log(0, Log(times=(Spent("training", 1.0, 100.0), Spent("evaluation", 3.0))))
    first.log(2, Log(times=(Spent("training", 2.0, 300.0),)))
    first.spent(None, Spent("aggregate", 0.5))
    second.spent(None, Spent("configure", 0.3))
    second.log(0, Log(times=(Spent("training", 6.0, 200.0), Spent("evaluation", 1.0, 40.0))))
    for client, nbytes in ((0, 100), (2, 300)):
        first.message(client, "down", nbytes)
    second.message(0, "down", 200)
    first.message(0, "up", 10)
    second.message(0, "up", 30)
    run.append(first)
    run.append(second)
    return run


def spread(*values: float) -> dict[str, object]:
    mean = sum(values) / len(values)
    std = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
    return {"mean": pytest.approx(mean), "std": pytest.approx(std)}


def test_means_and_deviations_over_clients_rounds(made: Run):
    """A part that was not done counts as 0: the parts' means add up."""
    found = costs(made)
    assert found == {
        "client_rounds": 3,
        "parts": {
            "training": {"seconds": spread(1, 2, 6), "macs": spread(100, 300, 200)},
            "evaluation": {"seconds": spread(3, 0, 1), "macs": spread(0, 0, 40)},
        },
        "sum": {"seconds": spread(4, 2, 7), "macs": spread(100, 300, 240)},
        "server": {
            "rounds": 2,
            "parts": {
                "configure": {"seconds": spread(0.1, 0.3)},
                "aggregate": {"seconds": spread(0.5, 0)},
            },
            "sum": {"seconds": spread(0.6, 0.3)},
        },
        "bytes": {"down": spread(100, 300, 200), "up": spread(10, 30), "once": None},
    }
    assert found and list(found["parts"]) == ["training", "evaluation"], (
        "in the order they were done"
    )
    assert summarise(made)["cost"] == found


def test_what_is_sent_once_is_counted_by_client_and_in_every_sum(made: Run):
    record = RoundRecord(1)
    for client, nbytes in ((0, 1000), (2, 3000), (2, 2000)):
        record.message(client, "once", nbytes)
    before = costs(made)
    made.append(record)
    found = costs(made)
    assert before and found and found["bytes"]["once"] == spread(1000, 5000)
    assert {way: found["bytes"][way] for way in ("down", "up")} == {
        way: before["bytes"][way] for way in ("down", "up")
    }
    assert database.bytes_sent(made.db) == {"up": 40, "down": 600, "once": 6000}
    assert summarise(made)["bytes"] == {"up": 40, "down": 600, "once": 6000}


def test_a_part_that_is_told_twice_is_one(made: Run):
    record = RoundRecord(1)
    record.log(0, Log(times=(Spent("training", 10.0, 1.0),)))
    made.append(record)
    found = costs(made)
    assert found and found["client_rounds"] == 3
    assert found["parts"]["training"] == {
        "seconds": spread(11, 2, 6), "macs": spread(101, 300, 200),
    }  # fmt: skip


def test_nothing_trained_costs_nothing_that_is_known(tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=0)
    assert costs(run) is None
    record = RoundRecord(1)
    record.spent(None, Spent("configure", 1.0))
    run.append(record)
    assert costs(run) is None, "nobody answered"
