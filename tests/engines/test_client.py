"""One client's step: what it costs is told, whether the method measures its parts or not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from fedtailor.core.types import Message, Server, Spent
from fedtailor.data.federation import load_federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.networks import cost
from fedtailor.runs.config import make_config

Tiny = Callable[..., dict[str, Any]]
Step = Literal["train", "evaluate", "deploy"]


@pytest.fixture
def done(tiny: Tiny, tmp_path: Path) -> Callable[..., tuple[Done, ClientHost]]:
    """Return how client 2 does a step, and where."""

    def do(name: str, step: Step = "train", **changes: Any) -> tuple[Done, ClientHost]:
        config = make_config(tiny(algorithm__name=name, algorithm__epochs=3, **changes))
        federation = load_federation(config.data)
        clients = clients_of(federation, config)
        setting = setting_of(config, federation)
        host = ClientHost(config.algorithm, setting, federation, clients, tmp_path, None)
        return perform(host, Ticket(step, 2, 1), _message(host)), host

    return do


def _message(host: ClientHost) -> Message:
    server = Server(host.setting, 1, host.clients)
    return host.algorithm.serve(server, host.algorithm.server_init(server), host.clients[2])


def _trained(host: ClientHost) -> float:
    """Count by hand: three epochs of all images, forward and backward."""
    per_image = cost.training_macs(host.setting.space, (), host.setting.task)
    return 3 * host.clients[2].examples * per_image


def test_a_method_that_measures_nothing_costs_its_step(
    done: Callable[..., tuple[Done, ClientHost]], misbehaving: Callable[[str], str]
):
    found, host = done(misbehaving("Busy"), algorithm__client_s=0.1)
    (spent,) = found.reply.log.times
    assert (spent.part, spent.macs) == ("step", _trained(host))
    assert 0.1 < spent.seconds <= found.seconds
    assert {metric.name for metric in found.reply.log.metrics} == {"loss"}, "the rest stays"


def test_what_a_method_measures_itself_is_left_as_it_is(
    done: Callable[..., tuple[Done, ClientHost]], misbehaving: Callable[[str], str]
):
    found, host = done(misbehaving("Parts"))
    thinking, training = found.reply.log.times
    assert (thinking.part, thinking.macs) == ("thinking", 10.0)
    assert (training.part, training.macs) == ("training", _trained(host))
    assert thinking.seconds >= 0.01 and training.seconds > 0
    assert found.macs == thinking.macs + training.macs


@pytest.mark.parametrize("step", ["evaluate", "deploy"])
def test_tests_are_no_cost_of_a_round(
    step: Step, done: Callable[..., tuple[Done, ClientHost]], misbehaving: Callable[[str], str]
):
    assert done(misbehaving("Parts"), step)[0].reply.log.times == ()


def test_numbers_of_any_kind_become_plain_ones(
    done: Callable[..., tuple[Done, ClientHost]], monkeypatch: pytest.MonkeyPatch
):
    """As metrics do: numpy's would not pass the wire."""
    import numpy as np

    from fedtailor.core.stopwatch import Stopwatch

    odd = (Spent("step", np.float32(0.5), np.int64(3)),)  # pyright: ignore[reportArgumentType]
    monkeypatch.setattr(Stopwatch, "times", lambda _: odd)
    (spent,) = done("fedavg")[0].reply.log.times
    assert spent == Spent("step", 0.5, 3.0) and type(spent.macs) is float
