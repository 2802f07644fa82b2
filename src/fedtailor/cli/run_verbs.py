"""The verbs that work: demo, plan, run, resume, onboard and gain."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fedtailor.cli.common import AsJson, fail, print_json, warn
from fedtailor.cli.look_verbs import show_run

if TYPE_CHECKING:
    from fedtailor.experiment.progress import RunProgress
    from fedtailor.runs.config import Config

Out = Annotated[Path | None, Parameter(help="The run folder; by default a new one below runs/.")]


def demo(*, quick: bool = False, out: Out = None) -> None:
    """Compare training alone and together with three searches, on digits, in under three minutes.

    Eight clients with uneven classes train alone (local) and together (FedAvg); then each gets an
    architecture of its own, found by the server (PerFedRLNAS) or by the client (PerFedSDE-NAS,
    SPIDER).

    Args:
        quick: three clients with few images and fewer rounds, in under 45 seconds: enough to
            see every part of the report, too little for networks to become good.
        out: the folder of the runs and the report; by default a new one below runs/.
    """
    clients = "Three clients, few images" if quick else "Eight clients"
    print(
        f"{clients}, uneven classes: each alone, all together, and three searches for networks "
        "of their own. Starting ...",
        flush=True,
    )
    from fedtailor.cli import demo

    demo.show(out, quick)


def plan(file: Path, /, *overrides: str, as_json: AsJson = False) -> None:
    """Say what a run would cost, without training: clients, parameters, bytes, memory, time.

    Args:
        file: the config.
        overrides: key=value, such as data.alpha=0.1.
        as_json: print JSON for scripts.
    """
    config = _config(file, overrides)
    from fedtailor.experiment import planning

    found = planning.plan(config)
    if as_json:
        print_json(found)
    else:
        print(found)


def run(file: Path, /, *overrides: str, out: Out = None, as_json: AsJson = False) -> None:
    """Run an experiment. Ctrl-C is safe: `fedtailor resume` goes on to the same result.

    Args:
        file: the config; `fedtailor cp quickstart my.toml` makes one.
        overrides: key=value, such as algorithm.lr=0.1 or data.name=cifar10.
        out: the run folder; by default a new one below runs/.
        as_json: print what `show --json` prints at the end.
    """
    config = _config(file, overrides)
    from fedtailor.experiment import running
    from fedtailor.runs.create import default_path

    path = out or default_path(config)
    for text in config.warnings():
        warn(text)
    with followed(path) as progress:
        found = running.run(config, path, progress)
    show_run(found, as_json)


def resume(path: Path, /, *overrides: str, as_json: AsJson = False) -> None:
    """Go on with a run that was stopped or killed; the result is that of a run never stopped.

    With rounds=100 a run goes on to so many rounds, also a finished one. Schedules go on by the
    length that they had, so that it does not equal a run of 100 rounds from the start.

    Args:
        path: the run folder.
        overrides: rounds=N, more than the run has; nothing else can be changed.
        as_json: print what `show --json` prints at the end.
    """
    from fedtailor.core.validation import parse_override
    from fedtailor.experiment import running
    from fedtailor.experiment.extending import extend

    if overrides:
        warn(extend(path, dict(parse_override(text) for text in overrides)))
    with followed(path) as progress:
        found = running.resume(path, progress)
    show_run(found, as_json)


def onboard(
    path: Path,
    /,
    *overrides: str,
    data: str | None = None,
    rounds: int | None = None,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Find networks for clients that never took part in a run.

    These are the clients that `data.new_clients` kept out of it, or those of other data. All
    weights stand still. A method that can search so (perfedrlnas) lets every new client test
    subnets, of which only accuracies leave it, and its policy learns; for the others new clients
    get what the method has for a client it does not know. They are tested before the first round,
    on the way and at the end, where each tunes its network for itself.

    This makes a run of its own: `resume`, `show` (its `curve` in JSON) and `report` work on it.
    RUN is only read, and need not be finished. For example:

    fedtailor onboard runs/a --rounds 20

    fedtailor onboard runs/a --data other.npz data.clients=5

    Args:
        path: the run folder (RUN).
        overrides: key=value, such as eval_every=1, cohort=10 or data.name=cinic10.
        data: other data: a folder, .npz file or my_data.py:function, as data.path. Its images
            must have the run's shape and classes; what else [data] says stays the run's.
        rounds: rounds of search; by default 20, or none where the method cannot search.
        out: the new run folder; by default RUN/onboard, then RUN/onboard-2 and so on.
        as_json: print what `show --json` prints at the end.
    """
    from fedtailor.core.validation import parse_override
    from fedtailor.experiment import onboarding, running
    from fedtailor.runs import database

    changes = dict(parse_override(text) for text in overrides)
    changes |= {} if data is None else {"data.path": data}
    changes |= {} if rounds is None else {"rounds": rounds}
    target = out or onboarding.default_path(path)
    with followed(target) as progress:
        found = running.onboard(path, target, progress, **changes)
    show_run(found, as_json)
    for text in database.warnings(found.db):
        warn(text)


def gain(
    path: Path,
    /,
    *,
    epochs: int = 30,
    weights: Literal["theirs", "global"] = "theirs",
    clients: int | None = None,
    as_json: AsJson = False,
) -> None:
    """Measure what is personal about the networks of a finished run, on one another's data.

    Every client's final network is tuned on every client's training data and tested on its test
    data. The gain of a client is by how much its own network then does better than the others' do
    on average (SPIDER, Eq. 6); p is how often networks that are dealt to the clients at random
    would do as well. For a simulation only: it moves private networks between clients.

    What was measured is kept in the run folder, pair by pair: asked again, it goes on with pairs
    that are missing. For example:

    fedtailor gain runs/a --weights global --clients 8

    Args:
        path: the run folder.
        epochs: of tuning, for clients' own networks too; the last one counts.
        weights: theirs: networks as they are; global: their architectures, with weights cut from
            the run's last supernet, so that only architectures differ.
        clients: only so many, the first ones; by default all.
        as_json: print JSON for scripts: the accuracy of every pair.
    """
    from fedtailor.cli import terminal
    from fedtailor.experiment.gain import measure_gain
    from fedtailor.runs.clients import client_names
    from fedtailor.runs.folder import Run

    more = "" if clients is None else f" --clients {clients}"
    again = f"fedtailor gain {path} --epochs {epochs} --weights {weights}{more}"
    with followed(path, again) as progress:
        found = measure_gain(path, epochs, weights, clients, progress)
    if as_json:
        print_json(found)
    else:
        print("\n".join(terminal.gain_lines(found, client_names(Run(path)))))


@contextmanager
def followed(path: Path, again: str | None = None) -> Iterator["RunProgress"]:
    """Show how far a run is while the body does it; say how to go on if it ends early."""
    from fedtailor.experiment.following import show
    from fedtailor.experiment.progress import RunProgress
    from fedtailor.experiment.steps import ClientFailedError
    from fedtailor.runs.folder import Run

    progress = RunProgress()
    anew = f"; once more: {again}" if again else ""  # what a run was begun with is not known here
    again = again or f"fedtailor resume {path}"
    try:
        with show(progress, path.name):
            yield progress
    except KeyboardInterrupt:
        if (path / "run.db").exists():
            where = f"{progress.unit} {progress.round} of {progress.rounds}"
            fail(f"stopped in {where}; go on with: {again}", 130)
        fail(f"stopped before the first round; nothing was written that counts{anew}", 130)
    except ClientFailedError as error:
        how = f"once that is mended, go on with: {again}"
        if error.diverged:
            lr = float(Run(path).config["algorithm"].get("lr", 0.05))
            how = (
                "going on would end the same way, so begin anew with other values, such as "
                f"algorithm.lr={lr / 10:g} (it is {lr:g}) or algorithm.clip=1"
            )
        fail(f"{error}\nDetails are in {path / 'log.txt'}; {how}", 1)


def _config(file: Path, overrides: tuple[str, ...]) -> "Config":
    from fedtailor.core.validation import parse_override
    from fedtailor.runs.config import read_config

    return read_config(file, dict(parse_override(text) for text in overrides))
