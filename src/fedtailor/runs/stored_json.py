"""JSON as it stands in run.db, which may be damaged as any file may."""

import json
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError


def read_json(database: Path, text: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Return a list or a table that stands in a database, or say in one sentence why not."""
    try:
        found = json.loads(text)
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, kind):
        raise UserError(f"{database}: cannot be read (it holds {text!r:.60} where JSON should be)")
    return found
