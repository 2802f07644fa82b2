"""Every algorithm on real CIFAR-10, where it is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core import registry
from fedtailor.experiment.lifecycle import run
from fedtailor.runs.summary import summarise

ROOT = Path(os.environ.get("FEDTAILOR_DATA", "nowhere"))


@pytest.mark.skipif(
    not (ROOT / "cifar-10-batches-py").is_dir(),
    reason="FEDTAILOR_DATA does not name a data root with cifar-10-batches-py/",
)
@pytest.mark.parametrize("name", registry.names("algorithm"))
def test_every_algorithm_runs_on_cifar10(
    name: str, tiny: Callable[..., dict[str, Any]], tmp_path: Path
):
    table = tiny(
        algorithm__name=name, rounds=2, cohort=4, data__name="cifar10", data__clients=20,
        data__partition="dirichlet", data__alpha=0.3, data__per_client=100,
        data__augment=["crop", "flip", "cutout"], data__split="official",
    )  # fmt: skip
    found = summarise(run(table, tmp_path / "run"))
    assert found["finished"] and len(found["test_accuracy"]["per_client"]) == 20
