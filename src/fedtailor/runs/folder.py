"""The run folder: what was asked, what happened, and all that is needed to go on.

A round commits in one transaction of its database: metrics, architectures, messages, the server's
file and every touched client's version. Only what is committed counts; files that nothing refers to
are deleted, so killing the process at any moment loses at most the round in progress.

Nothing here runs code that a folder names: its config is a plain table.
"""

import sqlite3
import time
import tomllib
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core import files
from fedtailor.core.errors import UserError
from fedtailor.core.npz import read_npz
from fedtailor.data.client_names import names_or_numbers
from fedtailor.runs import database
from fedtailor.runs.database import Database
from fedtailor.runs.headlines import in_short
from fedtailor.runs.record import RoundRecord

CONFIG = "config.toml"
ENVIRONMENT = "environment.json"
PARTITION = "partition.npz"
START = "start.safetensors"  # the server's first state, of a run that begins with one
WEIGHTS = "weights.safetensors"  # of a client, in its own folder


class Run:
    """A run folder, opened."""

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        """Open a run folder that exists."""
        self.path = Path(path)
        if not (self.path / "run.db").is_file():
            raise UserError(f"{path}: not a run folder (it has no run.db)")
        self.states = self.path / "state"
        self.db = Database(self.path / "run.db", read_only)

    def __repr__(self) -> str:
        """Say what the run is, how far it came and what it reached."""
        try:
            return f"Run({str(self.path)!r}: {in_short(self.config, self.db)})"
        except (UserError, sqlite3.Error) as error:  # looking at it must not break a program
            return f"Run({str(self.path)!r}: {error})"

    def close(self) -> None:
        """Close the database."""
        self.db.close()

    @cached_property
    def config(self) -> dict[str, Any]:
        """The run's config as the table it is; `runs.config.read_config` makes objects of it."""
        path = self.path / CONFIG
        try:
            return tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: the run's config is missing") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None

    @cached_property
    def clients(self) -> dict[int, str]:
        """What all clients are called by their numbers, new ones included.

        Where the data has no names, they are called by their numbers.
        """
        names = [str(name) for name in self.partition("names").get("names", ())]
        return dict(enumerate(names_or_numbers(names, len(database.devices(self.db)))))

    def partition(self, *only: str) -> dict[str, np.ndarray]:
        """Return the arrays of partition.npz, all or some: which images are whose.

        Where clients keep their data to themselves there is no such file, and none of `only`.
        """
        if not only:
            return dict(self._partition)
        path = self.path / PARTITION
        return read_npz(path, *only) if path.is_file() else {}

    @cached_property
    def _partition(self) -> dict[str, np.ndarray]:
        return read_npz(self.path / PARTITION)

    def last_round(self) -> int:
        """Return the last committed round: 0 after the server's first state, -1 before."""
        return database.last_round(self.db)

    def finished(self) -> bool:
        """Tell whether the run came to its end."""
        return database.finished(self.db)

    def server_path(self, round: int) -> Path:
        """Return the file of the server's state of a committed round."""
        found = database.server_state(self.db, round)
        if found is None or found[0] is None:
            raise UserError(f"{self.path}: the state of round {round} is not kept")
        return self.states / found[0]

    def commit(self, record: RoundRecord, server: Any) -> None:
        """Write a round and the server's state after it: all or nothing."""
        from fedtailor.core import codec  # it imports torch, which looking at a run does not need

        name = f"server-round-{record.round:06d}.safetensors"
        codec.write(self.states / name, server)
        for file in (name, *(state_file(*version[:2]) for version in record.versions)):
            files.sync(self.states / file)  # on disk before the database says it is there
        stale = database.commit(self.db, record, name, codec.digest(server))
        for file in _names(*stale):
            (self.states / file).unlink(missing_ok=True)
        _log(self.path, record.line())

    def append(self, record: RoundRecord) -> None:
        """Add to a committed round what was found out later."""
        database.append(self.db, record)
        for _, _, kind, text, _ in record.events:
            _log(self.path, f"{kind} {text}")

    def note(self, round: int, client: int | None, kind: str, text: str) -> None:
        """Write an event down at once, whatever becomes of its round."""
        database.note(self.db, round, client, kind, text)
        _log(self.path, f"{kind} {text}".rstrip())


def asked(run: Run, *keys: str) -> Any:
    """Return what the run's config says under some keys."""
    found: Any = run.config
    for key in keys:
        if not isinstance(found, dict) or key not in found:
            raise UserError(f"{run.path / CONFIG}: {'.'.join(keys)} is missing")
        found = found[key]
    return found


def tidy(run: Run) -> None:
    """Delete the states that nothing committed refers to."""
    kept = _names(*database.kept_states(run.db))
    run.states.mkdir(exist_ok=True)
    for path in run.states.iterdir():
        if path.name not in kept:
            path.unlink()


def state_file(client: int, round: int) -> str:
    """Name a client's private state: by the round that made it, so never overwritten in place."""
    return f"client-{client:06d}-round-{round:06d}.safetensors"


def _names(servers: list[str], versions: list[database.Version]) -> set[str]:
    return {*servers, *(state_file(*version) for version in versions)}


def _log(folder: Path, text: str) -> None:
    """Add to log.txt, which is for people only."""
    with (folder / "log.txt").open("a", encoding="utf-8") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
