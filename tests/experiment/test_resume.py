"""Killed at any moment, resumed to the same bytes."""

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.runs.config import make_config, write_config
from fedtailor.runs.database import best_round, client_states
from fedtailor.runs.folder import Run, tidy
from fedtailor.runs.summary import digest

Tiny = Callable[..., dict[str, Any]]
FEDTAILOR = [sys.executable, "-m", "fedtailor"]


@pytest.mark.parametrize("workers", [0, 2])
def test_kill_9_at_random_moments_then_resume_gives_the_same_bytes(
    workers: int, tiny: Tiny, tmp_path: Path
):
    table = tiny(algorithm__name="ditto", rounds=24, eval_every=4, engine__workers=workers,
                 algorithm__epochs=4, algorithm__lr=0.02)  # fmt: skip
    config = tmp_path / "config.toml"
    write_config(make_config(table), config)
    whole = run(config, tmp_path / "whole")
    path, kills, moments = tmp_path / "killed", 0, []
    command = [*FEDTAILOR, "run", str(config), "--out", str(path)]
    while kills < 2:
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        _wait_for_progress(path, process)
        moments.append(random.uniform(0, 0.6))
        time.sleep(moments[-1])
        process.kill()
        if process.wait() == 0:
            break  # it was faster than the killer
        kills += 1
        assert (path / "run.db").exists()
        command = [*FEDTAILOR, "resume", str(path)]
    assert kills >= 1
    resumed = resume(path)
    assert digest(resumed) == digest(whole), f"killed after {moments} s of progress"
    spent = "SELECT round, client, part, macs FROM timing"
    assert resumed.db.query(spent) == whole.db.query(spent), "no round is counted twice"
    names = {p.name for p in resumed.states.iterdir()}
    assert names == {p.name for p in whole.states.iterdir()}, "no stale file, none missing"


def _wait_for_progress(path: Path, process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has committed a round of its own."""
    before = _rounds(path)
    while process.poll() is None and _rounds(path) <= max(before, 0):
        time.sleep(0.02)


def _rounds(path: Path) -> int:
    if not (path / "run.db").exists():
        return -1
    folder = Run(path)
    found = folder.last_round()
    folder.close()
    return found


def test_files_of_an_unfinished_round_are_deleted(tiny: Tiny, tmp_path: Path):
    found = run(tiny(algorithm__name="ditto"), tmp_path / "run")
    stray = found.states / "client-000001-round-000099.safetensors"
    stray.write_bytes(b"half a file")
    tidy(found)
    assert not stray.exists()
    assert digest(found)


def test_only_states_of_the_last_and_the_best_round_are_kept(tiny: Tiny, tmp_path: Path):
    found = run(tiny(algorithm__name="ditto", rounds=12, eval_every=1), tmp_path / "run")
    best = best_round(found.db)
    assert best is not None
    rounds = {12, best}
    servers = {p.name for p in found.states.glob("server-*")}
    assert servers == {f"server-round-{r:06d}.safetensors" for r in rounds}
    kept = {(c, r) for round in rounds for c, r, _ in client_states(found.db, round)}
    assert {p.name for p in found.states.glob("client-*")} == {
        f"client-{c:06d}-round-{r:06d}.safetensors" for c, r in kept
    }


def test_the_selected_round_is_that_of_the_best_validation_accuracy(tiny: Tiny, tmp_path: Path):
    found = run(tiny(rounds=6, eval_every=1, algorithm__lr=0.3), tmp_path / "run")
    rows = found.db.query(
        "SELECT round, avg(value) FROM metric WHERE split = 'val' AND model = 'untuned'"
        " AND name = 'accuracy' GROUP BY round ORDER BY round"
    )
    assert [r for r, _ in rows] == [1, 2, 3, 4, 5, 6]
    best = max(rows, key=lambda row: (row[1], -row[0]))[0]
    assert best_round(found.db) == best
    tuned = found.db.query("SELECT DISTINCT round FROM metric WHERE model = 'tuned'")
    assert {r for (r,) in tuned} == {best, 6}


def test_resuming_what_is_finished_changes_nothing(tiny: Tiny, tmp_path: Path):
    before = digest(run(tiny(), tmp_path / "run"))
    assert digest(resume(tmp_path / "run")) == before


def test_a_run_from_before_times_were_kept_goes_on(tiny: Tiny, tmp_path: Path):
    committed, path = Run.commit, tmp_path / "run"

    def commit(self: Run, record: Any, server: Any) -> None:
        committed(self, record, server)
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "commit", commit)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(), path)
    Run(path).db.query("DROP TABLE timing")
    resumed = resume(path)
    assert digest(resumed) == digest(run(tiny(), tmp_path / "whole"))
    assert resumed.db.query("SELECT DISTINCT round FROM timing") == [(3,), (4,)]


def test_two_processes_cannot_work_on_one_run(tiny: Tiny, tmp_path: Path):
    found = run(tiny(), tmp_path / "run")
    with lock_folder(found.path), pytest.raises(UserError, match="another process"):
        lock_folder(tmp_path / "run")


def test_a_run_being_made_by_another_process_is_left_alone(tiny: Tiny, tmp_path: Path):
    path = tmp_path / "run"
    path.mkdir()
    with lock_folder(path), pytest.raises(UserError, match="another process"):
        run(tiny(), path)
    assert not (path / "config.toml").exists()
    assert run(tiny(), path).finished(), "what it left behind is no hindrance"


def test_a_lost_or_damaged_state_is_one_sentence(tiny: Tiny, tmp_path: Path):
    path = tmp_path / "run"
    _stop_before_the_end(tiny(algorithm__name="ditto"), path)
    server = next(path.glob("state/server-*-000004.safetensors"))
    whole = server.read_bytes()
    server.write_bytes(whole[:100])
    with pytest.raises(UserError, match="not a readable"):
        resume(path)
    server.write_bytes(whole)
    assert resume(path).finished()


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _stop_before_the_end(table: dict[str, Any], path: Path) -> None:
    """Leave a run with all its rounds, but without the test of the selected one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtailor.experiment.rounds._test_selected", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(table, path)


def test_other_data_than_the_run_began_with_is_refused(tiny: Tiny, tmp_path: Path):
    path = tmp_path / "run"
    _stop_before_the_end(tiny(), path)
    config = path / "config.toml"
    config.write_text(config.read_text().replace("per_client = 60", "per_client = 50"))
    with pytest.raises(UserError, match="no longer what the run began with"):
        resume(path)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "garbage"])
def test_a_damaged_partition_is_one_sentence(tiny: Tiny, tmp_path: Path, damage: str):
    path = tmp_path / "run"
    _stop_before_the_end(tiny(), path)
    file = path / "partition.npz"
    whole = file.read_bytes()
    file.write_bytes({"empty": b"", "cut": whole[:200]}.get(damage, b"garbage"))
    if damage == "missing":
        file.unlink()
    with pytest.raises(UserError, match=r"partition\.npz: cannot be read"):
        resume(path)


def test_rounds_in_which_some_could_not_be_tested_are_not_selected(
    tiny: Tiny, tmp_path: Path, monkeypatch: Any
):
    """A mean over other clients cannot be compared."""
    from fedtailor.engines import _in_process

    performed = _in_process.perform

    def perform(site: Any, ticket: Any, message: Any) -> Any:
        if ticket.step == "evaluate" and ticket.round == 1 and ticket.client > 0:
            raise ValueError("not today")
        return performed(site, ticket, message)

    monkeypatch.setattr(_in_process, "perform", perform)
    found = run(tiny(rounds=3, eval_every=1, on_failure="skip"), tmp_path / "run")
    assert [r for (r,) in found.db.query("SELECT round FROM state WHERE val NOT NULL")] == [2, 3]
    assert best_round(found.db) in (2, 3)


def test_changed_pixels_are_noticed(tiny: Tiny, tmp_path: Path):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (100, 8, 8), dtype=np.uint8)
    y = rng.integers(0, 3, 100)
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    table = tiny(data__path=str(tmp_path / "mine.npz"), data__clients=2, data__per_client=None)
    del table["data"]["per_client"], table["cohort"]
    _stop_before_the_end(table, tmp_path / "run")
    x[0, 0, 0] ^= 1
    np.savez(tmp_path / "mine.npz", x=x, y=y)
    with pytest.raises(UserError, match="no longer what the run began with"):
        resume(tmp_path / "run")


def test_an_interrupted_commit_leaves_the_database_usable(tiny: Tiny, tmp_path: Path):
    """In a notebook the same process resumes: nothing may stay locked."""
    found = run(tiny(), tmp_path / "run")
    with pytest.raises(KeyboardInterrupt), found.db.transaction() as connection:
        connection.execute("DELETE FROM metric")
        raise KeyboardInterrupt
    other = Run(tmp_path / "run")
    assert other.db.query("SELECT count(*) FROM metric")[0][0] > 0
    other.note(0, None, "test", "")


def test_environment_and_models_are_in_the_folder(tiny: Tiny, tmp_path: Path):
    run(tiny(), tmp_path / "run")
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["packages"]["torch"]
    about = json.loads((tmp_path / "run" / "clients" / "004" / "arch.json").read_text())
    assert about["arch"] == [] and about["shape"] == [1, 8, 8]
    assert (tmp_path / "run" / "clients" / "004" / "weights.safetensors").exists()
    run(tiny(save_models=False), tmp_path / "other")
    assert not (tmp_path / "other" / "clients").exists()
