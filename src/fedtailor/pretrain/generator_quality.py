"""How good a generator is: whether its tables are architectures, and whether of the right kind."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search.diffusion.tokens import encode, encoding, project, raw_valid
from fedtailor.search.genes import integers, option_counts

FLOORS = 10  # pairs of samples over which a floor is averaged, where there are as many


def generation_quality(
    space: SearchSpace, x: Tensor, training: Sequence[Arch], reference: Sequence[Arch]
) -> dict[str, float]:
    """Judge generated tables, on the scale of 0 and 1, as they are and as projected architectures.

    Shares: `raw_valid`, `unique` and `novel`, which is not among those that were trained on.
    Distances: the total variation between the generated and the reference in how often values
    occur, `operations` averaged over tokens and `depths` over the genes that make tokens absent (0
    if there are none). Each has a floor beside it: what samples of as many from the reference have.

    Args:
        space: of the tables.
        x: (n, tokens, values).
        training: the architectures that were trained on.
        reference: independent ones of the same kind, best many times n.
    """
    if not len(x) or len(reference) < 2:
        raise ValueError("a table and two reference architectures are the least to judge by")
    archs, known = project(space, x), set(training)
    found = {
        "raw_valid": float(raw_valid(space, x).double().mean()),
        "unique": len(set(archs)) / len(archs),
        "novel": sum(arch not in known for arch in archs) / len(archs),
    }
    for name, marginals in (("operations", _operations), ("depths", _depths)):
        generated, true = marginals(space, archs), marginals(space, reference)
        found[name] = _distance(generated.mean(0), true.mean(0))
        found[f"{name}_floor"] = _floor(true, len(archs))
    return found


def _operations(space: SearchSpace, archs: Sequence[Arch]) -> Tensor:
    """Return which value each token has: (architectures, tokens, values)."""
    return F.one_hot(encode(space, archs), encoding(space).vocabulary).double()


def _depths(space: SearchSpace, archs: Sequence[Arch]) -> Tensor:
    """Return which option each gene of depth has: (architectures, genes, options)."""
    genes = [depth.gene for depth in encoding(space).depths]
    most = max((option_counts(space)[gene] for gene in genes), default=1)
    return F.one_hot(torch.from_numpy(integers(space, archs))[:, genes], most).double()


def _distance(one: Tensor, other: Tensor) -> float:
    """Return the total variation between rows of shares, averaged over rows."""
    return float((one - other).abs().sum(1).mean() / 2) if len(one) else 0.0


def _floor(reference: Tensor, number: int) -> float:
    """Return the mean distance of some of the reference, `number` each, from all others."""
    number = min(number, len(reference) // 2)
    total, found = reference.sum(0), []
    for part in reference.split(number)[: min(FLOORS, len(reference) // number)]:
        others = (total - part.sum(0)) / (len(reference) - number)
        found.append(_distance(part.mean(0), others))
    return sum(found) / len(found)
