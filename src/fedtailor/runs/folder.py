"""The run folder: what was asked, what happened, and all that is needed to go on.

A round commits in one SQLite transaction: metrics, architectures, messages, the server's file and
every touched client's version. Only what is committed counts; files that nothing refers to are
deleted, so killing the process at any moment loses at most the round in progress.
"""

import json
import sqlite3
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from fedtailor.core import codec, files
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.types import (
    NEVER,
    Found,
    Log,
)
from fedtailor.runs.config import Config, read_config

T = TypeVar("T")

SCHEMA = """
CREATE TABLE metric(round INTEGER, client INTEGER, split TEXT, name TEXT, value REAL,
    PRIMARY KEY (round, client, split, name)) WITHOUT ROWID;
CREATE TABLE architecture(round INTEGER, client INTEGER, role TEXT, arch TEXT, score REAL,
    cost TEXT);
CREATE TABLE message(round INTEGER, client INTEGER, direction TEXT, bytes INTEGER);
CREATE TABLE event(round INTEGER, client INTEGER, kind TEXT, text TEXT, at REAL);
CREATE TABLE state(round INTEGER PRIMARY KEY, server TEXT, val REAL, wall_s REAL, modelled_s REAL);
CREATE TABLE version(client INTEGER, round INTEGER, PRIMARY KEY (client, round)) WITHOUT ROWID;
"""
# metric     what was measured; val and test after evaluation, named model/measure, train by clients
# architecture  of searched networks: role trained (in a round) or deployed; score: val accuracy
# message    content bytes of each message of training, direction down (to the client) or up
# state      committed rounds; server: its file, NULL once deleted; val: mean untuned accuracy
# version    private states that exist: of the last round and of the best one


@dataclass
class Page:
    """What a round has to tell; it is written in one go or not at all."""

    round: int
    metrics: list[tuple[int, int, str, str, float]] = field(default_factory=list)
    architectures: list[tuple[int, int, str, str, float | None, str]] = field(default_factory=list)
    messages: list[tuple[int, int, str, int]] = field(default_factory=list)
    events: list[tuple[int, int | None, str, str, float]] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    val: float | None = None  # mean untuned validation accuracy, if all clients were tested
    modelled_s: float = 0.0
    wall_s: float = 0.0

    def log(self, client: int, log: Log) -> None:
        """File what a client measured."""
        self.metrics += [(self.round, client, m.split, m.name, m.value) for m in log.metrics]
        self.architectures += [_row(self.round, client, found) for found in log.architectures]

    def values(self, split: str, name: str) -> list[float]:
        """Return all clients' values of a metric."""
        return [row[4] for row in self.metrics if row[2:4] == (split, name)]

    def line(self) -> str:
        """Tell the round in a line."""
        test = self.values("test", "untuned/accuracy")
        tested = f", untuned test accuracy {sum(test) / len(test):.4f}" if test else ""
        sent = sum(row[3] for row in self.messages) / 1e6
        return f"round {self.round}{tested}, {sent:.2f} MB, {self.wall_s:.2f} s"

    def event(self, client: int | None, kind: str, text: str) -> None:
        """Note that something happened."""
        self.events.append((self.round, client, kind, text, time.time()))


def _row(round: int, client: int, found: Found) -> tuple[int, int, str, str, float | None, str]:
    arch, prices = json.dumps(found.arch), json.dumps(found.cost)
    return round, client, found.role, arch, found.score, prices


class Run:
    """A run folder, opened."""

    def __init__(self, path: str | Path) -> None:
        """Open a run folder that exists."""
        self.path = Path(path)
        if not (self.path / "run.db").is_file():
            raise UserError(f"{path}: not a run folder (it has no run.db)")
        self.states = self.path / "state"
        self._db = sqlite3.connect(self.path / "run.db", isolation_level=None, timeout=30)
        try:
            self._db.execute("SELECT round FROM state LIMIT 1")
        except sqlite3.DatabaseError as error:
            raise UserError(f"{self.path / 'run.db'}: cannot be read ({error})") from None

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    @property
    def config(self) -> Config:
        """The config of the run."""
        path = self.path / "config.toml"
        if not path.is_file():
            raise UserError(f"{path}: the run's config is missing")
        return read_config(path)

    def partition(self) -> dict[str, np.ndarray]:
        """Return the arrays of partition.npz: which images are whose."""
        path = self.path / "partition.npz"
        try:
            with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
                return {name: file[name] for name in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError) as error:
            raise UserError(f"{path}: cannot be read ({error})") from None

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the database."""
        return self._db.execute(sql, values).fetchall()

    def lock(self) -> IO[str]:
        """Keep other processes from working on this run for as long as the file is open."""
        return lock_folder(self.path)

    def last_round(self) -> int:
        """Return the last committed round: 0 after the server's first state, -1 before."""
        return self.query("SELECT coalesce(max(round), -1) FROM state")[0][0]

    def server_path(self, round: int) -> Path:
        """Return the file of the server's state of a committed round."""
        rows = self.query("SELECT server FROM state WHERE round = ?", round)
        if not rows or rows[0][0] is None:
            raise UserError(f"{self.path}: the state of round {round} is not kept")
        return self.states / rows[0][0]

    def versions(self, round: int) -> dict[int, int]:
        """Return which private state each client had after a round; absent: it had none."""
        rows = self.query(
            "SELECT client, max(round) FROM version WHERE round <= ? GROUP BY client", round
        )
        return dict(rows)

    def finished(self) -> bool:
        """Tell whether the run came to its end."""
        return bool(self.query("SELECT 1 FROM event WHERE kind = 'finished'"))

    def best_round(self) -> int | None:
        """Return the evaluated round with the best mean validation accuracy, untuned."""
        rows = self.query(
            "SELECT round FROM state WHERE val IS NOT NULL ORDER BY val DESC, round LIMIT 1"
        )
        return rows[0][0] if rows else None

    def commit(self, page: Page, server: Any) -> None:
        """Write a round and the server's state after it: all or nothing."""
        name = f"server-round-{page.round:06d}.safetensors"
        codec.write(self.states / name, server)
        for file in (name, *(state_file(*version) for version in page.versions)):
            files.sync(self.states / file)  # on disk before the database says it is there
        row = (page.round, name, page.val, page.wall_s, page.modelled_s)
        before = self.best_round()
        with self._transaction():
            self._insert(page)
            self._db.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?)", row)
            stale = self._forget(page, best_is_new=self.best_round() != before)
        for path in stale:
            path.unlink(missing_ok=True)
        self.log(page.line())

    def append(self, page: Page) -> None:
        """Add to a committed round what was found out later."""
        row = (page.wall_s, page.round)
        again = "DELETE FROM architecture WHERE role = 'deployed' AND round = ? AND client = ?"
        with self._transaction():
            self._db.executemany(again, {found[:2] for found in page.architectures})
            self._insert(page)
            self._db.execute("UPDATE state SET wall_s = wall_s + ? WHERE round = ?", row)
        for _, _, kind, text, _ in page.events:
            self.log(f"{kind} {text}")

    def note(self, round: int, client: int | None, kind: str, text: str) -> None:
        """Write an event down at once, whatever becomes of its round."""
        row = (round, client, kind, text, time.time())
        self._db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
        self.log(f"{kind} {text}".rstrip())

    def log(self, text: str) -> None:
        """Add to log.txt, which is for people only."""
        with (self.path / "log.txt").open("a", encoding="utf-8") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")

    def tidy(self) -> None:
        """Delete the files that nothing committed refers to."""
        kept = {name for (name,) in self.query("SELECT server FROM state WHERE server NOT NULL")}
        kept |= {state_file(c, r) for c, r in self.query("SELECT client, round FROM version")}
        self.states.mkdir(exist_ok=True)
        for path in self.states.iterdir():
            if path.name not in kept:
                path.unlink()

    def _insert(self, page: Page) -> None:
        insert = self._db.executemany
        insert("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?)", page.metrics)
        insert("INSERT INTO architecture VALUES (?, ?, ?, ?, ?, ?)", page.architectures)
        insert("INSERT INTO message VALUES (?, ?, ?, ?)", page.messages)
        insert("INSERT INTO event VALUES (?, ?, ?, ?, ?)", page.events)
        insert("INSERT INTO version VALUES (?, ?)", page.versions)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    def _forget(self, page: Page, best_is_new: bool) -> list[Path]:
        """Drop states that neither the last nor the best round needs; return their files.

        Only the cohort's are looked at, and all only when there is a new best round: what a round
        costs must not grow with the number of clients.
        """
        best = self.best_round()
        best = NEVER if best is None else best
        names = self.query(
            "SELECT server FROM state WHERE server NOT NULL AND round NOT IN (?, ?)",
            *(page.round, best),
        )
        self._db.execute(
            "UPDATE state SET server = NULL WHERE round NOT IN (?, ?)", (page.round, best)
        )
        newest = "(SELECT max(round) FROM version AS v WHERE v.client = version.client"
        drop = (
            f"DELETE FROM version WHERE round < {newest}) AND round IS NOT {newest} AND round <= ?)"
        )
        if best_is_new:
            old = self.query(f"{drop} RETURNING client, round", best)
        else:
            each = f"{drop} AND client = ? RETURNING client, round"
            old = [row for client, _ in page.versions for row in self.query(each, best, client)]
        files = [name for (name,) in names] + [state_file(*version) for version in old]
        return [self.states / file for file in files]


def state_file(client: int, round: int) -> str:
    """Name a client's private state: by the round that made it, so never overwritten in place."""
    return f"client-{client:06d}-round-{round:06d}.safetensors"


START = "start.safetensors"  # the server's first state, of a run that begins with one


def undisturbed(run: Run, read: Callable[[], T]) -> T:
    """Read states once more where a run in progress deleted a file under us."""
    while True:
        last = run.last_round()
        try:
            return read()
        except UserError:
            if run.last_round() == last:
                raise
