"""A whole experiment from Python: `run`, `resume`, and what both share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.compute import device_of
from fedtailor.core.errors import UserError
from fedtailor.core.types import Server
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.engines._base import ClientHost, make_engine
from fedtailor.experiment.prepare import check_config, clients_of, setting_of, taking_part
from fedtailor.experiment.rounds import Loop, Progress, federate
from fedtailor.runs.config import Config, as_config
from fedtailor.runs.create import create_run, default_path
from fedtailor.runs.folder import Run
from fedtailor.runs.partition_file import check_partition


def run(
    config: str | Path | Mapping[str, Any] | Config,
    out: str | Path | None = None,
    progress: Progress | None = None,
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
    start = Path(made.start) if made.start else None
    return conduct(made, lambda federation: create(path, made, federation, start), progress)


def resume(path: str | Path, progress: Progress | None = None) -> Run:
    """Go on with a run that was interrupted; one that is finished is returned as it is."""
    folder = Run(path)
    if folder.finished():
        return folder

    def reopen(federation: Federation) -> Run:
        check_partition(folder, federation)
        folder.note(folder.last_round(), None, "resumed", "")
        return folder

    return conduct(folder.config, reopen, progress)


def create(path: Path, config: Config, federation: Federation, start: Path | None) -> Run:
    """Make a run folder, unless the state that the run is to start from does not fit."""
    if start is not None:
        kind, _ = state_types(config.algorithm)
        found, _ = codec.pack(codec.read(kind, start), copy=False)
        server = Server(setting_of(config, federation), 0, ())
        fresh, _ = codec.pack(config.algorithm.server_init(server), copy=False)
        for name, tensor in fresh.items():
            if tensor.numel() and (name not in found or found[name].shape != tensor.shape):
                raise UserError(
                    f"start: {config.start} is of another space or of other data: "
                    f"{name.removeprefix('/')} does not fit"
                )
    folder = create_run(path, config, federation, start)
    for text in config.algorithm.warnings():
        folder.note(0, None, "warning", text)
    return folder


def conduct(
    config: Config,
    open_folder: Callable[[Federation], Run],
    progress: Progress | None,
    load: Callable[[DataOptions], Federation] = load_federation,
) -> Run:
    """Read the data, open the run folder, and do what is left to do."""
    engine = make_engine(config.engine)  # first: its workers start while the data is read
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: sums must not depend on the number of threads
    try:
        federation = load(config.data)
        check_config(config, federation)
        folder = open_folder(federation)
        host = _host(config, federation, folder)
        engine.open(host)
        clients = tuple(host.clients[i] for i in taking_part(config, federation))
        setting = host.setting
        del federation, host  # the workers have the data: no second copy of it here
        progress = progress or Progress(config.rounds)
        progress.rounds = config.rounds
        progress.started_at = progress.round = max(folder.last_round(), 0)
        with folder.lock():
            folder.tidy()
            federate(Loop(config, setting, clients, engine, folder, progress))
        return folder
    finally:
        torch.set_num_threads(threads)
        engine.close()


def _host(config: Config, federation: Federation, folder: Run) -> ClientHost:
    return ClientHost(
        config.algorithm,
        setting_of(config, federation),
        federation,
        clients_of(federation, config),
        folder.states,
        folder.path / "clients" if config.save_models else None,
        device_of(config.engine.device),
    )
