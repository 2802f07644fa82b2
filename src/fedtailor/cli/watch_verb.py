"""The verb that follows a run of another process. It writes nothing and runs no code of a run."""

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from fedtailor.cli.common import AsJson, fail

if TYPE_CHECKING:
    from fedtailor.experiment.progress import RunProgress
    from fedtailor.runs.watching import Sight

ROWS = 12  # of the latest rounds, where the terminal has room


def watch(path: Path, /, *, as_json: AsJson = False) -> None:
    """Follow a run that another process does, until it ends. Ctrl-C ends the looking only.

    It reads the run folder once a second, writes nothing, and can be done any number of times
    beside one another. The exit code is 0 when the run is finished, or at Ctrl-C, and 1 when it has
    stopped before its end.

    Args:
        path: the run folder.
        as_json: print a line of JSON for each finished round: round, rounds, mean and worst10 (test
            accuracy, untuned; null where nothing was tested), bytes (in all), seconds, left_s.
    """
    from fedtailor.cli.look_verbs import show_run
    from fedtailor.runs.folder import Run

    try:
        last = _print_rounds(path) if as_json else _show_live(path)
    except KeyboardInterrupt:
        print(f"fedtailor: {path}: no longer watched; a run goes on untouched", file=sys.stderr)
        return
    if not last.finished:
        fail(_stopped(path, last), 1)
    if not as_json:
        show_run(Run(path, read_only=True), as_json=False)


def _print_rounds(path: Path) -> "Sight":
    """Print a line for each round as soon as it is there; return what was seen last."""
    from fedtailor.runs.watching import sights

    looks = sights(path)
    sight = next(looks)
    told = _print_later(sight, 0)
    for sight in looks:
        told = _print_later(sight, told)
    return sight


def _print_later(sight: "Sight", told: int) -> int:
    """Print the rounds after those that were told; return how many are told now."""
    for number, seen in enumerate(sight.rounds[told:], told + 1):
        row = {
            "round": seen.round,
            "rounds": sight.planned,
            "mean": seen.mean,
            "worst10": seen.worst10,
            "bytes": seen.bytes,
            "seconds": round(seen.seconds, 3),
            "left_s": round(_seconds_left(sight, number), 3),
        }
        print(json.dumps(row), flush=True)
    return len(sight.rounds)


def _seconds_left(sight: "Sight", number: int) -> float:
    """Return how long the rest took after so many of the rounds seen, at their mean pace."""
    trained = [seen.seconds for seen in sight.rounds[:number] if seen.round]
    left = sight.planned - sight.rounds[number - 1].round
    return left * sum(trained) / len(trained) if trained else 0.0


def _show_live(path: Path) -> "Sight":
    """Show the latest rounds and how far the run is; return what was seen last."""
    from rich.console import Console

    from fedtailor.experiment.following import line, living
    from fedtailor.runs.watching import sights

    console, looks = Console(stderr=True), sights(path)
    sight = next(looks)

    def now() -> str:
        if not console.is_terminal:
            return line(progress_of(sight), path.name)
        rows = table_lines(sight, min(ROWS, console.height - 3))
        return "\n".join([*rows, line(progress_of(sight), path.name, console.width)])

    with living(now):
        for sight in looks:  # noqa: B007  `now` shows it
            pass
    return sight


def progress_of(sight: "Sight") -> "RunProgress":
    """Return how far a run is, as the process that does it tells it, as far as can be seen."""
    from fedtailor.experiment.progress import RunProgress
    from fedtailor.report.wording import duration

    trained = [seen for seen in sight.rounds if seen.round]
    tested = [seen for seen in sight.rounds if seen.mean is not None]
    idle = max(0.0, time.time() - sight.changed)
    since = f"{idle:.0f} s" if idle < 60 else duration(idle)
    last = trained[-1].round if trained else 0
    what = f"for {since}" if last < sight.planned else f"last tests, for {since}"
    return RunProgress(
        rounds=sight.planned,
        round=min(last + 1, sight.planned),
        doing=what if sight.working else f"nothing for {since}",
        mean=tested[-1].mean if tested else None,
        worst=tested[-1].worst10 if tested else None,
        bytes=sight.rounds[-1].bytes if sight.rounds else 0,
        seconds=sum(seen.seconds for seen in trained),
        rounds_done=last,
    )


def table_lines(sight: "Sight", rows: int) -> list[str]:
    """Tell the latest rounds, a line each."""
    from fedtailor.report.wording import percent

    lines = ["  round  accuracy  worst 10 %   MB in all   seconds"]
    for seen in sight.rounds[-max(rows, 1) :]:
        mean, worst = ("" if v is None else percent(v) for v in (seen.mean, seen.worst10))
        cost = f"{seen.bytes / 1e6:10,.1f}  {seen.seconds:8,.1f}"
        lines.append(f"{seen.round:7}  {mean:>8}  {worst:>10}  {cost}")
    return lines


def _stopped(path: Path, sight: "Sight") -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(sight.changed))
    done = sight.rounds[-1].round if sight.rounds else 0
    return (
        f"{path}: stands still since {since}, after {done} of {sight.planned} rounds "
        f"({path / 'log.txt'} tells more); go on with: fedtailor resume {path}"
    )
