"""Softmax policies over the architectures of any search space, learned by REINFORCE.

PerFedRLNAS (Yao & Li 2024), Eq. 4 to 7. A policy is one row of alphas: those of the first gene's
options, then those of the second's, and so on, all 0 at first. It draws every gene for itself.

The space makes what was drawn legal (`repair`), which is part of what the policy acts on and not of
the policy: gradients are those of the genes as drawn. A gene that made no difference beside the
others, such as one of an absent layer, is left alone; its gradient would be noise of mean zero.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Json
from fedtailor.search import genes
from fedtailor.search.genes import offsets

Rule: TypeAlias = Literal["plain", "adam"]
BETAS, EPSILON = (0.5, 0.999), 1e-8  # of Adam, as in the authors' code


def probabilities(space: SearchSpace, alphas: Tensor, temperature: float = 1.0) -> list[Tensor]:
    """Return each gene's probabilities of its options (Eq. 4)."""
    parts = (alphas / temperature).split(genes.option_counts(space))
    return [part.softmax(0) for part in parts]


def draw(
    space: SearchSpace, alphas: Tensor, rng: torch.Generator, temperature: float = 1.0
) -> Arch:
    """Draw genes; `space.repair` makes them legal."""
    chances = probabilities(space, alphas, temperature)
    points = torch.rand(len(chances), generator=rng, dtype=torch.float64)
    drawn = [int((p.cumsum(0)[:-1] <= at).sum()) for p, at in zip(chances, points, strict=True)]
    return tuple(drawn)


def likeliest(space: SearchSpace, alphas: Tensor) -> Arch:
    """Return the most probable architecture; of equally probable options the middle one's."""
    return space.repair(_likeliest_draw(space, alphas))


def likeliest_within(
    space: SearchSpace, alphas: Tensor, size: Callable[[Arch], float], limit: float
) -> Arch:
    """Return a probable architecture whose size is within a limit, where there is one.

    From the most probable one it goes on to the most probable smaller one that differs in a gene,
    until it is small enough, or nothing smaller is left.
    """
    drawn = _likeliest_draw(space, alphas)
    while (now := size(space.repair(drawn))) > limit:
        near = _by_probability(space, alphas, drawn)
        smaller = next((other for other in near if size(space.repair(other)) < now), None)
        if smaller is None:
            break
        drawn = smaller
    return space.repair(drawn)


def _likeliest_draw(space: SearchSpace, alphas: Tensor) -> Arch:
    """Return the most probable genes, before they are repaired."""
    counts, middle = genes.option_counts(space), space.middle()
    there = acting(space, middle).split(counts)  # the genes of absent layers are no middle
    found = []
    for gene, (part, count) in enumerate(zip(alphas.split(counts), counts, strict=True)):
        usual = middle[gene] if there[gene][0] else (count - 1) // 2
        found.append(usual if part[usual] == part.max() else int(part.argmax()))
    return tuple(found)


def _by_probability(space: SearchSpace, alphas: Tensor, drawn: Arch) -> list[Arch]:
    """List the draws that differ in one gene, the most probable first.

    Draws and not architectures: the genes of layers that become absent keep their options, and
    so cost nothing.
    """
    parts = [part.tolist() for part in alphas.split(genes.option_counts(space))]
    changes = [
        (part[drawn[gene]] - other, gene, option)
        for gene, part in enumerate(parts)
        for option, other in enumerate(part)
        if option != drawn[gene]
    ]
    return [genes.with_gene(drawn, gene, option) for _, gene, option in sorted(changes)]


def score(space: SearchSpace, alphas: Tensor, drawn: Arch, temperature: float = 1.0) -> Tensor:
    """Return the gradient of the genes' log probability: one-hot minus probabilities (Eq. 6, 7)."""
    found = [-p for p in probabilities(space, alphas, temperature)]
    for part, gene in zip(found, drawn, strict=True):
        part[gene] += 1
    return _joined(found) / temperature


def entropies(space: SearchSpace, alphas: Tensor, temperature: float = 1.0) -> list[float]:
    """Return each gene's entropy as a share of the largest: 1 is undecided, 0 decided."""
    found = []
    for p in probabilities(space, alphas, temperature):
        most = math.log(len(p))
        found.append(float(torch.special.entr(p).sum()) / most if most else 0.0)
    return found


def entropy_gradient(space: SearchSpace, alphas: Tensor, temperature: float = 1.0) -> Tensor:
    """Return the gradient of the entropies' sum, in nats."""
    found = []
    for p in probabilities(space, alphas, temperature):
        surprise = torch.special.entr(p)  # -p log p, 0 at 0
        found.append(surprise - p * surprise.sum())
    return _joined(found) / temperature


def acting(space: SearchSpace, drawn: Arch) -> Tensor:
    """Say for every alpha whether its gene made a difference, beside the others as drawn."""
    counts = genes.option_counts(space)
    legal = space.repair(drawn)
    found = [
        any(space.repair(genes.with_gene(drawn, gene, o)) != legal for o in range(count))
        for gene, count in enumerate(counts)
    ]
    return torch.tensor(found, dtype=torch.bool).repeat_interleave(torch.tensor(counts).long())


def idle_genes(space: SearchSpace, arch: Arch) -> tuple[int, ...]:
    """Return the places of the genes that make no difference, such as those of absent layers."""
    first = acting(space, arch)[list(offsets(space)[:-1])].tolist()
    return tuple(place for place, matters in enumerate(first) if not matters)


def reinforce(
    space: SearchSpace,
    alphas: Tensor,
    drawn: Arch,
    advantage: float,
    temperature: float = 1.0,
    entropy: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Return the gradient that a reward for drawn genes gives (Eq. 5), and which alphas learn.

    With a weight for the entropy all learn, since every gene has one.
    """
    there = acting(space, drawn)
    gradient = advantage * score(space, alphas, drawn, temperature) * there
    if not entropy:
        return gradient, there
    spread = entropy_gradient(space, alphas, temperature)
    return gradient + entropy * spread, torch.ones_like(there)


@dataclass(frozen=True)
class Policies:
    """The policies that have learned something, each known by a number; others are all 0."""

    numbers: tuple[int, ...] = ()
    alphas: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.float64))
    moments: Tensor = field(default_factory=lambda: torch.zeros(0, 3, 0, dtype=torch.float64))
    # of Adam, per alpha: mean, mean square, updates so far

    def row(self, number: int, length: int) -> Tensor:
        """Return a policy's alphas."""
        if number not in self.numbers:
            return torch.zeros(length, dtype=torch.float64)
        return self.alphas[self.numbers.index(number)]


def ascend(
    policies: Policies,
    gradients: dict[int, Tensor],
    moved: dict[int, Tensor],
    rule: Rule,
    rate: float,
) -> Policies:
    """Return the policies after a step up some of their gradients.

    Adam's steps are as long for small rewards as for large ones: it erases the rewards' scale, and
    policies are decided after a handful of steps. The plain gradient keeps it.

    Args:
        policies: which may not know all the numbers yet.
        gradients: by the policies' numbers.
        moved: which alphas learn; the others keep their values and moments.
        rule: `plain` adds rate * gradient.
        rate: the length of a step.
    """
    if not gradients:
        return policies
    new = [number for number in gradients if number not in policies.numbers]
    length = len(next(iter(gradients.values())))
    numbers = (*policies.numbers, *new)
    alphas, moments = (
        torch.cat([old.reshape(len(policies.numbers), *shape), old.new_zeros(len(new), *shape)])
        for old, shape in ((policies.alphas, (length,)), (policies.moments, (3, length)))
    )
    for number, gradient in gradients.items():
        at, there = numbers.index(number), moved[number]
        step = gradient
        if rule == "adam":
            after, step = _adam(moments[at], gradient)
            moments[at] = torch.where(there, after, moments[at])
        alphas[at] += torch.where(there, rate * step, 0.0)
    return Policies(numbers, alphas, moments)


def _adam(moments: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return Adam's moments after a gradient, and its step for a rate of 1."""
    steps = moments[2] + 1
    mean = BETAS[0] * moments[0] + (1 - BETAS[0]) * gradient
    square = BETAS[1] * moments[1] + (1 - BETAS[1]) * gradient**2
    level = (square / (1 - BETAS[1] ** steps)).sqrt() + EPSILON
    return torch.stack([mean, square, steps]), mean / (1 - BETAS[0] ** steps) / level


def _joined(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def described(space: SearchSpace, alphas: Tensor, temperature: float = 1.0) -> dict[str, Json]:
    """Tell a policy's most probable architecture, and how decided it is.

    Its probability leaves out genes that make no difference to it, such as those of absent layers.
    """
    arch, names = likeliest(space, alphas), [choice.name for choice in space.choices]
    taken = [c.options[gene] for c, gene in zip(space.choices, arch, strict=True)]
    chances = [p.tolist() for p in probabilities(space, alphas, temperature)]
    matters = acting(space, arch)[list(offsets(space)[:-1])].tolist()
    drawn = [p[gene] for p, gene, there in zip(chances, arch, matters, strict=True) if there]
    return {
        "genes": list(arch),
        "architecture": dict(zip(names, taken, strict=True)),
        "probability": math.prod(drawn),
        "entropy": dict(zip(names, entropies(space, alphas, temperature), strict=True)),
        "probabilities": dict(zip(names, chances, strict=True)),
    }
