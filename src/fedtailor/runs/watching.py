"""How far a run is, by its folder: what another process has committed, and whether it works on."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedtailor.core.files import is_locked
from fedtailor.runs import database
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import spread

IDLE = 2  # looks in a row that find no process: between making a folder and working in it is a gap


@dataclass(frozen=True)
class RoundSeen:
    """A committed round."""

    round: int
    mean: float | None  # test accuracy, untuned; None where nothing was tested after the round
    worst10: float | None
    bytes: int  # sent in all, since the start
    seconds: float  # that the round took here


@dataclass(frozen=True)
class Sight:
    """A run as it was at a look."""

    rounds: tuple[RoundSeen, ...]
    planned: int
    working: bool  # a process holds the folder
    finished: bool
    changed: float  # when something was last written, as time.time() tells it


def look(path: Path, before: Sight | None = None) -> Sight:
    """Look at a run; rounds that were seen before are not read again."""
    working = is_locked(path)  # first: what a process writes before it lets go is then read
    run = Run(path, read_only=True)
    try:
        rounds = before.rounds if before else ()
        return Sight(
            rounds=(*rounds, *_later(run, rounds)),
            planned=asked(run, "rounds"),
            working=working,
            finished=run.finished(),
            changed=(path / "run.db").stat().st_mtime,
        )
    finally:
        run.close()


def sights(path: Path, every_s: float = 1.0) -> Iterator[Sight]:
    """Look at a run again and again, until it is finished or no process works on it."""
    sight = look(path)
    idle = 0 if sight.working else 1
    yield sight
    while not sight.finished and idle < IDLE:
        time.sleep(every_s)
        sight = look(path, sight)
        idle = 0 if sight.working else idle + 1
        yield sight


def _later(run: Run, known: tuple[RoundSeen, ...]) -> Iterator[RoundSeen]:
    """Read the rounds after those that are known; the first state is none, unless it was tested."""
    last, sent = (known[-1].round, known[-1].bytes) if known else (-1, 0)
    if run.last_round() == last:
        return
    for round, seconds, nbytes in database.rounds_after(run.db, last):
        sent += nbytes
        found = spread(run, round, "untuned") or {}
        if round or found:
            yield RoundSeen(round, found.get("mean"), found.get("worst10"), sent, seconds)
