"""The score network: exact where it claims to be, learns the rest, looks only where it may."""

import dataclasses
import itertools
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core import codec
from fedtailor.core.space import Arch, Choice, SearchSpace
from fedtailor.networks.initial import initialise
from fedtailor.pretrain.network_training import Training, train
from fedtailor.search import genes
from fedtailor.search.diffusion import sde as equations
from fedtailor.search.diffusion import tokens
from fedtailor.search.diffusion.score_network import (
    LIGHT,
    PAPER,
    ScoreNetwork,
    ScoreSettings,
    denoised,
)
from fedtailor.search.diffusion.sde import EPSILON, SDE, VE, VP
from tests.helpers import made_up
from tests.helpers.made_up import cpu, generator

SMALL = ScoreSettings(layers=2, width=32, heads=2, feedforward=32, hidden=(32,))
EQUATIONS: dict[str, SDE] = {"ve": VE(), "vp": VP()}


@dataclass(frozen=True)
class Five(made_up.Free):
    """Five genes, everything legal."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        counts = (3, 3, 2, 2, 2)
        return tuple(Choice(f"gene {i}", tuple(range(n))) for i, n in enumerate(counts))


def network(space: SearchSpace, settings: ScoreSettings = SMALL, sde: SDE | None = None):
    found = ScoreNetwork(tokens.encoding(space), sde or VE(), settings)
    initialise(found, generator())
    return found.eval()


def loud(found: ScoreNetwork) -> ScoreNetwork:
    """Let the head say something, as after training."""
    with torch.no_grad():
        found.network.head[-1].get_parameter("weight").normal_(generator=generator(1))
    return found


def noised(number: int, space: SearchSpace, seed: int = 3) -> tuple[Tensor, Tensor]:
    code, rng = tokens.encoding(space), generator(seed)
    t = torch.rand(number, generator=rng, dtype=torch.float64)
    spread = 0.3 + t[:, None, None]
    x = spread * torch.randn(number, code.length, code.vocabulary, generator=rng).double()
    return x, t


def log_densities(
    found: ScoreNetwork, values: Tensor, chances: Tensor, x: Tensor, t: Tensor
) -> Tensor:
    """Return log p(architecture, x) up to a constant, by the plain normal density: (x, archs)."""
    clean = 2 * (F.one_hot(values, x.shape[2]) - found.shares)
    scale, std = (each[:, None, None, None] for each in found.sde.marginal(t))
    away = ((x[:, None] - scale * clean) ** 2 / (2 * std**2)).sum((2, 3))
    return chances.double().log() - away


def posterior(found: ScoreNetwork, x: Tensor, t: Tensor) -> Tensor:
    """Return the probabilities of clean values that a score means, by Tweedie's formula."""
    return found.from_diffused(denoised(found.sde, found, x, t))


def brute_posterior(
    found: ScoreNetwork, values: Tensor, chances: Tensor, x: Tensor, t: Tensor
) -> Tensor:
    """Return the probabilities of tokens' values by summing over all architectures."""
    each = log_densities(found, values, chances, x, t).softmax(1)
    return torch.einsum("na,atv->ntv", each, F.one_hot(values, x.shape[2]).double())


def uniform(space: SearchSpace) -> tuple[Tensor, Tensor]:
    values = tokens.encode(space, list(genes.enumerate_all(space)))
    return values, torch.full((len(values),), 1 / len(values))


def paired(space: SearchSpace) -> tuple[Tensor, Tensor]:
    """Return all architectures of Free, and chances by which the first two genes go together."""
    values, chances = uniform(space)
    chances = torch.where(values[:, 0] % 2 == values[:, 1], chances, 0.1 * chances)
    chances = chances * torch.tensor([3.0, 1.0, 1.0])[values[:, 2]]
    return values, chances / chances.sum()


@pytest.mark.parametrize("equation", EQUATIONS.values(), ids=EQUATIONS)
@pytest.mark.parametrize("kind", ["independent", "pairs"])
def test_untrained_it_is_bayes_rule(equation: SDE, kind: str):
    """For independent uniform tokens, and for measured ones of which two go together."""
    space = made_up.Free()
    found = network(space, sde=equation)
    values, chances = uniform(space) if kind == "independent" else paired(space)
    if kind == "pairs":
        counts = (1e6 * chances).round().long()
        found.centre(values.repeat_interleave(counts, 0))
        assert found.parents.tolist() != [0, 1, 2]
    found = found.double()
    x, t = noised(20, space)
    told = posterior(found, x, t)
    assert torch.allclose(told, brute_posterior(found, values, chances, x, t), atol=1e-5)
    assert told[:, ~tokens.encoding(space).allowed].abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["independent", "pairs"])
def test_the_score_is_the_slope_of_the_log_density(kind: str):
    space = made_up.Free()
    found = network(space)
    values, chances = uniform(space) if kind == "independent" else paired(space)
    if kind == "pairs":
        found.centre(values.repeat_interleave((1e6 * chances).round().long(), 0))
    found = found.double()
    x, t = noised(3, space)
    score = found(x, t)
    for row in range(3):

        def density(at: Tensor, row: int = row) -> float:
            one = at.view(1, *x.shape[1:])
            each = log_densities(found, values, chances, one, t[row : row + 1])
            return float(each.logsumexp(1))

        slope = made_up.slope(density, x[row].flatten(), 1e-4)
        assert torch.allclose(score[row].flatten(), slope, rtol=1e-3, atol=1e-3)


def test_centred_tables_have_mean_zero_and_come_back():
    space = cpu("mobilenetv3")
    found = network(space)
    archs = genes.sample_many(space, 500, generator())
    found.centre(tokens.encode(space, archs))
    tables = tokens.one_hot(space, archs)
    x = found.to_diffused(tables)
    assert x.mean(0).abs().max() < 0.02  # of which 0.5 / 500 and more is for what was not seen
    assert x[:, ~tokens.encoding(space).allowed].eq(0).all()
    assert torch.allclose(found.from_diffused(x), tables, atol=1e-6)


@pytest.mark.parametrize("name", ["mobilenetv3", "darts", "nasvit"])
def test_measured_pairs_keep_the_rules_of_the_spaces(name: str):
    """So raw validity is high before any training; without them 0.56 in mobilenetv3."""
    space, code = cpu(name), tokens.encoding(cpu(name))
    found = network(space, dataclasses.replace(SMALL, layers=1))
    found.centre(tokens.encode(space, genes.sample_many(space, 10_000, generator())))
    shape = (200, code.length, code.vocabulary)
    x = equations.heun(found.sde, found, shape, generator(2), 8)
    with torch.no_grad():
        x = denoised(found.sde, found, x, torch.full((200,), EPSILON))
    assert tokens.raw_valid(space, found.from_diffused(x)).float().mean() >= 0.98


def train_on(found: ScoreNetwork, values: Tensor, training: Training) -> None:
    def loss(step: int, rng: torch.Generator) -> Tensor:
        rows = torch.randint(len(values), (training.batch,), generator=rng)
        return found.loss(values[rows], rng)

    train(found, loss, training, seed=0)


def toy(number: int, seed: int) -> Tensor:
    """Draw values of Five: unequal shares, a noisy pair, and a last gene that is an "or" of two."""
    rng = generator(seed)
    first = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), number, True, generator=rng)
    other = torch.randint(3, (number,), generator=rng)
    second = torch.where(torch.rand(number, generator=rng) < 0.8, first, other)
    bits = torch.randint(2, (number, 2), generator=rng)
    return torch.stack([first, second, bits[:, 0], bits[:, 1], bits.amax(1)], 1)


def joint(values: Tensor) -> Tensor:
    found = torch.zeros(3, 3, 2, 2, 2)
    return found.index_put_(tuple(values.T), torch.ones(len(values)), accumulate=True) / len(values)


def drawn(found: ScoreNetwork, space: SearchSpace, number: int) -> Tensor:
    code = tokens.encoding(space)
    shape = (number, code.length, code.vocabulary)
    x = equations.heun(found.sde, found, shape, generator(9), 10)
    return tokens.encode(space, tokens.project(space, found.from_diffused(x)))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def test_a_known_distribution_is_recovered():
    """All 72 architectures' chances within 0.08 in total variation; 0.04 is between samples.

    What goes together in pairs is measured. That one gene is the "or" of two others is learned.
    """
    space, values = Five(), toy(20_000, 0)
    truth = joint(toy(200_000, 1))
    found = network(space)
    bare = joint(drawn(found, space, 2000))
    found.centre(values)
    before = joint(drawn(found, space, 2000))
    train_on(found, values, Training(300, 128, lr=4e-3, ema=0.99))
    after = joint(drawn(found, space, 2000))
    assert distance(bare, truth) > 0.5
    assert distance(before, truth) > 0.11
    assert distance(after, truth) < 0.08
    for gene in range(5):
        others = [other for other in range(5) if other != gene]
        assert distance(after.sum(others), truth.sum(others)) < 0.03
    assert distance(after.sum((2, 3, 4)), truth.sum((2, 3, 4))) < 0.05


def test_a_pair_is_learned_where_it_was_not_measured():
    """Two genes that are always equal, from tables that were centred as if they were not."""
    space, shuffled = made_up.Twins(), torch.randint(3, (5000, 2), generator=generator())
    found = network(space)
    found.centre(shuffled)
    train_on(found, shuffled[:, :1].repeat(1, 2), Training(150, 128, lr=5e-3, ema=0.98))
    code = tokens.encoding(space)
    x = equations.heun(found.sde, found, (500, code.length, code.vocabulary), generator(9), 10)
    values = x.argmax(2)
    assert (values[:, 0] == values[:, 1]).float().mean() > 0.95


def test_a_network_that_gives_the_score_learns_too():
    """The paper's loss, at a size that trains in seconds: better than any without dependence."""
    space, values = made_up.Twins(), torch.randint(3, (5000, 1), generator=generator()).repeat(1, 2)
    settings = dataclasses.replace(SMALL, output="score", mask="adjacency", loops=False)
    found = network(space, dataclasses.replace(settings, hidden=(64,), every_block=True))
    found.centre(values)

    train_on(found, values, Training(300, 128, lr=5e-3, ema=0.98))
    alone = network(space)  # exact for independent tokens: it does not know that the two are equal
    x0 = found.to_diffused(F.one_hot(values[:4000], 3).float())
    with torch.no_grad():
        mine, independent = (
            float(equations.score_loss(found.sde, each, x0, generator(5)))
            for each in (found, alone)
        )
    assert mine < independent


def seen_by(found: ScoreNetwork, space: SearchSpace) -> Tensor:
    """Return whether the row's probabilities depend on the noised row of the column's token."""
    code = tokens.encoding(space)
    x = torch.randn(1, code.length, code.vocabulary, generator=generator()).requires_grad_()
    t = torch.full((1,), 0.7)
    weights = torch.randn(code.vocabulary, generator=generator(1))
    told = found(x, t) if found.settings.output == "score" else posterior(found, x, t)
    rows = []
    for token in range(code.length):
        (slope,) = torch.autograd.grad((told[0, token] * weights).sum(), x, retain_graph=True)
        rows.append(slope[0].abs().sum(1) > 0)
    return torch.stack(rows)


@pytest.mark.parametrize("mask", ["adjacency", "both", "none"])
@pytest.mark.parametrize("name", ["mobilenetv3", "darts"])
def test_one_layer_looks_only_where_it_may(name: str, mask: str):
    space = cpu(name)
    reads = tokens.encoding(space).adjacency
    expected = {"adjacency": reads, "both": reads | reads.T, "none": torch.ones_like(reads)}[mask]
    settings = dataclasses.replace(SMALL, layers=1, mask=mask)  # pyright: ignore[reportArgumentType]
    looks = seen_by(loud(network(space, settings)), space)
    assert torch.equal(looks, expected | torch.eye(len(reads), dtype=torch.bool))


def test_the_papers_mask_has_no_loops_and_the_last_token_looks_at_all():
    space = cpu("mobilenetv3")
    settings = dataclasses.replace(PAPER, layers=1, heads=2, hidden=(32,))
    looks = seen_by(loud(network(space, settings)), space)
    chain = torch.eye(20, dtype=torch.bool) | torch.eye(20).roll(1, 1).bool()  # own: added after
    chain[-1] = True
    assert torch.equal(looks, chain)


def test_the_papers_size():
    """3.99 million for 20 tokens of 9 values, of which the head has 3.56; ours have 10 values."""
    code = tokens.encoding(cpu("mobilenetv3"))
    nine = dataclasses.replace(code, allowed=code.allowed[:, :9])
    for each, expected in ((nine, 3_992_777), (code, 3_994_378)):
        found = ScoreNetwork(each, VE(), PAPER)
        assert sum(p.numel() for p in found.parameters()) == expected
    head = found.network.head.parameters()
    assert sum(p.numel() for p in head) == 768 * 1536 + 1536 + 1536 * 1536 + 1536 + 1536 * 10 + 10


def test_weights_come_from_the_generator_alone():
    before = torch.get_rng_state()
    one, other = (loud(network(cpu("darts"))).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("settings", [SMALL, LIGHT, PAPER], ids=["small", "light", "paper"])
def test_rows_do_not_depend_on_each_other(settings: ScoreSettings):
    space = cpu("nasvit")
    found = loud(network(space, settings))
    x, t = (each.float() for each in noised(3, space))
    with torch.no_grad():
        together = found(x, t)
        for row in range(3):
            one = slice(row, row + 1)
            assert torch.allclose(found(x[one], t[one]), together[one], rtol=1e-3, atol=1e-3)


def test_probabilities_are_probabilities():
    space = cpu("mobilenetv3")
    found = loud(network(space, SMALL)).double()
    told = posterior(found, *noised(5, space))
    assert torch.allclose(told.sum(2), torch.ones(5, 20).double()) and told.min() > -1e-6
    assert told[:, ~tokens.encoding(space).allowed].abs().max() < 1e-6


@pytest.mark.parametrize("space", [made_up.Fixed(), made_up.Coin()], ids=["none", "one"])
def test_spaces_of_no_or_one_token(space: SearchSpace):
    found = network(space)
    archs: list[Arch] = [tuple(0 for _ in space.choices)] * 4
    found.centre(tokens.encode(space, archs))
    x, t = (each.float() for each in noised(4, space))
    assert found(x, t).shape == x.shape and found(x, t).isfinite().all()


@pytest.mark.parametrize("settings", [LIGHT, PAPER])
def test_settings_can_be_written(settings: ScoreSettings):
    assert codec.unpack(ScoreSettings, *codec.pack(settings)) == settings


def test_widths_that_do_not_fit_are_refused():
    for width, heads in itertools.product((30, 33), (4, 3)):
        if width % 2 or width % heads:
            with pytest.raises(ValueError, match="width"):
                network(Five(), ScoreSettings(width=width, heads=heads))
