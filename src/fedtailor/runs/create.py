"""Making a run folder, and finding its data unchanged when it is taken up again."""

import contextlib
import json
import os
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.core.files import copy_file, lock_folder, sha256_of, whole_file
from fedtailor.data.federation import Federation
from fedtailor.runs.config import Config, write_config
from fedtailor.runs.environment import environment
from fedtailor.runs.folder import SCHEMA, START, Run
from fedtailor.runs.partition_file import image_format, ownership


def default_path(config: Config) -> Path:
    """Name a new run folder below runs/."""
    name = Path(config.algorithm_name.rpartition(":")[0] or config.algorithm_name).stem
    return Path("runs") / f"{time.strftime('%Y-%m-%d')}-{name}-{os.urandom(2).hex()}"


def create_run(
    path: Path, config: Config, federation: Federation, start: Path | None = None
) -> Run:
    """Make a new run folder; it counts from the moment its database is there.

    Args:
        path: the folder.
        config: what is written into it.
        federation: the clients' data.
        start: the server's first state, which is copied: the folder needs nothing outside it.
    """
    _refuse_used(path)
    (path / "state").mkdir(parents=True, exist_ok=True)
    with lock_folder(path):
        _refuse_used(path)  # once more: another process may have been faster
        write_config(config, path / "config.toml")
        (path / "environment.json").write_text(json.dumps(environment(config), indent=1) + "\n")
        np.savez_compressed(
            path / "partition.npz",
            allow_pickle=False,
            **ownership(federation),
            **image_format(federation),
        )
        if start is not None:
            copy_file(start, path / START)
        with whole_file(path / "run.db") as new, closing(sqlite3.connect(new)) as db:
            db.executescript(SCHEMA)
            if start is not None:
                about = f"the state of {config.start}, sha256 {sha256_of(path / START)}"
                row = (0, None, "start", about, time.time())
                db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
                db.commit()
    return Run(path)


def _refuse_used(path: Path) -> None:
    if (path / "run.db").exists():
        raise UserError(
            f"{path}: there is a run already; `fedtailor resume {path}` goes on with it, "
            "and --out takes another folder"
        )
    ours = {"state", "lock", "config.toml", "environment.json", "partition.npz", START}
    with contextlib.suppress(FileNotFoundError):
        there = {p.name for p in path.iterdir() if not p.name.startswith("run.db.")}
        if there - ours:
            raise UserError(f"{path}: is not an empty folder; --out takes another")
