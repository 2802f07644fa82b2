"""How far a run is."""

from dataclasses import dataclass


@dataclass
class RunProgress:
    """How far a run is: the rounds write it, whoever wants to show it reads."""

    rounds: int = 0
    round: int = 0
    doing: str = "starting"
    done: int = 0  # clients, of what is being done
    total: int = 0
    mean: float | None = None  # test accuracy, untuned, at the last evaluation
    worst: float | None = None  # the same over the worst tenth of the clients
    bytes: int = 0  # in all, since the start
    started_at: int = 0  # the round before the first that this process does
    seconds: float = 0.0  # spent on rounds by this process
    rounds_done: int = 0  # by this process
    unit: str = "round"  # what is counted as rounds: another piece of work counts networks
