"""The surrogate on known truths, and on populations that make the plain interpolation fail."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import RBFInterpolator
from scipy.stats import kendalltau

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search import genes, radial
from fedtailor.search.radial import SHAPES, Coding
from fedtailor.search.ridge import STRENGTHS
from fedtailor.search.surrogate import Learner, Surrogate, fit
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from tests.helpers.made_up import NAMES, SMALL, Coin, Fixed, Free, cpu, generator

SPACE = MobileNetV3()  # of no resolution: every gene makes a difference, as `raw` needs
FIRST, LAST = SPACE.smallest(), SPACE.largest()
Truth = Callable[[SearchSpace, list[Arch]], np.ndarray]
seeds = st.integers(0, 2**32)


def linear(space: SearchSpace, archs: list[Arch]) -> np.ndarray:
    """Every gene adds its own amount per option."""
    return genes.integers(space, archs) @ np.linspace(-0.5, 1, len(space.choices)) + 3


def smooth(space: SearchSpace, archs: list[Arch]) -> np.ndarray:
    """Accuracies flatten out with cost, and genes depend on each other."""
    rows = genes.integers(space, archs) / (np.array(genes.option_counts(space)) - 1)
    weights = np.linspace(0.2, 1, rows.shape[1])
    return np.sqrt(0.2 + rows @ weights) + 0.3 * np.sin(rows @ weights[::-1] / 4)


def words(space: SearchSpace, archs: list[Arch]) -> np.ndarray:
    """Every option is worth something, whatever its number."""
    worth = np.random.default_rng(3).normal(size=(len(space.choices), 20))
    return np.take_along_axis(worth, genes.integers(space, archs).T, 1).sum(0)


def sample(number: int, seed: int = 0, space: SearchSpace = SPACE) -> list[Arch]:
    return list(dict.fromkeys(genes.sample_many(space, number, generator(seed))))


def agreement(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.asarray(kendalltau(first, second))[0])


def tau(model: Surrogate, truth: Truth = smooth, space: SearchSpace = SPACE) -> float:
    """Return how alike predictions and truth order architectures that were held out."""
    held = sample(300, 99, space)
    return agreement(model.predict(held), truth(space, held))


def plain(archs: list[Arch], scores: np.ndarray) -> RBFInterpolator:
    """Return what scipy does with the paper's habit and no care."""
    rows = genes.integers(SPACE, archs).astype(float)
    return RBFInterpolator(rows, scores, kernel="cubic", degree=1)


def plain_tau(archs: list[Arch], scores: np.ndarray) -> float:
    """Return how alike plain predictions and the truth are; where it is singular, not at all."""
    held = sample(300, 99)
    try:
        predicted = plain(archs, scores)(genes.integers(SPACE, held).astype(float))
    except np.linalg.LinAlgError:
        return 0.0
    return agreement(predicted, smooth(SPACE, held))


def with_equal(archs: list[Arch], *at: int) -> list[Arch]:
    """Give some genes the same option everywhere: 0, which absent layers have too."""
    return list(dict.fromkeys(tuple(0 if g in at else o for g, o in enumerate(a)) for a in archs))


@pytest.mark.parametrize("coding", ["integers", "raw"])
def test_a_linear_truth_is_found_exactly(coding: Coding):
    archs, held = sample(135), sample(200, 1)
    model = fit(SPACE, archs, linear(SPACE, archs).tolist(), coding=coding)
    assert model.kind == ("raw" if coding == "raw" else "cubic")
    assert np.allclose(model.predict(held), linear(SPACE, held), rtol=0, atol=1e-8)


@pytest.mark.parametrize("coding", SHAPES)
def test_what_was_scored_is_returned(coding: Coding):
    archs = sample(135)
    scores = smooth(SPACE, archs)
    model = fit(SPACE, archs, scores.tolist(), coding=coding, smoothing=1e-6)
    assert np.allclose(model.predict(archs), scores, atol=1e-5)


@pytest.mark.parametrize(("coding", "changes"), [("integers", 1), ("options", 1), ("raw", 0)])
def test_smoothing_is_for_noise_and_not_for_raw(coding: Coding, changes: bool):
    archs = sample(135)
    scores = smooth(SPACE, archs)
    much = fit(SPACE, archs, scores.tolist(), coding=coding, smoothing=10).predict(archs)
    assert (np.abs(much - scores).max() > 0.01) == changes


@pytest.mark.parametrize("name", ["mobilenetv3", "mobilenetv3_plato", "nasvit"])
@pytest.mark.parametrize("coding", ["integers", "raw"])
def test_a_smooth_truth_is_ordered_well(name: str, coding: Coding):
    space = SPACE if name == "mobilenetv3" else cpu(name)
    archs = sample(3 * len(space.choices), space=space)
    model = fit(space, archs, smooth(space, archs).tolist(), coding=coding)
    assert model.kind == SHAPES[coding][0] and tau(model, space=space) > 0.85


def test_options_without_an_order_have_their_own_columns():
    space = cpu("darts")
    archs = sample(84, space=space)
    by_number, by_option = (
        fit(space, archs, words(space, archs).tolist(), coding=coding)
        for coding in ("integers", "options")
    )
    usual = fit(space, archs, words(space, archs).tolist())
    assert by_option.kind == usual.kind == "linear"
    assert np.array_equal(usual.predict(archs), by_option.predict(archs))
    assert tau(by_option, words, space) > 0.3 > tau(by_number, words, space) + 0.1


def test_scores_may_have_any_scale():
    archs, held = sample(135), sample(50, 1)
    scores = smooth(SPACE, archs)
    usual = fit(SPACE, archs, scores.tolist()).predict(held)
    other = fit(SPACE, archs, (1e-9 * scores).tolist()).predict(held)
    assert np.allclose(other, 1e-9 * usual, rtol=1e-9, atol=0)
    shifted = fit(SPACE, archs, (100 - 5 * scores).tolist()).predict(held)
    assert np.allclose(shifted, 100 - 5 * usual, atol=1e-7)


@pytest.mark.parametrize("genes_equal", [[1], [0, 9], [*range(22)], [*range(44)]], ids=len)
def test_constant_genes_make_plain_interpolation_singular(genes_equal: list[int]):
    archs = sample(135)
    equal = [tuple(0 if g in genes_equal else o for g, o in enumerate(a)) for a in archs]
    with pytest.raises(np.linalg.LinAlgError):
        plain(equal, smooth(SPACE, equal))
    assert fit(SPACE, equal, smooth(SPACE, equal).tolist()).kind == "cubic"


@pytest.mark.parametrize("number", [1, 2, 45])
def test_few_points_are_refused_by_plain_interpolation(number: int):
    archs = sample(number)
    with pytest.raises(ValueError, match="At least 46 data points"):
        plain(archs, smooth(SPACE, archs))


def test_genes_that_say_the_same_are_noticed():
    """Plain interpolation raises or answers at random, as rounding will have it."""
    twins = [(*a[:3], 2 - a[0], *a[4:]) for a in sample(135)]
    scores = smooth(SPACE, twins)
    careful = fit(SPACE, twins, scores.tolist())
    assert careful.kind == fit(SPACE, twins, scores.tolist(), coding="raw").kind == "linear"
    assert tau(careful) > 0.7


@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_duplicates_ruin_plain_interpolation_but_not_the_surrogate(noise: float):
    archs = sample(135)
    early = smooth(SPACE, archs)
    late = early[:20] + np.random.default_rng(0).normal(0, noise, 20)
    twice, scores = archs + archs[:20], np.concatenate([early, late])
    single = fit(SPACE, archs, early.tolist(), smoothing=1e-6)
    double = fit(SPACE, twice, scores.tolist(), smoothing=1e-6)
    assert tau(single) == pytest.approx(plain_tau(archs, early), abs=1e-3)
    assert tau(single) > 0.85
    assert not noise or plain_tau(twice, scores) < 0.6
    assert double.kind == "cubic" and tau(double) > tau(single) - 0.01


def test_of_equal_architectures_the_newest_score_counts():
    archs, held = sample(100), sample(50, 1)
    scores = smooth(SPACE, archs).tolist()
    once = fit(SPACE, archs, [9.0, *scores[1:]], smoothing=1e-6)
    again = fit(SPACE, [*archs, archs[0]], [*scores, 9.0], smoothing=1e-6)
    assert np.array_equal(once.predict(held), again.predict(held))
    assert again.predict(archs[:1])[0] == pytest.approx(9, abs=1e-4)


DEGENERATE: dict[str, tuple[list[Arch], str]] = {
    "one constant gene": (with_equal(sample(135), 1), "cubic"),
    "half the genes constant": (with_equal(sample(135), *range(22)), "cubic"),
    "two genes that say the same": (
        [(*a[:44], a[42]) for a in sample(135) if a[36] == 2],
        "linear",
    ),
    "hardly more than genes": (sample(50), "linear"),
    "as many as genes": (sample(45), "linear"),
    "far fewer than genes": (sample(10), "linear"),
    "three": (sample(3), "linear"),
    "two": (sample(2), "mean"),
    "one": (sample(1), "mean"),
    "one, many times": (sample(1) * 50, "mean"),
    "two, many times": (sample(2) * 50, "mean"),
}


@pytest.mark.parametrize(("archs", "kind"), DEGENERATE.values(), ids=DEGENERATE)
@pytest.mark.parametrize("coding", SHAPES)
def test_degenerate_populations(archs: list[Arch], kind: str, coding: Coding):
    scores = smooth(SPACE, archs)
    smoothed = fit(SPACE, archs, scores.tolist(), coding=coding)
    model = fit(SPACE, archs, scores.tolist(), coding=coding, smoothing=1e-6)
    if coding == "integers":
        assert model.kind == smoothed.kind == kind
    assert np.isfinite(smoothed.predict(sample(50, 1))).all()
    predicted = model.predict([*archs, *sample(50, 1)])
    assert np.isfinite(predicted).all()
    if model.kind == "mean":
        newest = dict(zip(archs, scores, strict=True))
        assert predicted == pytest.approx(np.mean([*newest.values()]))
    else:
        assert predicted[: len(archs)] == pytest.approx(scores, abs=1e-4)


def test_a_single_gene_that_varies_is_learned():
    """All the others are constant, and so say nothing."""
    free = Free()
    archs: list[Arch] = [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
    model = fit(free, archs, [1.0, 2.0, 3.0])
    assert model.kind == "cubic", "three points for two coefficients"
    assert model.predict([(0, 0, 2), (1, 1, 0), (2, 0, 1)]) == pytest.approx([1, 2, 3])


def test_few_points_still_say_something():
    archs = sample(30)
    model = fit(SPACE, archs, smooth(SPACE, archs).tolist())
    assert model.kind == "linear" and tau(model) > 0.4


def test_a_tail_that_is_hardly_determined_is_not_used():
    """46 coefficients through 52 points follow their noise; linear bases do not."""
    archs = sample(52)
    noise = np.random.default_rng(1).normal(0, 0.1, 52)
    scores = (smooth(SPACE, archs) + noise).tolist()
    ours, papers = fit(SPACE, archs, scores), fit(SPACE, archs, scores, coding="raw")
    assert (ours.kind, papers.kind) == ("linear", "raw") and tau(ours) > tau(papers) + 0.1


@pytest.mark.parametrize("coding", SHAPES)
def test_equal_scores_are_their_mean(coding: Coding):
    model = fit(SPACE, sample(135), [0.25] * 135, coding=coding)
    assert model.kind == "mean" and (model.predict(sample(20, 1)) == 0.25).all()


def test_what_is_not_finite_counts_as_not_scored():
    archs, held = sample(100), sample(50, 1)
    scores = smooth(SPACE, archs).tolist()
    holes = fit(SPACE, [*archs, archs[0], *held[:2]], [*scores, float("nan"), -np.inf, np.inf])
    assert np.array_equal(holes.predict(held), fit(SPACE, archs, scores).predict(held))
    for nothing in (fit(SPACE, [FIRST], [-np.inf]), fit(SPACE, [], [])):
        assert nothing.kind == "mean" and nothing.predict([FIRST, LAST]).tolist() == [0, 0]


def test_a_raw_fit_that_is_singular_gives_way_to_the_careful_one():
    archs = with_equal(sample(135), 1, 2)
    scores, held = smooth(SPACE, archs).tolist(), sample(50, 1)
    raw, careful = fit(SPACE, archs, scores, coding="raw"), fit(SPACE, archs, scores)
    assert raw.kind == careful.kind == "cubic"
    assert np.array_equal(raw.predict(held), careful.predict(held))


@pytest.mark.parametrize("how", ["singular", "not finite"])
def test_the_last_resort_is_the_mean_of_the_nearest(how: str, monkeypatch: pytest.MonkeyPatch):
    def broken(points: np.ndarray, values: np.ndarray, **options: object) -> object:
        if how == "singular":
            raise np.linalg.LinAlgError
        return lambda at: np.full(len(at), np.nan)

    monkeypatch.setattr(radial, "RBFInterpolator", broken)
    archs = sample(135)
    model = fit(SPACE, archs, smooth(SPACE, archs).tolist())
    assert model.kind == "nearest" and tau(model) > 0.3
    few = fit(Coin(), [(0,), (1,), (0,)], [1.0, 3.0, 2.0])
    assert few.kind == "mean" and few.predict([(1,)]).tolist() == [2.5]
    near = fit(Free(), [(0, 0, 0), (1, 0, 0), (2, 0, 0)], [0.0, 3.0, 6.0])
    assert near.predict([(0, 1, 1)]).tolist() == [3.0], "all three are nearest"


def test_nothing_to_predict():
    kinds: tuple[Learner, ...] = ("rbf", "ridge", "none")
    for archs, kind in itertools.product((sample(1), sample(20), sample(135)), kinds):
        assert fit(SPACE, archs, smooth(SPACE, archs).tolist(), kind).predict([]).shape == (0,)


def test_a_ridge_finds_what_options_add():
    space = cpu("darts")
    archs, held = sample(600, space=space), sample(50, 1, space)
    model = fit(space, archs, words(space, archs).tolist(), "ridge")
    assert model.kind == "ridge" and model.smoothing == min(STRENGTHS)
    assert np.allclose(model.predict(held), words(space, held), atol=0.02)
    stiff = fit(space, archs, words(space, archs).tolist(), "ridge", smoothing=1e9)
    assert stiff.smoothing == 1e9
    assert stiff.predict(held) == pytest.approx(words(space, archs).mean(), abs=1e-3)


def test_to_a_ridge_all_scores_of_an_architecture_count():
    archs: list[Arch] = [(0,), (1,), (0,), (1,)]
    model = fit(Coin(), archs, [1.0, 5.0, 3.0, 7.0], "ridge", smoothing=1e-9)
    assert model.kind == "ridge" and model.predict([(0,), (1,)]) == pytest.approx([2, 6])
    newest = fit(Coin(), [*archs, (1,)], [1.0, 5.0, 3.0, 7.0, np.nan])
    assert newest.predict([(0,)]).tolist() == [5], "of radial bases the last, and their mean"


def test_without_a_surrogate_all_are_alike():
    archs = sample(20)
    model = fit(SPACE, archs, smooth(SPACE, archs).tolist(), "none")
    assert model.kind == "mean" and np.ptp(model.predict(sample(9, 1))) == 0


@settings(max_examples=150)
@given(
    st.sampled_from([*SMALL.values(), Fixed(), Coin(), Free(), *map(cpu, NAMES)]),
    st.sampled_from(list(SHAPES)),
    st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=60),
    st.integers(1, 60),
    seeds,
)
def test_no_population_makes_it_raise(
    space: SearchSpace, coding: Coding, scores: list[float], distinct: int, seed: int
):
    """Any scores; architectures repeat where fewer are distinct than there are scores."""
    few = genes.sample_many(space, distinct, generator(seed))
    archs = [few[at % distinct] for at in range(len(scores))]
    held = genes.sample_many(space, 9, generator())
    for kind in ("rbf", "ridge", "none"):
        predicted = fit(space, archs, scores, kind, coding=coding).predict(held)
        assert predicted.shape == (9,) and np.isfinite(predicted).all()


@settings(max_examples=30)
@given(st.integers(1, 6), st.integers(3, 135), st.sampled_from(list(SHAPES)), seeds)
def test_a_population_that_converges_makes_it_never_raise(
    changes: int, number: int, coding: Coding, seed: int
):
    """Mutants of one architecture: most genes constant, others varied by one member alone."""
    rng = generator(seed)
    archs = [genes.sample(SPACE, rng)]
    while len(archs) < number:
        at = len(archs) % changes % len(archs)
        archs.append(genes.mutate(SPACE, archs[at], rng))
    scores = np.round(smooth(SPACE, archs), 2)  # ties
    for kind in ("rbf", "ridge"):
        model = fit(SPACE, archs, scores.tolist(), kind, coding=coding)
        assert np.isfinite(model.predict([*archs, *sample(20, 1)])).all()
