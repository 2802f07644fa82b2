"""The verbs that look: ls, cp, show and report. None runs code that a run folder names."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fedtailor.cli.common import AsJson, print_json

if TYPE_CHECKING:
    from fedtailor.runs.folder import Run

Reach = Annotated[
    str | None,
    Parameter(help="An accuracy such as 0.55, or a run folder: its last untuned mean accuracy."),
]


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
        width = max(18, *(len(entry["name"]) for entry in entries))
        for entry in entries:
            print(f"  {entry['name']:{width}} {entry['about']}{_more_about(entry)}")


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
    tensorboard: Path | None = None,
) -> None:
    """Show what a run found and cost; of a search, every client's likeliest or best architecture.

    Args:
        path: the run folder.
        reach: tell how long the run took to reach this accuracy, or that of another run.
        as_json: print JSON for scripts: every client's value, every policy, and `digest`, equal
            for equal runs.
        as_csv: print every number that was measured, by round and client.
        tensorboard: write the metrics into this folder, for TensorBoard; needs
            pip install 'fedtailor[track]'.
    """
    from fedtailor.cli.terminal import archive_lines, cost_lines, search_lines
    from fedtailor.runs import database
    from fedtailor.runs.archives import archives
    from fedtailor.runs.cost_summary import costs
    from fedtailor.runs.folder import Run
    from fedtailor.runs.metric_tables import metrics_csv, write_tensorboard
    from fedtailor.runs.time_to_accuracy import wanted

    goal = None if reach is None else wanted(reach)
    found = Run(path)
    if as_csv:
        print(metrics_csv(found), end="")
        return
    if tensorboard is not None:
        print(f"wrote {write_tensorboard(found, tensorboard)} curves to {tensorboard}")
        return
    show_run(found, as_json, goal)
    if not as_json:
        lines = (*cost_lines(costs(found)), *search_lines(database.search(found.db)))
        for line in (*lines, *archive_lines(archives(found))):
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


def _more_about(entry: dict[str, Any]) -> str:
    """Say in short who published an algorithm, and what leaves a client; of a space its size."""
    if entry.get("choices"):
        return f" [{entry['choices']} choices; presets {', '.join(entry['presets'])}]"
    if "sends" not in entry:
        return ""
    usual = next(iter(entry["sends"].values()), [])  # the first form that a reply may have
    sent = "; ".join(one["what"] for one in usual) or "nothing"
    paper = f" [{entry['paper'].split(',')[0]}]" if "paper" in entry else ""
    return f"{paper} Leaves a client: {sent}."
