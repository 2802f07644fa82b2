"""The page in a real browser: no error, every figure, no sideways scrolling, light and dark."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedtailor.report import page as page_of_runs
from fedtailor.report.page import write_report
from fedtailor.report.tables import Cell
from fedtailor.runs.folder import Run
from tests.helpers.browser import CHROMIUM, Browser
from tests.helpers.sample_runs import made_up

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium to open pages with")
SIDEWAYS = "document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out, budget = tmp_path_factory.mktemp("page"), {"memory_mb": {"uniform": [1.0, 8.0]}}
    search = made_up(out / "search", space={"name": "darts", "preset": "cpu"}, budget=budget)
    return write_report([Run(folder / "fedavg"), search], out / "page.html", out / "figures")


def test_screens(browser: Browser, page: Path):
    keys = {path.stem for path in (page.parent / "figures").glob("*.csv")} - {"every-client"}
    assert {"means", "rounds", "labels", "architectures", "cells", "coverage"} <= keys
    backgrounds = []
    for width, dark in ((1280, False), (1280, True), (390, False), (390, True)):
        browser.open(page, width, dark)
        assert browser.errors == []
        assert browser.run(SIDEWAYS) <= 0, f"the page is wider than {width} px"
        wide = "[...document.querySelectorAll('svg, table')].filter(e => e.getBoundingClientRect()"
        assert browser.run(f"{wide}.right > innerWidth).map(e => e.outerHTML.slice(0, 80))") == []
        drawn = "[...document.querySelectorAll('.pictures section')].filter(s => s.querySelector("
        found = browser.run(f"{drawn}'svg').getBoundingClientRect().height > 50).map(s => s.id)")
        assert set(found) == keys
        backgrounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    light, dark, *phone = backgrounds
    assert light != dark and phone == [light, dark]


@pytest.mark.usefixtures("no_pictures")
def test_many_columns_fit(
    browser: Browser, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    parts = ["features", "preliminary evaluation", "generation", "training", "evaluation"]
    parts += ["search", "supernet", "own network", "CPU seconds", "multiply-adds (M)"]
    columns = [*parts, "server's CPU seconds", "MB down", "MB up", "MB once"]
    cells = [Cell("12.345", 12.345, "± 10.123\n1,234.5 M") for _ in columns]
    table = {"columns": columns, "rows": [(name, cells) for name in ("perfedrlnas", "perfedsde")]}
    monkeypatch.setattr(page_of_runs, "cost_table", lambda *_: table)
    page = write_report([Run(folder / "fedavg")], tmp_path / "page.html", tmp_path / "figures")
    for width in (1280, 800, 390):
        browser.open(page, width)
        assert browser.run(SIDEWAYS) <= 0, f"the page is wider than {width} px"
        costs = "document.querySelector('#costs')"
        moves = browser.run(f"{costs}.scrollWidth - {costs}.clientWidth")
        assert moves <= 0 or width == 800, f"the table is cut at {width} px"


def test_a_client_is_highlighted_everywhere(browser: Browser, page: Path):
    browser.open(page, 1280)
    browser.run("document.querySelector('tr[data-client=\"3\"]').click()")
    sections = "new Set([...document.querySelectorAll('.on')].map(e => e.closest('section').id))"
    found = set(browser.run(f"[...{sections}]"))
    assert {"every-client", "clients", "labels", "architectures", "parameters"} <= found
    assert browser.run("document.querySelector('#pick select').value") == "3"
    browser.run("document.querySelector('tr[data-client=\"3\"]').click()")
    assert browser.run("document.querySelectorAll('.on').length") == 0


def test_tables_sort(browser: Browser, page: Path):
    browser.open(page, 1280)
    rows = "[...document.querySelectorAll('#every-client tbody tr')].map(r => +r.dataset.client)"
    before = browser.run(rows)
    for expected in (sorted(before), sorted(before, reverse=True)):
        browser.run("document.querySelector('#every-client thead th').click()")
        assert browser.run(rows) == expected


def test_paper_unfolds_everything(browser: Browser, page: Path, tmp_path: Path):
    browser.open(page, 1280)
    folded = "[...document.querySelectorAll('details')].filter(d => !d.open).length"
    assert browser.run(folded) > 0
    browser.print(tmp_path / "page.pdf")
    assert browser.run(folded) == 0
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
