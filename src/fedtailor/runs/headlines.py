"""What counts of a run, in one line: read from its database and its plain config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.runs import database
from fedtailor.runs.database import Database


def evaluated_round(db: Database) -> int | None:
    """Return the last round after which all clients were tested."""
    return max(database.tested_rounds(db), default=None)


def deployed_model(db: Database, round: int | None) -> str:
    """Return the model that counts: the last that a client would deploy."""
    return (database.tested_models(db, round) or ["untuned"])[-1]


def accuracies(db: Database) -> dict[int, float]:
    """Return each client's last test accuracy of the model that counts; {} before any test."""
    round = evaluated_round(db)
    return dict(database.of_clients(db, round, "test", deployed_model(db, round), "accuracy"))


def in_words(method: Any, space: Any, data: Any, done: Any, planned: Any) -> str:
    """Say what was run and how far it came; files of one's own without their folders."""
    own, theirs = (Path(str(name)).name for name in (method, space))
    return f"{own} with {theirs} on {data}, {done} of {planned} rounds"


def in_short(config: Mapping[str, Any], db: Database, client: int | None = None) -> str:
    """Say what was run, how far it came, and what it or one of its clients reached."""
    tables = (config.get(key) for key in ("algorithm", "space", "data"))
    method, space, data = (one if isinstance(one, dict) else {} for one in tables)
    named = method.get("name"), space.get("name"), data.get("path") or data.get("name")
    what = in_words(*named, max(database.last_round(db), 0), config.get("rounds"))
    found = accuracies(db)
    of = list(found.values()) if client is None else [found[client]] if client in found else []
    return f"{what}, test accuracy {100 * sum(of) / len(of):.1f} %" if of else what
