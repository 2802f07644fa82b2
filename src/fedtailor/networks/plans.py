"""Pieces that are made of parts: a plan says which part or function computes what from what.

A part is a piece itself. It is built, bound and counted once for all the pieces that have it, so
that a piece that is new, but of known parts, costs next to nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from fedtailor.networks.pieces import Piece

Function = Callable[[Any], Any]  # of a tensor or a tuple of them, without parameters or modes


@dataclass(frozen=True, slots=True)
class Step:
    """One computation; its results are the next values, which are known by number."""

    does: Piece | Function  # a piece without its name: its costs do not depend on it
    reads: tuple[int, ...]
    part: str = ""  # which part of the plan a piece is
    last: tuple[int, ...] = ()  # values that nothing needs any more


@dataclass(frozen=True, slots=True)
class Plan:
    """How a piece computes: the first values are what it is given."""

    parts: tuple[Piece, ...]  # by their names in the piece
    steps: tuple[Step, ...]
    returns: tuple[int, ...]


class Planned(nn.Module):
    """A module that follows a plan.

    Args:
        arguments: what the plan depends on.
        modules: those of the plan's parts, which other modules may have too; none: new ones.
    """

    plan: ClassVar[Callable[..., Plan]]  # the arguments' plan, a function of their values

    def __init__(self, *arguments: Any, modules: Sequence[nn.Module] | None = None) -> None:
        super().__init__()
        plan = self.plan(*arguments)
        built = [part.build() for part in plan.parts] if modules is None else modules
        named = {part.name: module for part, module in zip(plan.parts, built, strict=True)}
        self.folders: list[nn.Module] = []  # modules that belong to no part
        for name, module in named.items():
            self._add(name, module)
        self.named = named
        self.steps, self.returns = plan.steps, plan.returns
        self.does = self._doers(plan)

    def _add(self, name: str, module: nn.Module) -> None:
        """Add a module under a name that may have dots."""
        owner: nn.Module = self
        *folders, own = name.split(".")
        for folder in folders:
            inner = owner._modules.get(folder)
            if inner is None:
                inner = nn.ModuleDict()
                self.folders.append(inner)
                owner.add_module(folder, inner)
            owner = inner
        owner.add_module(own, module)

    def forward(self, state: Any) -> Any:
        """Take all steps."""
        return _followed(self.does, self.steps, self.returns, state)

    def follow(self, plan: Plan, state: Any) -> Any:
        """Take the steps of another plan that has the same parts."""
        return _followed(self._doers(plan), plan.steps, plan.returns, state)

    def _doers(self, plan: Plan) -> list[Function]:
        """Return what takes each step: a module of this one, or a function."""
        return [self.named[s.part] if isinstance(s.does, Piece) else s.does for s in plan.steps]


def _followed(
    doers: Sequence[Function], steps: Sequence[Step], returns: Sequence[int], state: Any
) -> Any:
    values = [*tensors(state)]
    for does, step in zip(doers, steps, strict=True):
        values += tensors(does(joined([values[number] for number in step.reads])))
        for number in step.last:
            values[number] = None  # its memory can be used again
    return joined([values[number] for number in returns])


def tensors(state: Any) -> tuple[Any, ...]:
    """Return what flows between pieces as a tuple."""
    return state if isinstance(state, tuple) else (state,)


def joined(values: Sequence[Any]) -> Any:
    """Return values as they flow between pieces: one alone, or a tuple of several."""
    return tuple(values) if len(values) > 1 else values[0]


class Planner:
    """Writes a plan, step by step."""

    def __init__(self, given: int) -> None:
        self._parts: dict[str, Piece] = {}
        self._steps: list[tuple[Step, range]] = []  # with the numbers of their results
        self._values = given

    def part(self, piece: Piece) -> Piece:
        """Add a part, which need not take a step."""
        return self._parts.setdefault(piece.name, piece)

    def step(self, does: Piece | Function, *reads: int, results: int = 1) -> int:
        """Add a step, by a part where it is a piece, and return the number of its first result."""
        named = isinstance(does, Piece)
        step = Step(unnamed(self.part(does)), reads, does.name) if named else Step(does, reads)
        first, self._values = self._values, self._values + results
        self._steps.append((step, range(first, self._values)))
        return first

    def plan(self, *returns: int) -> Plan:
        """Finish."""
        steps: list[Step] = []
        needed = {*returns}
        for step, results in reversed(self._steps):
            last = tuple(number for number in (*step.reads, *results) if number not in needed)
            needed.update(last)
            steps.append(Step(step.does, step.reads, step.part, last))
        return Plan(tuple(self._parts.values()), tuple(reversed(steps)), returns)


def unnamed(piece: Piece) -> Piece:
    """Return a piece without its name."""
    return Piece("", piece.kind, piece.arguments)


def plan_of(does: Piece | Function) -> Plan | None:
    """Return the plan of a piece that has one."""
    if not isinstance(does, Piece) or not isinstance(does.kind, type):
        return None
    return does.kind.plan(*does.arguments) if issubclass(does.kind, Planned) else None


def parts_of(piece: Piece) -> tuple[Piece, ...]:
    """List the parts of a piece by their names in the network; a piece without a plan is one."""
    plan = plan_of(piece)
    if plan is None:
        return (piece,)
    prefix = f"{piece.name}." if piece.name else ""
    return tuple(Piece(prefix + part.name, part.kind, part.arguments) for part in plan.parts)


def assemble(piece: Piece, modules: Sequence[nn.Module]) -> Planned:
    """Build a piece that has a plan from the modules of its parts."""
    return piece.kind(*piece.arguments, modules=modules)  # pyright: ignore[reportReturnType]
