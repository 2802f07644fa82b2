"""Runs whose networks are tuned on one another's data, and what was found of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.runs import pair_table
from fedtailor.runs.folder import Run
from tests.helpers import tiny_space

Tiny = Callable[..., dict[str, Any]]
SPACE = {"name": f"{tiny_space.__file__}:Tiny", "layers": 2}  # with dropout and batch norm


def table(tiny: Tiny, name: str, **changes: Any) -> dict[str, Any]:
    """Return a small experiment of three clients with a method."""
    data = {"clients": 3, "per_client": 100, "partition": "dirichlet_equal", "alpha": 5.0}
    usual = {"rounds": 2, "cohort": None, "data": data, "algorithm__epochs": 3}
    return tiny(algorithm__name=name, **(usual | {"algorithm__batch": 16} | changes))


def rlnas(tiny: Tiny, **changes: Any) -> dict[str, Any]:
    """Return one of PerFedRLNAS, in a space with dropout and batch norm."""
    return table(tiny, "perfedrlnas", space=SPACE, **changes)


def rows(path: Path) -> list[tuple[Any, ...]]:
    """Return all that a run knows of gains."""
    return Run(path).db.query("SELECT * FROM gain ORDER BY 1, 2, 3, 4")


def pairs(path: Path, epochs: int) -> list[pair_table.TunedPair]:
    """Return the pairs measured so far, by whoever works in the folder."""
    folder = Run(path)
    try:
        return pair_table.tuned_pairs(folder.db, "theirs", epochs)
    finally:
        folder.close()
