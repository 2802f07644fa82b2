"""A finished run, for what is done with one afterwards."""

import shutil
from pathlib import Path

import pytest

from fedtailor.experiment.lifecycle import run
from tests.helpers.gain_runs import SPACE


@pytest.fixture(scope="session")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run of three clients, each with weights of its own; no test may change it."""
    data = {"clients": 3, "per_client": 100, "partition": "dirichlet_equal", "alpha": 1.0}
    algorithm = {"name": "local", "lr": 0.1, "epochs": 3, "finetune_epochs": 1, "batch": 16}
    config = {
        "rounds": 2, "algorithm": algorithm, "space": SPACE, "data": data, "engine": {"workers": 0}
    }  # fmt: skip
    return run(config, tmp_path_factory.mktemp("gain") / "run").path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    """Return a copy of that run."""
    shutil.copytree(original, tmp_path / "run")
    return tmp_path / "run"
