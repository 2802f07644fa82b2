"""The table of what a client's part of a round costs: one row for each run."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from fedtailor.report.tables import NOTHING, Cell, Summary

Spread: TypeAlias = dict[str, float]  # mean and std

MEGA = 1e6


def cost_table(summaries: Sequence[Summary], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the columns' names, and each run's name and cells; None where no times are kept."""
    costs = [summary["cost"] for summary in summaries]
    there = [cost for cost in costs if cost]
    if not there:
        return None
    parts = _parts(there)
    once = any(cost["bytes"]["once"] for cost in there)
    columns = [
        *parts,
        "CPU seconds",
        "multiply-adds (M)",
        "server's CPU seconds",
        "MB down",
        "MB up",
        *(["MB once"] if once else ()),
    ]
    rows = []
    for name, cost in zip(names, costs, strict=True):
        cells = _cells(cost) if cost else {}
        rows.append((name, [cells.get(column, NOTHING) for column in columns]))
    return {"columns": columns, "rows": rows}


def _parts(costs: list[dict[str, Any]]) -> list[str]:
    """Return all parts in order, the run with most of them first; one alone is the sum."""
    several = [list(cost["parts"]) for cost in costs if len(cost["parts"]) > 1]
    several.sort(key=len, reverse=True)
    return list(dict.fromkeys(part for parts in several for part in parts))


def _cells(cost: dict[str, Any]) -> dict[str, Cell]:
    """Return the cells of a run, by column."""
    sent, server, macs = cost["bytes"], cost["server"], cost["sum"]["macs"]
    several = len(cost["parts"]) > 1
    return {
        **{part: _part(spent) for part, spent in cost["parts"].items() if several},
        "CPU seconds": _cell(cost["sum"]["seconds"]),
        "multiply-adds (M)": _cell(macs, MEGA, 1) if macs["mean"] else NOTHING,  # none: not known
        "server's CPU seconds": _cell(server["sum"]["seconds"]),
        **{f"MB {way}": _cell(sent[way], MEGA) for way in sent},
    }


def _cell(spread: Spread | None, unit: float = 1.0, digits: int = 3) -> Cell:
    if spread is None:
        return NOTHING
    mean, std = spread["mean"] / unit, spread["std"] / unit
    return Cell(f"{mean:,.{digits}f}", mean, f"± {std:,.{digits}f}")


def _part(spent: dict[str, Spread]) -> Cell:
    """Tell the seconds of a part and, where networks were charged, the multiply-adds below."""
    seconds, macs = _cell(spent["seconds"]), spent["macs"]["mean"] / MEGA
    return replace(seconds, small=f"{seconds.small}\n{macs:,.1f} M") if macs else seconds
