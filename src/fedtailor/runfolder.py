"""The run folder: what was asked, what happened, and all that is needed to go on.

A round commits in one SQLite transaction: metrics, architectures, messages, the server's file and
every touched client's version. Only what is committed counts; files that nothing refers to are
deleted, so killing the process at any moment loses at most the round in progress.
"""

import fcntl
import importlib.metadata
import json
import os
import platform
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedtailor import codec
from fedtailor.config import Config, read_config, write_config
from fedtailor.data.federation import Federation
from fedtailor.engines.site import state_file
from fedtailor.types import Found, Log, UserError

SCHEMA = """
CREATE TABLE metric(round INTEGER, client INTEGER, split TEXT, name TEXT, value REAL,
    PRIMARY KEY (round, client, split, name)) WITHOUT ROWID;
CREATE TABLE architecture(round INTEGER, client INTEGER, arch TEXT, score REAL, cost TEXT);
CREATE TABLE message(round INTEGER, client INTEGER, direction TEXT, bytes INTEGER);
CREATE TABLE event(round INTEGER, client INTEGER, kind TEXT, text TEXT, at REAL);
CREATE TABLE state(round INTEGER PRIMARY KEY, server TEXT, val REAL, wall_s REAL, modelled_s REAL);
CREATE TABLE version(client INTEGER, round INTEGER, PRIMARY KEY (client, round)) WITHOUT ROWID;
"""
# metric     what was measured; val and test after evaluation, named model/measure, train by clients
# message    content bytes of each message of training, direction down (to the client) or up
# state      committed rounds; server: its file, NULL once deleted; val: mean untuned accuracy
# version    private states that exist: of the last round and of the best one


@dataclass
class Page:
    """What a round has to tell; it is written in one go or not at all."""

    round: int
    metrics: list[tuple[int, int, str, str, float]] = field(default_factory=list)
    architectures: list[tuple[int, int, str, float | None, str]] = field(default_factory=list)
    messages: list[tuple[int, int, str, int]] = field(default_factory=list)
    events: list[tuple[int, int | None, str, str, float]] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)
    modelled_s: float = 0.0
    wall_s: float = 0.0

    def log(self, client: int, log: Log) -> None:
        """File what a client measured."""
        self.metrics += [(self.round, client, m.split, m.name, m.value) for m in log.metrics]
        self.architectures += [_row(self.round, client, found) for found in log.architectures]

    def mean(self, split: str, name: str) -> float | None:
        """Average a metric over the clients that have it."""
        values = [row[4] for row in self.metrics if row[2:4] == (split, name)]
        return sum(values) / len(values) if values else None

    def line(self) -> str:
        """Tell the round in a line."""
        val, test = self.mean("val", "untuned/accuracy"), self.mean("test", "untuned/accuracy")
        tested = f", untuned val {val:.4f}, test {test:.4f}" if val and test else ""
        sent = sum(row[3] for row in self.messages) / 1e6
        return f"round {self.round}{tested}, {sent:.2f} MB, {self.wall_s:.2f} s"

    def event(self, client: int | None, kind: str, text: str) -> None:
        """Note that something happened."""
        self.events.append((self.round, client, kind, text, time.time()))


def _row(round: int, client: int, found: Found) -> tuple[int, int, str, float | None, str]:
    return round, client, json.dumps(found.arch), found.score, json.dumps(found.cost)


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
        return read_config(self.path / "config.toml")

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read from the database."""
        return self._db.execute(sql, values).fetchall()

    def lock(self) -> IO[str]:
        """Keep other processes from working on this run for as long as the file is open."""
        file = (self.path / "lock").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            raise UserError(f"{self.path}: another process is working on this run") from None
        return file

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
        _sync(self.states / name)
        for client, round in page.versions:
            _sync(self.states / state_file(client, round))
        val = page.mean("val", "untuned/accuracy")
        before = self.best_round()
        self._db.execute("BEGIN IMMEDIATE")
        self._insert(page)
        self._db.execute(
            "INSERT INTO state VALUES (?, ?, ?, ?, ?)",
            (page.round, name, val, page.wall_s, page.modelled_s),
        )
        stale = self._forget(page, best_is_new=self.best_round() != before)
        self._db.execute("COMMIT")
        for path in stale:
            path.unlink(missing_ok=True)
        self.log(page.line())

    def append(self, page: Page) -> None:
        """Add to a committed round what was found out later."""
        self._db.execute("BEGIN IMMEDIATE")
        self._insert(page)
        self._db.execute(
            "UPDATE state SET wall_s = wall_s + ? WHERE round = ?", (page.wall_s, page.round)
        )
        self._db.execute("COMMIT")
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
        for path in self.states.iterdir():
            if path.name not in kept:
                path.unlink()

    def _insert(self, page: Page) -> None:
        insert = self._db.executemany
        insert("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?)", page.metrics)
        insert("INSERT INTO architecture VALUES (?, ?, ?, ?, ?)", page.architectures)
        insert("INSERT INTO message VALUES (?, ?, ?, ?)", page.messages)
        insert("INSERT INTO event VALUES (?, ?, ?, ?, ?)", page.events)
        insert("INSERT INTO version VALUES (?, ?)", page.versions)

    def _forget(self, page: Page, best_is_new: bool) -> list[Path]:
        """Drop states that neither the last nor the best round needs; return their files.

        Only the cohort's are looked at, and all only when there is a new best round: what a round
        costs must not grow with the number of clients.
        """
        best = self.best_round()
        best = -1 if best is None else best
        rounds = self.query(
            "SELECT round, server FROM state WHERE server NOT NULL AND round NOT IN (?, ?)",
            page.round,
            best,
        )
        self._db.executemany(
            "UPDATE state SET server = NULL WHERE round = ?", [r[:1] for r in rounds]
        )
        touched = None if best_is_new else [client for client, _ in page.versions]
        old = [
            (client, round)
            for client, round in self._versions_of(touched)
            if round != self._newest(client, page.round) and round != self._newest(client, best)
        ]
        self._db.executemany("DELETE FROM version WHERE client = ? AND round = ?", old)
        return [self.states / name for _, name in rounds] + [
            self.states / state_file(client, round) for client, round in old
        ]

    def _versions_of(self, clients: list[int] | None) -> list[tuple[int, int]]:
        if clients is None:
            return self.query("SELECT client, round FROM version")
        rows = "SELECT client, round FROM version WHERE client = ?"
        return [row for client in clients for row in self.query(rows, client)]

    def _newest(self, client: int, round: int) -> int | None:
        rows = "SELECT max(round) FROM version WHERE client = ? AND round <= ?"
        return self.query(rows, client, round)[0][0]


def default_path(config: Config) -> Path:
    """Name a new run folder below runs/."""
    name = Path(config.algorithm_name.rpartition(":")[0] or config.algorithm_name).stem
    return Path("runs") / f"{time.strftime('%Y-%m-%d')}-{name}-{os.urandom(2).hex()}"


def create_run(path: Path, config: Config, federation: Federation) -> Run:
    """Make a new run folder; it counts from the moment its database is there."""
    _refuse_used(path)
    (path / "state").mkdir(parents=True, exist_ok=True)
    write_config(config, path / "config.toml")
    (path / "environment.json").write_text(json.dumps(_environment(config), indent=1) + "\n")
    np.savez_compressed(
        path / "partition.npz",
        rows=federation.rows.numpy(),
        bounds=federation.bounds.numpy(),
        counts=federation.label_counts(),
        classes=np.array(federation.classes),
    )
    new = path / "run.db.new"
    new.unlink(missing_ok=True)
    with closing(sqlite3.connect(new)) as db:
        db.executescript(SCHEMA)
    new.rename(path / "run.db")
    return Run(path)


def check_partition(run: Run, federation: Federation) -> None:
    """Raise if the clients' data is not what it was when the run began."""
    with np.load(run.path / "partition.npz") as old:
        same = (
            np.array_equal(old["rows"], federation.rows)
            and np.array_equal(old["bounds"], federation.bounds)
            and np.array_equal(old["counts"], federation.label_counts())
        )
    if not same:
        raise UserError(
            f"{run.path}: the data or its partition is no longer what the run began with"
        )


def _refuse_used(path: Path) -> None:
    if (path / "run.db").exists():
        raise UserError(
            f"{path}: there is a run already; `fedtailor resume {path}` goes on with it, "
            "and --out takes another folder"
        )
    ours = {"state", "config.toml", "environment.json", "partition.npz", "run.db.new"}
    if path.exists() and (not path.is_dir() or {p.name for p in path.iterdir()} - ours):
        raise UserError(f"{path}: is not an empty folder; --out takes another")


def _environment(config: Config) -> dict[str, Any]:
    packages = ("fedtailor", "torch", "numpy", "scipy", "pydantic", "safetensors")
    return {
        "argv": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
    }


def _sync(path: Path) -> None:
    """Have a file on disk before the database says it is there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
