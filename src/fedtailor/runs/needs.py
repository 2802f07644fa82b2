"""Files that a client must have before its first round: known by their bytes."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.files import sha256_of
from fedtailor.core.types import Json
from fedtailor.runs.folder import ENVIRONMENT, Run


@dataclass(frozen=True)
class NeededFile:
    """A file as it is now."""

    path: Path
    sha256: str
    bytes: int

    def about(self) -> dict[str, Json]:
        """Return what environment.json says of it."""
        return {"file": self.path.name, "sha256": self.sha256, "bytes": self.bytes}


def needed_files(needs: Mapping[str, Path]) -> dict[str, NeededFile]:
    """Look at the files that clients need, by the config keys that name them."""
    return {key: _needed_file(key, path) for key, path in needs.items()}


def _needed_file(key: str, path: Path) -> NeededFile:
    try:
        return NeededFile(path, sha256_of(path), path.stat().st_size)
    except FileNotFoundError:
        raise UserError(f"{key}: there is no file {path}") from None
    except OSError as error:
        raise UserError(f"{key}: {path} cannot be read ({error.strerror})") from None


def check_needs(run: Run, needs: Mapping[str, NeededFile]) -> None:
    """Raise if the files that clients need are not those that the run began with."""
    before = _recorded(run)
    for key, now in needs.items():
        if key not in before or before[key]["sha256"] != now.sha256:
            raise UserError(f"{key}: {now.path} is not the file that the run began with")
    for key in before.keys() - needs.keys():
        raise UserError(f"{key}: the run began with {before[key]['file']}; name it again")


def _recorded(run: Run) -> dict[str, dict[str, Any]]:
    """Return what environment.json says of needed files; older ones say nothing."""
    path = run.path / ENVIRONMENT
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("needs", {})
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
