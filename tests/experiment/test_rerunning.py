import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedtailor import UserError, rerun
from fedtailor.cli.app import main
from fedtailor.experiment.extending import extend
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest

Tiny = Callable[..., dict[str, Any]]


def change(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.execute(sql)


def test_the_same_comes_out_again_and_differences_are_named(tiny: Tiny, tmp_path: Path):
    old = run(tiny(rounds=2), tmp_path / "run")
    new, difference = rerun(old.path)
    assert new.path == tmp_path / "run-again"
    assert difference is None and digest(new) == digest(old)
    change(
        old.path, "UPDATE metric SET value = 7 WHERE round = 1 AND client = 1 AND split = 'train'"
    )
    _, difference = rerun(old.path)  # the run that is there is not done a third time
    assert difference is not None and "of client 1 in round 1: (1, 1, 'train'" in difference
    change(old.path, "UPDATE state SET digest = 'x' WHERE round = 1")
    assert rerun(old.path)[1] == "the server's state after round 1"
    with pytest.raises(SystemExit) as left:
        main(["rerun", str(old.path)])
    assert left.value.code == 1


def test_a_run_that_went_on_after_its_end_is_not_repeated(tiny: Tiny, tmp_path: Path):
    path = run(tiny(rounds=1), tmp_path / "run").path
    extend(path, {"rounds": 2})
    resume(path)
    with pytest.raises(UserError, match="was finished before it was given more rounds"):
        rerun(path)
    assert not (tmp_path / "run-again").exists()


def test_a_folder_of_another_run_is_left_alone(tiny: Tiny, tmp_path: Path):
    old = run(tiny(rounds=1), tmp_path / "run")
    other = run(tiny(rounds=1, seed=1), tmp_path / "other")
    with pytest.raises(UserError, match="is a run of another config"):
        rerun(old.path, other.path)
    change(old.path, "DELETE FROM event WHERE kind = 'finished'")
    with pytest.raises(UserError, match="the run is not finished"):
        rerun(Run(old.path).path)
