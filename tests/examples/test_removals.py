"""Which operations halves of the validation images would keep: made-up scores, and a small run."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from fedtailor.experiment.lifecycle import run
from tests.helpers import few_edges

EXAMPLES = Path(__file__).parents[2] / "examples"
NAMES = ("edge0/skip", "edge0/conv", "edge1/skip", "edge1/conv")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("removals")


def test_the_operation_that_is_missed_most_is_kept_half_by_half(script: ModuleType):
    scores = np.zeros((2, 2, 4, 1))  # kind, half, removal, silo
    scores[0, :, :, 0] = [[0.5, 0.4, 0.3, 0.3], [0.5, 0.4, 0.2, 0.3]]
    scores[1, :, :, 0] = [[-1.0, -0.9, -1.0, -1.5], [-1.0, -0.9, -1.0, -1.5]]
    removals = script.Removals(NAMES, scores)
    by_accuracy = removals.kept("accuracy")
    assert by_accuracy[:, 0, 0].tolist() == ["conv", "conv"], "accuracy is lower without it"
    assert by_accuracy[:, 1, 0].tolist() == ["conv", "skip"], "of equals, the one with more loss"
    assert removals.kept("loss")[:, :, 0].tolist() == [["skip", "conv"], ["skip", "conv"]]


def test_agreement_beside_that_of_chance(script: ModuleType):
    first = np.array([["a", "a"], ["a", "b"]], object)
    second = np.array([["a", "b"], ["b", "b"]], object)
    same, chance = script.agreement(np.stack([first, second]))
    assert same == 0.5  # two of four
    assert chance == pytest.approx(0.75 * 0.25 + 0.25 * 0.75)


SPIDER = {"name": "spider", "warmup": 1, "recovery": 1}


def warm(path: Path, rounds: int, algorithm: dict[str, Any] = SPIDER) -> Path:
    table = {
        "rounds": rounds,
        "algorithm": algorithm,
        "space": {"name": f"{few_edges.__file__}:FewEdges", "arch": "largest"},
        "data": {"clients": 2, "per_client": 40, "partition": "iid"},
        "engine": {"workers": 0},
        "save_models": False,
    }
    return run(table, path).path


def test_a_run_that_ended_with_its_warm_up_has_a_table(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    script.main([str(warm(tmp_path / "run", rounds=1))])
    head, _, *rows = [
        line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()
    ]
    assert [row[0] for row in rows] == ["accuracy", "likelihood"]
    assert all(len(row) == len(head) for row in rows)
    assert 0 <= float(rows[0][1]) <= 100 and float(rows[1][1]) < 0
    assert all(0 <= float(row[6]) <= 1 for row in rows)


@pytest.mark.parametrize(
    ("rounds", "algorithm", "says"),
    [(2, SPIDER, "stop the run at its warm-up"), (1, {"name": "ditto"}, "is not a run of spider")],
)
def test_other_runs_are_refused_in_a_sentence(
    rounds: int,
    algorithm: dict[str, Any],
    says: str,
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    path = warm(tmp_path / "run", rounds, algorithm)
    with pytest.raises(SystemExit) as ended:
        script.main([str(path)])
    assert ended.value.code == 2 and says in capsys.readouterr().err
