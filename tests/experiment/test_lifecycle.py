"""Prepare, create, execute: what is held, and what is checked."""

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.core.types import Budget
from fedtailor.data.federation import Federation, load_federation
from fedtailor.experiment import lifecycle, prepare
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.steps import Execution
from fedtailor.report.tables import client_table
from fedtailor.runs import database
from fedtailor.runs.comparison import groups
from fedtailor.runs.config import make_config
from fedtailor.runs.folder import Run
from fedtailor.runs.partition_file import check_partition
from fedtailor.runs.summary import digest

Tiny = Callable[..., dict[str, Any]]


def test_the_data_is_let_go_of_once_the_workers_have_it(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    held: list[weakref.ref[Federation]] = []
    done: list[bool] = []
    rounds = lifecycle.do_rounds

    def load(options: Any) -> Federation:
        federation = load_federation(options)
        held.append(weakref.ref(federation))
        return federation

    def do_rounds(execution: Execution) -> None:
        gc.collect()
        done.append(held[-1]() is None)
        rounds(execution)

    monkeypatch.setattr(lifecycle, "load_federation", load)
    monkeypatch.setattr(lifecycle, "do_rounds", do_rounds)
    run(tiny(rounds=1, engine__workers=1), tmp_path / "run")
    assert done == [True]


def test_the_setting_is_made_once(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    calls, made = [], prepare.setting_of

    def setting_of(*given: Any) -> Any:
        calls.append(given)
        return made(*given)

    monkeypatch.setattr(prepare, "setting_of", setting_of)
    run(tiny(rounds=1), tmp_path / "run")
    assert len(calls) == 1


def test_devices_and_digests_are_recorded(tiny: Tiny, tmp_path: Path):
    budget = {"memory_mb": [5.0, 10.0], "speed": 1e9}
    found = run(tiny(algorithm__name="ditto", budget=budget, rounds=1), tmp_path / "run")
    devices = [Budget(5.0 if client % 2 == 0 else 10.0, 1e9, 100.0) for client in range(5)]
    assert database.devices(found.db) == dict(enumerate(devices))
    states = database.client_states(found.db, 1)
    assert len(states) == 3 and len({digest for *_, digest in states}) == 3


def test_another_state_than_the_committed_one_is_refused(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.experiment.rounds._test_selected", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(rounds=2, seed=1), tmp_path / "run")
    other = run(tiny(rounds=2, seed=2), tmp_path / "other")
    path = Run(tmp_path / "run").server_path(2)
    whole = path.read_bytes()
    path.write_bytes(other.server_path(2).read_bytes())
    with pytest.raises(UserError, match="is not the state that was committed"):
        resume(tmp_path / "run")
    path.write_bytes(whole)
    assert resume(tmp_path / "run").finished()


def test_shifted_images_are_the_same_whoever_hosts_them(tiny: Tiny, tmp_path: Path):
    shift = {"data__shift": ["noise", "rotation"], "data__shift_groups": 4}
    plain = run(tiny(rounds=1), tmp_path / "plain")
    found = [
        run(tiny(rounds=1, engine__workers=workers, **shift), tmp_path / str(workers))
        for workers in (0, 1)
    ]
    assert digest(found[0]) == digest(found[1]) != digest(plain)
    before, after = plain.partition(), found[0].partition()
    assert after.pop("shifts").tolist()[::2] == ["noise 0.1"] * 3
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    table = client_table(groups(found[:1]))
    assert table is not None and table["columns"][-1] == "shift"
    assert {client: cells[-1].text for client, _, cells in table["rows"]}[4] == "noise 0.1"
    both = client_table(groups([plain, found[0]]))
    assert both is not None and "shift" not in both["columns"]  # other clients
    other = tiny(**shift, data__shift_strength=2.0)
    with pytest.raises(UserError, match="no longer what the run began with"):
        check_partition(found[0], load_federation(make_config(other).data))
