"""Tokens of spaces that are described stage by stage."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedtailor.core.space import Choice, Token


def by_stage(choices: Sequence[Choice], stages: Mapping[str, int]) -> tuple[Token, ...]:
    """Return a token per choice, in the order of their stages, each reading the one before.

    Args:
        choices: in the order of an architecture.
        stages: the stage that the first word of a choice's name stands for.
    """
    numbers = [stages[choice.name.split()[0]] for choice in choices]
    used: Counter[int] = Counter()
    found: list[Token] = []
    for gene in sorted(range(len(choices)), key=numbers.__getitem__):
        stage, after = numbers[gene], (len(found) - 1,) if found else ()
        found.append(Token(choices[gene].name, (gene,), stage, used[stage], after))
        used[stage] += 1
    return tuple(found)
