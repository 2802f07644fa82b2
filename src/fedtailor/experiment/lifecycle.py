"""A whole experiment from Python: `run`, `resume`, and what both share."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import ClientInfo, Server, Setting
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.engines._base import Engine
from fedtailor.engines._client import Site
from fedtailor.engines.local import InProcess, Workers
from fedtailor.experiment.rounds import Loop, Progress, federate
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.runs.config import (
    Config,
    Device,
    budgets_of,
    flatten,
    make_config,
    override,
    read_config,
)
from fedtailor.runs.create import check_partition, create_run, default_path
from fedtailor.runs.folder import Run


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


def as_config(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any]
) -> Config:
    """Make a Config of whatever describes one."""
    flat = flatten(overrides)
    if isinstance(config, str | Path):
        return read_config(Path(config), flat)
    if isinstance(config, Config):
        if flat:
            raise UserError("overrides: give them with a file or a table, not with a Config")
        return config
    return make_config(override(dict(config), flat))


def clients_of(federation: Federation, config: Config) -> tuple[ClientInfo, ...]:
    """Register all clients, new ones included, with their devices."""
    total = federation.clients + federation.new_clients
    budgets = budgets_of(config, total, federation.task)
    sizes = (federation.bounds[:, 1] - federation.bounds[:, 0]).tolist()
    return tuple(ClientInfo(i, sizes[i], budgets[i]) for i in range(total))


def taking_part(config: Config, federation: Federation) -> range:
    """Return the ids of the clients that take part."""
    training, total = federation.clients, federation.clients + federation.new_clients
    if config.population == "new" and total == training:
        raise UserError("population: there are no new clients; data.new_clients keeps some out")
    first = training if config.population == "new" else 0
    return range(first, training if config.population == "training" else total)


def check_config(config: Config, federation: Federation) -> None:
    """Raise on what only the data can tell: before anything is written."""
    there = len(taking_part(config, federation))
    if config.cohort and config.cohort > there:
        raise UserError(f"cohort: {config.cohort} clients a round, but there are {there}")
    setting = setting_of(config, federation)
    names = cost.parameter_names(setting.space, setting.arch, setting.task)  # or says why not
    if not any(name.startswith("head.") for name in names):
        raise UserError(
            "space.name: the names of the classifier's parameters must begin with head."
        )
    if setting.init is not None:
        initial_weights(setting)
    device_of(config.engine.device)


def setting_of(config: Config, federation: Federation) -> Setting:
    """Return what server and clients both know."""
    space, arch = config.space, config.space_arch
    chosen = getattr(space, arch)() if isinstance(arch, str) else arch
    return Setting(federation.task, space, config.rounds, config.seed, chosen, config.space_init)


def device_of(wanted: Device, key: str = "engine.device") -> str:
    """Return the device that training uses, by what the user wrote under some key."""
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise UserError(f"{key}: torch sees no CUDA device here; use cpu or auto")
    return "cuda" if there and wanted != "cpu" else "cpu"


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
    workers = Workers(config.engine.workers) if config.engine.workers else None
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in a worker: sums must not depend on the number of threads
    try:
        federation = load(config.data)
        check_config(config, federation)
        folder = open_folder(federation)
        site = _site(config, federation, folder)
        engine: Engine = InProcess(site)
        if workers:
            workers.open(site, {"algorithm": config.algorithm_name, "space": config.space_name})
            engine = workers
        clients = tuple(site.clients[i] for i in taking_part(config, federation))
        setting = site.setting
        del federation, site  # the workers have the data: no second copy of it here
        progress = progress or Progress(config.rounds)
        progress.rounds = config.rounds
        progress.started_at = progress.round = max(folder.last_round(), 0)
        with folder.lock():
            folder.tidy()
            federate(Loop(config, setting, clients, engine, folder, progress))
        return folder
    finally:
        torch.set_num_threads(threads)
        if workers:
            workers.close()


def _site(config: Config, federation: Federation, folder: Run) -> Site:
    return Site(
        config.algorithm,
        setting_of(config, federation),
        federation,
        clients_of(federation, config),
        folder.states,
        folder.path / "clients" if config.save_models else None,
        device_of(config.engine.device),
    )
