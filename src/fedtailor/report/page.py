"""The report: one page that needs nothing but itself, the answer first."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.report.answer import answer, basis
from fedtailor.report.cost_table import cost_table
from fedtailor.report.details import details, notes
from fedtailor.report.facts import short
from fedtailor.report.tables import MAX_ROWS, Row, client_table, difference_table, result_tables
from fedtailor.runs.comparison import Group, groups
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise
from fedtailor.runs.time_to_accuracy import common_rounds, reached


def write_report(
    runs: list[Run], path: Path, figures: Path | None, reach: float | None = None
) -> Path:
    """Write the report of one run or several.

    Args:
        runs: a run given twice counts once; seeds of one setting are put together.
        path: the page.
        figures: a folder for its pictures and their numbers, if they are wanted as files too.
        reach: an accuracy; the page then tells how long each run took to reach it.
    """
    if not runs:
        raise UserError("report: give at least one run folder")
    runs = list({run.path.resolve(): run for run in runs}.values())
    rows = _rows(runs, reach)
    text = _page(rows, figures)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def default_page(paths: Sequence[Path]) -> Path:
    """Return where the page goes: into the folder of one run; of several, a new file here."""
    if len(paths) == 1:
        return paths[0] / "report.html"
    names = [path.resolve().name for path in paths]
    told = names if len(names) <= 4 else [*names[:3], "and", str(len(names) - 3), "more"]
    return Path(f"compare-{'-'.join(told)}"[:120] + ".html")


def figures_of(page: Path) -> Path:
    """Return the folder of a page's figures, by its name: two pages in one folder do not clash."""
    if page.name == "report.html":
        return page.parent / "figures"
    return page.with_name(f"{page.stem}-figures")


def _rows(runs: list[Run], reach: float | None) -> list[Row]:
    """Read all that is told of the runs, seeds of one setting together."""
    grid = common_rounds(runs) if reach is not None else None
    found = []
    for group in groups(runs):
        summaries = [_summary(run) for run in group.runs]
        if reach is not None:
            summaries = [
                one | {"reach": reached(run, reach, grid)}
                for one, run in zip(summaries, group.runs, strict=True)
            ]
        found.append(Row(group, summaries))
    return found


def _summary(run: Run) -> dict[str, Any]:
    try:
        return summarise(run)
    except (sqlite3.DatabaseError, KeyError, ValueError) as error:
        raise UserError(f"{run.path}: cannot be read ({error})") from None


def _page(rows: list[Row], figures: Path | None) -> str:
    every, firsts = [row.group for row in rows], [row.summaries[0] for row in rows]
    names = [group.name for group in every]
    table, more = result_tables(rows)
    clients = client_table(every)
    if figures is not None and clients is not None:
        _write_clients(figures / "every-client.csv", clients)
    return _render(
        title=_title(rows),
        version=fedtailor.__version__,
        answer=answer(every),
        basis=basis(every),
        notes=notes(rows),
        differences=difference_table(every),
        table=table,
        more=more,
        goal=next((name for name in table.columns if name.startswith("time to")), ""),
        pictures=_pictures(every, figures),
        costs=cost_table(firsts, names),
        clients=clients,
        max_rows=MAX_ROWS,
        groups=[details(row) for row in rows],
    )


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


def _pictures(every: Sequence[Group], folder: Path | None) -> list[dict[str, Any]]:
    """Draw what there is to draw, for the page and, where a folder is given, as files."""
    from fedtailor.report.pictures.catalogue import drawn_pictures  # matplotlib takes long

    return drawn_pictures(every, folder)


def _write_clients(path: Path, table: dict[str, Any]) -> None:
    from fedtailor.report.files import write_csv

    rows = [
        (client, *(cell.text if cell.value is None else cell.value for cell in cells))
        for client, _, cells in table["rows"]
    ]
    write_csv(path, ("client", *table["columns"]), rows)


def _title(rows: Sequence[Row]) -> str:
    data, spaces = (
        ", ".join(dict.fromkeys(short(str(summary[key])) for r in rows for summary in r.summaries))
        for key in ("data", "space")
    )
    return f"{', '.join(row.group.name for row in rows)} on {data} with {spaces}"
