"""What can be done with the architectures of any search space: draw, change, encode, check.

An architecture is a tuple of genes, the index of the option taken at each choice. Whatever a
function here returns is legal and in the one form that equal networks share; where an architecture
is asked for, one of that form is meant.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate, product

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace

TRIES = 20  # of a mutation, before one gene is changed for certain
MOST = 100_000  # combinations that are still enumerated


def option_counts(space: SearchSpace) -> tuple[int, ...]:
    """Return the number of options of each gene."""
    return tuple(len(choice.options) for choice in space.choices)


def sample_many(space: SearchSpace, number: int, rng: torch.Generator) -> list[Arch]:
    """Draw architectures, every option as likely as the others of its gene, then repaired."""
    counts = torch.tensor(option_counts(space), dtype=torch.float64)
    drawn = torch.rand(number, len(counts), generator=rng, dtype=torch.float64) * counts
    return [space.repair(tuple(row)) for row in drawn.long().tolist()]


def sample(space: SearchSpace, rng: torch.Generator) -> Arch:
    """Draw one architecture."""
    return sample_many(space, 1, rng)[0]


def mutate(space: SearchSpace, arch: Arch, rng: torch.Generator, rate: float | None = None) -> Arch:
    """Return another architecture, each gene replaced by another option with probability `rate`.

    By default one gene changes on average. Only where no other architecture is found, as in a
    fixed model, is it the same one.
    """
    counts = option_counts(space)
    chance = 1 / max(1, len(counts)) if rate is None else rate
    for _ in range(TRIES):
        found = space.repair(_redrawn(arch, counts, chance, rng))
        if found != arch:
            return found
    near = neighbours(space, arch)
    return near[int(torch.randint(len(near), (), generator=rng))] if near else arch


def crossover(space: SearchSpace, first: Arch, second: Arch, rng: torch.Generator) -> Arch:
    """Take each gene from either parent, as likely from one as from the other; then repair."""
    return crossed_pair(space, first, second, rng)[0]


def crossed_pair(
    space: SearchSpace, first: Arch, second: Arch, rng: torch.Generator
) -> tuple[Arch, Arch]:
    """Return two children: a gene that one has from a parent, the other has from the other."""
    coins = torch.randint(2, (len(first),), generator=rng).tolist()
    pairs = [(b, a) if coin else (a, b) for a, b, coin in zip(first, second, coins, strict=True)]
    return space.repair(tuple(a for a, _ in pairs)), space.repair(tuple(b for _, b in pairs))


def neighbours(space: SearchSpace, arch: Arch) -> list[Arch]:
    """List the other architectures that changing one gene leads to, by gene, then by option."""
    found = dict.fromkeys(
        space.repair(with_gene(arch, gene, option))
        for gene, count in enumerate(option_counts(space))
        for option in range(count)
    )
    return [other for other in found if other != arch]


def with_gene(arch: Arch, gene: int, option: int) -> Arch:
    """Return a copy with one gene replaced, not repaired."""
    return (*arch[:gene], option, *arch[gene + 1 :])


def is_legal(space: SearchSpace, arch: Sequence[int]) -> bool:
    """Say whether genes are an architecture of the space, in the form that equal networks share."""
    return _complaint(space, arch) is None


def check(space: SearchSpace, arch: Sequence[int]) -> Arch:
    """Return a user's genes as an architecture, or say which gene is the first wrong one.

    Of options that are the same network any may be given.
    """
    complaint = _outside(space, arch)
    found = tuple(arch) if complaint else space.merged(tuple(arch))
    complaint = complaint or _complaint(space, found)
    if complaint is not None:
        raise UserError(f"space.arch: {complaint}")
    return found


def integers(space: SearchSpace, archs: Sequence[Arch]) -> np.ndarray:
    """Return architectures as rows of integers."""
    return np.array(archs, dtype=np.int64).reshape(len(archs), len(space.choices))


def from_integers(space: SearchSpace, rows: np.ndarray) -> list[Arch]:
    """Read architectures from rows of integers and repair them."""
    counts = option_counts(space)
    if rows.shape[1:] != (len(counts),) or ((rows < 0) | (rows >= np.array(counts))).any():
        raise ValueError(f"rows must hold {len(counts)} genes, each the index of an option")
    return [space.repair(tuple(row)) for row in rows.astype(np.int64).tolist()]


def offsets(space: SearchSpace) -> tuple[int, ...]:
    """Return where each gene begins in a one-hot row, and last the length of the row."""
    return tuple(accumulate(option_counts(space), initial=0))


def one_hot(space: SearchSpace, archs: Sequence[Arch]) -> Tensor:
    """Return architectures as rows of zeros, with a one at the option of each gene."""
    *starts, length = offsets(space)
    ones = integers(space, archs) + np.array(starts, dtype=np.int64)
    return torch.zeros(len(archs), length).scatter_(1, torch.from_numpy(ones), 1.0)


def from_one_hot(space: SearchSpace, rows: Tensor) -> list[Arch]:
    """Read architectures from any numbers: the largest of each gene counts, then repair."""
    genes = torch.empty(len(rows), len(space.choices), dtype=torch.int64)
    for gene, part in enumerate(rows.split(option_counts(space), 1)):
        genes[:, gene] = part.argmax(1)
    return [space.repair(tuple(row)) for row in genes.tolist()]


def combinations(space: SearchSpace) -> int:
    """Count the combinations of options; where genes can be absent, networks are fewer."""
    return math.prod(option_counts(space))


def enumerate_all(space: SearchSpace) -> Iterator[Arch]:
    """Return every architecture once, in the order of their genes; a large space is refused."""
    size = combinations(space)
    if size > MOST:
        raise UserError(f"space.name: {size:.3g} architectures are too many to try them all")
    every = product(*(range(count) for count in option_counts(space)))
    return (arch for arch in every if space.repair(arch) == arch)


def _redrawn(arch: Arch, counts: tuple[int, ...], rate: float, rng: torch.Generator) -> Arch:
    chances, draws = torch.rand(2, len(arch), generator=rng, dtype=torch.float64).tolist()
    genes = list(arch)
    for gene, count in enumerate(counts):
        if chances[gene] < rate and count > 1:
            other = int(draws[gene] * (count - 1))
            genes[gene] = other + (other >= arch[gene])  # the own option is left out
    return tuple(genes)


def _outside(space: SearchSpace, arch: Sequence[int]) -> str | None:
    """Say which gene is none of its choice's options."""
    choices = space.choices
    if len(arch) != len(choices):
        return f"{len(choices)} genes are needed, one for each choice, not {len(arch)}"
    for number, (gene, choice) in enumerate(zip(arch, choices, strict=True), 1):
        last = len(choice.options) - 1
        if type(gene) is not int or not 0 <= gene <= last:  # True and 1.0 are no genes
            options = ", ".join(str(option) for option in choice.options)
            allowed = f"0 to {last}, the index of an option ({options})" if last else "0"
            return f"gene {number} ({choice.name}) must be {allowed}, not {gene!r}"
    return None


def _complaint(space: SearchSpace, arch: Sequence[int]) -> str | None:
    if complaint := _outside(space, arch):
        return complaint
    legal, choices = space.repair(tuple(arch)), space.choices
    for number, (gene, right, choice) in enumerate(zip(arch, legal, choices, strict=True), 1):
        if gene != right:
            return f"gene {number} ({choice.name}) must be {right} beside the others, not {gene}"
    return None
