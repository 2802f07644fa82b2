"""Made-up clients whose best architectures are known: whether policies find them."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.algorithms.perfedrlnas import SHARED, Past, PerFedRLNAS, Searching
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import ClientInfo, Message, Result, Server, Setting
from fedtailor.search import policy
from fedtailor.search.policy import Policies
from tests.helpers.made_up import (
    SMALL,
    TASK,
    Free,
    chance,
    drawn_alphas,
    every_draw,
    generator,
    length,
    slope,
)

SPACE = Free()
BEST: dict[int, Arch] = {0: (0, 1, 2), 1: (2, 0, 0), 2: (1, 1, 1)}
INFOS = tuple(ClientInfo(number, 10) for number in BEST)
RULES: dict[str, dict[str, Any]] = {
    "plain": {"policy_rule": "plain", "policy_lr": 3.0},
    "adam": {"policy_rule": "adam", "policy_lr": 0.1},
}
rules = pytest.mark.parametrize("rule", RULES)
Accuracy = Callable[[int, Arch], float]


def at(round: int, space: SearchSpace = SPACE) -> Server:
    return Server(Setting(TASK, space, 1000, seed=1), round, INFOS)


def play(
    how: PerFedRLNAS, accuracy: Accuracy, rounds: int, start: Searching | None = None
) -> Searching:
    """Let all clients take part in some rounds, without any network."""
    state = start or Searching({})
    for round in range(1, rounds + 1):
        messages = how.configure(at(round), state, list(INFOS))
        told = {i: {"accuracy": accuracy(i, tuple(m.info["genes"]))} for i, m in messages.items()}
        results = [
            Result(info, messages[info.id].info, Message(info=told[info.id]), 1.0, round - 1)
            for info in INFOS
        ]
        state = how.aggregate(at(round), state, iter(results))
    return state


def noisy(best: dict[int, Arch], noise: float = 0.05) -> Accuracy:
    """Return accuracies that fall with every gene that is not the best; what is told is noisy."""
    rng = generator(3)

    def accuracy(client: int, arch: Arch) -> float:
        wrong = sum(a != b for a, b in zip(arch, best[client], strict=True))
        return 0.8 - 0.15 * wrong + noise * float(torch.randn((), generator=rng))

    return accuracy


def certainty(how: PerFedRLNAS, state: Searching, client: int, arch: Arch) -> float:
    return chance(SPACE, how.alphas(SPACE, state, client), arch)


def undecided(how: PerFedRLNAS, state: Searching, client: int = 0) -> float:
    each = policy.entropies(SPACE, how.alphas(SPACE, state, client))
    return sum(each) / len(each)


@rules
@pytest.mark.parametrize("options", [{}, {"baseline": "own"}, {"average": "best"}], ids=str)
def test_every_client_finds_its_own_best(rule: str, options: dict[str, Any]):
    how = PerFedRLNAS(**RULES[rule], **options)
    state = play(how, noisy(BEST), 120)
    for client, best in BEST.items():
        assert how.chosen(at(1).setting, state, INFOS[client]) == best
        assert certainty(how, state, client, best) > 0.6, "1/18 by chance"
    assert state.policies.numbers == (0, 1, 2)


@rules
def test_a_shared_policy_finds_what_is_best_on_average(rule: str):
    """Which is nobody's best: each is alone with one of its genes."""
    best: dict[int, Arch] = {0: (2, 1, 0), 1: (1, 0, 0), 2: (1, 1, 2)}
    how = PerFedRLNAS(policy="shared", **RULES[rule])
    state = play(how, noisy(best), 150)
    assert state.policies.numbers == (SHARED,)
    for info in INFOS:
        assert how.chosen(at(1).setting, state, info) == (1, 1, 0)
    assert certainty(how, state, 0, (1, 1, 0)) > 0.5


@rules
def test_a_uniform_policy_never_learns(rule: str):
    how = PerFedRLNAS(policy="uniform", **RULES[rule], entropy=0.1)
    state = play(how, noisy(BEST), 40)
    assert state.policies.numbers == () and not how.alphas(SPACE, state, 0).any()
    assert state.past[1].times == 40, "rewards are computed all the same, to be looked at"
    assert how.chosen(at(1).setting, state, INFOS[0]) == SPACE.middle()
    seen = Counter(
        tuple(how.configure(at(round), state, [INFOS[0]])[0].info["genes"]) for round in range(200)
    )
    assert len(seen) == 18


def test_both_learn_what_is_common_and_what_is_not():
    """The last gene is best for all, the first for each alone."""
    best: dict[int, Arch] = {0: (0, 1, 2), 1: (1, 1, 2), 2: (2, 1, 2)}
    how = PerFedRLNAS(policy="both", policy_lr=3.0)
    state = play(how, noisy(best), 120)
    assert set(state.policies.numbers) == {0, 1, 2, SHARED}
    for client, arch in best.items():
        assert how.chosen(at(1).setting, state, INFOS[client]) == arch
        assert state.policies.row(client, 8).abs().max() > 0.1
    shared = policy.probabilities(SPACE, state.policies.row(SHARED, 8))
    assert shared[2].argmax() == 2 and shared[2][2] > 0.8
    total = state.policies.row(1, 8) + state.policies.row(SHARED, 8)
    assert torch.equal(how.alphas(SPACE, state, 1), total)
    stranger = how.alphas(SPACE, state, 77)
    assert torch.equal(stranger, state.policies.row(SHARED, 8)), "newcomers begin with the shared"


@rules
def test_an_entropy_bonus_keeps_policies_undecided(rule: str):
    sure, open_ = (
        undecided(how, play(how, noisy(BEST), 80))
        for how in (PerFedRLNAS(**RULES[rule]), PerFedRLNAS(**RULES[rule], entropy=0.1))
    )
    assert open_ > sure + 0.1


def test_a_temperature_above_1_draws_more_evenly():
    alphas = torch.tensor([[3.0, 0, 0, 0, 0, 0, 0, 0]], dtype=torch.float64)
    state = Searching({}, Policies((0,), alphas, alphas.new_zeros(1, 3, 8)))
    often = []
    for temperature in (1.0, 4.0):
        how = PerFedRLNAS(temperature=temperature)
        drawn = (how.configure(at(r), state, [INFOS[0]])[0].info["genes"] for r in range(400))
        often.append(sum(genes[0] == 0 for genes in drawn) / 400)
        entropy = how.observe(at(5), Searching({}, state.policies, {0: Past(5, 1, 0.0, 0.0, 0.0)}))
        shares = policy.entropies(SPACE, alphas[0], temperature)
        assert entropy[0][1].value == pytest.approx(sum(shares) / 3)
    expected = [float(torch.tensor([3.0 / t, 0, 0]).softmax(0)[0]) for t in (1.0, 4.0)]
    assert often == pytest.approx(expected, abs=0.07)


def test_nothing_is_learned_before_the_warmup_is_over():
    how = PerFedRLNAS(warmup=5)
    state = play(how, noisy(BEST), 5)
    assert state.policies.numbers == () and state.past[0].times == 5
    server = at(6)
    messages = how.configure(server, state, list(INFOS))
    results = [
        Result(info, messages[info.id].info, Message(info={"accuracy": 0.1 * info.id}), 1.0, 5)
        for info in INFOS
    ]
    assert set(how.aggregate(server, state, results).policies.numbers) == {0, 1, 2}


@pytest.mark.parametrize("space", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 2.0},
        {"baseline": "own"},
        {"entropy": 0.3, "temperature": 2.0},
        {"policy": "both", "temperature": 0.5, "baseline": "own"},
    ],
    ids=str,
)
def test_what_is_climbed_is_the_expected_reward(space: SearchSpace, options: dict[str, Any]):
    """The exact mean of a round's step over all draws, against differences of the reward's mean.

    The other client has accuracy 0.3 and needs a second: the reward is that of Eq. 8.
    """
    how = PerFedRLNAS(policy_lr=1.7, lambda_time=0.1, **options)
    rng = generator(4)
    every = sorted({space.repair(drawn) for drawn in every_draw(space)})
    right, slow = (dict(zip(every, torch.rand(len(every), generator=rng).tolist(), strict=True))
                   for _ in range(2))  # fmt: skip
    rows = torch.stack([drawn_alphas(space, seed=5), drawn_alphas(space, seed=6)])
    known = Policies((0, SHARED), rows, rows.new_zeros(2, 3, length(space)))
    past = {0: Past(1, 3, 0.1, 0.25, 0.9)}
    alphas = rows.sum(0) if how.policy == "both" else rows[0]

    def expected(where: Tensor) -> float:
        total = 0.0
        for drawn in every_draw(space):
            p, arch = chance(space, where, drawn, how.temperature), space.repair(drawn)
            total += p * ((right[arch] - 0.3) / 2 - 0.1 * slow[arch])
        chances = policy.probabilities(space, where, how.temperature)
        return total + how.entropy * sum(float(-(p * p.log()).sum()) for p in chances)

    mean = torch.zeros_like(alphas)
    for drawn in every_draw(space):
        arch = space.repair(drawn)
        told = Message(info={"accuracy": right[arch]})
        results = [
            Result(INFOS[0], {"genes": list(drawn)}, told, 1.0 + slow[arch], 1),
            Result(INFOS[1], {"genes": list(drawn)}, Message(info={"accuracy": 0.3}), 1.0, 1),
        ]
        state = how.aggregate(at(2, space), Searching({}, known, past), results)
        step = state.policies.row(0, len(mean)) - rows[0]
        mean += chance(space, alphas, drawn, how.temperature) * step
    assert torch.allclose(mean, 1.7 * slope(expected, alphas), atol=1e-7)
    assert mean.abs().max() > 0.01
