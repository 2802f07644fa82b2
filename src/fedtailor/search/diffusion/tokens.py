"""Architectures as tables of tokens and values, which is what a generator diffuses.

DiffusionNAG (An et al. 2024) diffuses one one-hot row per layer over a fixed graph; here the rows
are the space's tokens. All share one vocabulary, of which a token may have the first values alone:
its genes as one number, the first gene counting most, and last ABSENT where it can be absent. (In
DiffusionNAG an absent layer is a row of zeros; a value of its own makes the largest entry decide.)

Tables are on the scale of one-hot rows, 0 to 1. Any table has a legal architecture (`project`);
`raw_valid` says whether it needed no help to become one.
"""

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.space import Arch, SearchSpace, Token
from fedtailor.search.genes import integers, option_counts

THRESHOLD = 0.5  # an entry counts as 1 from here on
MOST = 1e30  # larger numbers are cut, so that sums of them stay finite


@dataclass(frozen=True, eq=False)
class Digit:
    """Where genes are in the values of tokens: value // unit % options, one entry per gene."""

    genes: Tensor
    tokens: Tensor
    units: Tensor
    options: Tensor


@dataclass(frozen=True, eq=False)
class Depth:
    """The tokens that a gene of depth makes absent: those whose option is above it."""

    gene: int
    levels: Tensor  # all options of the gene: 0, 1, 2, ...
    tokens: Tensor
    options: Tensor
    absent: Tensor  # each token's value ABSENT


@dataclass(frozen=True, eq=False)
class Encoding:
    """The tables of a space: a row per token, a column per value."""

    allowed: Tensor  # (length, vocabulary), bool
    stages: Tensor  # (length,), int64
    places: Tensor  # (length,), int64: within the stage
    adjacency: Tensor  # (length, length), bool: whether the column's token reads the row's
    digits: Digit
    depths: tuple[Depth, ...]

    @property
    def length(self) -> int:
        """The number of tokens."""
        return self.allowed.shape[0]

    @property
    def vocabulary(self) -> int:
        """The number of values that the richest token has."""
        return self.allowed.shape[1]


@functools.cache
def encoding(space: SearchSpace) -> Encoding:
    """Return the tables of a space."""
    tokens, counts = space.tokens, option_counts(space)
    _check(tokens, counts)
    present = [math.prod(counts[gene] for gene in token.genes) for token in tokens]
    sizes = [size + (t.depth is not None) for size, t in zip(present, tokens, strict=True)]
    values = torch.arange(max(sizes, default=1))
    adjacency = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
    for index, token in enumerate(tokens):
        adjacency[list(token.after), index] = True
    return Encoding(
        values < torch.tensor(sizes, dtype=torch.int64)[:, None],
        torch.tensor([token.stage for token in tokens], dtype=torch.int64),
        torch.tensor([token.place for token in tokens], dtype=torch.int64),
        adjacency,
        _digits(tokens, counts),
        _depths(tokens, counts, torch.tensor(present, dtype=torch.int64)),
    )


def encode(space: SearchSpace, archs: Sequence[Arch]) -> Tensor:
    """Return the values of architectures' tokens: (architectures, tokens), int64."""
    code = encoding(space)
    genes, digits = torch.from_numpy(integers(space, archs)), code.digits
    values = torch.zeros(len(archs), code.length, dtype=torch.int64)
    values.index_add_(1, digits.tokens, genes[:, digits.genes] * digits.units)
    for depth in code.depths:
        there = depth.options <= genes[:, depth.gene, None]
        values[:, depth.tokens] = torch.where(there, values[:, depth.tokens], depth.absent)
    return values


def one_hot(space: SearchSpace, archs: Sequence[Arch]) -> Tensor:
    """Return architectures as tables of 0 and 1: (architectures, tokens, values)."""
    return F.one_hot(encode(space, archs), encoding(space).vocabulary).float()


def decode(space: SearchSpace, values: Tensor) -> list[Arch]:
    """Read architectures from the values of their tokens; what is not legal is repaired."""
    code = encoding(space)
    fits = values.shape[1:] == (code.length,) and bool(
        ((values >= 0) & (values < code.allowed.sum(1))).all()
    )
    if not fits:
        raise ValueError(f"rows must hold {code.length} tokens, each one of its allowed values")
    return project(space, F.one_hot(values, code.vocabulary))


def project(space: SearchSpace, x: Tensor) -> list[Arch]:
    """Return the architectures of tables of any numbers.

    Of all sequences of allowed values in which layers are absent only from the end of a stage, that
    of the largest total, and the one with fewer layers if there are two; then repaired.
    """
    return [space.repair(arch) for arch in _likeliest(space, x)]


def _likeliest(space: SearchSpace, x: Tensor) -> list[Arch]:
    code = encoding(space)
    scores = x.detach().to("cpu", torch.float64).nan_to_num(0.0).clamp(-MOST, MOST)
    scores = scores.masked_fill(~code.allowed, -math.inf)
    values = scores.argmax(2)
    for depth in code.depths:
        values[:, depth.tokens] = _deep_enough(depth, scores[:, depth.tokens])
    return [tuple(row) for row in _genes(space, values).tolist()]


def raw_valid(space: SearchSpace, x: Tensor) -> Tensor:
    """Say of every table whether it is an architecture as it stands, without any projection.

    That is: exactly one entry per token is at least 0.5, its value is allowed, no layer follows an
    absent one, and the space has nothing to repair; of options that are the same network any will
    do.
    """
    ones = x.detach().cpu() >= THRESHOLD
    clear = (ones.sum(2) == 1).all(1) & x.detach().cpu().isfinite().all(2).all(1)
    found = _likeliest(space, x)
    legal = torch.tensor([space.repair(a) == space.merged(a) for a in found], dtype=torch.bool)
    return clear & legal & (encode(space, found) == ones.int().argmax(2)).all(1)


def _deep_enough(depth: Depth, scores: Tensor) -> Tensor:
    """Return the values of a depth's tokens at the level that loses least."""
    last = depth.absent[:, None] == torch.arange(scores.shape[2])
    best, values = scores.masked_fill(last, -math.inf).max(2)
    gains = best - scores.masked_fill(~last, 0.0).sum(2)  # of being there
    there = depth.options[:, None] <= depth.levels
    level = (gains @ there.double()).argmax(1)
    return torch.where(there.T[level], values, depth.absent)


def _genes(space: SearchSpace, values: Tensor) -> Tensor:
    """Return the genes of values that keep the rule of depth; those of absent layers are 0."""
    code, digits = encoding(space), encoding(space).digits
    genes = torch.zeros(len(values), len(space.choices), dtype=torch.int64)
    # ABSENT is a multiple of every unit * options, so its digits are 0
    genes[:, digits.genes] = values[:, digits.tokens] // digits.units % digits.options
    for depth in code.depths:
        there = values[:, depth.tokens] != depth.absent
        genes[:, depth.gene] = (there * depth.options).amax(1)
    return genes


def _digits(tokens: Sequence[Token], counts: Sequence[int]) -> Digit:
    found = [
        (gene, index, math.prod(counts[other] for other in token.genes[place + 1 :]), counts[gene])
        for index, token in enumerate(tokens)
        for place, gene in enumerate(token.genes)
    ]
    return Digit(*torch.tensor(found, dtype=torch.int64).reshape(-1, 4).unbind(1))


def _depths(tokens: Sequence[Token], counts: Sequence[int], absent: Tensor) -> tuple[Depth, ...]:
    found: dict[int, list[tuple[int, int]]] = {}
    for index, token in enumerate(tokens):
        if token.depth:
            found.setdefault(token.depth[0], []).append((index, token.depth[1]))
    return tuple(
        Depth(gene, torch.arange(counts[gene]), at, options, absent[at])
        for gene, pairs in found.items()
        for at, options in [torch.tensor(pairs).unbind(1)]
    )


def _check(tokens: Sequence[Token], counts: Sequence[int]) -> None:
    """Refuse tokens from which not every gene can be read."""
    options: dict[int, set[int]] = {}
    for token in tokens:
        if token.depth:
            options.setdefault(token.depth[0], set()).add(token.depth[1])
    written = Counter(gene for token in tokens for gene in token.genes)
    for gene, count in enumerate(counts):
        if written[gene] != (gene not in options):
            raise ValueError(f"gene {gene + 1} must be written by one token, or be a depth")
        if options.get(gene, set(range(1, count))) != set(range(1, count)):
            raise ValueError(f"gene {gene + 1}: every depth but the first needs a token of its own")
