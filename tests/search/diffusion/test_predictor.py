"""The predictor against slow versions of its parts, its invariances, and truths it can learn."""

import math
from dataclasses import dataclass, replace
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.space import Choice, SearchSpace
from fedtailor.networks.initial import initialise
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Features
from fedtailor.search.diffusion.predictor import (
    LIGHT,
    PAPER,
    Predictor,
    PredictorSettings,
    grouped,
    kendall_within,
    standardised,
)
from fedtailor.search.diffusion.sde import SDE, VE, VP
from fedtailor.search.diffusion.tokens import encoding, one_hot
from tests.helpers.made_up import Free, cpu, generator

FEATURES = 12
sizes = pytest.mark.parametrize("settings", [LIGHT, PAPER], ids=["light", "paper"])


@dataclass(frozen=True)
class Six(Free):
    """Six choices of four."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{number}", (0, 1, 2, 3)) for number in range(6))


def drawn(
    settings: PredictorSettings = LIGHT, space: SearchSpace | None = None, sde: SDE | None = None
) -> Predictor:
    """Return a predictor of random weights, of which none is 0."""
    code = encoding(space or cpu("mobilenetv3"))
    predictor = Predictor(code, sde or VE(), FEATURES, settings)
    initialise(predictor, generator())
    with torch.no_grad():
        for parameter in predictor.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator(1)))
    return predictor


def tables(predictor: Predictor, number: int = 5) -> tuple[Tensor, Tensor]:
    rng = generator(2)
    x = torch.randn(number, *predictor.shares.shape, generator=rng)
    return x, torch.rand(number, generator=rng)


def a_set(*counts: int, seed: int = 3) -> Features:
    """Return features of so many images of each class."""
    labels = torch.tensor([at for at, count in enumerate(counts) for _ in range(count)])
    values = torch.randn(len(labels), FEATURES, generator=generator(seed))
    return Features(values, labels.long())


@sizes
def test_the_order_of_images_and_classes_does_not_matter(settings: PredictorSettings):
    predictor, data = drawn(settings), a_set(4, 1, 3, 2)
    wanted = predictor.embed_features(data)
    assert wanted.shape == (settings.set_width,) and wanted.isfinite().all()
    order = torch.randperm(10, generator=generator(4))
    names = torch.tensor([70, 3, 50, 9])
    for rows, labels in ((order, data.labels), (torch.arange(10), names[data.labels])):
        other = predictor.embed_features(Features(data.values[rows], labels[rows]))
        torch.testing.assert_close(other, wanted, rtol=1e-4, atol=1e-5)
    moved = predictor.embed_features(Features(data.values, data.labels[order]))
    assert (moved - wanted).abs().max() > 1e-3  # but which image is of which class does


@sizes
def test_padding_does_not_matter_whatever_it_holds(settings: PredictorSettings):
    predictor = drawn(settings)
    values, present = grouped([a_set(4, 1, 3)])
    wanted = predictor.embed(values, present)
    padded = torch.full((1, 6, 7, FEATURES), torch.nan)
    there = torch.zeros(1, 6, 7, dtype=torch.bool)
    padded[:, 1:4, 2:6], there[:, 1:4, 2:6] = values, present
    found = predictor.embed(padded, there)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    found.sum().backward()
    parts = (*predictor.images.parameters(), *predictor.classes.parameters())
    assert all(p.grad is not None and p.grad.isfinite().all() for p in parts)


@sizes
def test_a_set_among_others_is_the_set_alone(settings: PredictorSettings):
    predictor = drawn(settings)
    sets = [a_set(1), a_set(3), a_set(1, 1), a_set(*[2] * 30, seed=5), a_set(40, 1)]
    together = predictor.embed(*grouped(sets))
    assert together.isfinite().all()
    for one, found in zip(sets, together, strict=True):
        torch.testing.assert_close(found, predictor.embed_features(one), rtol=1e-4, atol=1e-5)
    assert torch.pdist(together).min() > 1e-4


@sizes
def test_no_images_are_no_data(settings: PredictorSettings):
    predictor = drawn(settings)
    nothing = Features(torch.zeros(0, FEATURES), torch.zeros(0, dtype=torch.int64))
    for found in (
        predictor.embed_features(nothing),
        predictor.embed(*grouped([a_set(2, 2), nothing]))[1],
        predictor.embed(torch.full((1, 2, 3, FEATURES), torch.nan), torch.zeros(1, 2, 3).bool())[0],
    ):
        assert torch.equal(found, predictor.no_data)
    x, t = tables(predictor)
    torch.testing.assert_close(predictor(x, t), predictor(x, t, predictor.no_data))


@sizes
def test_embeddings_of_all_rows_or_of_each(settings: PredictorSettings):
    predictor = drawn(settings)
    x, t = tables(predictor)
    embeddings = torch.randn(5, settings.set_width, generator=generator(6))
    each = predictor(x, t, embeddings)
    assert each.shape == (5,)
    for row in range(5):
        torch.testing.assert_close(predictor(x, t, embeddings[row])[row], each[row])
        alone = predictor(x[row : row + 1], t[row : row + 1], embeddings[row])
        torch.testing.assert_close(alone, each[row : row + 1])


@pytest.mark.parametrize("sde", [VE(), VP()], ids=["ve", "vp"])
def test_the_posterior_is_bayes_rule(sde: SDE):
    """Against densities of the whole row for every value, with shares that are not even."""
    predictor = drawn(space=cpu("mobilenetv3"), sde=sde).double()
    allowed = predictor.allowed
    shares = torch.rand(allowed.shape, generator=generator(7), dtype=torch.float64) * allowed
    shares = shares / shares.sum(1, keepdim=True)
    predictor.shares.copy_(shares)
    x = torch.randn(3, *allowed.shape, generator=generator(8), dtype=torch.float64)
    t = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    found = predictor.posterior(x, t)
    scale, std = sde.marginal(t)
    for row, token in ((0, 0), (1, 3), (2, 19)):
        weights = []
        for value in range(allowed.shape[1]):
            clean = 2 * (F.one_hot(torch.tensor(value), allowed.shape[1]) - shares[token])
            z = (x[row, token] - scale[row] * clean) / std[row]
            weights.append(shares[token, value] * (-z.square().sum() / 2).exp())
        wanted = torch.stack(weights) / sum(weights)
        torch.testing.assert_close(found[row, token], wanted)


def test_a_graph_layer_is_the_formula():
    """Averages over a node and those that it reaches, or that reach it, by loops."""
    settings = replace(PAPER, layers=1, width=6, dropout=0.0)
    predictor = drawn(settings, Six())
    layer, code = predictor.graph.get_submodule("layers.0"), encoding(Six())
    (x, t), wanted = tables(predictor, 2), torch.zeros(2, 6, 6)
    degrees = [1 + int(code.adjacency[node].sum()) for node in range(6)]
    with torch.no_grad():
        first, second = layer(x).chunk(2, 2)  # X W1, X W2
        for node in range(6):
            near = [other for other in range(6) if other == node or code.adjacency[node, other]]
            down = sum(first[:, other] for other in near) / degrees[node]
            near = [other for other in range(6) if other == node or code.adjacency[other, node]]
            up = sum(second[:, other] / degrees[other] for other in near)
            wanted[:, node] = (
                torch.relu(torch.as_tensor(down)) + torch.relu(torch.as_tensor(up))
            ) / 2
        noise = predictor.sde.marginal(t)[1].log()
        found = predictor.graph(x, noise, None) - predictor.graph(
            x[:1].expand(2, -1, -1), noise, None
        )
        pooled = wanted.mean(1) - wanted[:1].mean(1)
        torch.testing.assert_close(found, pooled @ predictor.graph.last.weight.T)


def test_positions_tell_tokens_apart():
    """Where no token reads another, a mean over them knows nothing of places."""
    code = encoding(Six())
    alone = replace(code, adjacency=torch.zeros_like(code.adjacency))
    for positions, differs in ((False, False), (True, True)):
        predictor = Predictor(alone, VE(), FEATURES, replace(LIGHT, positions=positions, effects=0))
        initialise(predictor, generator())
        x, t = tables(predictor)[0], torch.full((5,), 0.1)
        apart = (predictor(x, t) - predictor(x.flip(1), t)).abs().max()
        assert bool(apart > 1e-4 if differs else apart < 1e-6)


def test_the_papers_sizes():
    predictor = Predictor(encoding(cpu("mobilenetv3")), VE(), 512, PAPER)
    shapes = {name: tuple(p.shape) for name, p in predictor.named_parameters()}
    layers = [shapes[f"graph.layers.{number}.weight"] for number in range(4)]
    assert layers == [(288, 10), (288, 144), (288, 144), (288, 144)]  # W1 and W2 of each
    assert shapes["graph.last.weight"] == (128, 144)
    assert shapes["images.first.ask.weight"] == (56, 512)
    assert shapes["classes.first.ask.weight"] == (56, 56)
    assert shapes["fuse.weight"] == (512, 128 + 56)
    assert not any("effects" in name or "norm" in name or "read" in name for name in shapes)


@sizes
def test_dropout_acts_only_with_a_generator_and_all_draws_are_its(settings: PredictorSettings):
    predictor, state = drawn(settings), torch.get_rng_state()
    (x, t), data = tables(predictor), torch.randn(5, settings.set_width, generator=generator(9))
    first, second = (predictor.train(mode)(x, t) for mode in (True, False))
    assert torch.equal(first, second)
    assert not torch.allclose(predictor(x, t, rng=generator(1)), first)
    losses = [predictor.loss(x, t, t, data, generator(seed)) for seed in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    assert torch.equal(state, torch.get_rng_state())


def test_the_loss_is_of_noised_tables_and_sometimes_without_data():
    settings = replace(LIGHT, dropout=0.0)
    x0, t = tables(drawn(settings))
    data = torch.randn(5, settings.set_width, generator=generator(9))
    targets = torch.randn(5, generator=generator(10))
    for blank, shown in ((0.0, data), (1.0, None)):
        predictor = drawn(replace(settings, blank=blank))
        noise = torch.randn(x0.shape, generator=generator(11))
        x = x0 + predictor.sde.marginal(t)[1][:, None, None] * noise
        wanted = (predictor(x, t, shown) - targets).square().mean()
        torch.testing.assert_close(predictor.loss(x0, t, targets, data, generator(11)), wanted)
    predictor = drawn(replace(settings, blank=0.1))
    many, times = x0.repeat(400, 1, 1), t.repeat(400)
    loss = predictor.loss(many, times, targets.repeat(400), data.repeat(400, 1), generator(12))
    (share,) = torch.autograd.grad(loss, predictor.no_data)
    assert share.abs().max() > 0


@pytest.mark.parametrize("sde", [VE(), VP()], ids=["ve", "vp"])
@sizes
def test_nothing_overflows_at_any_time(settings: PredictorSettings, sde: SDE):
    predictor = drawn(settings, sde=sde)
    x, _ = tables(predictor)
    for time in (1e-3, 0.5, 1.0):
        at = (100 * x).requires_grad_()
        found = predictor(at, torch.full((5,), time))
        found.sum().backward()
        assert found.isfinite().all() and at.grad is not None and at.grad.isfinite().all()


def test_gradients_stay_exact_where_a_value_is_all_but_certain():
    """Against 64 bits; what softmax rounds away is all that guidance has to go by there."""
    predictor, precise = drawn(), drawn().double()
    x, t = one_hot(cpu("mobilenetv3"), genes.sample_many(cpu("mobilenetv3"), 3, generator())), 0.3
    slopes = []
    for each in (predictor, precise):
        at = (2 * (x - predictor.shares)).to(each.shares.dtype).requires_grad_()
        each.posterior(at, torch.full((3,), t, dtype=at.dtype))[..., :4].sum().backward()
        assert at.grad is not None
        slopes.append(at.grad.double())
    assert 0 < slopes[1].abs().max() < 1e-8  # far below what 32 bits tell from 1
    torch.testing.assert_close(
        slopes[0] / slopes[1].abs().max(), slopes[1] / slopes[1].abs().max(), rtol=1e-3, atol=1e-4
    )


def by_pairs(first: list[float], second: list[float]) -> float:
    """Return Kendall's tau-b by looking at all pairs."""
    signs = [
        (math.copysign(a != b, a - b), math.copysign(c != d, c - d))
        for (a, c), (b, d) in combinations(zip(first, second, strict=True), 2)
    ]
    ties = [sum(pair[side] != 0 for pair in signs) for side in (0, 1)]
    return sum(a * b for a, b in signs) / math.sqrt(ties[0] * ties[1])


def test_kendalls_tau_within_tasks():
    predictions, truth = torch.randint(5, (2, 3, 12), generator=generator(13)).float()
    wanted = [by_pairs(p, t) for p, t in zip(predictions.tolist(), truth.tolist(), strict=True)]
    assert kendall_within(predictions, truth) == pytest.approx(sum(wanted) / 3)
    # How hard tasks are does not count, though pooled it would look like knowledge.
    hard = torch.tensor([[0.0], [50.0], [100.0]])
    assert kendall_within(predictions + hard, truth + hard) == pytest.approx(sum(wanted) / 3)
    truth[0], predictions[1] = 3.0, 2.0  # nothing to rank; nothing known
    assert kendall_within(predictions, truth) == pytest.approx(wanted[2] / 2)
    assert kendall_within(predictions[:1], truth[:1]) == 0


def test_targets_are_standardised_within_tasks_or_over_all():
    accuracies = torch.tensor([[0.1, 0.3], [0.7, 0.9], [0.5, 0.5]])
    within = standardised(accuracies)
    torch.testing.assert_close(within, torch.tensor([[-1.0, 1.0], [-1.0, 1.0], [0.0, 0.0]]))
    over = standardised(accuracies, "all")
    assert over[0].max() < over[1].min() and float(over.mean()) == pytest.approx(0, abs=1e-6)
    assert float(over.square().mean()) == pytest.approx(1)


def test_it_learns_which_architectures_a_clients_data_want():
    """Tasks want one value everywhere or another: own data tell, others' and none do not."""
    space, rng = Six(), generator(14)
    table = one_hot(space, genes.sample_many(space, 300, rng))
    wants = torch.randn(2, 6, 4, generator=rng)  # of tasks of either kind
    kinds = torch.arange(12) % 2
    accuracies = torch.einsum("ktv,ntv->kn", wants, table)[kinds]
    middles = torch.randn(2, FEATURES, generator=rng)
    sets = [
        Features(middles[kind] + torch.randn(9, FEATURES, generator=rng), torch.arange(9) % 3)
        for kind in kinds
    ]
    predictor = Predictor(encoding(space), VE(), FEATURES, replace(LIGHT, layers=1))
    initialise(predictor, rng)
    x0, targets = 2 * (table - predictor.shares), standardised(accuracies)
    values, present = grouped(sets)
    adam = torch.optim.Adam(predictor.parameters(), lr=1e-2)
    for _ in range(120):
        tasks, archs = (torch.randint(n, (64,), generator=rng) for n in (10, 250))
        embeddings = predictor.embed(values[:10], present[:10])[tasks]
        t = 0.4 * torch.rand(64, generator=rng)
        adam.zero_grad()
        predictor.loss(x0[archs], t, targets[tasks, archs], embeddings, rng).backward()
        adam.step()
    with torch.no_grad():
        own = predictor.embed(values[10:], present[10:])  # tasks and architectures not seen
        x, t = x0[250:], torch.full((50,), 0.1)
        taus = {
            name: kendall_within(
                torch.stack([predictor(x, t, each) for each in embeddings]), accuracies[10:, 250:]
            )
            for name, embeddings in (("own", own), ("other", own.flip(0)), ("none", [None, None]))
        }
    assert taus["own"] > 0.7 and taus["own"] > taus["none"] + 0.2 > taus["other"] + 0.2
