"""Making a run folder, and finding its data unchanged when it is taken up again."""

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.runs.config import Config, write_config
from fedtailor.runs.folder import SCHEMA, Run, lock_folder

START = "start.safetensors"  # the server's first state, of a run that begins with one


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
        (path / "environment.json").write_text(json.dumps(_environment(config), indent=1) + "\n")
        np.savez_compressed(
            path / "partition.npz", allow_pickle=False, **dealt(federation), **form(federation)
        )
        if start is not None:
            _copy(start, path / START)
        new = path / "run.db.new"
        new.unlink(missing_ok=True)
        with closing(sqlite3.connect(new)) as db:
            db.executescript(SCHEMA)
            if start is not None:
                about = f"the state of {config.start}, sha256 {_sha256(path / START)}"
                row = (0, None, "start", about, time.time())
                db.execute("INSERT INTO event VALUES (?, ?, ?, ?, ?)", row)
                db.commit()
        new.rename(path / "run.db")
    return Run(path)


def check_partition(run: Run, federation: Federation) -> None:
    """Raise if the clients' data is not what it was when the run began."""
    before = run.partition()
    for name, now in dealt(federation).items():
        if name not in before or not np.array_equal(before[name], now):
            raise UserError(
                f"{run.path}: the data or its partition is no longer what the run began with"
            )


def dealt(federation: Federation) -> dict[str, np.ndarray]:
    """Return which images are whose, and a hash by which to know the images again."""
    content = hashlib.blake2b(digest_size=16)
    for tensor in (federation.images, federation.labels):
        content.update(tensor.numpy().data)
    return {
        "rows": federation.rows.numpy(),
        "bounds": federation.bounds.numpy(),
        "counts": federation.label_counts(),
        "classes": np.array(federation.classes),
        "content": np.array(content.hexdigest()),
    }


def form(federation: Federation) -> dict[str, np.ndarray]:
    """Return what images must look like for the run's networks."""
    return {
        "shape": np.array(federation.task.shape),
        "mean": np.array(federation.mean),
        "std": np.array(federation.std),
    }


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())  # before the database says that there is a run


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
