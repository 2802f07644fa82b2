"""The table `gain` of run.db: networks of clients on the data of others."""

from dataclasses import dataclass

from fedtailor.runs.database import Database, has_table
from fedtailor.runs.schema import GAIN


@dataclass(frozen=True)
class TunedPair:
    """How the network of a client did on the data of a client: test accuracies."""

    client: int  # whose data it is
    network: int  # whose network it is
    untuned: float
    tuned: float
    digest: str  # of the network as it came


def add_pair(db: Database, weights: str, epochs: int, pair: TunedPair) -> None:
    """Write down at once how a network did for a client."""
    db.connection.execute(GAIN)
    row = (weights, epochs, pair.client, pair.network, pair.untuned, pair.tuned, pair.digest)
    db.connection.execute("INSERT INTO gain VALUES (?, ?, ?, ?, ?, ?, ?)", row)


def gain_settings(db: Database) -> list[tuple[str, int]]:
    """Return the weights and epochs of tuning with which gains were measured."""
    if not has_table(db, "gain"):
        return []
    return db.query("SELECT DISTINCT weights, epochs FROM gain ORDER BY 1, 2")  # pyright: ignore[reportReturnType]


def tuned_pairs(db: Database, weights: str, epochs: int) -> list[TunedPair]:
    """Return the networks that were tuned on clients' data, in order; [] where none was."""
    if not has_table(db, "gain"):
        return []
    rows = db.query(
        "SELECT client, network, untuned, tuned, digest FROM gain WHERE weights = ? AND epochs = ?"
        " ORDER BY network, client",
        *(weights, epochs),
    )
    return [TunedPair(*row) for row in rows]
