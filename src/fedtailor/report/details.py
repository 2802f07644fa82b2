"""What comes first and last on a page: what a reader must know, and where all of it is from."""

import json
from collections.abc import Sequence
from typing import Any

from fedtailor.report.facts import first_runs
from fedtailor.report.tables import Row, Summary
from fedtailor.runs import database
from fedtailor.runs.comparison import same_data
from fedtailor.runs.folder import CONFIG, ENVIRONMENT, Run

MAX_EVENTS = 100  # of a run


def notes(rows: Sequence[Row]) -> list[str]:
    """Say what a reader must know before comparing numbers."""
    found = []
    for row in rows:
        for run, summary in zip(row.group.runs, row.summaries, strict=True):
            found += [f"{row.group.name}: {text}." for text in database.warnings(run.db)]
            if not summary["finished"]:
                found.append(f"{row.group.name} is not finished: {_progress(summary)}")
    if not same_data(first_runs([row.group for row in rows])):
        found.append(
            "These runs did not deal the same images to the same clients: their averages can be "
            "compared only with care, their clients not at all."
        )
    return list(dict.fromkeys(found))


def details(row: Row) -> dict[str, Any]:
    """Return what comes last of a setting: its config, and of every run what happened."""
    runs = [_run(*each) for each in zip(row.group.runs, row.summaries, strict=True)]
    return {"name": row.group.name, "data": row.summaries[0]["data"], "runs": runs}


def _progress(summary: Summary) -> str:
    at = summary["evaluated_round"]
    what = "no evaluation yet" if at is None else f"the accuracies are those of round {at}"
    return (
        f"{summary['rounds']} of {summary['planned_rounds']} rounds are done, {what}; "
        f"`fedtailor resume {summary['run']}` goes on with it."
    )


def _run(run: Run, summary: Summary) -> dict[str, Any]:
    events = database.events(run.db)
    return {
        "seed": run.config["seed"],
        "path": summary["run"],
        "digest": summary["digest"],
        "environment": _environment(run),
        "config": (run.path / CONFIG).read_text(encoding="utf-8"),
        "events": [_event(*event) for event in events[:MAX_EVENTS]],
        "more_events": max(0, len(events) - MAX_EVENTS),
    }


def _environment(run: Run) -> str:
    """Say what the run was made with, as far as its folder tells."""
    try:
        found = json.loads((run.path / ENVIRONMENT).read_text(encoding="utf-8"))
        packages = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
        return (
            f"{packages}; Python {found['python']}, {found['platform']}, {found['cpus']} CPUs; "
            f"started {found['started']}"
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return "unknown: environment.json is missing or cannot be read"


def _event(kind: str, round: int, text: str) -> dict[str, Any]:
    first, _, rest = text.partition("\n")
    return {"kind": kind, "round": round, "text": first, "more": rest}
