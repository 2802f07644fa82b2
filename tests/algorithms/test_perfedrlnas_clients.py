"""PerFedRLNAS at the clients: training, memory, deployment, and what they look at."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedtailor.algorithms.perfedrlnas import PerFedRLNAS, Searching
from fedtailor.core import codec
from fedtailor.core.space import Arch
from fedtailor.core.types import Budget, ClientInfo, Result, Server, Setting
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.networks import cost, norms
from fedtailor.networks.network import network_of
from fedtailor.networks.store import cut, shapes
from fedtailor.search import genes, policy
from fedtailor.training import learn
from tests.helpers.made_up import TASK, Dense, chance, cpu, every_draw, generator, windowed


@pytest.fixture
def site(federation: Federation, tmp_path: Path) -> ClientHost:
    setting = Setting(federation.task, Dense(), rounds=50, seed=2)
    clients = tuple(ClientInfo(i, len(federation.examples(i, "train"))) for i in range(4))
    how = PerFedRLNAS(epochs=2, batch=16, lr=0.1, finetune_epochs=1, statistics="own")
    return ClientHost(how, setting, federation, clients, tmp_path, None)


def with_memory(site: ClientHost, limits: list[float | None]) -> ClientHost:
    """Give memory to the first clients, and leave the others out."""
    pairs = zip(site.clients, limits, strict=False)
    return replace(site, clients=tuple(replace(c, budget=Budget(memory_mb=mb)) for c, mb in pairs))


def first_state(site: ClientHost) -> Searching:
    return site.algorithm.server_init(Server(site.setting, 0, site.clients))


def play(site: ClientHost, state: Searching, round: int) -> tuple[Searching, dict[int, Done]]:
    """Do a round of all the site's clients, timed as a run times it."""
    server = Server(site.setting, round, site.clients)
    messages = site.algorithm.configure(server, state, list(site.clients))
    done = {i: perform(site, Ticket("train", i, round), m) for i, m in messages.items()}
    results = [
        Result(
            site.clients[i],
            messages[i].info,
            d.reply.message,
            cost.round_seconds(d.macs, messages[i].nbytes, site.clients[i].budget),
            round - 1,
        )
        for i, d in done.items()
    ]
    return site.algorithm.aggregate(server, state, iter(results)), done


def test_a_draw_depends_on_seed_round_and_client_alone(site: ClientHost):
    state = first_state(site)

    def genes_of(cohort: list[ClientInfo], round: int = 1, seed: int = 2) -> dict[int, Any]:
        server = Server(replace(site.setting, seed=seed), round, site.clients)
        messages = site.algorithm.configure(server, state, cohort)
        return {i: tuple(m.info["genes"]) for i, m in messages.items()}

    everyone = genes_of(list(site.clients))
    assert genes_of([site.clients[2]]) == {2: everyone[2]}
    assert len({genes_of([site.clients[0]], round=r)[0] for r in range(1, 30)}) > 5
    assert len({genes_of([site.clients[0]], seed=s)[0] for s in range(30)}) > 5
    assert len({genes_of([replace(site.clients[0], id=i)])[i] for i in range(30)}) > 5


def test_a_subnet_is_sent_and_not_the_supernet(site: ClientHost):
    state, space = first_state(site), site.setting.space
    server = Server(site.setting, 1, site.clients)
    for message in site.algorithm.configure(server, state, list(site.clients)).values():
        arch = space.repair(tuple(message.info["genes"]))
        wanted = shapes(space, arch, site.setting.task)
        assert {n: tuple(t.shape) for n, t in message.tensors.items()} == wanted
        assert set(message.info) == {"genes"}
        for n, t in message.tensors.items():
            assert torch.equal(t, windowed(state.weights[n], t.shape))
            t.zero_()  # a copy: the supernet is not touched
    assert codec.digest(state.weights) == codec.digest(first_state(site).weights)


def test_training_is_what_it_says(site: ClientHost):
    """Local epochs on what was sent, statistics settled, accuracy on validation data."""
    state, done = play(site, first_state(site), 1)
    server = Server(site.setting, 1, site.clients)
    messages = site.algorithm.configure(server, first_state(site), list(site.clients))
    for i, step in done.items():
        client = site.client(Ticket("train", i, 1))
        arch = site.setting.space.repair(tuple(messages[i].info["genes"]))
        model = learn.network(client, messages[i].tensors, arch)
        learn.fit(client, model, site.algorithm, lr=0.1)
        norms.settle(model.module)
        accuracy = learn.evaluate(model, client.val)["accuracy"]
        parameters = dict(model.module.named_parameters())
        assert step.reply.message.info == {"accuracy": accuracy}
        assert set(step.reply.message.tensors) == set(parameters), "and no statistics"
        assert all(torch.equal(t, parameters[n]) for n, t in step.reply.message.tensors.items())
        assert step.macs == client.meter.macs > 0
        told = {(m.split, m.model, m.name): m.value for m in step.reply.log.metrics}
        assert told["val", "trained", "accuracy"] == accuracy
        test = learn.evaluate(model, client.test)["accuracy"]
        assert told["test", "trained", "accuracy"] == test
        (found,) = step.reply.log.architectures
        assert (found.arch, found.score, found.role) == (arch, accuracy, "trained")
        assert state.past[i].accuracy == accuracy


def test_a_device_without_the_memory_does_not_train(site: ClientHost):
    least = cost.training_memory(Dense(), Dense().smallest(), site.setting.task, 16)
    poor = with_memory(site, [0.9 * least / cost.MIB, 1e3, None, None])
    state, done = play(poor, first_state(poor), 1)
    reply = done[0].reply
    assert not reply.message.tensors and done[0].macs == 0
    assert reply.message.info["accuracy"] == 0.0 and reply.message.info["memory"] > 1
    assert not reply.log.metrics and reply.log.architectures[0].score == 0.0
    drawn = done[1].reply.log.architectures[0].arch
    share = cost.training_memory(Dense(), drawn, site.setting.task, 16) / (1e3 * cost.MIB)
    assert done[1].reply.message.info["memory"] == pytest.approx(share) and share < 1
    assert "memory" not in done[2].reply.message.info, "there is no limit to speak of"
    assert state.past[0].accuracy is None
    served = poor.algorithm.serve(Server(poor.setting, 1, poor.clients), state, poor.clients[0])
    assert tuple(served.info["genes"]) == Dense().smallest(), "as small as it gets"


@pytest.mark.parametrize("options", [{}, {"lambda_memory": 1.0, "baseline": "own"}], ids=str)
def test_a_client_with_little_memory_learns_smaller_architectures(
    site: ClientHost, options: dict[str, Any]
):
    """Three of 12 architectures fit client 0; client 1 has no limit."""
    task, space = site.setting.task, Dense()
    memory = {a: cost.training_memory(space, a, task, 16) for a in genes.enumerate_all(space)}
    limit = sorted(memory.values())[2]
    how = PerFedRLNAS(epochs=1, batch=16, lr=0.1, **options)
    two = replace(with_memory(site, [limit / cost.MIB, None]), algorithm=how)

    def expected(state: Searching, client: int, what: dict[Arch, Any]) -> float:
        alphas, draws = how.alphas(space, state, client), every_draw(space)
        return sum(chance(space, alphas, d) * what[space.repair(d)] for d in draws)

    too_large = {arch: size > limit for arch, size in memory.items()}
    state = start = first_state(two)
    overflows = []
    for round in range(1, 61):
        state, done = play(two, state, round)
        overflows.append(not done[0].reply.message.tensors)
        assert overflows[-1] == too_large[done[0].reply.log.architectures[0].arch]
        assert done[1].reply.message.tensors
    assert expected(start, 0, too_large) > 0.7
    assert expected(state, 0, too_large) < 0.2, "the policy has learned what does not fit"
    assert sum(overflows[-20:]) < sum(overflows[:20]) / 2
    assert expected(state, 0, memory) < 0.5 * expected(start, 0, memory)
    assert expected(state, 1, memory) > 0.8 * expected(start, 1, memory), "it need not be small"
    assert memory[how.chosen(two.setting, state, two.clients[0])] <= limit


@pytest.mark.parametrize("name", ["mobilenetv3_plato", "nasvit"])
def test_what_is_served_fits_the_memory(name: str):
    space, how = cpu(name), PerFedRLNAS()
    setting = Setting(TASK, space, 100, seed=2)
    length = sum(genes.option_counts(space))
    alphas = 3 * torch.randn(1, length, generator=generator(1), dtype=torch.float64)
    state = Searching({}, policy.Policies((0,), alphas, alphas.new_zeros(1, 3, length)))
    sizes = [how.memory(setting, arch) / cost.MIB for arch in (space.smallest(), space.largest())]
    limit = 0.8 * sizes[0] + 0.2 * sizes[1]
    poor = ClientInfo(0, 10, Budget(memory_mb=limit))
    assert how.memory(setting, how.chosen(setting, state, poor)) <= limit * cost.MIB
    assert how.chosen(setting, state, ClientInfo(0, 10)) == policy.likeliest(space, alphas[0])


def test_frozen_weights_neither_travel_nor_change(site: ClientHost):
    still = replace(site, algorithm=replace(site.algorithm, frozen=True))
    start = state = first_state(still)
    for round in (1, 2):
        state, done = play(still, state, round)
        for i, step in done.items():
            assert not step.reply.message.tensors and set(step.reply.message.info) == {"accuracy"}
            client, arch = site.client(Ticket("train", i, round)), step.reply.log.architectures[0]
            weights = cut(start.weights, shapes(Dense(), arch.arch, site.setting.task))
            model = learn.network(client, weights, arch.arch)
            learn.recalibrate(model, client.train)
            accuracy = learn.evaluate(model, client.val)["accuracy"]
            assert step.reply.message.info["accuracy"] == accuracy == arch.score
            per_image = cost.forward_macs(Dense(), arch.arch, site.setting.task)
            assert step.macs == per_image * (len(client.train) + len(client.val))
    assert codec.digest(state.weights) == codec.digest(start.weights)
    assert set(state.policies.numbers) == {0, 1, 2, 3}, "policies learn"


def test_what_is_deployed_is_recalibrated_also_for_clients_never_sampled(site: ClientHost):
    state, _ = play(replace(site, clients=site.clients[:2]), first_state(site), 1)
    server = Server(site.setting, 1, site.clients)
    for info in site.clients:
        message = site.algorithm.serve(server, state, info)
        arch = tuple(message.info["genes"])
        assert info.id < 2 or arch == Dense().middle(), "undecided"
        client = site.client(Ticket("deploy", info.id, 1))
        models = site.algorithm.deploy(client, None, message)
        label, model = next(models)
        untuned = model.weights()
        by_hand = learn.network(client, message.tensors, arch)
        learn.recalibrate(by_hand, client.train)
        expected = by_hand.weights()
        assert label == "untuned" and model.arch == arch
        assert {n for n in expected if "running" in n}, "there is batch norm"
        assert all(torch.equal(untuned[n], t) for n, t in expected.items())
        assert not untuned["hidden0.2.running_mean"].eq(0).any()
        assert [name for name, _ in models] == ["tuned"]


def relabelled(site: ClientHost, client_rows: slice) -> ClientHost:
    """Give other labels to part of every client's data: slice(2, 4) is that for tests."""
    data, labels = site.federation, site.federation.labels.clone()
    for first, last in data.bounds[:, client_rows].tolist():
        rows = data.rows[first:last]
        labels[rows] = (labels[rows] + 1) % 10
    return replace(site, data=replace(data, labels=labels))


@pytest.mark.parametrize("frozen", [False, True])
def test_test_data_is_never_looked_at(site: ClientHost, frozen: bool):
    """Other test labels: the same bytes leave the clients, and the same state follows."""

    def bytes_of(site: ClientHost) -> tuple[str, list[str], list[float]]:
        state, sent, tested = first_state(site), [], []
        for round in (1, 2, 3):
            state, done = play(site, state, round)
            sent += [codec.digest(d.reply.message) for d in done.values()]
            tested += [m.value for d in done.values() for m in d.reply.log.metrics
                       if (m.split, m.model) == ("test", "trained")]  # fmt: skip
        return codec.digest(state), sent, tested

    honest = replace(site, algorithm=replace(site.algorithm, frozen=frozen))
    state, sent, tested = bytes_of(honest)
    other = bytes_of(relabelled(honest, slice(2, 4)))
    assert (state, sent) == other[:2] and tested != other[2]
    assert bytes_of(relabelled(honest, slice(1, 3)))[0] != state, "validation data it does look at"
    papers = replace(honest, algorithm=replace(honest.algorithm, accuracy="test"))
    assert bytes_of(papers)[0] != bytes_of(relabelled(papers, slice(2, 4)))[0]


def test_searching_on_test_data_warns():
    assert PerFedRLNAS().warnings() == ()
    (text,) = PerFedRLNAS(accuracy="test").warnings()
    assert text.startswith("algorithm.accuracy:") and "test" in text


# Statistics.


class Normed(nn.Sequential):
    """Two batch norms of different momentum, one without any, and one that counts plainly."""

    def __init__(self) -> None:
        moving = nn.BatchNorm2d(2), nn.BatchNorm2d(2, momentum=0.4)
        plain = nn.BatchNorm2d(2, track_running_stats=False), nn.BatchNorm2d(2, momentum=None)
        super().__init__(*moving, *plain)


@pytest.mark.parametrize("batches", [1, 2, 7])
def test_settled_statistics_are_the_exact_moving_means(batches: int):
    """Batch i of k weighs (1 - momentum) ** (k - i), and the weights add up to 1."""
    model, rng = Normed(), generator(3)
    seen: dict[int, list[torch.Tensor]] = {0: [], 1: [], 3: []}
    for place, inputs in seen.items():
        model[place].register_forward_hook(lambda _, given, __, kept=inputs: kept.append(given[0]))
    for _ in range(batches):
        model(5 + 3 * torch.randn(4, 2, 3, 3, generator=rng))
    plain = model[3].running_var.clone()  # pyright: ignore
    norms.settle(model)
    for place, momentum in ((0, 0.1), (1, 0.4)):
        weights = torch.tensor([(1 - momentum) ** (batches - i) for i in range(1, batches + 1)])
        weights = (weights / weights.sum()).double()
        flat = [x.detach().double().transpose(0, 1).flatten(1) for x in seen[place]]
        mean = sum(w * x.mean(1) for w, x in zip(weights, flat, strict=True))
        variance = sum(w * x.var(1) for w, x in zip(weights, flat, strict=True))
        norm = model[place]
        assert torch.allclose(norm.running_mean.double(), torch.as_tensor(mean), rtol=1e-4)  # pyright: ignore
        assert torch.allclose(norm.running_var.double(), torch.as_tensor(variance), rtol=1e-4)  # pyright: ignore
    assert torch.equal(model[3].running_var, plain), "a plain mean has nothing to settle"  # pyright: ignore


def test_statistics_of_a_model_that_never_trained_are_left_alone(site: ClientHost):
    state = first_state(site)
    arch = Dense().largest()
    weights = cut(state.weights, shapes(Dense(), arch, site.setting.task))
    model = network_of(Dense(), arch, site.setting.task, weights)
    before = codec.digest(model.weights())
    norms.settle(model.module)
    assert codec.digest(model.weights()) == before
    assert model.module.state_dict()["hidden0.2.running_var"].eq(1).all()


def test_parameters_are_copied_without_statistics(site: ClientHost):
    state, arch = first_state(site), Dense().largest()
    model = network_of(Dense(), arch, site.setting.task, state.weights)
    found = model.weights(statistics=False)
    parameters = dict(model.module.named_parameters())
    assert list(found) == list(parameters)
    assert not any("running" in name or "num_batches" in name for name in found)
    for name, tensor in found.items():
        assert torch.equal(tensor, parameters[name]) and not tensor.requires_grad
        assert tensor.data_ptr() != parameters[name].data_ptr() and tensor.is_contiguous()
