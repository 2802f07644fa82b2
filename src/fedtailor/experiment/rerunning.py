"""A run done once more from its config: does the same come out, to the bit?"""

import itertools
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.data.federation import load_federation
from fedtailor.experiment.following import followed
from fedtailor.experiment.lifecycle import create, execute, open_engine, resume, started_engine
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.progress import RunProgress
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import CONFIG, START, Run
from fedtailor.runs.needs import check_needs
from fedtailor.runs.partition_file import check_partition
from fedtailor.runs.summary import digest


def rerun(
    path: str | Path,
    out: str | Path | None = None,
    progress: bool | RunProgress | None = None,
) -> tuple[Run, str | None]:
    """Do a finished run once more; return the new one and the first difference, None if equal.

    Args:
        path: the run; it is only read.
        out: the new run folder, by default RUN-again; one that was interrupted is gone on with.
        progress: as of `run`.
    """
    old = Run(path)
    if not old.finished():
        raise UserError(
            f"{old.path}: the run is not finished; `fedtailor resume {old.path}` goes on with it"
        )
    _refuse_two_ends(old)
    target = Path(out) if out is not None else default_path(old.path)
    begun = (target / "run.db").exists()
    if begun and Run(target).config != old.config:
        raise UserError(f"{target}: is a run of another config; --out takes another folder")
    with followed(progress, target.name) as state:
        new = resume(target, state) if begun else _begin(old, target, state)
    return new, first_difference(old, new)


def default_path(path: Path) -> Path:
    """Name the folder of a run done once more: beside it."""
    whole = path.resolve()
    return whole.with_name(f"{whole.name}-again")


def _refuse_two_ends(old: Run) -> None:
    """Refuse a run that went on after its end: its clients were tested at that end, too."""
    kinds = [kind for kind, _, _ in database.events(old.db)]
    if "extended" in kinds[kinds.index("finished") :]:
        raise UserError(
            f"{old.path}: the run was finished before it was given more rounds, which one run from "
            "its config does not repeat"
        )


def _begin(old: Run, target: Path, progress: RunProgress) -> Run:
    config = read_config(old.path / CONFIG)
    start = old.path / START  # the copy that the run began with, whatever became of the original
    with started_engine(config.engine) as engine:
        prepared = prepare(config, load_federation(config.data))
        check_partition(old, prepared.federation)
        check_needs(old, prepared.needs)
        folder = create(target, prepared, start if start.is_file() else None)
        with lock_folder(target):
            prepared = open_engine(engine, prepared, folder)
            return execute(prepared, engine, folder, progress)


def first_difference(one: Run, other: Run) -> str | None:
    """Say in what two runs of one config differ first; None if they have the same digest."""
    if digest(one) == digest(other):
        return None
    for round in range(max(one.last_round(), other.last_round()) + 1):
        states = [database.server_state(run.db, round) for run in (one, other)]
        here, there = (state and state[1] for state in states)
        if here != there:
            return f"the server's state after round {round}"
    clients = [database.client_states(run.db, one.last_round()) for run in (one, other)]
    for here, there in itertools.zip_longest(*clients):
        if here != there:
            return f"the state of client {(here or there)[0]} after round {(here or there)[1]}"
    rows = (database.results(run.db) for run in (one, other))
    for here, there in itertools.zip_longest(*rows):
        if here != there:
            found = here or there
            return f"what was measured of client {found[1]} in round {found[0]}: {here} and {there}"
    return "the order in which models were kept"
