"""What holds for the architectures of any space: small made-up ones, and all there are."""

import itertools
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, Choice, SearchSpace, Task
from fedtailor.search import genes, schemes


class Abstract(SearchSpace):
    """A space whose networks do not matter."""

    def build(self, arch: Arch, task: Task) -> nn.Module:
        return nn.Identity()


@dataclass(frozen=True)
class Fixed(Abstract):
    """A model without choices."""


@dataclass(frozen=True)
class Free(Abstract):
    """Choices of unequal length, one without alternative; everything is legal."""

    counts: tuple[int, ...] = (2, 5, 1, 3)

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"gene{i}", tuple(range(n))) for i, n in enumerate(self.counts))


@dataclass(frozen=True)
class Layers(Abstract):
    """A depth and two genes for each of three layers, 0 where the layer is absent."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        rest = ((Choice(f"kernel{i}", (3, 5, 7)), Choice(f"expand{i}", (4, 6))) for i in range(3))
        return (Choice("depth", (1, 2, 3)), *itertools.chain(*rest))

    def repair(self, arch: Arch) -> Arch:
        used = 3 + 2 * arch[0]
        return arch[:used] + (0,) * (len(arch) - used)


@dataclass(frozen=True)
class Edges(Abstract):
    """Operations on the edges into nodes, of which none may be fed by nothing alone."""

    operations: tuple[str, ...] = ("none", "skip", "convolution")
    nodes: tuple[int, ...] = (2, 3)  # edges into each
    nothing: int = 0  # the operation that feeds a node nothing

    @property
    def choices(self) -> tuple[Choice, ...]:
        return tuple(Choice(f"edge{i}", self.operations) for i in range(sum(self.nodes)))

    def repair(self, arch: Arch) -> Arch:
        found = list(arch)
        for end, size in zip(itertools.accumulate(self.nodes), self.nodes, strict=True):
            if set(arch[end - size : end]) == {self.nothing}:
                found[end - size] = 0 if self.nothing else 1
        return tuple(found)


@dataclass(frozen=True)
class Twins(Abstract):
    """Two genes that must be equal; every single change is undone."""

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice("left", (0, 1)), Choice("right", (0, 1)))

    def repair(self, arch: Arch) -> Arch:
        return arch if arch[0] == arch[1] else (0, 0)


SMALL = [Fixed(), Free(), Layers(), Edges(), Edges(("none", "skip")), Edges(nodes=(1, 2)), Twins()]
spaces = st.sampled_from(SMALL)
seeds = st.integers(0, 2**32)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def brute_force(space: SearchSpace) -> list[Arch]:
    counts = [range(len(choice.options)) for choice in space.choices]
    return sorted({space.repair(arch) for arch in itertools.product(*counts)})


def assert_plain(space: SearchSpace, *archs: Arch) -> None:
    for arch in archs:
        assert type(arch) is tuple and all(type(gene) is int for gene in arch)
        assert genes.is_legal(space, arch), arch


@given(spaces, seeds, st.floats(0, 1))
def test_whatever_is_returned_is_legal(space: SearchSpace, seed: int, rate: float):
    rng = generator(seed)
    first, second, *_ = every = genes.sample_many(space, 5, rng)
    child = genes.crossover(space, first, second, rng)
    mutants = genes.mutate(space, first, rng), genes.mutate(space, first, rng, rate)
    assert_plain(space, *every, child, *mutants, genes.sample(space, rng))
    assert_plain(space, *genes.neighbours(space, first), *genes.enumerate_all(space))
    assert_plain(space, *schemes.single_path(space, rng), *schemes.sandwich(space, rng, 3))


@given(spaces, seeds)
def test_a_seed_decides(space: SearchSpace, seed: int):
    def drawn() -> list[object]:
        rng = generator(seed)
        a, b = genes.sample(space, rng), genes.sample(space, rng)
        changed = [genes.mutate(space, a, rng), genes.crossover(space, a, b, rng)]
        steps = [schemes.single_path(space, rng), schemes.sandwich(space, rng, 2)]
        return [a, b, *changed, *steps, rng.get_state().tolist()]

    assert drawn() == drawn()


@given(spaces, seeds)
def test_encodings_round_trip(space: SearchSpace, seed: int):
    archs = genes.sample_many(space, 4, generator(seed))
    rows, hot = genes.integers(space, archs), genes.one_hot(space, archs)
    assert rows.dtype == np.int64 and rows.shape == (4, len(space.choices))
    assert hot.dtype == torch.float32 and hot.shape == (4, genes.offsets(space)[-1])
    assert (hot.sum(1) == len(space.choices)).all() and ((hot == 0) | (hot == 1)).all()
    assert genes.from_integers(space, rows) == genes.from_one_hot(space, hot) == archs
    assert genes.integers(space, []).shape == (0, len(space.choices))
    assert genes.from_one_hot(space, genes.one_hot(space, [])) == []


@given(spaces, seeds)
def test_any_numbers_decode_to_architectures(space: SearchSpace, seed: int):
    noise = torch.randn(5, genes.offsets(space)[-1], generator=generator(seed))
    noise[noise > 1.5], noise[noise < -1.5] = float("nan"), float("-inf")
    found = genes.from_one_hot(space, noise)
    assert len(found) == 5
    assert_plain(space, *found)


def test_one_hot_by_hand():
    assert genes.offsets(Free()) == (0, 2, 7, 8, 11)
    assert genes.one_hot(Free(), [(1, 3, 0, 2)]).tolist() == [[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 1]]


def test_rows_that_are_no_architectures_are_refused():
    for rows in ([[0, 5, 0, 0]], [[0, -1, 0, 0]], [[0, 0, 0]], [0, 0, 0, 0]):
        with pytest.raises(ValueError, match="4 genes"):
            genes.from_integers(Free(), np.array(rows))
    with pytest.raises(RuntimeError):
        genes.from_one_hot(Free(), torch.zeros(1, 12))


@given(spaces, seeds, st.sampled_from([None, 0.0, 0.3, 1.0]))
def test_a_mutation_differs_where_it_can(space: SearchSpace, seed: int, rate: float | None):
    rng = generator(seed)
    arch = genes.sample(space, rng)
    mutant = genes.mutate(space, arch, rng, rate)
    assert (mutant != arch) == (len(brute_force(space)) > 1) or not genes.neighbours(space, arch)


def test_a_mutation_changes_genes_at_its_rate_and_to_every_other_option():
    space, arch, rng = Free((4,) * 10), (1,) * 10, generator()
    for rate, expected in ((None, 1 / (1 - 0.9**10)), (0.5, 5 / (1 - 0.5**10)), (1.0, 10)):
        mutants = np.array([genes.mutate(space, arch, rng, rate) for _ in range(2000)])
        assert (mutants != 1).sum(1).mean() == pytest.approx(expected, rel=0.05)
        taken = np.bincount(mutants[mutants != 1], minlength=4)
        assert taken[1] == 0 and stats.chisquare(taken[[0, 2, 3]]).pvalue > 1e-3


def test_a_mutation_that_never_succeeds_ends_at_a_neighbour():
    """At rate 0 nothing is redrawn, as if all were repaired away."""
    space = Edges(("none", "skip"), nodes=(2,))
    assert space.repair((0, 0)) == (1, 0)
    reached = {genes.mutate(space, (0, 1), generator(seed), 0.0) for seed in range(20)}
    assert reached == {(1, 1), (1, 0)}
    assert genes.mutate(Twins(), (0, 0), generator(), 1.0) == (1, 1)
    assert genes.neighbours(Twins(), (0, 0)) == []
    assert genes.mutate(Twins(), (0, 0), generator(), 0.0) == (0, 0)


@given(spaces, seeds)
def test_neighbours_by_brute_force(space: SearchSpace, seed: int):
    arch = genes.sample(space, generator(seed))
    counts = [range(len(choice.options)) for choice in space.choices]
    apart = (
        other
        for other in itertools.product(*counts)
        if sum(a != b for a, b in zip(arch, other, strict=True)) == 1
    )
    found = genes.neighbours(space, arch)
    assert len(found) == len(set(found)) and set(found) == {*map(space.repair, apart)} - {arch}


def test_neighbours_have_an_order():
    assert genes.neighbours(Free(), (0, 1, 0, 2)) == [
        (1, 1, 0, 2), (0, 0, 0, 2), (0, 2, 0, 2), (0, 3, 0, 2), (0, 4, 0, 2), (0, 1, 0, 0),
        (0, 1, 0, 1),
    ]  # fmt: skip
    assert genes.neighbours(Layers(), (0, 2, 0, 0, 0, 0, 0)) == [
        (1, 2, 0, 0, 0, 0, 0), (2, 2, 0, 0, 0, 0, 0), (0, 0, 0, 0, 0, 0, 0),
        (0, 1, 0, 0, 0, 0, 0), (0, 2, 1, 0, 0, 0, 0),
    ]  # fmt: skip


@given(seeds)
def test_a_child_has_every_gene_from_a_parent(seed: int):
    space, rng = Free((9,) * 30), generator(seed)
    first, second = genes.sample_many(space, 2, rng)
    child = genes.crossover(space, first, second, rng)
    assert all(gene in pair for gene, *pair in zip(child, first, second, strict=True))
    from_first = sum(genes.crossover(space, (0,) * 30, (1,) * 30, rng).count(0) for _ in range(50))
    assert abs(from_first - 750) < 6 * (1500 / 4) ** 0.5


def test_children_are_repaired():
    children = {genes.crossover(Twins(), (0, 0), (1, 1), generator(seed)) for seed in range(50)}
    assert children == {(0, 0), (1, 1)}


def test_samples_are_uniform_before_repair():
    drawn = Counter(genes.sample_many(Free(), 30_000, generator()))
    assert len(drawn) == 30
    assert stats.chisquare([*drawn.values()]).pvalue > 1e-3
    repaired = Counter(genes.sample_many(Edges(), 30_000, generator()))
    expected = Counter(map(Edges().repair, itertools.product(range(3), repeat=5)))
    assert len(repaired) == len(expected)
    often = [repaired[arch] for arch in expected]
    shares = [30_000 * n / 3**5 for n in expected.values()]
    assert stats.chisquare(often, shares).pvalue > 1e-3


@pytest.mark.parametrize("space", SMALL, ids=str)
def test_enumeration_by_brute_force(space: SearchSpace):
    assert list(genes.enumerate_all(space)) == brute_force(space)
    assert genes.combinations(space) >= len(brute_force(space))


def test_sizes_by_hand():
    assert genes.combinations(Fixed()) == 1 and list(genes.enumerate_all(Fixed())) == [()]
    assert len([*genes.enumerate_all(Layers())]) == 6 + 6**2 + 6**3
    assert len([*genes.enumerate_all(Edges())]) == (3**2 - 1) * (3**3 - 1)
    assert genes.combinations(Free((3,) * 45)) == 3**45
    with pytest.raises(UserError, match=r"^space\.name: 2\.95e\+21 architectures"):
        genes.enumerate_all(Free((3,) * 45))


@pytest.mark.parametrize(
    ("space", "arch", "complaint"),
    [
        (Fixed(), [0], "0 genes are needed, one for each choice, not 1"),
        (Free(), [0, 0], "4 genes are needed, one for each choice, not 2"),
        (Free(), [0, 5, 1, 0], "gene 2 (gene1) must be 0 to 4, the index of an option"),
        (Free(), [0, 0, 1, 3], "gene 3 (gene2) must be 0, not 1"),
        (Free(), [0, -1, 0, 3], "gene 2 (gene1) must be 0 to 4"),
        (
            Free(),
            [True, 0, 0, 0],
            "gene 1 (gene0) must be 0 to 1, the index of an option (0, 1)",
        ),
        (Layers(), [0, 2, 1, 0, 1, 1, 0], "gene 5 (expand1) must be 0 beside the others, not 1"),
        (Edges(), [0, 2, 0, 0, 0], "gene 3 (edge2) must be 1 beside the others, not 0"),
    ],
)
def test_the_first_wrong_gene_is_named(space: SearchSpace, arch: list[int], complaint: str):
    assert not genes.is_legal(space, arch)
    with pytest.raises(UserError) as error:
        genes.check(space, arch)
    assert str(error.value).startswith(f"space.arch: {complaint}")


@given(spaces, seeds)
def test_a_users_list_becomes_an_architecture(space: SearchSpace, seed: int):
    arch = genes.sample(space, generator(seed))
    assert genes.check(space, list(arch)) == arch


EDGES = [
    Edges(),
    Edges(("none", "skip")),
    Edges(tuple("abcdefgh")),
    Edges(("skip", "convolution", "none"), nothing=2),
]


@given(st.sampled_from(EDGES), seeds)
def test_fair_takes_every_option_exactly_once(space: Edges, seed: int):
    found = schemes.fair(space, generator(seed))
    assert found == schemes.fair(space, generator(seed))
    assert_plain(space, *found)
    for taken in zip(*found, strict=True):
        assert sorted(taken) == [*range(len(space.operations))]


@given(st.lists(st.integers(1, 7), min_size=1, max_size=6), seeds)
def test_fair_repeats_the_options_of_shorter_choices_evenly(counts: list[int], seed: int):
    found = schemes.fair(Free(tuple(counts)), generator(seed))
    assert len(found) == max(counts)
    for count, taken in zip(counts, zip(*found, strict=True), strict=True):
        often = np.bincount(taken, minlength=count)
        assert len(often) == count and set(often) <= {len(found) // count, -(-len(found) // count)}


def test_fair_leaves_nothing_to_order():
    """All pairs of permutations, and all that a choice of two can do beside one of three."""
    seen = Counter(schemes.fair(Free((3, 3)), generator(seed)) for seed in range(3600))
    assert len(seen) == 36 and stats.chisquare([*seen.values()]).pvalue > 1e-3
    columns = (zip(*schemes.fair(Free((2, 3)), generator(s)), strict=True) for s in range(1200))
    often = Counter(next(taken) for taken in columns)
    assert len(often) == 6 and stats.chisquare([*often.values()]).pvalue > 1e-3


@given(seeds)
def test_fair_with_absent_layers(seed: int):
    """Of a layer that one network in three has, one option is trained, and any of them."""
    found = schemes.fair(Layers(), generator(seed))
    assert_plain(Layers(), *found)
    assert sorted(arch[0] for arch in found) == [0, 1, 2]
    assert sorted(arch[1] for arch in found) == [0, 1, 2]
    assert len({arch[3] for arch in found if arch[0] > 0}) == 2


def test_fair_trains_options_of_absent_layers_equally_on_average():
    steps = [schemes.fair(Layers(), generator(seed)) for seed in range(1500)]
    often = Counter(arch[5] for step in steps for arch in step if arch[0] == 2)
    assert len(often) == 3 and stats.chisquare([*often.values()]).pvalue > 1e-3


def test_fair_refuses_a_space_that_allows_no_fair_set():
    """A node with one edge can never be fed by nothing."""
    with pytest.raises(UserError, match=r"^space\.name: among 1000 draws"):
        schemes.fair(Edges(nodes=(1, 2)), generator())


def test_sandwich_begins_with_the_largest():
    first, second, *rest = schemes.sandwich(Layers(), generator(), randoms=2)
    assert (first, second) == (Layers().largest(), Layers().smallest())
    assert rest == genes.sample_many(Layers(), 2, generator())
    assert schemes.single_path(Layers(), generator()) == (rest[0],)
    assert schemes.fair(Fixed(), generator()) == ((),)


@pytest.mark.parametrize("name", registry.names("space"))
def test_every_space_there_is(name: str):
    kind = registry.find("space", name)
    for fields in ({}, *kind.presets.values()):
        assert_genes_work(kind(**fields), generator())


def assert_genes_work(space: SearchSpace, rng: torch.Generator) -> None:
    archs = genes.sample_many(space, 200, rng)
    assert_plain(space, *archs, space.smallest(), space.middle(), space.largest())
    assert all(space.repair(arch) == space.merged(arch) for arch in space.cover())
    assert genes.combinations(space) >= len(set(archs)) >= min(2, genes.combinations(space))
    for first, second in itertools.pairwise(archs[:30]):
        mutant = genes.mutate(space, first, rng)
        assert mutant != first or not space.choices  # a fixed model
        assert_plain(space, mutant, genes.crossover(space, first, second, rng))
    assert_plain(space, *genes.neighbours(space, archs[0]))
    assert genes.from_integers(space, genes.integers(space, archs)) == archs
    assert genes.from_one_hot(space, genes.one_hot(space, archs)) == archs
    noise = torch.randn(50, genes.offsets(space)[-1], generator=rng)
    assert_plain(space, *genes.from_one_hot(space, noise))
    assert_plain(space, *schemes.sandwich(space, rng))
    for _ in range(10):
        step = schemes.fair(space, rng)
        assert len(step) == max(genes.option_counts(space), default=1)
        assert_plain(space, *step)
