"""PerFedRLNAS step by step: rewards, merging, training, deployment, budgets."""

import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor import codec, cost, genes, learn
from fedtailor.algorithms.perfedrlnas import MIB, PerFedRLNAS, Searching
from fedtailor.data.federation import Federation
from fedtailor.engines.base import Done, Ticket
from fedtailor.engines.site import Site, perform
from fedtailor.initial import initial_supernet
from fedtailor.search import policy
from fedtailor.supernet import cut, full_shapes, shapes
from fedtailor.types import (
    Arch,
    Budget,
    ClientInfo,
    Json,
    Message,
    Result,
    SearchSpace,
    Server,
    Setting,
    Tensors,
)
from tests.search.made_up import TASK, Coin, Dense, chance, cpu, every_draw, generator

INFOS = tuple(ClientInfo(number, 10 * (number + 1)) for number in range(4))


def at(round: int, space: SearchSpace) -> Server:
    return Server(Setting(TASK, space, 100, seed=2), round, INFOS)


def result(client: int, genes: Arch, tensors: Tensors | None = None, **told: Json) -> Result:
    seconds = told.pop("seconds", 1.0)
    info = {"accuracy": 0.5, **told}
    return Result(INFOS[client], {"genes": list(genes)}, Message(tensors or {}, info), seconds, 0)


# Rewards.


def entered(how: PerFedRLNAS, rounds: list[dict[int, Json]]) -> Iterator[Searching]:
    """Yield the states after rounds of (accuracy, memory) by client."""
    state = Searching({})
    for round, told in enumerate(rounds, 1):
        results = [
            result(client, (0,), accuracy=accuracy, **({"memory": memory} if memory else {}))
            for client, (accuracy, memory) in told.items()
        ]
        state = how.aggregate(at(round, Coin()), state, iter(results))
        yield state


ROUNDS: list[dict[int, Json]] = [
    {0: (0.4, 0), 1: (0.6, 0)},
    {0: (0.8, 0)},
    {0: (0.2, 0)},
    {0: (0.0, 1.5), 2: (0.0, 2.0)},  # neither could train
    {2: (0.7, 0.5)},
]


@pytest.mark.parametrize(
    ("average", "expected"),
    [
        # Averages: (.4 + .6) / 2; (.8 + .6) / 2; (.2 + .6) / 2; the same; (.2 + .6 + .7) / 3.
        ("latest", [{0: -0.1, 1: 0.1}, {0: 0.1}, {0: -0.2}, {0: -0.4, 2: -0.4}, {2: 0.2}]),
        # Best: (.4 + .6) / 2; (.8 + .6) / 2; the same; the same; (.8 + .6 + .7) / 3.
        ("best", [{0: -0.1, 1: 0.1}, {0: 0.1}, {0: -0.5}, {0: -0.7, 2: -0.7}, {2: 0.0}]),
    ],
)
@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_average_of_a_round_knows_its_accuracies_but_no_overflow(
    average: Any, expected: list[dict[int, float]], weight: float
):
    how = PerFedRLNAS(average=average, lambda_memory=weight)
    for round, (state, rewards) in enumerate(zip(entered(how, ROUNDS), expected, strict=True), 1):
        for client, reward in rewards.items():
            share = min(ROUNDS[round - 1][client][1], 1.0)
            assert state.past[client].reward == pytest.approx(reward - weight * share)
            assert state.past[client].round == round
        observed = how.observe(at(round, Coin()), state)
        assert set(observed) == set(rewards), "only those who took part"
        assert {m.name for m in observed[next(iter(rewards))]} == {"reward", "entropy"}
        if round == 4:
            assert state.past[2].accuracy is None and state.past[0].accuracy is not None


def test_history_is_kept_per_client():
    *_, state = entered(PerFedRLNAS(), ROUNDS)
    assert {c: p.times for c, p in state.past.items()} == {0: 4, 1: 1, 2: 2}
    assert state.past[0].usual == pytest.approx((-0.1 + 0.1 - 0.2 - 0.4) / 4)
    back = codec.unpack(Searching, *codec.pack(state))
    assert back.past == state.past and codec.digest(back) == codec.digest(state)


def test_round_times_are_compared_with_the_rounds_fastest():
    told = [
        result(0, (0,), accuracy=0.5, seconds=10.0),
        result(1, (0,), accuracy=0.5, seconds=30.0),
        result(2, (0,), accuracy=0.0, seconds=2.0, memory=1.2),
    ]
    state = PerFedRLNAS(lambda_time=0.01).aggregate(at(1, Coin()), Searching({}), told)
    rewards = [state.past[client].reward for client in range(3)]
    assert rewards == pytest.approx([0.0, -0.2, -0.5 - 0.2])


def test_the_own_baseline_is_the_mean_of_earlier_rewards():
    """Coin, plain rule, rate 1: the alpha of the drawn side moves by advantage * (1 - p)."""
    how = PerFedRLNAS(baseline="own", policy_lr=1.0)
    before, rewards = 0.0, [-0.1, 0.1, -0.2, -0.4]
    usual = [-0.1, -0.1, 0.0, -0.2 / 3]  # the first time there is none, and nothing is learned
    for state, reward, mean in zip(entered(how, ROUNDS[:4]), rewards, usual, strict=True):
        p = 1 / (1 + torch.tensor(-2 * before, dtype=torch.float64).exp().item())
        before += (reward - mean) * (1 - p)
        assert state.policies.row(0, 2).tolist() == pytest.approx([before, -before])


# Merging.


def subnets(space: SearchSpace, weights: Tensors, count: int) -> list[tuple[Arch, Tensors]]:
    archs = genes.sample_many(space, count, generator(7))
    return [(arch, cut(weights, shapes(space, arch, TASK))) for arch in archs]


def windowed(full: Tensor, shape: torch.Size) -> Tensor:
    """Cut by slices: leading channels, centred kernels."""
    for dimension, size in enumerate(shape):
        spare = full.shape[dimension] - size
        full = full.narrow(dimension, spare // 2 if dimension > 1 else 0, size)
    return full


@pytest.mark.parametrize("name", ["mobilenetv3_plato", "nasvit"])
def test_merging_against_zero_filled_supernets(name: str):
    """Every subnet in a supernet of zeros, all added up and divided by how many have an entry."""
    space = cpu(name)
    weights = initial_supernet(at(1, space).setting)
    rng, results = generator(8), []
    total = {n: torch.zeros(s, dtype=torch.float64) for n, s in full_shapes(space, TASK).items()}
    count = {n: torch.zeros_like(t) for n, t in total.items()}
    for client, (arch, tensors) in enumerate(subnets(space, weights, 3)):
        trained = {n: torch.randn(t.shape, generator=rng) for n, t in tensors.items()}
        results.append(result(client, arch, trained))
        for n, t in trained.items():
            windowed(total[n], t.shape).add_(t)
            windowed(count[n], t.shape).add_(1)
    before = codec.digest(weights)
    after = PerFedRLNAS().aggregate(at(1, space), Searching(weights), iter(results)).weights
    assert codec.digest(weights) == before, "the old state is not written to"
    assert set(after) == set(weights)
    seen = set()
    for n, old in weights.items():
        mean = torch.where(count[n] > 0, total[n] / count[n].clamp(min=1), old.double())
        assert torch.allclose(after[n].double(), mean, atol=2e-6), n
        assert torch.equal(after[n][count[n] == 0], old[count[n] == 0]), "nobody's stay as they are"
        seen |= set(count[n].unique().tolist())
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("name", ["mobilenetv3_plato", "nasvit"])
@pytest.mark.parametrize("rule", ["count", "count_samples", "fedavg"])
def test_merging_untrained_subnets_is_the_identity_to_the_bit(name: str, rule: Any):
    space = cpu(name)
    weights = initial_supernet(at(1, space).setting)
    results = [result(i, *subnet) for i, subnet in enumerate(subnets(space, weights, 3))]
    after = PerFedRLNAS(merge=rule).aggregate(at(1, space), Searching(weights), iter(results))
    assert codec.digest(after.weights) == codec.digest(weights)


def test_who_could_not_train_contributes_nothing_to_the_weights():
    space = cpu("mobilenetv3_plato")
    weights = initial_supernet(at(1, space).setting)
    arch, tensors = subnets(space, weights, 1)[0]
    trained = result(0, arch, {n: t + 1 for n, t in tensors.items()})
    overflow = result(1, arch, accuracy=0.0, memory=2.0)
    alone, both, none = (
        PerFedRLNAS().aggregate(at(1, space), Searching(weights), some).weights
        for some in ([trained], [trained, overflow], [overflow])
    )
    assert codec.digest(alone) == codec.digest(both) != codec.digest(weights)
    assert codec.digest(none) == codec.digest(weights)


def test_replies_are_let_go_one_by_one():
    """When the next reply is awaited, the server holds the last one at most."""
    space = Dense()
    weights = initial_supernet(at(1, space).setting)
    messages: list[weakref.ref[Message]] = []
    tensors: list[weakref.ref[Tensor]] = []

    def replies() -> Iterator[Result]:
        for client in range(4):
            assert not any(ref() for ref in messages[:-1]), f"awaiting client {client}"
            assert all(ref() is None for ref in tensors[: -len(weights)])
            made = result(client, space.largest(), {n: w + client for n, w in weights.items()})
            messages.append(weakref.ref(made.message))
            tensors.extend(weakref.ref(t) for t in made.message.tensors.values())
            yield made
            del made

    state = PerFedRLNAS().aggregate(at(1, space), Searching(weights), replies())
    assert len(messages) == 4 and all(ref() is None for ref in [*messages, *tensors])
    assert torch.allclose(state.weights["head.bias"], weights["head.bias"] + 1.5)


# Clients.


@pytest.fixture
def site(federation: Federation, tmp_path: Path) -> Site:
    setting = Setting(federation.task, Dense(), rounds=50, seed=2)
    clients = tuple(ClientInfo(i, len(federation.examples(i, "train"))) for i in range(4))
    how = PerFedRLNAS(epochs=2, batch=16, lr=0.1, finetune_epochs=1)
    return Site(how, setting, federation, clients, tmp_path, None)


def with_memory(site: Site, limits: list[float | None]) -> Site:
    clients = [replace(c, budget=Budget(memory_mb=m)) for c, m in zip(site.clients, limits)]
    return replace(site, clients=tuple(clients))


def first_state(site: Site) -> Searching:
    return site.algorithm.server_init(Server(site.setting, 0, site.clients))


def play(site: Site, state: Searching, round: int) -> tuple[Searching, dict[int, Done]]:
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


def test_a_draw_depends_on_seed_round_and_client_alone(site: Site):
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


def test_a_subnet_is_sent_and_not_the_supernet(site: Site):
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


def test_training_is_what_it_says(site: Site):
    """Local epochs on what was sent, statistics settled, accuracy on validation data."""
    state, done = play(site, first_state(site), 1)
    server = Server(site.setting, 1, site.clients)
    messages = site.algorithm.configure(server, first_state(site), list(site.clients))
    for i, step in done.items():
        client = site.client(Ticket("train", i, 1))
        arch = site.setting.space.repair(tuple(messages[i].info["genes"]))
        model = learn.model_of(site.setting, messages[i].tensors, "cpu", arch)
        learn.train(client, model, site.algorithm, lr=0.1)
        learn.settle_statistics(model)
        accuracy = learn.evaluate(model, client.val, 10, "cpu")["accuracy"]
        parameters = dict(model.named_parameters())
        assert step.reply.message.info == {"accuracy": accuracy}
        assert set(step.reply.message.tensors) == set(parameters), "and no statistics"
        assert all(torch.equal(t, parameters[n]) for n, t in step.reply.message.tensors.items())
        assert step.macs == client.meter.macs > 0
        told = {(m.split, m.name): m.value for m in step.reply.log.metrics}
        assert told["val", "trained/accuracy"] == accuracy
        test = learn.evaluate(model, client.test, 10, "cpu")["accuracy"]
        assert told["test", "trained/accuracy"] == test
        (found,) = step.reply.log.architectures
        assert (found.arch, found.score, found.role) == (arch, accuracy, "trained")
        assert state.past[i].accuracy == accuracy


def test_a_device_without_the_memory_does_not_train(site: Site):
    least = cost.training_memory(Dense(), Dense().smallest(), site.setting.task, 16)
    poor = with_memory(site, [0.9 * least / MIB, 1e3, None, None])
    state, done = play(poor, first_state(poor), 1)
    reply = done[0].reply
    assert not reply.message.tensors and done[0].macs == 0
    assert reply.message.info["accuracy"] == 0.0 and reply.message.info["memory"] > 1
    assert not reply.log.metrics and reply.log.architectures[0].score == 0.0
    drawn = done[1].reply.log.architectures[0].arch
    share = cost.training_memory(Dense(), drawn, site.setting.task, 16) / (1e3 * MIB)
    assert done[1].reply.message.info["memory"] == pytest.approx(share) and share < 1
    assert "memory" not in done[2].reply.message.info, "there is no limit to speak of"
    assert state.past[0].accuracy is None
    served = poor.algorithm.serve(Server(poor.setting, 1, poor.clients), state, poor.clients[0])
    assert tuple(served.info["genes"]) == Dense().smallest(), "as small as it gets"


def test_a_client_with_little_memory_learns_smaller_architectures(site: Site):
    """Only 4 of 12 architectures fit client 0; client 1 has no limit."""
    task, space = site.setting.task, Dense()
    memory = {a: cost.training_memory(space, a, task, 16) for a in genes.enumerate_all(space)}
    limit = sorted(memory.values())[3] / MIB
    two = replace(with_memory(site, [limit, None]), algorithm=replace(site.algorithm, epochs=1))
    how = two.algorithm
    assert isinstance(how, PerFedRLNAS)

    def expected(state: Searching, client: int, what: dict[Arch, Any]) -> float:
        alphas = how.alphas(space, state, client)
        draws = every_draw(space)
        return sum(chance(space, alphas, d) * what[space.repair(d)] for d in draws)

    too_large = {arch: size > limit * MIB for arch, size in memory.items()}
    state = start = first_state(two)
    overflows = []
    for round in range(1, 61):
        state, done = play(two, state, round)
        overflows.append(not done[0].reply.message.tensors)
        assert done[1].reply.message.tensors
    assert expected(start, 0, too_large) > 0.7
    assert expected(state, 0, too_large) < 0.2, "the policy has learned what does not fit"
    assert sum(overflows[-20:]) < sum(overflows[:20]) / 2
    assert expected(state, 0, memory) < 0.6 * expected(start, 0, memory)
    assert expected(state, 1, memory) > 0.8 * expected(start, 1, memory), "it need not be small"
    for client in (0, 1):
        chosen = how.chosen(two.setting, state, two.clients[client])
        assert client == 1 or memory[chosen] <= limit * MIB


@pytest.mark.parametrize("name", ["mobilenetv3_plato", "nasvit"])
def test_what_is_served_fits_the_memory(name: str):
    space, how = cpu(name), PerFedRLNAS()
    setting = at(1, space).setting
    length = sum(genes.option_counts(space))
    alphas = 3 * torch.randn(1, length, generator=generator(1), dtype=torch.float64)
    state = Searching({}, policy.Policies((0,), alphas, alphas.new_zeros(1, 3, length)))
    sizes = [how.memory(setting, arch) / MIB for arch in (space.smallest(), space.largest())]
    limit = 0.8 * sizes[0] + 0.2 * sizes[1]
    poor = ClientInfo(0, 10, Budget(memory_mb=limit))
    assert how.memory(setting, how.chosen(setting, state, poor)) <= limit * MIB
    assert how.chosen(setting, state, ClientInfo(0, 10)) == policy.likeliest(space, alphas[0])


def test_frozen_weights_neither_travel_nor_change(site: Site):
    still = replace(site, algorithm=replace(site.algorithm, frozen=True))
    start = state = first_state(still)
    for round in (1, 2):
        state, done = play(still, state, round)
        for i, step in done.items():
            assert not step.reply.message.tensors and set(step.reply.message.info) == {"accuracy"}
            client, arch = site.client(Ticket("train", i, round)), step.reply.log.architectures[0]
            model = learn.model_of(site.setting, cut(start.weights, shapes(
                Dense(), arch.arch, site.setting.task)), "cpu", arch.arch)  # fmt: skip
            learn.recalibrate(model, client.train, "cpu")
            accuracy = learn.evaluate(model, client.val, 10, "cpu")["accuracy"]
            assert step.reply.message.info["accuracy"] == accuracy == arch.score
            per_image = cost.forward_macs(Dense(), arch.arch, site.setting.task)
            assert step.macs == per_image * (len(client.train) + len(client.val))
    assert codec.digest(state.weights) == codec.digest(start.weights)
    assert set(state.policies.numbers) == {0, 1, 2, 3}, "policies learn"


def test_what_is_deployed_is_recalibrated_also_for_clients_never_sampled(site: Site):
    state, _ = play(replace(site, clients=site.clients[:2]), first_state(site), 1)
    server = Server(site.setting, 1, site.clients)
    for info in site.clients:
        message = site.algorithm.serve(server, state, info)
        arch = tuple(message.info["genes"])
        assert info.id < 2 or arch == Dense().middle(), "undecided"
        client = site.client(Ticket("deploy", info.id, 1))
        models = site.algorithm.deploy(client, None, message)
        label, model = next(models)
        untuned = learn.weights_of(model)
        by_hand = learn.model_of(site.setting, message.tensors, "cpu", arch)
        learn.recalibrate(by_hand, client.train, "cpu")
        expected = learn.weights_of(by_hand)
        assert label == "untuned" and learn.arch_of(model) == arch
        assert {n for n in expected if "running" in n}, "there is batch norm"
        assert all(torch.equal(untuned[n], t) for n, t in expected.items())
        assert not untuned["hidden0.2.running_mean"].eq(0).any()
        assert [name for name, _ in models] == ["tuned"]


def relabelled(site: Site, client_rows: slice) -> Site:
    """Give other labels to part of every client's data: slice(2, 4) is that for tests."""
    data, labels = site.federation, site.federation.labels.clone()
    for first, last in data.bounds[:, client_rows].tolist():
        rows = data.rows[first:last]
        labels[rows] = (labels[rows] + 1) % 10
    return replace(site, federation=replace(data, labels=labels))


@pytest.mark.parametrize("frozen", [False, True])
def test_test_data_is_never_looked_at(site: Site, frozen: bool):
    """Other test labels: the same bytes leave the clients, and the same state follows."""

    def bytes_of(site: Site) -> tuple[str, list[str], list[float]]:
        state, sent, tested = first_state(site), [], []
        for round in (1, 2, 3):
            state, done = play(site, state, round)
            sent += [codec.digest(d.reply.message) for d in done.values()]
            tested += [m.value for d in done.values() for m in d.reply.log.metrics
                       if (m.split, m.name) == ("test", "trained/accuracy")]  # fmt: skip
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
