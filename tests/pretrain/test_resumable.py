"""Steps that can be stopped: what is saved after which, and what is told."""

from pathlib import Path

import pytest

from fedtailor.core import codec
from fedtailor.pretrain.resumable import Checkpoints, remaining_steps


def saved_after(checkpoints: Checkpoints, done: int = 0, total: int = 7) -> list[int]:
    """Return after how many steps a state was written."""
    asked: list[int] = []
    made = 0

    def state() -> dict[str, int]:
        asked.append(made)
        return {"made": made}

    for step in remaining_steps(done, total, None, checkpoints, state):
        made = step + 1
    return asked


def test_what_is_due_is_saved_and_the_end_in_any_case(tmp_path: Path):
    file = tmp_path / "deep" / "state"
    assert saved_after(Checkpoints(file, steps=3)) == [3, 6, 7]
    assert Checkpoints(file).found(dict) == {"made": 7}
    assert saved_after(Checkpoints(file, steps=3), done=6) == [7]
    assert saved_after(Checkpoints(file, seconds=0.0), total=3) == [1, 2, 3]
    assert saved_after(Checkpoints(file, seconds=1e9)) == saved_after(Checkpoints(file)) == [7]
    assert saved_after(Checkpoints(file), done=7) == []


def test_nowhere_nothing_is_saved_or_found():
    assert saved_after(Checkpoints(None, steps=1)) == []
    assert Checkpoints().found(dict) is None


def test_a_step_is_told_when_it_is_saved(tmp_path: Path):
    """Who stops at what is told finds it when the training goes on."""
    file, told = tmp_path / "state", []

    def progress(done: int, total: int) -> None:
        told.append((done, total, codec.read(dict, file)["done"]))
        if done == 4:
            raise KeyboardInterrupt

    made = {"done": 2}
    with pytest.raises(KeyboardInterrupt):
        for step in remaining_steps(2, 9, progress, Checkpoints(file, steps=1), made.copy):
            made["done"] = step + 1
    assert told == [(3, 9, 3), (4, 9, 4)]
