"""Batch norm's statistics as windows of the supernet: sent, measured, merged and used."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedtailor.algorithms.perfedrlnas import PerFedRLNAS, Searching
from fedtailor.core.types import ClientInfo, Message, Result, Server, Setting
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.networks import cost
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import shapes
from fedtailor.training import learn
from tests.helpers.made_up import Dense, windowed


@pytest.fixture
def host(federation: Federation, tmp_path: Path) -> ClientHost:
    setting = Setting(federation.task, Dense(), rounds=50, seed=2)
    clients = tuple(ClientInfo(i, len(federation.examples(i, "train"))) for i in range(4))
    how = PerFedRLNAS(epochs=2, batch=16, lr=0.1, finetune_epochs=1)
    assert how.statistics == "merged"
    return ClientHost(how, setting, federation, clients, tmp_path, None)


def play(host: ClientHost, state: Searching) -> tuple[dict[int, Message], dict[int, Done]]:
    server = Server(host.setting, 1, host.clients)
    messages = host.algorithm.configure(server, state, list(host.clients))
    return messages, {i: perform(host, Ticket("train", i, 1), m) for i, m in messages.items()}


def first_state(host: ClientHost) -> Searching:
    """The first state, its statistics moved: they must be what is sent, not 0 and 1."""
    state = host.algorithm.server_init(Server(host.setting, 0, host.clients))
    moved = {n: w + 0.3 if is_statistic(n) else w for n, w in state.weights.items()}
    return replace(state, weights=moved)


def test_a_subnet_is_sent_with_its_windows_of_them(host: ClientHost):
    state = first_state(host)
    for message in play(host, state)[0].values():
        arch = Dense().repair(tuple(message.info["genes"]))
        wanted = shapes(Dense(), arch, host.setting.task, statistics=True)
        assert {n: tuple(t.shape) for n, t in message.tensors.items()} == wanted
        assert any(is_statistic(name) for name in wanted)
        for name, tensor in message.tensors.items():
            assert torch.equal(tensor, windowed(state.weights[name], tensor.shape))


def test_training_goes_on_from_them_and_sends_them_back(host: ClientHost):
    messages, done = play(host, first_state(host))
    for i, step in done.items():
        client = host.client(Ticket("train", i, 1))
        arch = Dense().repair(tuple(messages[i].info["genes"]))
        network = learn.network(client, messages[i].tensors, arch)
        learn.fit(client, network, host.algorithm)
        expected = network.weights()
        assert step.reply.message.tensors.keys() == expected.keys()
        assert all(torch.equal(t, expected[n]) for n, t in step.reply.message.tensors.items())
        accuracy = learn.evaluate(network, client.val)["accuracy"]
        assert step.reply.message.info == {"accuracy": accuracy}, "with them, not settled ones"


def test_they_are_merged_by_those_who_measured_them(host: ClientHost):
    """Entry by entry: the mean over the clients whose subnet has it, else what was there."""
    state = first_state(host)
    messages, done = play(host, state)
    results = [
        Result(host.clients[i], messages[i].info, step.reply.message, 1.0, 0)
        for i, step in done.items()
    ]
    server = Server(host.setting, 1, host.clients)
    after = host.algorithm.aggregate(server, state, iter(results)).weights
    sent = [step.reply.message.tensors for step in done.values()]
    for name in (name for name in state.weights if is_statistic(name)):
        for channel, before in enumerate(state.weights[name].tolist()):
            told = [t[name][channel].item() for t in sent if name in t and channel < len(t[name])]
            wanted = sum(told) / len(told) if told else before
            assert after[name][channel].item() == pytest.approx(wanted, rel=1e-5)


def test_what_is_deployed_uses_them_and_tuning_goes_on_from_there(host: ClientHost):
    state, server = first_state(host), Server(host.setting, 1, host.clients)
    message = host.algorithm.serve(server, state, host.clients[3])
    client = host.client(Ticket("deploy", 3, 1))
    models = host.algorithm.deploy(client, None, message)
    untuned = next(models)[1].weights()
    assert all(torch.equal(untuned[n], t) for n, t in message.tensors.items())
    tuned = next(models)[1].weights()
    by_hand = learn.network(client, message.tensors, tuple(message.info["genes"]))
    learn.fit(client, by_hand, host.algorithm, lr=0.1, epochs=1, purpose="finetune")
    assert all(torch.equal(tuned[n], t) for n, t in by_hand.weights().items())


def test_new_clients_test_with_them_and_pay_for_the_test_alone(host: ClientHost):
    still = replace(host, algorithm=host.algorithm.for_newcomers())
    messages, done = play(still, first_state(host))
    for i, step in done.items():
        client = still.client(Ticket("train", i, 1))
        arch = Dense().repair(tuple(messages[i].info["genes"]))
        network = learn.network(client, messages[i].tensors, arch)
        accuracy = learn.evaluate(network, client.val)["accuracy"]
        assert not step.reply.message.tensors
        assert step.reply.message.info == {"accuracy": accuracy}
        per_image = cost.forward_macs(Dense(), arch, host.setting.task)
        assert step.macs == per_image * len(client.val)


def test_own_statistics_neither_travel_nor_rest(host: ClientHost):
    own = replace(host, algorithm=replace(host.algorithm, statistics="own"))
    state = own.algorithm.server_init(Server(own.setting, 0, own.clients))
    assert not any(is_statistic(name) for name in state.weights)
    messages, done = play(own, state)
    for i, step in done.items():
        for tensors in (messages[i].tensors, step.reply.message.tensors):
            assert tensors and not any(is_statistic(name) for name in tensors)


@pytest.mark.parametrize(("accuracy", "says"), [("val", "validation"), ("test", "test")])
def test_what_is_declared_is_what_is_told(accuracy: str, says: str):
    declared = PerFedRLNAS(accuracy=accuracy).sends()["trained"]  # pyright: ignore[reportArgumentType]
    told = {sent.name: sent.what for sent in declared}
    assert f"the client's {says} data" in told["accuracy"] and "statistics" in told["*"]
    (weights, *_) = PerFedRLNAS(statistics="own").sends()["trained"]
    assert "statistics" not in weights.what
