"""Clients that never took part: what a run has for them, while its weights stand still.

An onboarding is a run of its own. It starts from the server's state of another run, tests the new
clients before its first round, and where the algorithm can search with frozen weights lets them
test what their policies draw. Nothing is trained until the end, when clients tune for themselves.
"""

import dataclasses
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from fedtailor.algorithms._base import Algorithm
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.validation import flatten, override
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.experiment.lifecycle import create, execute, open_engine, started_engine
from fedtailor.experiment.prepare import Prepared, prepare
from fedtailor.experiment.progress import RunProgress
from fedtailor.runs.config import Config, config_table, make_config, read_config
from fedtailor.runs.folder import CONFIG, START, Run
from fedtailor.runs.partition_file import ownership

ImageFormat: TypeAlias = dict[str, np.ndarray]  # of partition.npz: shape, mean, std, classes

ROUNDS = 20  # of search
POINTS = 10  # tests of all clients on the way, at least
OTHER = ("data.path", "data.name")  # whoever sets one has other clients in mind
FIXED = ("space", "algorithm.name", "population", "start")


def onboard(
    path: str | Path,
    out: str | Path | None = None,
    progress: RunProgress | None = None,
    **overrides: Any,
) -> Run:
    """Search or test for clients that never took part in a run, and return the new run folder.

    Args:
        path: the run, finished or not; it is only read.
        out: the new run folder; by default one below the run's.
        progress: an object to follow the work by, from another thread.
        overrides: values that replace the run's: `rounds=10, data={"path": "mine.npz"}`.
    """
    old, given = Run(path), flatten(overrides)
    target = Path(out) if out is not None else default_path(path)
    before = read_config(old.path / CONFIG)
    images = old.partition() if _is_other(given) else None
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / START
        config = _config(old, before, _copy_state(old, state), given, images)
        with started_engine(config.engine) as engine:
            prepared = prepare(config, _load(config.data, given, images))
            _refuse_trained_images(old, before, prepared)
            made = create(target, prepared, state)
            state.unlink()
            with lock_folder(target):
                prepared = open_engine(engine, prepared, made)
                return execute(prepared, engine, made, progress)


def default_path(path: str | Path) -> Path:
    """Name a new folder below a run's."""
    number, found = 2, Path(path) / "onboard"
    while (found / "run.db").exists():
        found, number = Path(path) / f"onboard-{number}", number + 1
    return found


def _copy_state(old: Run, target: Path) -> Path:
    """Copy the last committed state of a run that may be going on; return where it was."""
    while True:
        last = old.last_round()
        if last < 0:
            raise UserError(
                f"{old.path}: the run has no state yet; `fedtailor resume` goes on with it"
            )
        try:
            source = old.server_path(last)
            shutil.copyfile(source, target)
        except (UserError, FileNotFoundError):
            if old.last_round() == last:  # else a next round replaced it under us
                raise UserError(f"{old.path}: the state of round {last} is missing") from None
        else:
            return source


def _config(
    old: Run, before: Config, start: Path, given: dict[str, Any], images: ImageFormat | None
) -> Config:
    """Return the run's config with what is different for new clients."""
    _refuse(old, before, given)
    searching = before.algorithm.for_newcomers()
    rounds = given.get("rounds", ROUNDS if searching else 0)
    if rounds and not searching:
        raise UserError(
            f"rounds: {before.algorithm_name} cannot search with its weights frozen, so a round "
            "would train what all clients share; leave --rounds out: new clients then test and "
            "tune what they are given"
        )
    table = config_table(before)
    table.pop("schedule_rounds", None)  # of RUN, which was extended
    table.pop("cohort", None)
    changes: dict[str, Any] = {"rounds": rounds, "start": str(start)}
    if isinstance(rounds, int):
        changes["eval_every"] = min(before.eval_every, max(1, rounds // POINTS))
    still = _differences(before.algorithm, searching) if searching else {}
    changes |= {f"algorithm.{name}": value for name, value in still.items()}
    changes["population"] = "all" if images else "new"
    if images:
        table["data"] = _inherited(table["data"], given)
        changes |= {f"data.{name}": images[name].tolist() for name in ("mean", "std")}
    config = make_config(override(table, changes | given))
    wanted = config.algorithm.for_newcomers()
    for name in _differences(config.algorithm, wanted) if wanted else ():
        raise UserError(
            f"algorithm.{name}: stays as new clients need it, whose weights stand still"
        )
    return config


def _differences(one: Algorithm[Any, Any], other: Algorithm[Any, Any]) -> dict[str, Any]:
    """Return the hyper-parameters in which the other differs, as it has them."""
    names = [field.name for field in dataclasses.fields(other)]
    return {n: getattr(other, n) for n in names if getattr(other, n) != getattr(one, n)}


def _is_other(given: Mapping[str, Any]) -> bool:
    return any(key in given for key in OTHER)


def _refuse(old: Run, before: Config, given: dict[str, Any]) -> None:
    """Raise if there are no new clients, or if more is to change than a run with them allows."""
    for key in given:
        if any(key == one or key.startswith(f"{one}.") for one in FIXED):
            raise UserError(f"{key}: stays as it is in the run, whose weights new clients get")
    if before.population != "training":
        raise UserError(f"{old.path}: its clients are new ones already; onboard the run before it")
    kept_out = given.get("data.new_clients", before.data.new_clients)
    if not kept_out and not _is_other(given):
        raise UserError(
            f"{old.path}: the run kept no clients out of training, as data.new_clients would have "
            "done; give other data with --data"
        )


def _inherited(data: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return what of the run's [data] can be meant for other data, too."""
    dropped, path = {"path", "new_clients", "public"}, given.get("data.path")
    if path is None or not Path(str(path)).expanduser().is_dir():
        dropped |= {"size", "color"}
    if given.get("data.split") == "pool":
        dropped.add("test_per_client")
    return {key: value for key, value in data.items() if key not in dropped}


def _load(options: DataOptions, given: dict[str, Any], images: ImageFormat | None) -> Federation:
    """Read the clients' data; other images must be like the run's, and are scaled as those."""
    if images is None:
        return load_federation(options)
    own = {name: None for name in ("mean", "std") if f"data.{name}" not in given}
    federation = load_federation(dataclasses.replace(options, **own))
    _refuse_other_task(federation, tuple(images["shape"].tolist()), len(images["classes"]))
    return dataclasses.replace(federation, **{name: getattr(options, name) for name in own})


def _refuse_other_task(federation: Federation, shape: tuple[int, ...], classes: int) -> None:
    task = federation.task
    if task.shape != shape:
        found, wanted = ("x".join(str(n) for n in one) for one in (task.shape, shape))
        raise UserError(
            f"data: the images are {found}, but the run's networks take {wanted}; data.size and "
            "data.color convert a folder of images"
        )
    if task.classes != classes:
        raise UserError(
            f"data: there are {task.classes} classes, but the run's networks know {classes}"
        )


def _refuse_trained_images(old: Run, config: Config, prepared: Prepared) -> None:
    """Raise if the weights know images of the clients: then these are not new to them."""
    before, now = old.partition(), ownership(prepared.federation)
    if before["content"] != now["content"]:
        return
    same = all(np.array_equal(before[name], now[name]) for name in ("rows", "bounds"))
    if same and prepared.config.population == "new" and config.data.warnings():
        return  # shared knowingly, which this run's folder says too
    trained = len(before["bounds"]) - config.data.new_clients
    who = prepared.participants
    first, last = now["bounds"][who.start, 0], now["bounds"][who.stop - 1, 3]
    theirs = [before["rows"][b[0] : b[2]] for b in before["bounds"][:trained]]
    theirs.append(before.get("public", before["rows"][:0]))
    if np.isin(now["rows"][first:last], np.concatenate(theirs)).any():
        raise UserError(
            "data: new clients would have images of clients that trained or of the server; leave "
            "the run's data as it is, or give other data with --data"
        )
