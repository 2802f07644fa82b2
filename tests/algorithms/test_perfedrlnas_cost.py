"""What PerFedRLNAS's clients spend: training and the test that they report, nothing else."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from fedtailor.algorithms.perfedrlnas import PerFedRLNAS
from fedtailor.core.types import Budget, ClientInfo, Examples, Server, Setting, Spent
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.networks.network import Network
from fedtailor.training import learn
from tests.helpers.made_up import Dense
from tests.helpers.misbehaving import burn


@pytest.fixture
def host(federation: Federation, tmp_path: Path) -> ClientHost:
    setting = Setting(federation.task, Dense(), rounds=5, seed=2)
    clients = (ClientInfo(0, len(federation.examples(0, "train"))),)
    return ClientHost(PerFedRLNAS(), setting, federation, clients, tmp_path, None)


def step_of(host: ClientHost) -> Done:
    server = Server(host.setting, 1, host.clients)
    state = host.algorithm.server_init(server)
    message = host.algorithm.configure(server, state, list(host.clients))[0]
    return perform(host, Ticket("train", 0, 1), message)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("statistics", ["merged", "own"])
def test_all_that_is_charged_is_in_a_part(host: ClientHost, frozen: bool, statistics: Any):
    done = step_of(replace(host, algorithm=PerFedRLNAS(frozen=frozen, statistics=statistics)))
    times = done.reply.log.times
    wanted = ["evaluation"] if frozen else ["training", "evaluation"]
    assert [spent.part for spent in times] == wanted
    assert sum(spent.macs for spent in times) == done.macs > 0
    assert times[0].macs > 0 and all(spent.seconds > 0 for spent in times)


@pytest.mark.parametrize("split", ["val", "test"])
def test_a_test_for_the_log_alone_is_no_cost(
    split: Literal["val", "test"], host: ClientHost, monkeypatch: pytest.MonkeyPatch
):
    evaluate, tested = learn.evaluate, host.federation.examples(0, split)

    def slow(network: Network, examples: Examples, **more: Any) -> dict[str, float]:
        burn(0.1 if torch.equal(examples.index, tested.index) else 0.0)
        return evaluate(network, examples, **more)

    monkeypatch.setattr(learn, "evaluate", slow)
    for accuracy in ("val", "test"):
        done = step_of(replace(host, algorithm=PerFedRLNAS(accuracy=accuracy)))
        assert (done.reply.log.times[1].seconds >= 0.1) == (accuracy == split)


def test_a_device_that_refuses_spends_nothing(host: ClientHost):
    small = (replace(host.clients[0], budget=Budget(memory_mb=1e-3)),)
    assert step_of(replace(host, clients=small)).reply.log.times == (Spent("training", 0.0),)
