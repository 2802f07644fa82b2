"""The command line: verbs, each a few lines. What is slow to import is imported by the verb."""

import signal
import sqlite3
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

import fedtailor
from fedtailor.cli.common import AsJson, fail, print_json
from fedtailor.cli.generator_verbs import generate, pretrain
from fedtailor.core.errors import UserError

app = App(
    name="fedtailor",
    version=fedtailor.__version__,
    suppress_keyboard_interrupt=False,  # main says a sentence
    help="""Personalized federated learning: every client its own network.

Begin with `fedtailor demo`, then `fedtailor cp quickstart my.toml`, `fedtailor plan my.toml` and
`fedtailor run my.toml`. A run can be stopped at any moment and resumed to the same result.""",
)
Out = Annotated[Path | None, Parameter(help="The run folder; by default a new one below runs/.")]
Reach = Annotated[
    str | None,
    Parameter(help="An accuracy such as 0.55, or a run folder: its last untuned mean accuracy."),
]
for verb in (pretrain, generate):
    app.command(verb)


@app.command
def demo(out: Out = None) -> None:
    """Compare three methods on handwritten digits, in under a minute.

    Eight clients with uneven classes train alone (local), together (FedAvg) and both (Ditto).
    """
    print(
        "Eight clients, uneven classes: each alone, all together, and both. Starting ...",
        flush=True,
    )
    from fedtailor.cli import demo

    demo.show(out)


@app.command
def ls(kind: str | None = None, /, *, as_json: AsJson = False) -> None:
    """List what there is: algorithms, spaces, data, engines, starters.

    Args:
        kind: one of these words; all of them when left out.
        as_json: print JSON for scripts.
    """
    from fedtailor.cli.listing import listing

    found = listing(kind)
    if as_json:
        print_json(found)
        return
    for title, entries in found.items():
        print(title)
        for entry in entries:
            print(f"  {entry['name']:18} {entry['about']}{_more_about(entry)}")


@app.command
def cp(name: str, file: Path, /) -> None:
    """Copy a starter config to a file of yours.

    Args:
        name: the starter, such as quickstart; `fedtailor ls starters` lists them.
        file: where to write it; an existing file is left alone.
    """
    from fedtailor.cli.listing import copy_starter

    copy_starter(name, file)
    print(f"wrote {file}; next: fedtailor plan {file}")


@app.command
def plan(file: Path, /, *overrides: str, as_json: AsJson = False) -> None:
    """Say what a run would cost, without training: clients, parameters, bytes, memory, time.

    Args:
        file: the config.
        overrides: key=value, such as data.alpha=0.1.
        as_json: print JSON for scripts.
    """
    config = _config(file, overrides)
    from fedtailor.cli import terminal
    from fedtailor.experiment import planning

    found = planning.plan(config)
    if as_json:
        print_json(found)
    else:
        print("\n".join(terminal.plan_lines(found)))


@app.command
def run(file: Path, /, *overrides: str, out: Out = None, as_json: AsJson = False) -> None:
    """Run an experiment. Ctrl-C is safe: `fedtailor resume` goes on to the same result.

    Args:
        file: the config; `fedtailor cp quickstart my.toml` makes one.
        overrides: key=value, such as algorithm.lr=0.1 or data.name=cifar10.
        out: the run folder; by default a new one below runs/.
        as_json: print what `show --json` prints at the end.
    """
    config = _config(file, overrides)
    from fedtailor.experiment import lifecycle
    from fedtailor.runs.create import default_path

    path = out or default_path(config)
    for text in config.algorithm.warnings():
        print(f"fedtailor: warning: {text}", file=sys.stderr)
    _execute(lambda progress: lifecycle.run(config, path, progress), path, as_json)


@app.command
def resume(path: Path, /, *, as_json: AsJson = False) -> None:
    """Go on with a run that was stopped or killed; the result is that of a run never stopped.

    Args:
        path: the run folder.
        as_json: print what `show --json` prints at the end.
    """
    from fedtailor.experiment import lifecycle

    _execute(lambda progress: lifecycle.resume(path, progress), path, as_json)


@app.command
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
    from fedtailor.experiment import onboarding
    from fedtailor.runs.folder import Run

    changes = dict(parse_override(text) for text in overrides)
    changes |= {} if data is None else {"data.path": data}
    changes |= {} if rounds is None else {"rounds": rounds}
    target = out or onboarding.default_path(path)
    _execute(
        lambda progress: onboarding.onboard(path, target, progress, **changes), target, as_json
    )
    for text in Run(target).config.algorithm.warnings():
        print(f"fedtailor: warning: {text}", file=sys.stderr)


@app.command
def show(path: Path, /, *, reach: Reach = None, as_json: AsJson = False) -> None:
    """Show what a run found; of a search, every client's most probable architecture.

    Args:
        path: the run folder.
        reach: tell how long the run took to reach this accuracy, or that of another run.
        as_json: print JSON for scripts: every client's value, every policy, and `digest`, equal
            for equal runs.
    """
    from fedtailor.cli.terminal import search_lines
    from fedtailor.runs.folder import Run
    from fedtailor.runs.search_state import searched
    from fedtailor.runs.time_to_accuracy import wanted

    goal = None if reach is None else wanted(reach)
    found = Run(path)
    _show(found, as_json, goal)
    if not as_json:
        for line in search_lines(searched(found)):
            print(line)


@app.command
def report(
    paths: list[Path],
    /,
    *,
    out: Annotated[Path | None, Parameter(help="The page.")] = None,
    reach: Reach = None,
) -> None:
    """Write the report of a run, or one page that compares several.

    Args:
        paths: run folders.
        out: the page; by default report.html in the first run folder.
        reach: tell how long each run took to reach this accuracy, or that of one of them.
    """
    from fedtailor.report.page import write_report
    from fedtailor.runs.folder import Run
    from fedtailor.runs.time_to_accuracy import wanted

    target = out or paths[0] / "report.html"
    goal = None if reach is None else wanted(reach)
    page = write_report([Run(path) for path in paths], target, target.parent / "figures", goal)
    print(f"wrote {page}")


def main(words: list[str] | None = None) -> None:
    """Run the command line; whatever the user can mend is one sentence and exit code 2."""
    interrupts = _heard_interrupts()
    try:
        app(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        fail(f"{' '.join(str(error).split())} (fedtailor --help)", 2)
    except UserError as error:
        fail(str(error), 2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (OSError, sqlite3.Error) as error:
        fail(f"{error}; nothing that was committed is lost", 2)
    except KeyboardInterrupt:
        fail("stopped", 130)
    except Exception:
        if not interrupts:
            raise
        # some libraries, while they are imported, swallow an interrupt and then break on it
        fail("stopped", 130)


def _heard_interrupts() -> list[int]:
    """Return a list that Ctrl-C will be entered in, beside what it does by default."""
    heard: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        heard.append(number)
        signal.default_int_handler(number, frame)

    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    return heard


def _execute(work: Any, path: Path, as_json: bool) -> None:
    """Do a run under a progress line; say how to go on if it ends early."""
    from fedtailor.cli import terminal
    from fedtailor.experiment.rounds import ClientFailedError, Progress

    progress = Progress(0)
    again = f"fedtailor resume {path}"
    try:
        with terminal.follow(progress, path.name):
            found = work(progress)
    except KeyboardInterrupt:
        if (path / "run.db").exists():
            fail(
                f"stopped in round {progress.round} of {progress.rounds}; go on with: {again}", 130
            )
        fail("stopped before the first round; nothing was written that counts", 130)
    except ClientFailedError as error:
        fail(f"{error}\nDetails are in {path / 'log.txt'}; go on with: {again}", 1)
    _write_report(found)
    _show(found, as_json)


def _write_report(found: Any) -> None:
    from fedtailor.report.page import write_report

    write_report([found], found.path / "report.html", found.path / "figures")


def _show(found: Any, as_json: bool, reach: float | None = None) -> None:
    from fedtailor.cli import terminal
    from fedtailor.runs.summary import summarise
    from fedtailor.runs.time_to_accuracy import reached

    summary = summarise(found)
    if reach is not None:
        summary["reach"] = reached(found, reach)
    if as_json:
        print_json(summary)
        return
    print("\n".join(terminal.summary_lines(summary)))
    if (found.path / "report.html").exists():
        print(f"report          {found.path / 'report.html'}")


def _config(file: Path, overrides: tuple[str, ...]) -> Any:
    from fedtailor.core.validation import parse_override
    from fedtailor.runs.config import read_config

    return read_config(file, dict(parse_override(text) for text in overrides))


def _more_about(entry: dict[str, Any]) -> str:
    """Say in short who published an algorithm, and what leaves a client; of a space its size."""
    if entry.get("choices"):
        return f" [{entry['choices']} choices; presets {', '.join(entry['presets'])}]"
    if "sends" not in entry:
        return ""
    sent = "; ".join(one["what"] for one in entry["sends"]) or "nothing"
    return f" [{entry['paper'].split(',')[0]}] Leaves a client: {sent}."
