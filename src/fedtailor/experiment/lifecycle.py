"""A whole experiment from Python: prepare, create, execute.

An engine is started first, since its processes import what they need while the data is being read.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.compute import device_of, one_thread
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.types import Server
from fedtailor.data.federation import load_federation
from fedtailor.engines._base import ClientHost, Engine, make_engine
from fedtailor.experiment.prepare import Prepared, prepare
from fedtailor.experiment.progress import RunProgress
from fedtailor.experiment.rounds import do_rounds
from fedtailor.experiment.steps import Execution
from fedtailor.runs.config import Config, EngineOptions, as_config, read_config
from fedtailor.runs.create import create_run, default_path
from fedtailor.runs.folder import CONFIG, Run, tidy
from fedtailor.runs.needs import check_needs
from fedtailor.runs.partition_file import check_partition


def run(
    config: str | Path | Mapping[str, Any] | Config,
    out: str | Path | None = None,
    progress: RunProgress | None = None,
    **overrides: Any,
) -> Run:
    """Run an experiment and return its run folder.

    Args:
        config: a TOML file, a table of the same form, or a Config.
        out: the run folder; by default a new one below runs/.
        progress: an object to follow the run by, from another thread.
        overrides: values that replace the config's: `seed=1, data={"alpha": 1.0}`.
    """
    made = as_config(config, overrides)
    path = Path(out) if out is not None else default_path(made)
    progress = progress or RunProgress()
    with started_engine(made.engine) as engine:
        progress.doing = "reading and dealing the data"
        prepared = prepare(made, load_federation(made.data))  # nobody else holds the images
        folder = create(path, prepared, Path(made.start) if made.start else None)
        with lock_folder(path):
            progress.doing = "giving the data to the workers"
            prepared = open_engine(engine, prepared, folder)
            return execute(prepared, engine, folder, progress)


def resume(path: str | Path, progress: RunProgress | None = None) -> Run:
    """Go on with a run that was interrupted; one that is finished is returned as it is."""
    folder = Run(path)
    if folder.finished():
        return folder
    config = read_config(folder.path / CONFIG)
    progress = progress or RunProgress()
    progress.doing = "reading the data and checking that it is the same"
    with lock_folder(folder.path), started_engine(config.engine) as engine:
        prepared = prepare(config, load_federation(config.data))
        check_partition(folder, prepared.federation)
        check_needs(folder, prepared.needs)
        folder.note(folder.last_round(), None, "resumed", "")
        prepared = open_engine(engine, prepared, folder)
        return execute(prepared, engine, folder, progress)


@contextmanager
def started_engine(options: EngineOptions) -> Iterator[Engine]:
    """Start the engine that a config asks for; compute here as its workers do."""
    engine = make_engine(options)
    try:
        with one_thread():
            yield engine
    finally:
        engine.close()


def create(path: Path, prepared: Prepared, start: Path | None) -> Run:
    """Make a run folder, unless the state that the run is to start from does not fit."""
    config = prepared.config
    if start is not None:
        _check_start(prepared, start)
    folder = create_run(path, config, prepared.clients, prepared.data, start, prepared.needs)
    for text in config.warnings():
        folder.note(0, None, "warning", text)
    for text in () if prepared.data is None else prepared.data.notes:
        folder.note(0, None, "note", text)
    return folder


def open_engine(engine: Engine, prepared: Prepared, folder: Run) -> Prepared:
    """Give the clients' data to the engine; return the rest, so that no second copy is held."""
    config = prepared.config
    host = ClientHost(
        config.algorithm,
        prepared.setting,
        prepared.federation,
        prepared.clients,
        folder.states,
        folder.path / "clients" if config.save_models else None,
        device_of(config.engine.device),
        last_round=config.rounds,
    )
    engine.open(host)
    return replace(prepared, data=None)


def execute(prepared: Prepared, engine: Engine, folder: Run, progress: RunProgress | None) -> Run:
    """Do what is left to do of a run, whose folder this process has locked."""
    config = prepared.config
    clients = tuple(prepared.clients[i] for i in prepared.participants)
    once, public = sum(file.bytes for file in prepared.needs.values()), prepared.public
    progress = progress or RunProgress()
    progress.rounds = config.rounds
    progress.started_at = progress.round = max(folder.last_round(), 0)
    tidy(folder)
    do_rounds(Execution(config, prepared.setting, clients, engine, folder, progress, once, public))
    tidy(folder)  # what a client that failed may have written
    return folder


def _check_start(prepared: Prepared, start: Path) -> None:
    """Raise if a server's state is not of this experiment's form."""
    algorithm = prepared.config.algorithm
    kind, _ = state_types(algorithm)
    state, server = codec.read(kind, start), Server(prepared.setting, 0, (), prepared.public)
    found, _ = codec.pack(state, copy=False)
    fresh, _ = codec.pack(algorithm.first_like(server, state), copy=False)
    for name, tensor in fresh.items():
        if tensor.numel() and (name not in found or found[name].shape != tensor.shape):
            raise UserError(
                f"start: {prepared.config.start} is of another space or of other data: "
                f"{name.removeprefix('/')} does not fit"
            )
