"""Many run folders at a glance."""

from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import evaluated_round, headline, spread


def holds_runs(folder: Path) -> bool:
    """Tell whether a folder is none of a run, but has some."""
    if not folder.is_dir() or (folder / "run.db").is_file():
        return False
    return any((inner / "run.db").is_file() for inner in folder.iterdir())


def overview(folder: Path) -> list[dict[str, Any]]:
    """Say of each run folder in a folder what it is and how far it came, in the order of names."""
    if not holds_runs(folder):
        raise UserError(f"{folder}: there are no run folders; `fedtailor run` makes some")
    return [_at_a_glance(path) for path in sorted(folder.iterdir()) if (path / "run.db").is_file()]


def _at_a_glance(path: Path) -> dict[str, Any]:
    try:
        run = Run(path)
    except UserError as error:
        return {"run": str(path), "state": f"cannot be read: {error}"}
    try:
        round, done = evaluated_round(run), max(run.last_round(), 0)
        found, planned = spread(run, round, headline(run, round)), asked(run, "rounds")
        return {
            "run": str(path),
            "algorithm": asked(run, "algorithm", "name"),
            "space": asked(run, "space", "name"),
            "data": asked(run, "data").get("path") or asked(run, "data", "name"),
            "seed": asked(run, "seed"),
            "test_accuracy": found and found["mean"],
            "state": "finished" if run.finished() else f"{done} of {planned} rounds",
        }
    except UserError as error:
        return {"run": str(path), "state": f"cannot be read: {error}"}
    finally:
        run.close()
