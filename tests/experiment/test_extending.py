"""A run that is given more rounds goes on, and says what it is."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.experiment.extending import extend
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from fedtailor.training.learn import Recipe

Tiny = Callable[..., dict[str, Any]]


def test_a_finished_run_goes_on(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "run"
    before = run(tiny(rounds=2), path)
    assert before.finished()
    states = database.server_state(before.db, 2)
    before.close()
    with pytest.raises(SystemExit) as ended:
        main(["resume", str(path), "rounds=4"])
    assert ended.value.code == 0
    assert "does not equal a run of 4 rounds from the start" in capsys.readouterr().err
    found = Run(path)
    assert found.finished() and found.last_round() == 4
    assert summarise(found)["planned_rounds"] == summarise(found)["evaluated_round"] == 4
    assert (database.server_state(found.db, 2) or ("", ""))[1] == (states or ("", ""))[1]
    known = hashlib.sha256((path / "config.toml").read_bytes()).hexdigest()
    told = [text for kind, _, text in database.events(found.db) if kind == "extended"]
    assert len(told) == 1 and told[0].endswith(known)
    assert database.warnings(found.db)[0].startswith("rounds: extended from 2 to 4")
    assert read_config(path / "config.toml").schedule_rounds == 2
    whole = run(tiny(rounds=4), tmp_path / "whole")  # its schedule is constant: the same bytes
    assert database.server_state(found.db, 4) == database.server_state(whole.db, 4)
    assert {p.name for p in (path / "clients").iterdir()} == {f"00{k}" for k in range(5)}


def test_killed_on_the_way_it_ends_as_if_it_were_not(tiny: Tiny, tmp_path: Path):
    ends = []
    for name in ("a", "b"):
        path = tmp_path / name
        run(tiny(rounds=2, algorithm__schedule="cosine", save_models=False), path).close()
        extend(path, {"rounds": 3})
        if name == "b":
            resume(path).close()
            extend(path, {"rounds": 4})
        else:
            extend(path, {"rounds": 4})
        ends.append(database.server_state(resume(path).db, 4))
        assert read_config(path / "config.toml").schedule_rounds == 2
    assert ends[0] == ends[1]


def test_a_schedule_stays_where_it_ended():
    falling = Recipe(lr=1.0, schedule="cosine")
    assert falling.rate(7, 4) == falling.rate(5, 4) == falling.rate(4, 4) < falling.rate(3, 4)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rounds": 1}, "rounds: must be a number above the run's 1, not 1"),
        ({"rounds": "x"}, "rounds: must be a number above the run's 1, not x"),
        ({"algorithm.lr": 1.0}, "algorithm.lr: a run goes on with what it began with"),
    ],
)
def test_nothing_else_can_be_changed(
    tiny: Tiny, tmp_path: Path, changes: dict[str, Any], says: str
):
    found = run(tiny(rounds=1, save_models=False), tmp_path / "run")
    before = digest(found), (tmp_path / "run" / "config.toml").read_bytes()
    with pytest.raises(UserError, match=says):
        extend(tmp_path / "run", changes)
    assert before == (digest(found), (tmp_path / "run" / "config.toml").read_bytes())
    assert found.finished()
