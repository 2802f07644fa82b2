"""Time to accuracy, which the PerFedRLNAS paper calls latency."""

import itertools
from collections.abc import Collection, Iterable
from typing import Any, Literal

from fedtailor.core.errors import UserError
from fedtailor.runs import database
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import curve, evaluated_round, spread

ROUNDING = 1e-9  # a mean of equal numbers may be a little less
SEEN = 0.5  # of the clients, before a mean over those that were drawn says something of all


def time_to(
    run: Run,
    accuracy: float,
    model: Literal["untuned", "trained"] = "untuned",
    rounds: Collection[int] | None = None,
) -> dict[str, Any] | None:
    """Return when a run's mean test accuracy first reached a value; None if it never did.

    Args:
        run: the run.
        accuracy: from 0 to 1.
        model: untuned is what clients would deploy without tuning, known after evaluated rounds;
            trained is the drawn subnet after local training, known after every round.
        rounds: look at these only, as where runs are compared that were not tested after the same
            rounds: one that is tested more often would be seen to arrive earlier.

    Returns:
        The `round`, and what was spent until its end: `modelled_s` by the run's clock, and all
        `bytes`, up, down and once.
    """
    points = curve(run) if model == "untuned" else trained_curve(run)
    if model == "trained":
        enough = SEEN * database.tested_clients(run.db)
        points = [point for point in points if point["clients"] >= enough]
    for point in points:
        if rounds is not None and point["round"] not in rounds:
            continue
        if point["mean"] >= accuracy - ROUNDING:
            round = int(point["round"])
            sent, seconds = database.spent_until(run.db)[round]
            return {"round": round, "modelled_s": seconds, "bytes": int(sent)}
    return None


def trained_curve(run: Run) -> list[dict[str, float]]:
    """Return after each round the mean of the clients' latest trained accuracies on test data.

    Only clients drawn so far are in it; `clients` says how many.
    """
    rows = database.over_rounds(run.db, "test", "trained", "accuracy")
    latest: dict[int, float] = {}
    found = []
    for round, some in itertools.groupby(rows, key=lambda row: row[0]):
        latest |= {client: value for _, client, value in some}
        mean = sum(latest.values()) / len(latest)
        found.append({"round": round, "mean": mean, "clients": len(latest)})
    return found


def reached(run: Run, accuracy: float, rounds: Collection[int] | None = None) -> dict[str, Any]:
    """Return both times to an accuracy, as `show --json` has them; `untuned` at some rounds."""
    untuned, trained = time_to(run, accuracy, "untuned", rounds), time_to(run, accuracy, "trained")
    return {"accuracy": accuracy, "untuned": untuned, "trained": trained}


def common_rounds(runs: Iterable[Run]) -> set[int]:
    """Return the rounds after which all clients of every run were tested."""
    return set.intersection(*(set(database.tested_rounds(run.db)) for run in runs))


def wanted(text: str) -> float:
    """Read the accuracy to reach: a number, or a run folder, whose last untuned mean it is."""
    try:
        accuracy = float(text)
    except ValueError:
        run = Run(text)
        found = spread(run, evaluated_round(run), "untuned")
        if found is None:
            raise UserError(f"--reach: nothing has been tested yet in {text}") from None
        return found["mean"]
    if not 0 < accuracy <= 1:
        raise UserError(f"--reach: an accuracy is above 0 and at most 1, not {text}")
    return accuracy
