"""Nouns that need no tensors: what is filed of a run, so that looking at one imports no torch."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Arch: TypeAlias = tuple[int, ...]  # the option taken at each Choice; () for a fixed model
Json: TypeAlias = Any  # None, bool, int, float, str, list or dict with string keys
NEVER = -1  # the version of a client that has not trained yet


@dataclass(frozen=True)
class Budget:
    """What a client's device can do."""

    memory_mb: float | None = None  # None: no limit
    speed: float = 1e10  # multiply-adds per second in training
    mbps: float = 100.0  # megabits per second, up and down alike


@dataclass(frozen=True)
class ClientInfo:
    """What the server knows of a client: told at registration, before any round."""

    id: int
    examples: int  # training examples
    budget: Budget = Budget()


@dataclass(frozen=True)
class Metric:
    """One measured number of one client: split is train, val, test or server (its own view)."""

    split: str
    name: str
    value: float
    model: str = ""  # untuned, tuned or trained, where it was measured on a model


@dataclass(frozen=True)
class UsedArch:
    """An architecture that a client trained, or would deploy."""

    arch: Arch
    score: float | None = None  # what it was judged by: validation accuracy, unless told otherwise
    cost: dict[str, float] = field(default_factory=dict)
    role: str = "trained"  # in a round; or "deployed"
    idle: tuple[int, ...] = ()  # places of genes that make no difference, as of absent layers


@dataclass(frozen=True)
class Offspring:
    """An architecture that a client's search proposed, by its scores: which it is, is not told."""

    iteration: int  # of the client's round, from 0
    source: str  # what proposed it
    predicted: float | None  # what a surrogate thought it would score; None: nothing did
    measured: float  # what it scored
    survived: bool  # whether it was among the best of population and offspring
    population: float | None  # mean score, with the same weights, of those it was proposed to join


@dataclass(frozen=True)
class Spent:
    """What a part of a client's or the server's work took."""

    part: str
    seconds: float  # of a CPU
    macs: float = 0.0  # multiply-adds


@dataclass(frozen=True)
class Log:
    """What a step measured; it stays with the client, and in simulation goes to the run folder."""

    metrics: tuple[Metric, ...] = ()
    architectures: tuple[UsedArch, ...] = ()
    times: tuple[Spent, ...] = ()  # a Stopwatch's; none: the step is filed as one part
    offspring: tuple[Offspring, ...] = ()  # of a search: what was predicted, and what came of it

    @classmethod
    def of(cls, **measured: float) -> "Log":
        """Tell what was measured in training: `Log.of(loss=0.3)`."""
        return cls(tuple(Metric("train", name, value) for name, value in measured.items()))
