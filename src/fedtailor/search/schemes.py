"""Supernet training schemes: which architectures are trained together in one step."""

from collections.abc import Callable, Sequence

import torch

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.search.genes import option_counts, sample, sample_many, with_gene

TRIES = 1000  # sets that are drawn for one that is fair and legal


def single_path(space: SearchSpace, rng: torch.Generator) -> tuple[Arch, ...]:
    """Return one random architecture (Guo et al. 2020)."""
    return (sample(space, rng),)


def among(archs: Sequence[Arch]) -> Callable[[torch.Generator], tuple[Arch, ...]]:
    """Return a scheme that trains one of some architectures, each as likely as the others."""

    def drawn(rng: torch.Generator) -> tuple[Arch, ...]:
        return (archs[int(torch.randint(len(archs), (), generator=rng))],)

    return drawn


def sandwich(space: SearchSpace, rng: torch.Generator, randoms: int = 1) -> tuple[Arch, ...]:
    """Return the largest architecture, the smallest and random ones (Yu & Huang 2019)."""
    return (space.largest(), space.smallest(), *sample_many(space, randoms, rng))


def fair(space: SearchSpace, rng: torch.Generator) -> tuple[Arch, ...]:
    """Return architectures that together take every option once (FairNAS, Chu et al. 2021).

    They are as many as the longest choice has options; options of shorter choices are taken as
    equally often as that number allows. Sets with a network that is not legal are drawn anew. A
    layer that is absent trains none of its options, so those are fair on average only.
    """
    for _ in range(TRIES):
        legal: list[Arch] = []
        for drawn in _permuted(option_counts(space), rng):
            if (arch := _legal_form(space, drawn)) is None:
                break
            legal.append(arch)
        else:
            return tuple(legal)
    raise UserError(
        f"space.name: among {TRIES} draws was no set of legal architectures that take every"
        " option equally often"
    )


def _permuted(counts: tuple[int, ...], rng: torch.Generator) -> list[Arch]:
    size = max(counts, default=1)
    columns = [_shuffled(count, size, rng) for count in counts]
    return [tuple(column[row] for column in columns) for row in range(size)]


def _shuffled(count: int, size: int, rng: torch.Generator) -> list[int]:
    """Return `size` options in random order, each as often as any other or once more."""
    rounds = -(-size // count)
    options = torch.cat([torch.randperm(count, generator=rng) for _ in range(rounds)])[:size]
    return options[torch.randperm(size, generator=rng)].tolist()


def _legal_form(space: SearchSpace, drawn: Arch) -> Arch | None:
    """Return the form of an architecture that equal networks share; None if it is not legal."""
    legal, drawn = space.repair(drawn), space.merged(drawn)
    changed = (gene for gene, option in enumerate(legal) if option != drawn[gene])
    return legal if all(_is_absent(space, legal, gene) for gene in changed) else None


def _is_absent(space: SearchSpace, arch: Arch, gene: int) -> bool:
    """Say whether a gene is without effect: it is 0, and no other option is another network.

    That it is 0 is asked for because a gene repaired away from an illegal first option, to the one
    other option it has, looks as much without effect. What cannot be told from an absent layer is
    a gene that repair moves to its first option where the other genes allow no second one.
    """
    others = range(1, len(space.choices[gene].options))
    return arch[gene] == 0 and all(
        space.repair(with_gene(arch, gene, option)) == arch for option in others
    )
