"""The report: one page that needs nothing but itself, the answer first."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.report.cost_table import cost_table
from fedtailor.report.facts import same_clients, short, titles
from fedtailor.report.tables import Summary, client_table, run_table
from fedtailor.report.wording import percent
from fedtailor.runs import database
from fedtailor.runs.folder import CONFIG, Run
from fedtailor.runs.summary import summarise
from fedtailor.runs.time_to_accuracy import common_rounds, reached

MAX_EVENTS = 100  # of a run


def write_report(
    runs: list[Run], path: Path, figures: Path | None, reach: float | None = None
) -> Path:
    """Write the report of one run or several.

    Args:
        runs: a run given twice counts once.
        path: the page.
        figures: a folder for its pictures, if they are wanted as files too.
        reach: an accuracy; the page then tells how long each run took to reach it.
    """
    if not runs:
        raise UserError("report: give at least one run folder")
    runs = list({run.path.resolve(): run for run in runs}.values())
    summaries, names = [summarise(run) for run in runs], titles(runs)
    if reach is not None:
        grid = common_rounds(runs)
        summaries = [
            one | {"reach": reached(run, reach, grid)}
            for one, run in zip(summaries, runs, strict=True)
        ]
    columns, rows = run_table(summaries)
    page = _render(
        title=_title(summaries, names),
        answer=_answer(summaries, names),
        notes=_notes(runs, summaries, names),
        columns=columns,
        goal=next((name for name in columns if name.startswith("time to")), ""),
        headline=list(zip(names, rows, strict=True)),
        pictures=_pictures(runs, figures),
        costs=cost_table(summaries, names),
        clients=client_table(runs),
        runs=[_details(*each) for each in zip(runs, summaries, names, strict=True)],
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _render(**values: Any) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only a report needs it

    environment = Environment(
        loader=PackageLoader("fedtailor", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html").render(**values)


def _pictures(runs: Sequence[Run], folder: Path | None) -> list[dict[str, str]]:
    """Draw what there is to draw, for the page and, where a folder is given, as files."""
    from fedtailor.report.pictures.catalogue import PICTURES  # matplotlib takes long to import
    from fedtailor.report.svg import inline, to_svg

    found = []
    for picture in PICTURES:
        figure = picture.draw(runs)
        svg = to_svg(figure) if figure else ""
        if folder:
            _write_picture(folder / f"{picture.key}.svg", svg)
        if svg:
            drawn = inline(svg, picture.key, picture.title)
            found.append({"title": picture.title, "caption": picture.caption, "svg": drawn})
    return found


def _write_picture(path: Path, svg: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if svg:
        path.write_text(svg, encoding="utf-8")
    else:  # one of an earlier report must not pass for one of this
        path.unlink(missing_ok=True)


def _title(summaries: list[Summary], names: list[str]) -> str:
    data, spaces = (
        ", ".join(dict.fromkeys(short(str(summary[key])) for summary in summaries))
        for key in ("data", "space")
    )
    return f"{', '.join(names)} on {data} with {spaces}"


def _answer(summaries: list[Summary], names: list[str]) -> str:
    """Say in a sentence or two what came out."""
    there = [(s["test_accuracy"], n) for s, n in zip(summaries, names, strict=True)]
    there = [(accuracy, name) for accuracy, name in there if accuracy]
    if not there:
        return "Nothing has been tested yet."
    if len(summaries) == 1:
        found, name = there[0]
        return (
            f"{name}: {percent(found['mean'])} test accuracy on average over "
            f"{len(found['per_client'])} clients, {percent(found['worst10'])} over the worst "
            "tenth of them."
        )
    return (
        f"Best on average over the clients: {_best(there, 'mean')}. "
        f"Best for the worst tenth of them: {_best(there, 'worst10')}."
    )


def _best(there: list[tuple[Any, str]], key: str) -> str:
    """Name the best run, or all that are equally good."""
    top = max(accuracy[key] for accuracy, _ in there)
    names = [name for accuracy, name in there if accuracy[key] == top]
    who = "all alike" if 1 < len(names) == len(there) else " and ".join(names)
    return f"{who}, {percent(top)}"


def _notes(runs: list[Run], summaries: list[Summary], names: list[str]) -> list[str]:
    """Say what a reader must know before comparing numbers."""
    notes = []
    for run, summary, name in zip(runs, summaries, names, strict=True):
        notes += [f"{name}: {text}." for text in database.warnings(run.db)]
        if not summary["finished"]:
            at = summary["evaluated_round"]
            what = "no evaluation yet" if at is None else f"the accuracies are those of round {at}"
            notes.append(
                f"{name} is not finished: {summary['rounds']} of {summary['planned_rounds']} "
                f"rounds are done, {what}; `fedtailor resume {summary['run']}` goes on with it."
            )
    if not same_clients(runs):
        notes.append(
            "These runs did not deal the same images to the same clients: their averages can be "
            "compared only with care, their clients not at all."
        )
    return notes


def _details(run: Run, summary: Summary, name: str) -> dict[str, Any]:
    """Return what comes last: the config, what happened, and the digest."""
    events = database.events(run.db)
    return {
        "name": name,
        "path": summary["run"],
        "data": summary["data"],
        "digest": summary["digest"],
        "config": (run.path / CONFIG).read_text(encoding="utf-8"),
        "events": [_event(*event) for event in events[:MAX_EVENTS]],
        "more_events": max(0, len(events) - MAX_EVENTS),
    }


def _event(kind: str, round: int, text: str) -> dict[str, Any]:
    first, _, rest = text.partition("\n")
    return {"kind": kind, "round": round, "text": first, "more": rest}
