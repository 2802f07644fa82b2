"""The tables of a report: one row for each setting, and one for each client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fedtailor.report.answer import what_differs, winner
from fedtailor.report.facts import (
    baseline,
    client_titles,
    clients_in_order,
    deployed_model,
    first_runs,
    label_counts,
    shifts,
    short,
    untuned,
)
from fedtailor.report.wording import duration, percent, points, reach, within
from fedtailor.runs.comparison import Group, accuracies, count_test_images, means, paired, same_data

Summary: TypeAlias = dict[str, Any]  # what summarise returns
MAX_ROWS = 500  # clients in the page's table; all are in the file
FEW_COLUMNS = 6  # that a table has room for beside one another


@dataclass(frozen=True)
class Cell:
    """One cell of a table: the text to read and, where it is a number, its exact value."""

    text: str
    value: float | None = None
    small: str = ""  # what goes below it, in lines
    mark: str = ""  # best or loss


@dataclass(frozen=True)
class Row:
    """A group of runs, and the summary of each."""

    group: Group
    summaries: list[Summary]


@dataclass(frozen=True)
class Table:
    """Names of columns, and rows of a name and cells."""

    columns: list[str]
    rows: list[tuple[str, list[Cell]]]


NOTHING = Cell("—")
ByClient: TypeAlias = dict[int, Cell]
Column: TypeAlias = Callable[[Row], Cell]


def result_tables(rows: Sequence[Row]) -> tuple[Table, Table]:
    """Return the table that answers, and the one of all other numbers; a row for each group."""
    groups = [row.group for row in rows]
    first = [*_answers(groups), *_times(rows), *COSTS]
    return _table(rows, first), _table(rows, _more(rows))


def difference_table(groups: Sequence[Group]) -> tuple[Table, Table] | None:
    """Return what differs between settings, and what only some of them have at all.

    Settings are columns, or rows where there are many of them.
    """
    found = what_differs(groups)
    if len(groups) == 1 or not found:
        return None
    both = {key: row for key, row in found.items() if "—" not in row}
    own = {key: row for key, row in found.items() if key not in both}
    names = [group.name for group in groups]
    return _turned(both, names), _turned(own, names)


def client_table(groups: Sequence[Group]) -> dict[str, Any] | None:
    """Return every client's accuracies: of one setting untuned, tuned and gain, else of each."""
    by_column = _one(groups[0]) if len(groups) == 1 else _each(groups)
    if not any(by_column.values()):
        return None
    runs = first_runs(groups)
    comparable = same_data(runs)
    labels = label_counts(runs[0]) if comparable else None
    sizes = labels.counts.sum(axis=1).tolist() if labels else []
    images = count_test_images(runs[0]) if comparable else {}
    kinds = shifts(runs[0]) if comparable else []
    rows, called = [], client_titles(groups)
    for client in clients_in_order(groups):
        cells = [values.get(client, NOTHING) for values in by_column.values()]
        if any(cell is not NOTHING for cell in cells):
            size = _count(sizes[client] if client < len(sizes) else None)
            more = [Cell(kinds[client])] if kinds else []
            cells = [size, _count(images.get(client)), *cells, *more]
            rows.append((client, called.get(client, str(client)), cells))
    columns = ["images", "test images", *by_column, *(["shift"] if kinds else [])]
    return {"columns": columns, "rows": rows}


def _table(rows: Sequence[Row], columns: Sequence[tuple[str, Column]]) -> Table:
    cells = [(row.group.name, [cell(row) for _, cell in columns]) for row in rows]
    return Table([name for name, _ in columns], cells)


def _turned(rows: dict[str, list[str]], names: list[str]) -> Table:
    if len(names) <= FEW_COLUMNS:
        return Table(names, [(key, [Cell(v) for v in row]) for key, row in rows.items()])
    by_name = zip(names, zip(*rows.values(), strict=True), strict=True) if rows else []
    return Table(list(rows), [(name, [Cell(v) for v in row]) for name, row in by_name])


def _one(group: Group) -> dict[str, ByClient]:
    label, before, after = deployed_model(group), untuned(group), group.accuracies
    apart = {
        f"{labels} labels": _percents(values)
        for labels in ("seen", "unseen")
        if (values := means([accuracies(r, score=f"{labels}_accuracy") for r in group.runs]))
    }
    if label == "untuned":
        return {"test accuracy": _percents(after)} | apart
    gain = {c: _points(after[c] - before[c]) for c in after.keys() & before.keys()}
    return {"untuned": _percents(before), label: _percents(after), "gain": gain} | apart


def _each(groups: Sequence[Group]) -> dict[str, ByClient]:
    return {group.name: _percents(group.accuracies) for group in groups}


def _percents(values: dict[int, float]) -> ByClient:
    return {client: _share(value) for client, value in values.items()}


def _share(value: float) -> Cell:
    return Cell(percent(value), value)


def _count(number: int | None) -> Cell:
    return NOTHING if number is None else Cell(f"{number:,}", number)


def _points(value: float) -> Cell:
    return Cell(points(value), value, mark="loss" if value < 0 else "")


def _answers(groups: Sequence[Group]) -> list[tuple[str, Column]]:
    """Return the columns of accuracy; one that is ahead of all beyond chance is marked."""
    top, alone = winner(groups), baseline(groups)
    base = groups[alone or 0]

    def accuracy(row: Row) -> Cell:
        found = row.group.accuracy
        if found is None:
            return NOTHING
        return Cell(
            percent(found.mean), found.mean, reach(found), "best" if row.group is top else ""
        )

    def against(row: Row) -> Cell:
        found = None if row.group is base else paired(row.group, base)
        if found is None:
            return NOTHING
        loss = "loss" if found.beyond_chance and found.mean < 0 else ""
        return Cell(points(found.mean), found.mean, within(found), loss)

    def worst(row: Row) -> Cell:
        found = row.group.worst10
        return NOTHING if found is None else _share(found)

    several = [(f"points over {base.name}", against)] if len(groups) > 1 else []
    return [
        ("accuracy", accuracy),
        *several,
        ("worst 10 %", worst),
        ("untuned", _at("untuned", "mean")),
    ]


def _of(row: Row, value: Callable[[Summary], float | None]) -> float | None:
    """Return a number's mean over the seeds that have it."""
    found = [number for summary in row.summaries if (number := value(summary)) is not None]
    return float(np.mean(found)) if found else None


def _at(*keys: str) -> Column:
    """Return a column: the share found below some keys."""

    def value(summary: Summary) -> float | None:
        found: Any = summary
        for key in keys:
            found = (found or {}).get(key)
        return found

    def cell(row: Row) -> Cell:
        found = _of(row, value)
        return NOTHING if found is None else _share(found)

    return cell


def _trained(row: Row) -> Cell:
    cell, found = _at("trained", "mean")(row), row.summaries[0]["trained"]
    if not found or len(found["per_client"]) == found["of"]:
        return cell
    return replace(cell, small=f"{len(found['per_client'])} of {found['of']} clients")


def _selected(row: Row) -> Cell:
    rounds = [str(s["val_selected"]["round"]) for s in row.summaries if s["val_selected"]]
    cell = _at("val_selected", "mean")(row)
    return replace(cell, small=f"round {', '.join(rounds)}") if rounds else cell


def _weighted(row: Row) -> Cell:
    """Return the mean over test images, which other tools print."""
    images, values = count_test_images(row.group.runs[0]), row.group.accuracies
    weights = [images.get(client, 0) for client in values]
    if not sum(weights):
        return NOTHING
    return _share(float(np.average(list(values.values()), weights=weights)))


def _reached(model: str) -> Column:
    """Return a column: the time that the mean accuracy took to reach what was asked for."""

    def cell(row: Row) -> Cell:
        found = [summary["reach"][model] for summary in row.summaries]
        if not all(found):
            return Cell("never") if row.summaries[0][model] else NOTHING
        seconds, sent = (float(np.mean([f[key] for f in found])) for key in ("modelled_s", "bytes"))
        rounds = ", ".join(str(f["round"]) for f in found)
        return Cell(duration(seconds), seconds, f"round {rounds}, {sent / 1e6:,.1f} MB")

    return cell


def _megabytes(row: Row) -> Cell:
    sent = {
        way: _of(row, lambda summary, way=way: summary["bytes"].get(way)) or 0.0
        for way in row.summaries[0]["bytes"]
    }
    others = (f"{sent[way] / 1e6:,.2f} {way}" for way in ("down", "once") if way in sent)
    return Cell(f"{sent['up'] / 1e6:,.2f}", sent["up"], "\n".join(others))


def _rounds(row: Row) -> Cell:
    done, planned = row.summaries[0]["rounds"], row.summaries[0]["planned_rounds"]
    return Cell(str(done), done, "" if done == planned else f"of {planned}")


def _failures(row: Row) -> Cell:
    found = sum(summary["failures"] for summary in row.summaries)
    return Cell(str(found), found)


def _seconds(key: str) -> Column:
    def cell(row: Row) -> Cell:
        found = _of(row, lambda summary: summary[key]) or 0.0
        return Cell(duration(found), found)

    return cell


COSTS: tuple[tuple[str, Column], ...] = (
    ("MB up, down", _megabytes),
    ("modelled time", _seconds("modelled_s")),
)
MORE: tuple[tuple[str, Column], ...] = (
    ("space", lambda row: Cell(short(row.summaries[0]["space"]))),
    ("mean over images", _weighted),
    ("trained", _trained),
    ("val-selected", _selected),
    ("seen labels", _at("seen_labels", "mean")),
    ("unseen labels", _at("unseen_labels", "mean")),
    ("balanced accuracy", _at("other_scores", "balanced_accuracy", "mean")),
    ("macro-F1", _at("other_scores", "macro_f1", "mean")),
    ("wall time", _seconds("wall_s")),
    ("rounds", _rounds),
    ("failures", _failures),
)


def _more(rows: Sequence[Row]) -> list[tuple[str, Column]]:
    """Return the columns, those that only some runs have where they say something."""
    found = [summary for row in rows for summary in row.summaries]
    one_space = len(rows) > 1 and len({summary["space"] for summary in found}) == 1
    silent = {
        *(() if any(summary["trained"] for summary in found) else ("trained",)),
        *(() if any(s["unseen_labels"] for s in found) else ("seen labels", "unseen labels")),
        *(("space",) if one_space else ()),  # the title has it
        *(("failures",) if len(rows) > 1 and not any(s["failures"] for s in found) else ()),
    }
    return [column for column in MORE if column[0] not in silent]


def _times(rows: Sequence[Row]) -> list[tuple[str, Column]]:
    """Return the columns of the time to an accuracy, where one was asked for."""
    first = rows[0].summaries[0]
    if "reach" not in first:
        return []
    goal = f"time to {percent(first['reach']['accuracy'])}".replace(" %", "\xa0%")
    times = [(goal, _reached("untuned")), (f"{goal}, trained", _reached("trained"))]
    trained = any(summary["trained"] for row in rows for summary in row.summaries)
    return times if trained else times[:1]
