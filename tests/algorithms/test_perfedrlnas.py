"""PerFedRLNAS on the server: rewards and merging."""

import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.algorithms.perfedrlnas import PerFedRLNAS, Searching
from fedtailor.core import codec
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import ClientInfo, Json, Message, Result, Server, Setting, Tensors
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import cut, full_shapes, shapes
from fedtailor.search import genes
from tests.helpers.made_up import TASK, Coin, Dense, cpu, generator, windowed

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


@pytest.mark.parametrize(
    ("rule", "mean"),
    [("count", 1.5), ("count_samples", 210 / 110), ("frequency", (2 * 1 + 8 * 2) / 10)],
)
def test_each_merge_rule_weighs_clients_by_what_it_says(rule: Any, mean: float):
    """Ten and a hundred images are 1 and 4 batches of 32, in two epochs 2 and 8."""
    algorithm = PerFedRLNAS(merge=rule, batch=32, epochs=2, policy="uniform")
    infos = (ClientInfo(0, 10), ClientInfo(1, 100))
    server = Server(Setting(TASK, Dense(), 5, 0), 1, infos)
    state = algorithm.server_init(server)
    genes = list(Dense().largest())
    results = [
        Result(
            info,
            {"genes": genes},
            Message({n: w + step for n, w in state.weights.items()}, {"accuracy": 0.5}),
            1.0,
            0,
        )
        for info, step in zip(infos, (1.0, 2.0), strict=True)
    ]
    after = algorithm.aggregate(server, state, results).weights
    assert all(torch.allclose(after[n], w + mean, atol=1e-5) for n, w in state.weights.items())
