"""Runs to report on, and a reader of pages."""

import sqlite3
from contextlib import closing
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.algorithms.perfedrlnas import Searching
from fedtailor.core.types import Log, Metric, UsedArch
from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import prepare
from fedtailor.report.page import write_report
from fedtailor.runs.config import make_config
from fedtailor.runs.create import create_run
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord
from fedtailor.search import genes, policy
from fedtailor.search.policy import Policies

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
        self.tables: list[tuple[str, int]] = []  # the section, and the first row of each
        self.section = ""
        self.ids: list[str] = []
        self.tags: set[str] = set()
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        if given.get("id"):
            self.ids.append(given["id"] or "")
        if tag == "section":
            self.section = given.get("id") or ""
        if tag == "table":
            self.tables.append((self.section, len(self.rows)))
        elif tag == "tr":
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

    def table(self, section: str) -> list[dict[str, float | None]]:
        """Return the rows of a section's tables, those of one row beside one another."""
        found: list[list[dict[str, float | None]]] = []
        ends = [*(first for _, first in self.tables[1:]), len(self.rows)]
        for (name, first), last in zip(self.tables, ends, strict=True):
            if name == section:
                rows = self.rows[first + 1 : last]
                found.append([{label: value for label, value, _ in row if label} for row in rows])
        return [
            dict(kv for part in parts for kv in part.items()) for parts in zip(*found, strict=True)
        ]

    def texts(self, section: str) -> list[list[str]]:
        """Return the texts of a section's tables, row by row."""
        ends = [*(first for _, first in self.tables[1:]), len(self.rows)]
        spans = zip(self.tables, ends, strict=True)
        return [
            [text for _, _, text in row]
            for (name, first), last in spans
            if name == section
            for row in self.rows[first:last]
        ]

    def headline(self) -> list[dict[str, float | None]]:
        return self.table("results")

    def clients(self) -> dict[int, list[float | None]]:
        """Return the accuracies of the table of clients."""
        ends = [*(first for _, first in self.tables[1:]), len(self.rows)]
        for (name, first), last in zip(self.tables, ends, strict=True):
            if name == "every-client":
                rows = self.rows[first + 1 : last]
                return {int(row[0][2]): [value for _, value, _ in row[3:]] for row in rows}
        return {}


def made_up(path: Path, clients: int = 6, rounds: int = 4, **more: Any) -> Run:
    """Write a run of a search that never took place: numbers by client and round.

    After round r, client c has reward (c - r) / 10, and trained accuracy (c + r) / 20; it takes
    part if c and r are both even or both odd. Tested is after every second round, with untuned
    accuracy r / 10. Alphas are sums of the client's label shares: like data, like policies.
    """
    config = make_config(made_table(clients, max(rounds, 1), **more))
    federation, space = load_federation(config.data), config.space
    run = create_run(path, config, prepare(config, federation).clients, federation)
    alphas = _alphas(genes.option_counts(space), federation.label_counts()[:clients])
    archs = [policy.likeliest(space, row) for row in alphas]
    state = Searching({}, Policies(tuple(range(clients)), alphas))
    inspect = config.algorithm.inspect
    run.commit(RoundRecord(0, search=inspect(space, Searching({}))), Searching({}))
    for round in range(1, rounds + 1):
        record = RoundRecord(round, modelled_s=10.0, search=inspect(space, state))
        for client in range(clients):
            arch = archs[client]
            if (client + round) % 2 == 0:
                cost = {"memory": 1.5} if client == 0 and round <= 2 else {"parameters": 1e5}
                accuracy = Metric("test", "accuracy", (client + round) / 20, "trained")
                reward = Metric("server", "reward", (client - round) / 10)
                entropy = Metric("server", "entropy", 1 - round / 10)
                record.log(client, Log((accuracy, reward, entropy), (UsedArch(arch, 0.5, cost),)))
                record.message(client, "up", 1000)
            if round % 2 == 0:
                cost = {"parameters": 1e6 + client, "macs": 1.0, "memory_mb": 2.0 + client}
                used = UsedArch(arch, 0.5, cost, "deployed", policy.idle_genes(space, arch))
                accuracy = Metric("test", "accuracy", round / 10, "untuned")
                record.log(client, Log((accuracy,), (used,)))
        if round % 2 == 0:
            record.event(None, "models", '["untuned"]')
        run.commit(record, state)
    return run


def _alphas(options: tuple[int, ...], counts: np.ndarray) -> torch.Tensor:
    shares, classes = counts / counts.sum(1, keepdims=True), np.arange(counts.shape[1])
    columns = [
        shares[:, (classes + g) % n == o].sum(1) for g, n in enumerate(options) for o in range(n)
    ]
    return torch.from_numpy(6 * np.stack(columns, axis=1))


def made_table(clients: int, rounds: int, **more: Any) -> dict[str, Any]:
    data = {"clients": clients, "alpha": 0.3, "min_size": 5}
    space = {"name": "mobilenetv3_plato", "preset": "cpu"}
    return table("perfedrlnas", rounds=rounds, space=space, data=data, eval_every=2) | more
