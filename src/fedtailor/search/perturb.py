"""Perturbation: of what can be removed from a network, that stays which is missed most.

Wang et al. 2021, "Rethinking Architecture Selection in Differentiable NAS". An architecture of
relaxed `darts` is decided edge by edge, which operation stays; then, where a number of inputs is
wanted, node by node, which edges stay. Each is removed alone, and nothing is trained for it.
Differs from the paper: a node's edges are ranked once, by how the network does without each.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias

import torch

from fedtailor.core.space import Arch
from fedtailor.search.genes import is_legal, with_gene
from fedtailor.spaces._darts_cell import EDGES, NODE_EDGES
from fedtailor.spaces.darts import DARTS

Rule: TypeAlias = Literal["accuracy", "loss", "printed", "random"]
KINDS = ("accuracy", "likelihood")  # of scores that are looked at
Tested: TypeAlias = Mapping[str, tuple[float, float]]  # both scores without it
Removed: TypeAlias = dict[str, Arch]  # by name: the architecture that lacks this one alone


@dataclass(frozen=True)
class Question:
    """Which stay: of an edge's operations one, of a node's edges some."""

    without: Removed
    answers: dict[tuple[str, ...], Arch]  # by what stays, where that is a legal architecture

    @property
    def doubtful(self) -> list[str]:
        """What stays by some answers and not by others: nothing, where there is but one."""
        times = {name: sum(name in stays for stays in self.answers) for name in self.without}
        return [name for name, count in times.items() if 0 < count < len(self.answers)]

    def answer(self, order: Sequence[str]) -> Arch:
        """Let the first of an order of all doubtful ones stay, as far as that is legal."""
        rank = {name: place for place, name in enumerate(order)}
        best = min(self.answers, key=lambda stays: sorted(rank.get(name, -1) for name in stays))
        return self.answers[best]


def undecided(arch: Arch, inputs: int = 0) -> list[tuple[int, ...]]:
    """List the edges with several operations or, if there are none, those of crowded nodes.

    Args:
        arch: for each edge of both cells, a bit mask of live operations.
        inputs: how many edges a node may have; 0: any number.
    """
    edges = [(edge,) for edge, live in enumerate(arch) if live.bit_count() > 1]
    cells = range(0, len(arch), len(EDGES))
    nodes = [[first + number for number in node] for first in cells for node in NODE_EDGES]
    alive = [tuple(edge for edge in node if arch[edge]) for node in nodes]
    return edges or [node for node in alive if len(node) > inputs > 0]


def last_event(warmup: int, recovery: int, space: DARTS, inputs: int = 0) -> int:
    """Return after how many rounds the last decision comes, at the latest.

    Decisions begin after `warmup` rounds and come after multiples of `recovery`.
    """
    whole = space.largest()
    decided = tuple(live & -live for live in whole)
    left = [[edges[0] // len(EDGES) for edges in undecided(a, inputs)] for a in (whole, decided)]
    events = sum(max(Counter(cells).values(), default=0) for cells in left)
    return (math.ceil(warmup / recovery) + events - 1) * recovery


def decide(
    space: DARTS,
    arch: Arch,
    inputs: int,
    rule: Rule,
    rng: torch.Generator,
    test: Callable[[Removed], Tested],
) -> tuple[list[Arch], Tested]:
    """Decide something of both cells; return the architecture after each, and what was tested.

    All is tested from the same state, and only what is in doubt; by chance nothing is.
    """
    questions = ask(space, arch, inputs, rng)
    removed = doubts(questions)
    tested = test(removed) if removed and rule != "random" else {}
    return answers(arch, questions, rule, tested, rng), tested


def ask(space: DARTS, arch: Arch, inputs: int, rng: torch.Generator) -> list[Question]:
    """Ask about something undecided of the normal cell, and of the reduction cell."""
    found = []
    for _, cell in itertools.groupby(undecided(arch, inputs), lambda edges: edges[0] // len(EDGES)):
        some = list(cell)
        edges = some[int(torch.randint(len(some), (), generator=rng))]
        found.append(question(space, arch, edges, inputs if len(edges) > 1 else 1))
    return found


def question(space: DARTS, arch: Arch, edges: Sequence[int], stay: int = 1) -> Question:
    """Ask which operations of a single edge stay, or which of several edges."""
    if len(edges) > 1:
        without = {space.choices[edge].name: with_gene(arch, edge, 0) for edge in edges}
    else:
        live, name = arch[edges[0]], space.choices[edges[0]].name
        without = {  # `none` adds nothing: without it the network is as it was
            f"{name}/{operation}": with_gene(arch, edges[0], live & ~(1 << bit))
            for bit, operation in enumerate(space.offers[edges[0]])
            if live >> bit & 1 or operation == "none"
        }
    answers: dict[tuple[str, ...], Arch] = {}
    for stays in itertools.combinations(without, stay):
        left = common(*(arch for name, arch in without.items() if name not in stays))
        if is_legal(space, left):
            answers[stays] = left
    return Question(without, answers)


def doubts(questions: Sequence[Question]) -> Removed:
    """Return what must be tested to answer: the architectures that lack what is in doubt."""
    return {name: one.without[name] for one in questions for name in one.doubtful}


def answers(
    arch: Arch, questions: Sequence[Question], rule: Rule, tested: Tested, rng: torch.Generator
) -> list[Arch]:
    """Answer one question after the other; return the architecture after each."""
    found = []
    for question in questions:
        arch = common(arch, question.answer(order(rule, question.doubtful, tested, rng)))
        found.append(arch)
    return found


def common(*archs: Arch) -> Arch:
    """Return what is alive in all of some architectures."""
    return tuple(reduce(operator.and_, live) for live in zip(*archs, strict=True))


def order(rule: Rule, names: list[str], tested: Tested, rng: torch.Generator) -> list[str]:
    """Order things by how much they are missed, the most first.

    Without these accuracy is lowest and, of equals, likelihood; or likelihood alone ("loss").
    "printed" is the other way round, "random" looks at nothing.
    """
    if rule == "random":
        return [names[place] for place in torch.randperm(len(names), generator=rng).tolist()]
    by = {name: tested[name][1:] if rule == "loss" else tested[name] for name in names}
    return sorted(by, key=by.__getitem__, reverse=rule == "printed")
