"""A policy in plain data, for people and scripts."""

import math

from torch import Tensor

from fedtailor.core.types import Json, SearchSpace
from fedtailor.search.genes import offsets
from fedtailor.search.policy import acting, entropies, likeliest, probabilities


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
