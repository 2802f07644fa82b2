"""The clients' devices: as a config says them, and dealt to every client."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeAlias

from annotated_types import Gt, Len
from pydantic import ConfigDict

from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.core.types import Budget

Above: TypeAlias = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class Uniform:
    """A value drawn for each client between two bounds."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    uniform: tuple[Above, Above]


@dataclass(frozen=True)
class Share:
    """Memory drawn for each client between shares of what the largest network takes to train."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    share: tuple[Above, Above]


Values: TypeAlias = Above | Annotated[tuple[Above, ...], Len(1)] | Uniform


FITTING = "must be a number above 0, a list of such numbers, or { uniform = [a, b] }"
SHARES = f"{FITTING}, or {{ share = [a, b] }} of what the largest network takes"


@dataclass(frozen=True)
class BudgetOptions:
    """The clients' devices: one value for all, a list dealt in turn, or { uniform = [a, b] }."""

    sentences: ClassVar[dict[str, str]] = {"memory_mb": SHARES, "speed": FITTING, "mbps": FITTING}

    memory_mb: Values | Share | None = None  # memory for training; none: no limit
    speed: Values = 1e10  # multiply-adds per second
    mbps: Values = 100.0  # megabits per second, up and down alike
    server_speed: Above = 1e11  # multiply-adds per second of the server, one for all


def deal_budgets(
    options: BudgetOptions, clients: int, seed: int, largest_mb: float = 0.0
) -> list[Budget]:
    """Give every client its device; shares are those of `largest_mb`."""
    memory: Any = options.memory_mb
    if isinstance(memory, Share):
        low, high = (share * largest_mb for share in memory.share)
        memory = Uniform((low, high))
    memory = _deal(memory, clients, seed, "memory_mb")
    speed = _deal(options.speed, clients, seed, "speed")
    mbps = _deal(options.mbps, clients, seed, "mbps")
    return [Budget(*values) for values in zip(memory, speed, mbps, strict=True)]


def _deal(value: Any, clients: int, seed: int, name: str) -> list[Any]:
    if isinstance(value, Uniform):
        low, high = value.uniform
        if low > high:
            raise UserError(f"budget.{name}.uniform: {low} is above {high}")
        return numpy_rng_for(seed, "budget", name).uniform(low, high, clients).tolist()
    values = value if isinstance(value, tuple) else (value,)
    return [values[i % len(values)] for i in range(clients)]
