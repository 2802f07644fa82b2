"""All that a run measured, for other programs: CSV and TensorBoard."""

import csv
import importlib.util
import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.runs import database
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import worst_tenth

COLUMNS = ("round", "client", "split", "model", "name", "value")
TABLES = (  # of run.db, as far as a run has them
    "device", "metric", "architecture", "message", "timing", "offspring", "gain", "event", "search",
    "state", "version",
)  # fmt: skip


def metrics_csv(run: Run) -> str:
    """Return every number that was measured: a line for each round, client, split and model."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(database.metrics(run.db))
    return out.getvalue()


def write_tables(run: Run, folder: Path) -> list[str]:
    """Write the tables of a run's database as CSV files; return their names."""
    _refuse_filled(folder)
    folder.mkdir(parents=True, exist_ok=True)
    there = {name for (name,) in run.db.query("SELECT name FROM sqlite_master")}
    names = [name for name in TABLES if name in there]
    for name in names:
        columns = [row[0] for row in run.db.query(f"SELECT name FROM pragma_table_info('{name}')")]
        with (folder / f"{name}.csv").open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(run.db.query(f"SELECT * FROM {name}"))
    return names


def write_tensorboard(run: Run, folder: Path) -> int:
    """Write what was measured as TensorBoard reads it; return how many curves there are.

    Of every number there is the mean over clients by round, the mean over the worst tenth (of
    accuracies), and the distribution over clients.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError("tensorboard: it is not installed; pip install 'fedtailor[track]'")
    _refuse_filled(folder)
    from torch.utils.tensorboard import SummaryWriter

    tags = set()
    with SummaryWriter(str(folder)) as writer:
        for (round, tag), values in _by_round(run):
            tags.add(tag)
            writer.add_scalar(tag, float(values.mean()), round)
            writer.add_histogram(f"{tag} over clients", values, round)
            if tag.endswith("accuracy"):
                writer.add_scalar(f"{tag} of the worst 10 %", worst_tenth(values), round)
    return len(tags)


def _refuse_filled(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; nothing was written")


def _by_round(run: Run) -> Iterator[tuple[tuple[int, str], np.ndarray]]:
    """Yield all clients' values of a number after a round."""

    def key(row: tuple[int, int, str, str, str, float]) -> tuple[int, str]:
        return row[0], "/".join(part for part in row[2:5] if part)

    rows = sorted(database.metrics(run.db), key=key)
    for which, some in itertools.groupby(rows, key):
        yield which, np.array([row[5] for row in some])
