"""A comparison of methods as text: for the terminal and Markdown, CSV, LaTeX."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from fedtailor.runs.comparison_table import Row, Table

COSTS = (
    ("parameters", "parameters, k", 1e-3, 0),
    ("macs_trained", "M trained", 1e-6, 0),
    ("macs_evaluated", "M evaluated", 1e-6, 0),
    ("mb_down", "MB down", 1, 2),
    ("mb_up", "MB up", 1, 2),
    ("mb_once", "MB once", 1, 2),
    ("cpu_s", "CPU s", 1, 1),
    ("mb_in_all", "MB in all", 1, 0),
    ("wall_min", "min here", 1, 1),
    ("modelled_min", "modelled min", 1, 1),
)
SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {"~": "\\textasciitilde{}", "\\": "\\textbackslash{}"}


def lines(table: Table) -> list[str]:
    """Return tables for people, which are Markdown, too."""
    head = ["method", "seeds", "clients", *table.models]
    found = ["Test accuracy (%): mean ± deviation over clients (worst 10 %)", ""]
    found += _aligned(head, [_reached(row, table.models) for row in table.rows])
    others = [row for row in table.rows if row["method"] != table.base]
    if others or table.effects:
        head = [f"minus {table.base}", *table.models, "min to its untuned mean"]
        rows = [[*_minus(row, table.models), _minutes(row)] for row in others]
        rows += [[*_minus(row, table.models), ""] for row in table.effects]
        found += ["", "Points (95 % interval over clients; smallest that would be seen)", ""]
        found += _aligned(head, rows)
    found += ["", "Of a client's round, and in all", ""]
    shown = [c for c in COSTS if any(row[c[0]] is not None for row in table.rows)]
    head = ["method", *(column[1] for column in shown)]
    return found + _aligned(head, [[row["method"], *_costs(row, shown)] for row in table.rows])


def csv_text(table: Table) -> str:
    """Return all numbers, a line for each method and each effect."""
    out = io.StringIO()
    names = list(dict.fromkeys(key for row in (*table.rows, *table.effects) for key in row))
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in (*table.rows, *table.effects):
        writer.writerow({key: _plain(value) for key, value in row.items()})
    return out.getvalue()


def latex(table: Table) -> str:
    """Return one table for a paper, which needs the package booktabs."""
    shown = [c for c in COSTS if c[0] in ("parameters", "mb_in_all", "modelled_min")]
    heads = ["method", "accuracy (\\%)", "worst 10\\,\\%", f"minus {_escape(table.base)}"]
    heads += [_escape(column[1]) for column in shown]
    body = []
    for row in table.rows:
        mean, std = _number(row["tuned_mean"]), _number(row["tuned_std"])
        reached = f"${mean} \\pm {std}$" if mean else ""
        cells = [_escape(row["method"]), reached, _number(row["tuned_worst10"])]
        cells += [_interval(row, "tuned"), *_costs(row, shown)]
        body.append(" & ".join(cells) + " \\\\")
    return "\n".join(
        [
            f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}",
            "\\toprule",
            " & ".join(heads) + " \\\\",
            "\\midrule",
            *body,
            "\\bottomrule",
            "\\end{tabular}",
        ]
    )


def _reached(row: Row, models: Sequence[str]) -> list[str]:
    cells = [row["method"], str(row["seeds"]), str(row["clients"])]
    for model in models:
        mean, std, worst = (_number(row[f"{model}_{part}"]) for part in ("mean", "std", "worst10"))
        cells.append(f"{mean} ± {std} ({worst})" if mean else "")
    return cells


def _minus(row: Row, models: Sequence[str]) -> list[str]:
    cells = [row["method"]]
    if row.get("same_data") is False:
        return cells + ["other data"] * len(models)
    for model in models:
        seen = row[f"{model}_minus_base_seen_from"]
        cells.append(_interval(row, model, "" if seen is None else f"; {seen:.1f}"))
    return cells


def _interval(row: Row, model: str, more: str = "") -> str:
    mean, low, high = (row[f"{model}_minus_base{end}"] for end in ("", "_low", "_high"))
    if mean is None:
        return ""
    return f"{mean:+.1f}" if low is None else f"{mean:+.1f} ({low:+.1f} to {high:+.1f}{more})"


def _minutes(row: Row) -> str:
    return ", ".join("never" if m is None else f"{m:.1f}" for m in row["minutes_to_base"] or ())


def _costs(row: Row, columns: Sequence[tuple[str, str, float, int]]) -> list[str]:
    return [
        "" if row[key] is None else _told(row[key] * unit, digits)
        for key, _, unit, digits in columns
    ]


def _told(value: float, digits: int) -> str:
    """Write a number with so many digits; a small one with two that say something."""
    return f"{value:.2g}" if 0.001 <= value < 1 else f"{value:,.{digits}f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return " ".join("never" if one is None else str(one) for one in value)
    return "" if value is None else value


def _escape(text: str) -> str:
    return "".join(SPECIAL.get(letter, letter) for letter in text)


def _aligned(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(3, *(len(row[at]) for row in (head, *rows))) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
        return f"| {' | '.join(padded)} |"

    return [line(head), line(["-" * width for width in widths]), *map(line, rows)]
