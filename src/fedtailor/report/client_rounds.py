"""When clients were at work: every client's part of every round."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedtailor.runs import database
from fedtailor.runs.folder import Run, asked


@dataclass(frozen=True)
class Work:
    """A client's part of a round, by the run's clock."""

    round: int
    client: int
    start: float  # seconds since the first round
    seconds: float
    slowest: bool  # whether the round waited for it


@dataclass(frozen=True)
class Failed:
    """A client that failed in a round."""

    round: int
    client: int
    start: float


def client_rounds(run: Run) -> list[Work]:
    """Return who worked when; nothing of a run that kept no times.

    With the modelled clock it is computing at the device's speed, then both ways over its line;
    else the CPU seconds that were measured.
    """
    devices, modelled = database.devices(run.db), asked(run, "clock") == "modelled"
    sent = database.bytes_of_clients(run.db, "down"), database.bytes_of_clients(run.db, "up")
    spent: dict[tuple[int, int], float] = {}
    for round, client, part in database.timings(run.db):
        if client is not None:
            took = part.macs / devices[client].speed if modelled else part.seconds
            spent[round, client] = spent.get((round, client), 0.0) + took
    starts = _starts(run)
    found: dict[int, list[tuple[int, float]]] = {}
    for (round, client), seconds in spent.items():
        nbytes = sum(way.get((round, client), 0) for way in sent)
        line = nbytes * 8 / (devices[client].mbps * 1e6) if modelled else 0.0
        found.setdefault(round, []).append((client, seconds + line))
    return [
        Work(round, client, starts.get(round, 0.0), seconds, client == _slowest(works))
        for round, works in sorted(found.items())
        for client, seconds in works
    ]


def failed_clients(run: Run) -> list[Failed]:
    """Return the clients that failed, and when their rounds began."""
    starts = _starts(run)
    return [
        Failed(round, client, starts.get(round, 0.0))
        for round, client in database.failed_clients(run.db)
    ]


def _starts(run: Run) -> dict[int, float]:
    """Return when each round began, the one that was not committed too."""
    ends = {round: seconds for round, (_, seconds) in database.spent_until(run.db).items()}
    return {round + 1: seconds for round, seconds in ends.items()}


def _slowest(works: Sequence[tuple[int, float]]) -> int:
    return max(works, key=lambda work: work[1])[0]
