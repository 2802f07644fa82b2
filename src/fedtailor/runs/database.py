"""run.db: every question and every statement that is put to it.

A round is one transaction. Nothing here knows of files or folders.
"""

import json
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias

from fedtailor.core.errors import UserError
from fedtailor.core.records import NEVER, Budget, ClientInfo, Spent
from fedtailor.runs.record import RoundRecord
from fedtailor.runs.schema import OFFSPRING, SCHEMA, TIMING
from fedtailor.runs.stored_json import read_json

Version: TypeAlias = tuple[int, int]  # client, and the round that made its private state


class Database:
    """run.db, opened."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        """Open a database that exists."""
        self.path = path
        where = f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}"
        self.connection = sqlite3.connect(where, isolation_level=None, timeout=30, uri=True)
        try:
            self.query("SELECT round, digest FROM state LIMIT 1")
        except sqlite3.DatabaseError as error:
            torn = read_only and path.with_name(f"{path.name}-journal").exists()
            killed = "a process was killed writing it; `fedtailor resume` mends that"
            why = killed if torn else error
            raise UserError(f"{path}: cannot be read ({why})") from None

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Read by a question of one's own."""
        return self.connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Write all that the body writes, or nothing."""
        self.connection.execute("BEGIN IMMEDIATE")
        try:
            yield self.connection
            self.connection.execute("COMMIT")
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise

    def close(self) -> None:
        """Close it."""
        self.connection.close()


@dataclass(frozen=True)
class ArchOfClient:
    """A row of the table of architectures."""

    round: int
    client: int
    genes: tuple[int, ...]
    score: float | None
    cost: dict[str, float]
    idle: tuple[int, ...]


# Writing


def create(path: Path, clients: Sequence[ClientInfo], start: str | None) -> None:
    """Make a database; `start` tells what state the run begins with, if with one."""
    devices = [(c.id, c.budget.memory_mb, c.budget.speed, c.budget.mbps) for c in clients]
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SCHEMA)
        connection.execute(TIMING)
        connection.executemany("INSERT INTO device VALUES (?, ?, ?, ?)", devices)
        if start is not None:
            row = (0, None, "start", start, time.time())
            connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
        connection.commit()


def commit(
    db: Database, record: RoundRecord, server: str, digest: str
) -> tuple[list[str], list[Version]]:
    """Write a round; return the server's files and the clients' versions that it made stale."""
    row = (record.round, server, digest, record.val, record.wall_s, record.modelled_s)
    before = best_round(db)
    with db.transaction() as connection:
        _insert(connection, record)
        connection.execute("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?)", row)
        return _forget(db, record, best_is_new=best_round(db) != before)


def append(db: Database, record: RoundRecord) -> None:
    """Add to a committed round what was found out later."""
    again = "DELETE FROM architecture WHERE role = 'deployed' AND round = ? AND client = ?"
    with db.transaction() as connection:
        connection.executemany(again, {row[:2] for row in record.architectures})
        _insert(connection, record)
        connection.execute(
            "UPDATE state SET wall_s = wall_s + ? WHERE round = ?", (record.wall_s, record.round)
        )


def note(db: Database, round: int, client: int | None, kind: str, text: str) -> None:
    """Write an event down at once, whatever becomes of its round."""
    row = (round, client, kind, text, time.time())
    db.connection.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)


def _insert(connection: sqlite3.Connection, record: RoundRecord) -> None:
    insert = connection.executemany
    insert("INSERT OR REPLACE INTO metric VALUES (?, ?, ?, ?, ?, ?)", record.metrics)
    insert("INSERT INTO architecture VALUES (?, ?, ?, ?, ?, ?, ?)", record.architectures)
    insert("INSERT INTO message VALUES (?, ?, ?, ?)", record.messages)
    if record.timings:
        connection.execute(TIMING)
        insert("INSERT INTO timing VALUES (?, ?, ?, ?, ?)", record.timings)
    if record.offspring:
        connection.execute(OFFSPRING)
        insert("INSERT INTO offspring VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record.offspring)
    insert("INSERT INTO event VALUES (?, ?, ?, ?, ?)", record.events)
    insert("INSERT INTO version VALUES (?, ?, ?)", record.versions)
    if record.search is not None:
        connection.execute("DELETE FROM search")  # one of every round would be large
        row = (record.round, json.dumps(record.search))
        connection.execute("INSERT INTO search VALUES (?, ?)", row)


def _forget(
    db: Database, record: RoundRecord, best_is_new: bool
) -> tuple[list[str], list[Version]]:
    """Drop states that neither the last nor the best round needs; return what is dropped.

    Only the cohort's are looked at, and all only when there is a new best round: what a round
    costs must not grow with the number of clients.
    """
    best = best_round(db)
    kept = (record.round, NEVER if best is None else best)
    others = "WHERE server NOT NULL AND round NOT IN (?, ?)"
    names = db.query(f"SELECT server FROM state {others}", *kept)
    db.connection.execute(f"UPDATE state SET server = NULL {others}", kept)
    newest = "(SELECT max(round) FROM version AS v WHERE v.client = version.client"
    drop = f"DELETE FROM version WHERE round < {newest}) AND round IS NOT {newest} AND round <= ?)"
    if best_is_new:
        old = db.query(f"{drop} RETURNING client, round", kept[1])
    else:
        each = f"{drop} AND client = ? RETURNING client, round"
        old = [row for version in record.versions for row in db.query(each, kept[1], version[0])]
    return [name for (name,) in names], [(client, round) for client, round in old]


# Reading: rounds and states


def last_round(db: Database) -> int:
    """Return the last committed round: 0 after the server's first state, -1 before."""
    return db.query("SELECT coalesce(max(round), -1) FROM state")[0][0]


def best_round(db: Database) -> int | None:
    """Return the round of the best mean validation accuracy, untuned, of those that have one."""
    best = "SELECT round FROM state WHERE val IS NOT NULL ORDER BY val DESC, round LIMIT 1"
    rows = db.query(best)
    return rows[0][0] if rows else None


def selected_round(db: Database) -> int | None:
    """Return the round that validation chooses: the best one, while validation can still judge.

    Once clients train on their validation images too, the rounds before cannot be compared with
    those that follow: the best of them may be one of a search that was not done yet.
    """
    last = max(tested_rounds(db), default=None)
    val, test = (of_clients(db, last, split, "untuned", "accuracy") for split in ("val", "test"))
    return best_round(db) if len(val) == len(test) else None


def finished(db: Database) -> bool:
    """Tell whether the run came to its end, and was not extended since."""
    last = "SELECT max(rowid) FROM event WHERE kind = ?"
    query = f"SELECT ({last}) > coalesce(({last}), -1)"
    return bool(db.query(query, "finished", "extended")[0][0])


def tested_rounds(db: Database) -> list[int]:
    """Return the rounds after which all clients were tested."""
    rows = db.query("SELECT DISTINCT round FROM event WHERE kind = 'models' ORDER BY round")
    return [round for (round,) in rows]


def rounds_after(db: Database, round: int) -> list[tuple[int, float, int]]:
    """Return the committed rounds after one, what each took here and the bytes sent in it."""
    sent = "SELECT round, sum(bytes) AS sent FROM message WHERE round > ?1 GROUP BY round"
    rows = f"SELECT round, wall_s, coalesce(sent, 0) FROM state LEFT JOIN ({sent}) USING (round)"
    return db.query(f"{rows} WHERE round > ?1 ORDER BY round", round)


def server_state(db: Database, round: int) -> tuple[str | None, str] | None:
    """Return the file and the digest of the server's state of a round; no file: it is not kept."""
    rows = db.query("SELECT server, digest FROM state WHERE round = ?", round)
    return rows[0] if rows else None


def client_states(db: Database, round: int) -> list[tuple[int, int, str]]:
    """Return of each client with private state after a round the state's round and digest."""
    return db.query(
        "SELECT client, max(round), digest FROM version WHERE round <= ?"  # digest of that round
        " GROUP BY client ORDER BY client",
        round,
    )


def kept_states(db: Database) -> tuple[list[str], list[Version]]:
    """Return the server's files and the clients' versions that are still referred to."""
    servers = db.query("SELECT server FROM state WHERE server NOT NULL")
    return [name for (name,) in servers], db.query("SELECT client, round FROM version")


def results(db: Database) -> Iterator[tuple[Any, ...]]:
    """Return all rows that equal runs have in common: metrics and architectures, in order."""
    for table in ("metric", "architecture"):
        yield from db.connection.execute(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4, 5")


# Reading: what was measured


def metrics(db: Database) -> list[tuple[int, int, str, str, str, float]]:
    """Return every number that was measured, in order."""
    return db.query(
        "SELECT round, client, split, model, name, value FROM metric ORDER BY 1, 2, 3, 4, 5"
    )


def of_clients(
    db: Database, round: int | None, split: str, model: str, name: str
) -> list[tuple[int, float]]:
    """Return every client's value of a metric after a round."""
    return db.query(
        "SELECT client, value FROM metric WHERE round = ? AND split = ? AND model = ? AND name = ?"
        " ORDER BY client",
        *(round, split, model, name),
    )


def over_rounds(db: Database, split: str, model: str, name: str) -> list[tuple[int, int, float]]:
    """Return round, client and value of a metric, in order."""
    return db.query(
        "SELECT round, client, value FROM metric WHERE split = ? AND model = ? AND name = ?"
        " ORDER BY round, client",
        *(split, model, name),
    )


def tested_models(db: Database, round: int | None) -> list[str]:
    """Return the models that were tested after a round, in the order they were deployed."""
    rows = db.query(
        "SELECT DISTINCT model FROM metric"
        " WHERE round = ? AND split = 'test' AND name = 'accuracy'",
        round,
    )
    known = db.query("SELECT text FROM event WHERE kind = 'models' ORDER BY at DESC LIMIT 1")
    order = read_json(db.path, known[0][0], list) if known else ["untuned"]
    return [model for model in order if (model,) in rows]


def tested_clients(db: Database) -> int:
    """Count the clients that were ever tested."""
    return db.query("SELECT count(DISTINCT client) FROM metric WHERE split = 'test'")[0][0]


def architectures(db: Database, role: str, round: int | None = None) -> list[ArchOfClient]:
    """Return the architectures that clients trained or deployed, in order; or of one round."""
    rows = db.query(
        "SELECT round, client, arch, score, cost, idle FROM architecture"
        " WHERE role = ? AND (? IS NULL OR round = ?) ORDER BY round, client",
        *(role, round, round),
    )
    return [
        ArchOfClient(
            *(round, client, tuple(read_json(db.path, arch, list)), score),
            *(read_json(db.path, cost, dict), tuple(read_json(db.path, idle, list))),
        )
        for round, client, arch, score, cost, idle in rows
    ]


def has_role(db: Database, role: str) -> bool:
    """Tell whether any architecture has a role."""
    return bool(db.query("SELECT 1 FROM architecture WHERE role = ? LIMIT 1", role))


def search(db: Database) -> dict[str, Any]:
    """Return what was known of the search after the last tested round; {} without a search."""
    rows = db.query("SELECT round FROM search")
    return _search(db, rows[0][0]) if rows else {}


@lru_cache(maxsize=32)
def _search(db: Database, round: int) -> dict[str, Any]:
    """Read it once: of many clients it is large."""
    text = db.query("SELECT found FROM search WHERE round = ?", round)[0][0]
    found = read_json(db.path, text, dict)
    if "clients" in found:  # JSON has texts for keys
        found["clients"] = {int(client): one for client, one in found["clients"].items()}
    return found


# Reading: what it took, and what happened


def bytes_sent(db: Database) -> dict[str, int]:
    """Return the bytes of all messages: up, down and, where there are any, once."""
    rows = db.query("SELECT direction, sum(bytes) FROM message GROUP BY direction")
    return {"up": 0, "down": 0} | dict(rows)


def equipped_clients(db: Database) -> set[int]:
    """Return the clients that have got what a client gets once."""
    return {client for (client,) in db.query("SELECT client FROM message WHERE direction = 'once'")}


def bytes_of_clients(db: Database, direction: str) -> dict[tuple[int, int], int]:
    """Return by round and client the bytes that went in a direction."""
    rows = db.query(
        "SELECT round, client, sum(bytes) FROM message WHERE direction = ? GROUP BY round, client",
        direction,
    )
    return {(round, client): nbytes for round, client, nbytes in rows}


def timings(db: Database) -> list[tuple[int, int | None, Spent]]:
    """Return round, client (None: the server) and what a part took; nothing of an older run."""
    if not has_table(db, "timing"):
        return []
    rows = db.query("SELECT round, client, part, seconds, macs FROM timing ORDER BY rowid")
    return [(round, client, Spent(*spent)) for round, client, *spent in rows]


def seconds_spent(db: Database) -> tuple[float, float]:
    """Return the time that all rounds took: here, and by the run's clock."""
    sums = "SELECT coalesce(sum(wall_s), 0), coalesce(sum(modelled_s), 0) FROM state"
    return db.query(sums)[0]  # pyright: ignore[reportReturnType]


def spent_until(db: Database) -> dict[int, tuple[float, float]]:
    """Return the bytes sent in all, once included, and the clock's seconds up to each round."""
    rows = db.query(
        "SELECT round, sum(coalesce(sent, 0)) OVER (ORDER BY round),"
        " sum(modelled_s) OVER (ORDER BY round) FROM state LEFT JOIN"
        " (SELECT round, sum(bytes) AS sent FROM message GROUP BY round) USING (round)"
    )
    return {round: (sent, seconds) for round, sent, seconds in rows}


def devices(db: Database) -> dict[int, Budget]:
    """Return what each client's device can do."""
    rows = db.query("SELECT client, memory_mb, speed, mbps FROM device ORDER BY client")
    return {client: Budget(*values) for client, *values in rows}


def failures(db: Database) -> int:
    """Count the clients' failures."""
    distinct = "SELECT DISTINCT round, client FROM event WHERE kind = 'failure'"
    return db.query(f"SELECT count(*) FROM ({distinct})")[0][0]


def failed_clients(db: Database) -> list[tuple[int, int]]:
    """Return round and client of all failures."""
    return db.query(
        "SELECT DISTINCT round, client FROM event WHERE kind = 'failure' AND client NOT NULL"
        " ORDER BY round, client"
    )


def warnings(db: Database) -> list[str]:
    """Return what was warned of."""
    rows = db.query("SELECT DISTINCT text FROM event WHERE kind = 'warning' ORDER BY at")
    return [text for (text,) in rows]


def events(db: Database) -> list[tuple[str, int, str]]:
    """Return kind, round and text of what happened, but for tests, in order of time."""
    return db.query("SELECT kind, round, text FROM event WHERE kind != 'models' ORDER BY at, round")


def has_table(db: Database, name: str) -> bool:
    """Tell whether a table is there: some are made when they are needed."""
    return bool(db.query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name))
