"""Making a run folder."""

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.core.files import copy_file, lock_folder, sha256_of, whole_file
from fedtailor.core.types import ClientInfo
from fedtailor.data.federation import Federation
from fedtailor.runs import database
from fedtailor.runs.config import Config, write_config
from fedtailor.runs.environment import environment
from fedtailor.runs.folder import CONFIG, ENVIRONMENT, PARTITION, START, Run
from fedtailor.runs.needs import NeededFile
from fedtailor.runs.partition_file import image_format, ownership


def default_path(config: Config) -> Path:
    """Name a new run folder below runs/."""
    name = Path(config.algorithm_name.rpartition(":")[0] or config.algorithm_name).stem
    return Path("runs") / f"{time.strftime('%Y-%m-%d')}-{name}-{os.urandom(2).hex()}"


def create_run(
    path: Path,
    config: Config,
    clients: Sequence[ClientInfo],
    federation: Federation | None,
    start: Path | None = None,
    needs: Mapping[str, NeededFile] = {},
) -> Run:
    """Make a new run folder; it counts from the moment its database is there.

    Args:
        path: the folder.
        config: what is written into it.
        clients: all of them, new ones included.
        federation: their data, where it is here.
        start: the server's first state, which is copied: the folder needs nothing outside it.
        needs: the files that clients must have, by the config keys that name them.
    """
    _refuse_used(path)
    (path / "state").mkdir(parents=True, exist_ok=True)
    with lock_folder(path):
        _refuse_used(path)  # once more: another process may have been faster
        write_config(config, path / CONFIG)
        about = environment(config, {key: file.about() for key, file in needs.items()})
        (path / ENVIRONMENT).write_text(json.dumps(about, indent=1) + "\n")
        if federation is not None:
            images = ownership(federation) | image_format(federation)
            images["unseen"] = federation.unseen_tests()
            if federation.client_names:
                images["names"] = np.array(federation.client_names)
            np.savez_compressed(path / PARTITION, allow_pickle=False, **images)
        begins = None
        if start is not None:
            copy_file(start, path / START)
            begins = f"the state of {config.start}, sha256 {sha256_of(path / START)}"
        with whole_file(path / "run.db") as new:
            database.create(new, clients, begins)
    return Run(path)


def _refuse_used(path: Path) -> None:
    if (path / "run.db").exists():
        raise UserError(
            f"{path}: there is a run already; `fedtailor resume {path}` goes on with it, "
            "and --out takes another folder"
        )
    ours = {"state", "lock", CONFIG, ENVIRONMENT, PARTITION, START}
    with contextlib.suppress(FileNotFoundError):
        there = {p.name for p in path.iterdir() if not p.name.startswith("run.db.")}
        if there - ours:
            raise UserError(f"{path}: is not an empty folder; --out takes another")
