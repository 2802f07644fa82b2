"""The verbs that look: ls, cp, show and report. None runs code that a run folder names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedtailor.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from fedtailor.runs.folder import Run

Reach = Annotated[
    str | None,
    Parameter(help="An accuracy such as 0.55, or a run folder: its last untuned mean accuracy."),
]


def ls(what: str | None = None, /, *, as_json: AsJson = False) -> None:
    """List what there is: algorithms, spaces, data, engines, starters; or tell about one of them.

    Args:
        what: one of these words, or the name of one thing, such as perfedrlnas, for its keys in the
            config with their defaults; `runs`, or another folder of run folders, lists these. All
            there is when left out.
        as_json: print JSON for scripts.
    """
    from fedtailor.cli import list_text
    from fedtailor.cli.listing import KINDS, described, listing
    from fedtailor.runs.overview import overview

    if what is None or what in KINDS:
        found = listing(what)
        lines = list_text.listing_lines(found)
    elif what == "runs" or Path(what).is_dir():
        found = overview(Path(what))
        lines = list_text.run_lines(found)
    else:
        found = described(what)
        lines = list_text.described_lines(found)
    if as_json:
        print_json(found)
    else:
        print("\n".join(lines))


def cp(name: str, file: Path, /) -> None:
    """Copy a starter config to a file of yours.

    Args:
        name: the starter, such as quickstart; `fedtailor ls starters` lists them.
        file: where to write it; an existing file is left alone.
    """
    from fedtailor.cli.listing import copy_starter

    copy_starter(name, file)
    print(f"wrote {file}; next: fedtailor plan {file}")


def show(
    path: Path,
    /,
    *,
    reach: Reach = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="")] = False,
    tables: Path | None = None,
    tensorboard: Path | None = None,
) -> None:
    """Show what a run found and cost; of a search, every client's likeliest or best architecture.

    Args:
        path: the run folder, or a folder of run folders, such as runs, for a line of each.
        reach: tell how long the run took to reach this accuracy, or that of another run.
        as_json: print JSON for scripts: every client's value, every policy, and `digest`, equal
            for equal runs.
        as_csv: print every number that was measured, by round and client.
        tables: write all there is into this folder, a CSV file each: metrics, architectures,
            messages, timings and more.
        tensorboard: write the metrics into this folder, for TensorBoard; needs
            pip install 'fedtailor[track]'.
    """
    from fedtailor.cli.list_text import run_lines
    from fedtailor.cli.terminal import archive_lines, cost_lines, search_lines
    from fedtailor.runs import database
    from fedtailor.runs.archives import archives
    from fedtailor.runs.clients import client_names
    from fedtailor.runs.cost_summary import costs
    from fedtailor.runs.folder import Run
    from fedtailor.runs.metric_tables import metrics_csv, write_tables, write_tensorboard
    from fedtailor.runs.overview import holds_runs, overview
    from fedtailor.runs.time_to_accuracy import wanted

    if holds_runs(path):
        every = overview(path)
        if as_json:
            print_json(every)
        else:
            print("\n".join(run_lines(every)))
        return
    goal = None if reach is None else wanted(reach)
    found = Run(path)
    if as_csv:
        print(metrics_csv(found), end="")
        return
    if tables is not None:
        print(f"wrote {', '.join(write_tables(found, tables))} to {tables}")
        return
    if tensorboard is not None:
        print(f"wrote {write_tensorboard(found, tensorboard)} curves to {tensorboard}")
        return
    show_run(found, as_json, goal)
    if not as_json:
        names = client_names(found)
        lines = (*cost_lines(costs(found)), *search_lines(database.search(found.db), names))
        for line in (*lines, *archive_lines(archives(found), names)):
            print(line)


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
        out: the page; by default report.html in the folder of one run, and for several a new
            compare-....html in the current folder. Its figures go beside it.
        reach: tell how long each run took to reach this accuracy, or that of one of them.
    """
    from fedtailor.report.comparing import report_on
    from fedtailor.report.page import figures_of
    from fedtailor.runs.time_to_accuracy import wanted

    page = report_on(*paths, out=out, reach=None if reach is None else wanted(reach))
    print(f"wrote {page}, its figures and their numbers in {figures_of(page)}")


def show_run(found: "Run", as_json: bool, reach: float | None = None) -> None:
    """Print what a run found, in short."""
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
