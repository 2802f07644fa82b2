"""The table `offspring` of run.db: what was thought of what searches proposed, and its scores."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedtailor.runs.database import Database, has_table

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OffspringTable:
    """Columns, in the order of round, client and iteration."""

    round: NDArray[np.int64]
    client: NDArray[np.int64]
    iteration: NDArray[np.int64]
    source: list[str]
    predicted: Floats  # not a number where nothing was predicted
    measured: Floats
    survived: NDArray[np.bool_]
    population: Floats  # not a number where its scores are of other weights

    def __len__(self) -> int:
        return len(self.measured)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the rows as they are filed."""
        numbers = (self.predicted, self.measured, self.population)
        predicted, measured, population = (
            [None if np.isnan(value) else value for value in column.tolist()] for column in numbers
        )
        keys = (self.round.tolist(), self.client.tolist(), self.iteration.tolist(), self.source)
        survived = self.survived.astype(int).tolist()
        return list(zip(*keys, predicted, measured, survived, population, strict=True))


def offspring_table(db: Database) -> OffspringTable | None:
    """Return what was noted of offspring; None where nothing was."""
    rows = (
        db.query("SELECT * FROM offspring ORDER BY round, client, iteration, rowid")
        if has_table(db, "offspring")
        else []
    )
    if not rows:
        return None
    columns = list(zip(*rows, strict=True))
    return OffspringTable(
        round=np.array(columns[0]),
        client=np.array(columns[1]),
        iteration=np.array(columns[2]),
        source=list(columns[3]),
        predicted=np.array(columns[4], dtype=np.float64),  # None becomes not a number
        measured=np.array(columns[5], dtype=np.float64),
        survived=np.array(columns[6], dtype=np.bool_),
        population=np.array(columns[7], dtype=np.float64),
    )
