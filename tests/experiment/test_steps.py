"""Replies where they arrive: what is not declared, complete and finite is never merged."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Failure, Log, Message, Reply, Spent
from fedtailor.engines import _client
from fedtailor.engines._base import Done
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.steps import NOTHING, ClientFailedError, _checked
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise

Tiny = Callable[..., dict[str, Any]]
BAD = 1  # the client that sends something else


def tampered(how: str, reply: Reply) -> Reply:
    """Return what a broken or hostile client might send instead."""
    tensors, info = dict(reply.message.tensors), dict(reply.message.info)
    name = sorted(tensors)[0]
    match how:
        case "nan weights":
            tensors[name] = torch.full_like(tensors[name], math.nan)
        case "missing":
            del tensors[name]
        case "shape":
            tensors[name] = torch.zeros(1)
        case "stranger":
            tensors["stranger"] = torch.zeros(1)
        case "nan accuracy":
            info["accuracy"] = math.nan
        case "high accuracy":
            info["accuracy"] = 1.5
        case "no accuracy":
            del info["accuracy"]
        case "histogram":
            info["labels"] = [1, 2, 3]
    return Reply(Message(tensors, info), reply.log)


@pytest.fixture
def hostile(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let client 1 get a bad reply past its own side."""

    def make(how: str) -> None:
        honest = _client._as_over_a_wire
        client_of = _client.perform
        who: list[int] = []

        def perform(host: Any, ticket: Any, message: Message) -> Any:
            who[:] = [ticket.client if ticket.step == "train" else -1]
            return client_of(host, ticket, message)

        def over_a_wire(reply: Reply) -> Reply:
            return tampered(how, reply) if who == [BAD] else honest(reply)

        monkeypatch.setattr(_client, "_as_over_a_wire", over_a_wire)
        monkeypatch.setattr("fedtailor.engines._in_process.perform", perform)

    return make


def table(tiny: Tiny, name: str, **changes: Any) -> dict[str, Any]:
    return tiny(algorithm__name=name, rounds=2, cohort=None, on_failure="skip", **changes)


def searching(tiny: Tiny, **changes: Any) -> dict[str, Any]:
    made = table(tiny, "perfedrlnas", **changes)
    path = Path(__file__).parents[1] / "helpers" / "tiny_space.py"
    made["space"] = {"name": f"{path}:Tiny", "layers": 1}
    return made


def state_tensors(found: Run) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(found.server_path(found.last_round()))


@pytest.mark.parametrize("how", ["nan weights", "missing", "shape", "stranger"])
def test_bad_weights_are_a_failure_and_nothing_of_them_is_kept(
    how: str, tiny: Tiny, tmp_path: Path, hostile: Callable[[str], None]
):
    hostile(how)
    found = run(table(tiny, "ditto"), tmp_path / "run")
    assert all(t.isfinite().all() for t in state_tensors(found).values())
    assert "stranger" not in str(state_tensors(found).keys())
    events = [
        text for kind, text in found.db.query("SELECT kind, text FROM event WHERE client = 1")
    ]
    assert len(events) == 2 and all("client 1 failed to train" in text for text in events)
    assert all("not what the algorithm declares" in text for text in events)
    assert not found.db.query("SELECT 1 FROM message WHERE client = 1 AND direction = 'up'")
    assert not found.db.query("SELECT 1 FROM metric WHERE client = 1 AND split = 'train'")
    assert not found.db.query("SELECT 1 FROM version WHERE client = 1")
    assert not list((found.path / "state").glob("client-000001-*"))
    assert summarise(found)["failures"] == 2


@pytest.mark.parametrize("how", ["nan accuracy", "high accuracy", "no accuracy", "histogram"])
def test_a_bad_accuracy_reaches_no_policy(
    how: str, tiny: Tiny, tmp_path: Path, hostile: Callable[[str], None]
):
    hostile(how)
    found = run(searching(tiny), tmp_path / "run")
    assert all(t.isfinite().all() for t in state_tensors(found).values())
    clients = {
        c for (c,) in found.db.query("SELECT DISTINCT client FROM metric WHERE name='reward'")
    }
    assert clients == {0, 2, 3, 4}


def test_the_others_fare_as_if_the_bad_one_had_not_been_drawn(
    tiny: Tiny, tmp_path: Path, hostile: Callable[[str], None], misbehaving: Callable[[str], str]
):
    """A client that fails in any other way leaves the same behind: nothing."""
    hostile("nan weights")
    bad = run(table(tiny, "fedavg"), tmp_path / "bad")
    broken = run(table(tiny, misbehaving("Fails")), tmp_path / "broken")
    one, other = state_tensors(bad), state_tensors(broken)
    assert codec.digest(one) == codec.digest(other)


def test_stop_means_stop(tiny: Tiny, tmp_path: Path, hostile: Callable[[str], None]):
    hostile("missing")
    with pytest.raises(ClientFailedError, match=r"client 1 failed to train.*is missing"):
        run(table(tiny, "fedavg") | {"on_failure": "stop"}, tmp_path / "run")


@pytest.mark.parametrize(("macs", "seconds"), [(math.nan, 1.0), (-1.0, 1.0), (1.0, math.inf)])
def test_what_was_spent_is_a_number_that_can_be(macs: float, seconds: float):
    """It enters the clock, and PerFedRLNAS's rewards."""
    bad = _checked(NOTHING, Message(), Done(Reply(), macs, seconds))
    assert isinstance(bad, Failure) and "multiply-adds" in bad.reason
    parts = Reply(log=Log(times=(Spent("fine", 0.0), Spent("not", seconds, macs))))
    bad = _checked(NOTHING, Message(), Done(parts, 1.0, 1.0))
    assert isinstance(bad, Failure) and "multiply-adds" in bad.reason
    good = Done(Reply(log=Log(times=(Spent("fine", 0.0),))), 0.0, 0.0)
    assert _checked(NOTHING, Message(), good) is good


def test_what_does_not_fit_is_said_before_anything_is_written(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    with pytest.raises(UserError, match=r"^space\.name: there is nothing to choose"):
        run(table(tiny, misbehaving("Picky")), tmp_path / "run")
    assert not (tmp_path / "run").exists()
