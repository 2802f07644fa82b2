"""Runs to report on."""

import shutil
from pathlib import Path

import pytest

from fedtailor.experiment.lifecycle import run
from fedtailor.report.pictures import catalogue
from fedtailor.runs.folder import Run
from tests.helpers.sample_runs import table


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold runs that no test may change."""
    folder = tmp_path_factory.mktemp("runs")
    for algorithm in ("fedavg", "local"):
        run(table(algorithm), out=folder / algorithm).close()
    return folder


@pytest.fixture
def fedavg(folder: Path) -> Run:
    return Run(folder / "fedavg")


@pytest.fixture
def local(folder: Path) -> Run:
    return Run(folder / "local")


@pytest.fixture
def changed(folder: Path, tmp_path: Path) -> Path:
    """Return a copy of a run, to be changed."""
    return Path(shutil.copytree(folder / "fedavg", tmp_path / "changed"))


@pytest.fixture
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the pictures out, where the words alone are looked at."""
    monkeypatch.setattr(catalogue, "PICTURES", ())
