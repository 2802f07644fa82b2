"""Which operations halves of the validation images would keep, on made-up scores."""

import importlib
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

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
