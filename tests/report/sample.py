"""Runs to report on, and a reader of pages."""

import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from fedtailor.report.html import write_report
from fedtailor.runfolder import Run

CLIENTS = 6
DATA = {"clients": CLIENTS, "per_client": 60}


def table(algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 4,
        "cohort": 3,
        "eval_every": 2,
        "algorithm": {"name": algorithm, "lr": 0.1},
        "data": DATA,
        "engine": {"workers": 0},
        "save_models": False,
    } | more


def edit(path: Path, sql: str, *values: Any) -> None:
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.execute(sql, values)


def report(tmp_path: Path, *runs: Run) -> str:
    return write_report(list(runs), tmp_path / "report.html", None).read_text(encoding="utf-8")


class Reader(HTMLParser):
    """Collects table rows, exact values, ids and text as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.rows: list[list[tuple[str, float | None, str]]] = []
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append((given.get("data-label") or "", None, ""))
        elif tag == "data":
            self.rows[-1][-1] = (self.rows[-1][-1][0], float(given["value"] or "nan"), "")

    def handle_data(self, data: str) -> None:
        self.text += data
        if self.rows and self.rows[-1]:
            label, value, text = self.rows[-1][-1]
            self.rows[-1][-1] = label, value, (text + data).strip()

    def headline(self) -> list[dict[str, float | None]]:
        rows = [{label: value for label, value, _ in row if label} for row in self.rows]
        return [row for row in rows if row]

    def clients(self) -> dict[int, list[float | None]]:
        rows = [r for r in self.rows if r[0][2].isdigit() and not r[0][0]]
        return {int(row[0][2]): [value for _, value, _ in row[2:]] for row in rows}
