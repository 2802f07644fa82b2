"""Architectures as tokens: round trips, projection against brute force, validity by hand."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.core import registry
from fedtailor.core.space import Arch, Choice, SearchSpace, Token
from fedtailor.search import genes
from fedtailor.search.diffusion import tokens
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import GENES, MobileNetV3
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato
from fedtailor.spaces.nasvit import NASViT
from tests.helpers import made_up
from tests.helpers.made_up import cpu, generator


@dataclass(frozen=True)
class Layers(made_up.Layers):
    """Both layers can be absent."""

    @property
    def tokens(self) -> tuple[Token, ...]:
        first = Token("first", (1,), 0, 0, (), depth=(0, 1))
        return first, Token("second", (2,), 0, 1, (0,), depth=(0, 2))


@dataclass(frozen=True)
class Two(made_up.Layers):
    """Two stages: one whose second layer comes with a third, one whose only layer has no genes.

    The last gene must be 0 where the one before it is.
    """

    @property
    def choices(self) -> tuple[Choice, ...]:
        counts = {"a1": 3, "deep": 2, "a2": 2, "b2": 2, "a3": 2, "deep too": 2, "x": 2, "y": 2}
        return tuple(Choice(name, tuple(range(n))) for name, n in counts.items())

    @property
    def tokens(self) -> tuple[Token, ...]:
        return (
            Token("one", (0,), 0, 0, ()),
            Token("two", (3, 2), 0, 1, (0,), depth=(1, 1)),
            Token("three", (4,), 0, 2, (1,), depth=(1, 1)),
            Token("bare", (), 1, 0, (2,), depth=(5, 1)),
            Token("last", (6,), 2, 0, (3,)),
            Token("very last", (7,), 2, 1, (4,)),
        )

    def repair(self, arch: Arch) -> Arch:
        a1, deep, a2, b2, a3, too, x, y = arch
        return a1, deep, a2 * deep, b2 * deep, a3 * deep, too, x, x * y


SMALL: list[SearchSpace] = [Layers(), Two(), *made_up.SMALL.values(), made_up.Fixed()]
REAL: list[SearchSpace] = [
    kind(**fields)
    for kind in (registry.find("space", name) for name in registry.names("space"))
    for fields in ({}, *kind.presets.values())
]
REAL += [DARTS(operations="s1"), DARTS(operations="s4"), DARTS(form="relaxed", operations="s3")]
EVERY = SMALL + REAL
every = pytest.mark.parametrize("space", EVERY, ids=lambda space: type(space).__name__)
small = pytest.mark.parametrize("space", SMALL, ids=lambda space: type(space).__name__)


def drawn(space: SearchSpace, number: int, seed: int = 0) -> list[Arch]:
    ends = [space.smallest(), space.middle(), space.largest()]
    return ends + genes.sample_many(space, number, generator(seed))


def noise(space: SearchSpace, number: int, seed: int, tied: bool = False) -> Tensor:
    """Return tables of random numbers; tied, of few different ones whose sums are exact."""
    code = tokens.encoding(space)
    x = torch.randn(number, code.length, code.vocabulary, generator=generator(seed))
    return (2 * x).round() / 4 if tied else x


def sequences(space: SearchSpace) -> list[tuple[tuple[int, ...], int]]:
    """List the values of all tokens that keep the rule of depth, and how many are there."""
    counts, found = genes.option_counts(space), []
    sizes = [math.prod(counts[g] for g in t.genes) for t in space.tokens]
    ranges = [range(n + bool(t.depth)) for n, t in zip(sizes, space.tokens, strict=True)]
    for values in itertools.product(*ranges):
        there = [v < n for v, n in zip(values, sizes, strict=True)]
        stages: dict[int, list[tuple[int, bool]]] = {}
        for token, present in zip(space.tokens, there, strict=True):
            if token.depth:
                stages.setdefault(token.depth[0], []).append((token.depth[1], present))
        if all(
            any([present for _, present in pairs] == [o <= d for o, _ in pairs] for d in range(9))
            for pairs in stages.values()
        ):
            found.append((values, sum(there)))
    return found


def slow_decode(space: SearchSpace, values: tuple[int, ...]) -> Arch:
    """Look a token's genes up in the list of all their combinations."""
    arch, counts = [0] * len(space.choices), genes.option_counts(space)
    for token, value in zip(space.tokens, values, strict=True):
        combined = list(itertools.product(*(range(counts[g]) for g in token.genes)))
        if value < len(combined):
            for gene, option in zip(token.genes, combined[value], strict=True):
                arch[gene] = option
            if token.depth:
                arch[token.depth[0]] = max(arch[token.depth[0]], token.depth[1])
    return space.repair(tuple(arch))


def slow_project(space: SearchSpace, table: Tensor) -> Arch:
    """Try all sequences; the largest total, then the fewest layers, then the first values."""
    rows = table.tolist()
    totals = [
        (-sum(row[v] for row, v in zip(rows, values, strict=True)), count, values)
        for values, count in sequences(space)
    ]
    return slow_decode(space, min(totals)[2])


@every
def test_a_round_trip_changes_nothing(space: SearchSpace):
    archs = drawn(space, 30)
    code, values, table = (
        tokens.encoding(space),
        tokens.encode(space, archs),
        tokens.one_hot(space, archs),
    )
    assert values.dtype == torch.int64 and values.shape == (len(archs), code.length)
    assert tokens.decode(space, values) == archs
    assert table.shape == (len(archs), code.length, code.vocabulary)
    assert table.dtype == torch.float32
    assert torch.equal(table.argmax(2), values) and torch.equal(
        table.sum(2), torch.ones(values.shape)
    )
    assert not table[:, ~code.allowed].any()
    assert tokens.project(space, table) == archs
    assert tokens.raw_valid(space, table).all()
    assert len({tuple(row) for row in values.tolist()}) == len(set(archs))


@small
def test_sequences_that_need_no_repair_are_the_architectures(space: SearchSpace):
    every = list(genes.enumerate_all(space))
    found = torch.tensor([values for values, _ in sequences(space)], dtype=torch.int64)
    assert tokens.decode(space, found) == [slow_decode(space, tuple(v)) for v in found.tolist()]
    table = torch.nn.functional.one_hot(found, tokens.encoding(space).vocabulary)
    assert int(tokens.raw_valid(space, table).sum()) == len(every)
    assert set(tokens.decode(space, found)) == set(every)


@given(st.sampled_from(SMALL), st.integers(0, 2**32), st.booleans())
def test_projection_is_that_of_brute_force(space: SearchSpace, seed: int, tied: bool):
    x = noise(space, 4, seed, tied)
    assert tokens.project(space, x) == [slow_project(space, table) for table in x.double()]


@given(st.sampled_from(EVERY), st.integers(0, 2**32), st.booleans(), st.floats(-3, 38))
def test_projection_is_legal_and_idempotent(
    space: SearchSpace, seed: int, tied: bool, magnitude: float
):
    x = noise(space, 3, seed, tied) * 10**magnitude
    rotten = torch.rand(x.shape, generator=generator(seed))
    x[(rotten < 0.02)] = math.nan
    x[(rotten > 0.98)] = math.inf
    x[(rotten > 0.99)] = -math.inf
    archs = tokens.project(space, x)
    assert len(archs) == 3 and all(genes.is_legal(space, arch) for arch in archs)
    again = tokens.one_hot(space, archs)
    assert tokens.project(space, again) == archs
    assert tokens.raw_valid(space, again).all()
    slightly_off = 0.8 * again + 0.2 * noise(space, 3, seed + 1).sigmoid()
    assert tokens.project(space, slightly_off) == archs


@given(st.sampled_from(EVERY), st.integers(0, 2**32), st.floats(0, 0.6))
def test_what_is_valid_is_what_projection_leaves_alone(space: SearchSpace, seed: int, far: float):
    table = tokens.one_hot(space, genes.sample_many(space, 8, generator(seed)))
    x = table + far * noise(space, 8, seed + 1)
    rounded = (x >= 0.5).float()
    valid = tokens.raw_valid(space, x)
    alone = (rounded == tokens.one_hot(space, tokens.project(space, x))).all(2).all(1)
    assert (valid | ~alone).all()
    if all(space.merged(arch) == arch for arch in space.cover()):  # none is written twice
        assert torch.equal(valid, alone)


def test_the_tables_of_mobilenetv3():
    code, space = tokens.encoding(cpu("mobilenetv3")), cpu("mobilenetv3")
    assert (code.length, code.vocabulary) == (20, 10)
    assert code.allowed.sum(1).tolist() == [9, 9, 10, 10] * 5
    assert code.stages.tolist() == [stage for stage in range(5) for _ in range(4)]
    assert code.places.tolist() == [0, 1, 2, 3] * 5
    assert torch.equal(code.adjacency, torch.ones(20, 20).tril(1).triu(1).bool())
    # second stage: depth 3; kernels 7, 5, 3; expansions 3, 6, 4
    stage = (1, 2, 1, 0, 0, 0, 2, 1, 0)
    arch = space.smallest()[:GENES] + stage + space.smallest()[2 * GENES :]
    assert tokens.encode(space, [arch])[0, :8].tolist() == [0, 0, 9, 9, 6, 5, 1, 9]
    names = [space.tokens[5].name, *(space.choices[gene].name for gene in space.tokens[5].genes)]
    assert names == [f"stage 2 layer 2{end}" for end in ("", " kernel", " expansion")]


def test_the_graph_of_darts():
    """Into node 2 go edges 5 to 8, from the inputs, from node 0 (into it 0, 1), from 1 (2 to 4)."""
    code, names = tokens.encoding(DARTS()), [token.name for token in DARTS().tokens]
    assert (code.length, code.vocabulary, bool(code.allowed.all())) == (28, 8, True)
    assert names[5] == "normal c_{k-2} to 2" and names[8] == "normal 1 to 2"
    reads = [code.adjacency[:, edge].nonzero().flatten().tolist() for edge in range(28)]
    assert reads[5:9] == [[], [], [0, 1], [2, 3, 4]]
    last = [9, 10, 11, 12, 13]  # of the normal cell, which the reduction cell's inputs stand for
    assert reads[19:23] == [last, last, [14, 15], [16, 17, 18]]
    assert code.adjacency[8].nonzero().flatten().tolist() == [13]  # 1 to 2 is read by 2 to 3
    assert code.stages.tolist() == [0] * 14 + [1] * 14
    assert code.places.tolist() == [*range(14)] * 2
    assert tokens.encoding(DARTS(operations="s1")).allowed.shape == (28, 2)
    relaxed = tokens.encoding(DARTS(form="relaxed"))
    assert (
        relaxed.allowed.shape == (28, 256)
        and relaxed.adjacency[0].tolist() == [False, True] + [False] * 26
    )


def test_the_order_of_nasvit_and_plato():
    """Stage by stage, whatever the order of the genes."""
    plato = [(t.name, t.stage, t.place) for t in MobileNetV3Plato().tokens]
    assert plato[:4] == [
        ("mb1 width", 0, 0), ("mb1 depth", 0, 1), ("mb1 kernel", 0, 2), ("mb2 width", 1, 0)
    ]  # fmt: skip
    assert plato[-1] == ("mb5 expansion", 4, 3)
    nasvit = [(t.name, t.stage, t.place) for t in cpu("nasvit").tokens]
    assert nasvit[:3] == [("resolution", 0, 0), ("stem width", 0, 1), ("mb1 width", 1, 0)]
    assert nasvit[-2:] == [("mb7 depth", 7, 1), ("head width", 8, 0)]
    assert tokens.encoding(NASViT()).allowed.shape == (22, 7)


@every
def test_tokens_read_earlier_ones_and_places_are_unique(space: SearchSpace):
    code = tokens.encoding(space)
    assert not code.adjacency.tril().any()
    assert len({*zip(code.stages.tolist(), code.places.tolist(), strict=True)}) == code.length
    assert code.stages.tolist() == sorted(code.stages.tolist())
    assert tokens.encoding(space) is code


def changed(space: SearchSpace, *entries: tuple[int, int, float]) -> bool:
    """Say whether the largest architecture is still valid with some entries set."""
    x = tokens.one_hot(space, [space.largest()])
    for token, value, number in entries:
        x[0, token, value] = number
    return bool(tokens.raw_valid(space, x))


def test_validity_by_hand():
    space = MobileNetV3()
    assert changed(space)
    assert changed(space, (0, 8, 0.5), (0, 3, 0.49), (5, 1, -4.0))
    assert not changed(space, (0, 3, 0.5))  # two entries
    assert not changed(space, (0, 8, 0.49))  # none
    assert not changed(space, (0, 8, 0.0), (0, 9, 1.0))  # the first layer is never absent
    assert not changed(space, (0, 9, 0.6))  # forbidden, and a second entry
    assert changed(space, (3, 8, 0.0), (3, 9, 1.0))  # no layer 4
    assert changed(space, (2, 8, 0.0), (2, 9, 1.0), (3, 8, 0.0), (3, 9, 1.0))  # nor layer 3
    assert not changed(space, (2, 8, 0.0), (2, 9, 1.0))  # layer 4 without 3
    assert not changed(space, (0, 0, math.nan)) and not changed(space, (0, 8, math.inf))


def test_an_illegal_cell_is_not_valid():
    space = DARTS()
    fed = tokens.one_hot(space, [space.middle()])
    assert tokens.raw_valid(space, fed).all()
    starved = fed.clone()
    starved[:, 2:5] = torch.eye(8)[0]  # `none` on all edges into the second node
    assert not tokens.raw_valid(space, starved).any()
    assert genes.is_legal(space, tokens.project(space, starved)[0])
    unread = fed.clone()
    unread[:, [15, 17, 20, 24]] = torch.eye(8)[0]  # the second input of the reduction cell
    assert not tokens.raw_valid(space, unread).any()


def test_depth_is_that_of_the_least_loss():
    """Layer 3 hardly absent, layer 4 surely there: both are; and the other way round."""
    space = MobileNetV3()
    x = tokens.one_hot(space, [space.smallest()])
    x[0, 2, [4, 9]] = torch.tensor([0.4, 0.6])
    x[0, 3, [2, 9]] = torch.tensor([0.9, 0.1])
    (arch,) = tokens.project(space, x)
    assert arch[:GENES] == (2, 0, 0, 1, 0, 0, 0, 1, 2)
    x[0, 2, [4, 9]] = torch.tensor([0.0, 0.9])
    assert tokens.project(space, x) == [space.smallest()]
    values = tokens.encode(space, [space.largest()])
    values[0, 2] = 9
    assert tokens.decode(space, values)[0][0] == 0  # a tie: no layer is invented


def test_numbers_that_are_none_do_not_decide():
    """Not a number counts as 0; infinities of both kinds cancel where depths are compared."""
    space = MobileNetV3()
    x = tokens.one_hot(space, [space.smallest()])
    x[0, :, 5] = math.nan
    assert tokens.project(space, x) == [space.smallest()]
    x[0, 2, [4, 9]] = math.inf
    assert tokens.project(space, x) == [space.smallest()]
    x[0, 3, 7] = math.inf
    assert tokens.project(space, x)[0][:GENES] == (2, 0, 0, 1, 2, 0, 0, 1, 1)
    x[0, 3, :9], x[0, 3, 9], x[0, 2, 9] = -math.inf, math.inf, -math.inf
    assert tokens.project(space, x)[0][:GENES] == (1, 0, 0, 1, 0, 0, 0, 1, 0)


def test_wrong_values_and_wrong_tokens_are_refused():
    space = MobileNetV3()
    for shape, value in [((1, 20), 9), ((1, 20), -1), ((1, 19), 0), ((20,), 0)]:
        with pytest.raises(ValueError, match="20 tokens"):
            tokens.decode(space, torch.full(shape, value))

    @dataclass(frozen=True)
    class Wrong(made_up.Layers):
        given: tuple[Token, ...]

        @property
        def tokens(self) -> tuple[Token, ...]:
            return self.given

    first, second = Layers().tokens
    for wrong, complaint in [
        ((first, second, second), "gene 3 must be written"),
        ((first, second, Token("depth", (0,))), "gene 1 must be written"),
        ((first, Token("second", (2,))), "gene 1: every depth"),
        ((Token("first", (), depth=(0, 1)), second), "gene 2 must be written"),
    ]:
        with pytest.raises(ValueError, match=complaint):
            tokens.encoding(Wrong(wrong))


def test_no_architectures_are_no_rows():
    for space in (MobileNetV3(), made_up.Fixed()):
        table = tokens.one_hot(space, [])
        assert tokens.project(space, table) == [] and tokens.raw_valid(space, table).shape == (0,)
    assert tokens.project(made_up.Fixed(), torch.zeros(2, 0, 1)) == [(), ()]
