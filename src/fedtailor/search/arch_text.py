"""Architectures as text that people can read and write: `stage 1: depth 3, kernel 3 5 7; ...`.

Choices are grouped by what their names begin with, and those of a group's layers stand together.
What makes no difference, such as the kernels of absent layers, is left out.
"""

import re
from functools import cache

from fedtailor.core.errors import UserError, nearest
from fedtailor.core.space import Arch, Choice, SearchSpace
from fedtailor.search import genes
from fedtailor.search.policy import idle_genes

NONE = "none"  # a first option of this name goes without saying
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # options in their order, as `show` writes them


def write_arch(space: SearchSpace, arch: Arch) -> str:
    """Return an architecture as text, which `read_arch` reads."""
    idle, groups = set(idle_genes(space, arch)), []
    for group, whats in _groups(space.choices).items():
        items = []
        for what, places in whats.items():
            words = ["" if p in idle else _word(space.choices[p], arch[p]) for p in places]
            while words and words[-1] in ("", NONE):
                words.pop()
            shown = [
                word or _word(space.choices[p], arch[p])
                for p, word in zip(places, words, strict=False)
            ]
            if shown:
                items.append(" ".join([what, *shown]))
        if items:
            groups.append(f"{group}: {', '.join(items)}" if group else ", ".join(items))
    return "; ".join(groups)


def read_arch(space: SearchSpace, text: str) -> Arch:
    """Read what `write_arch` wrote, or the digits that `show` writes; or say what is wrong."""
    if re.fullmatch(r"[0-9a-z]+", text) and len(text) == len(space.choices):
        return genes.check(space, [DIGITS.index(digit) for digit in text])
    found, groups = [0] * len(space.choices), _groups(space.choices)
    for part in filter(None, (part.strip() for part in text.split(";"))):
        group, colon, rest = part.partition(":")
        group, rest = (group.strip(), rest) if colon else ("", part)
        if group not in groups:
            known = nearest(group, list(groups))
            raise UserError(f"space.arch: there is no {group!r} in this space{known}")
        for item in re.split(r",\s+", rest.strip()):
            _read_item(space, groups[group], group, item, found)
    return genes.check(space, space.repair(tuple(found)))


def _read_item(
    space: SearchSpace, whats: dict[str, list[int]], group: str, item: str, found: list[int]
) -> None:
    """Enter the options of one item, such as `kernel 3 5 7`."""
    what = next((what for what in whats if item == what or item.startswith(f"{what} ")), None)
    if what is None:
        known = nearest(item.partition(" ")[0], list(whats))
        raise UserError(f"space.arch: {group} has no {item!r}{known}")
    words, places = item[len(what) :].split(), whats[what]
    if len(words) > len(places):
        raise UserError(f"space.arch: {group} has {len(places)} of {what}, not {len(words)}")
    for place, word in zip(places, words, strict=False):
        choice = space.choices[place]
        options = [_word(choice, gene) for gene in range(len(choice.options))]
        if word not in options:
            raise UserError(f"space.arch: {choice.name} is one of {', '.join(options)}, not {word}")
        found[place] = options.index(word)


@cache
def _groups(choices: tuple[Choice, ...]) -> dict[str, dict[str, list[int]]]:
    """Return the places of choices by the group and by what is chosen, in their order."""
    found: dict[str, dict[str, list[int]]] = {}
    for place, choice in enumerate(choices):
        group, what = _split(choice.name)
        found.setdefault(group, {}).setdefault(what, []).append(place)
    return found


def _split(name: str) -> tuple[str, str]:
    """Return `stage 1`, `kernel` of `stage 1 layer 2 kernel`; `normal` and the rest of an edge."""
    if match := re.fullmatch(r"(.+) layer \d+ (\w+)", name):
        return match[1], match[2]
    group, _, what = name.rpartition(" ")
    if what.isalpha():
        return group, what
    group, _, what = name.partition(" ")
    return (group, what) if what else ("", group)


def _word(choice: Choice, gene: int) -> str:
    return str(choice.options[gene]).replace(" ", "")
