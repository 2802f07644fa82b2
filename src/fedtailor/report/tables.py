"""The tables of a report: one row for each run, and one for each client."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from fedtailor.data.client_names import label_of
from fedtailor.report.facts import (
    accuracies,
    client_titles,
    clients_in_order,
    label_counts,
    same_clients,
    shifts,
    short,
    titles,
)
from fedtailor.report.wording import duration, percent
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import evaluated_round, headline

Summary: TypeAlias = dict[str, Any]  # what summarise returns


@dataclass(frozen=True)
class Cell:
    """One cell of a table: the text to read and, where it is a number, its exact value."""

    text: str
    value: float | None = None
    small: str = ""  # what goes below it, in lines
    mark: str = ""  # best or loss


NOTHING = Cell("—")
ByClient: TypeAlias = dict[int, Cell]
Column: TypeAlias = Callable[[Summary], Cell]


def run_table(summaries: Sequence[Summary]) -> tuple[list[str], list[list[Cell]]]:
    """Return the names of the columns, and a row for each run, the best of several marked."""
    columns = []
    for name, cell in _columns(summaries):
        cells = [cell(summary) for summary in summaries]
        if name.startswith("time to"):
            cells = _mark_best(cells, min)
        elif any("%" in c.text for c in cells):
            cells = _mark_best(cells)
        columns.append((name, cells))
    rows = zip(*(cells for _, cells in columns), strict=True)
    return [name for name, _ in columns], [list(row) for row in rows]


def client_table(runs: Sequence[Run]) -> dict[str, Any] | None:
    """Return every client's accuracies: of one run untuned, tuned and gain, else of each run."""
    columns = _one_run(runs[0]) if len(runs) == 1 else _each_run(runs)
    if not any(columns.values()):
        return None
    comparable = same_clients(runs)
    labels = label_counts(runs[0]) if comparable else None
    sizes = labels.counts.sum(axis=1).tolist() if labels else []
    kinds = shifts(runs[0]) if comparable else []
    names, rows = list(client_titles(runs).values()), []
    for client in clients_in_order(runs):
        cells = [values.get(client, NOTHING) for values in columns.values()]
        if any(cell is not NOTHING for cell in cells):
            size = f"{sizes[client]:,}" if client < len(sizes) else NOTHING.text
            best = len(runs) > 1 and comparable
            cells = _mark_best(cells) if best else cells
            who = label_of(names, client)
            rows.append((who, size, [*cells, Cell(kinds[client])] if kinds else cells))
    return {"columns": [*columns, *(["shift"] if kinds else [])], "rows": rows}


def _mark_best(cells: list[Cell], best: Callable[[set[float]], float] = max) -> list[Cell]:
    values = {cell.value for cell in cells if cell.value is not None}
    if len(values) < 2:
        return cells
    top = best(values)
    return [replace(cell, mark="best") if cell.value == top else cell for cell in cells]


def _one_run(run: Run) -> dict[str, ByClient]:
    label, untuned, tuned = (
        headline(run, evaluated_round(run)),
        accuracies(run, "untuned"),
        accuracies(run),
    )
    apart = {
        f"{labels} labels": _percents(values)
        for labels in ("seen", "unseen")
        if (values := accuracies(run, score=f"{labels}_accuracy"))
    }
    if label == "untuned":
        return {"test accuracy": _percents(tuned)} | apart
    gain = {c: _points(tuned[c] - untuned[c]) for c in tuned.keys() & untuned.keys()}
    return {"untuned": _percents(untuned), label: _percents(tuned), "gain": gain} | apart


def _each_run(runs: Sequence[Run]) -> dict[str, ByClient]:
    return {name: _percents(accuracies(run)) for run, name in zip(runs, titles(runs), strict=True)}


def _percents(values: dict[int, float]) -> ByClient:
    return {client: _share(value) for client, value in values.items()}


def _share(value: float) -> Cell:
    return Cell(percent(value), value)


def _points(value: float) -> Cell:
    sign = "+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else ""
    return Cell(f"{sign}{abs(100 * value):.1f}", value, mark="loss" if value < 0 else "")


def _accuracy(summary: Summary) -> Cell:
    found = summary["test_accuracy"]
    if not found:
        return NOTHING
    return replace(_share(found["mean"]), small=f"± {100 * found['std']:.1f}")


def _trained(summary: Summary) -> Cell:
    found = summary["trained"]
    if not found:
        return NOTHING
    there, missing = len(found["per_client"]), found["of"] - len(found["per_client"])
    more = f", {there} of {found['of']} clients" if missing else ""
    return replace(_share(found["mean"]), small=f"± {100 * found['std']:.1f}{more}")


def _reached(model: str) -> Column:
    """Return a column: the time that the mean accuracy took to reach what was asked for."""

    def cell(summary: Summary) -> Cell:
        found = summary["reach"][model]
        if not found:
            return Cell("never") if summary[model] else NOTHING
        more = f"round {found['round']}, {found['bytes'] / 1e6:,.1f} MB"
        return Cell(duration(found["modelled_s"]), found["modelled_s"], more)

    return cell


def _selected(summary: Summary) -> Cell:
    found = summary["val_selected"]
    if not found:
        return NOTHING
    return replace(_share(found["mean"]), small=f"round {found['round']}")


def _at(*keys: str) -> Column:
    """Return a column: the share found below some keys."""

    def cell(summary: Summary) -> Cell:
        found: Any = summary
        for key in keys:
            found = (found or {}).get(key)
        return NOTHING if found is None else _share(found)

    return cell


def _megabytes(summary: Summary) -> Cell:
    sent = summary["bytes"]
    others = (f"{sent[way] / 1e6:,.2f} {way}" for way in ("down", "once") if way in sent)
    return Cell(f"{sent['up'] / 1e6:,.2f}", sent["up"], "\n".join(others))


def _rounds(summary: Summary) -> Cell:
    done, planned = summary["rounds"], summary["planned_rounds"]
    return Cell(str(done), done, "" if done == planned else f"of {planned}")


def _seconds(key: str) -> Column:
    return lambda summary: Cell(duration(summary[key]), summary[key])


COLUMNS: tuple[tuple[str, Column], ...] = (
    ("space", lambda summary: Cell(short(summary["space"]))),
    ("accuracy", _accuracy),
    ("worst 10 %", _at("test_accuracy", "worst10")),
    ("untuned", _at("untuned", "mean")),
    ("trained", _trained),
    ("val-selected", _selected),
    ("seen labels", _at("seen_labels", "mean")),
    ("unseen labels", _at("unseen_labels", "mean")),
    ("balanced accuracy", _at("other_scores", "balanced_accuracy", "mean")),
    ("macro-F1", _at("other_scores", "macro_f1", "mean")),
    ("MB up, down", _megabytes),
    ("modelled time", _seconds("modelled_s")),
    ("wall time", _seconds("wall_s")),
    ("rounds", _rounds),
    ("failures", lambda summary: Cell(str(summary["failures"]), summary["failures"])),
)


def _columns(summaries: Sequence[Summary]) -> list[tuple[str, Column]]:
    """Return the columns, those that only some runs have where they say something."""
    trained, several = any(summary["trained"] for summary in summaries), len(summaries) > 1
    apart = any(summary["unseen_labels"] for summary in summaries)
    one_space = several and len({summary["space"] for summary in summaries}) == 1
    silent = {
        *(() if trained else ("trained",)),
        *(() if apart else ("seen labels", "unseen labels")),
        *(("space",) if one_space else ()),  # the title has it
        *(("failures",) if several and not any(s["failures"] for s in summaries) else ()),
    }
    found = [column for column in COLUMNS if column[0] not in silent]
    if "reach" in summaries[0]:
        goal = f"time to {percent(summaries[0]['reach']['accuracy'])}".replace(" %", "\xa0%")
        times = [(goal, _reached("untuned")), (f"{goal}, trained", _reached("trained"))]
        at = [name for name, _ in found].index("val-selected")
        found[at:at] = times if trained else times[:1]
    return found
