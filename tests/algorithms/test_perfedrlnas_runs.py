"""Whole runs of PerFedRLNAS on a real search space: killed, resumed, in workers, by bytes."""

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.algorithms.perfedrlnas import SHARED, Searching
from fedtailor.core import codec
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.networks import cost
from fedtailor.networks.store import full_shapes
from fedtailor.runs import database
from fedtailor.runs.config import make_config, read_config, write_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest
from tests.helpers.made_up import TASK

SEARCH: dict[str, Any] = {
    "rounds": 3,
    "cohort": 2,
    "eval_every": 2,
    "save_models": False,
    "algorithm": {
        "name": "perfedrlnas", "finetune_epochs": 1, "batch": 16,
        "policy": "both", "policy_rule": "adam", "policy_lr": 0.5, "entropy": 0.01,
    },
    "space": {"name": "mobilenetv3_plato", "preset": "cpu"},
    "data": {"clients": 4, "per_client": 20, "partition": "iid"},
    "budget": {"memory_mb": [8.0, 100.0]},  # for most architectures too little, more than enough
    "engine": {"workers": 0},
}  # fmt: skip

KILLED = """
import os, signal, sys
from fedtailor.engines import _in_process
from fedtailor import run

performed, trained = _in_process.perform, 0

def perform(site, ticket, message):
    global trained
    done = performed(site, ticket, message)
    trained += ticket.step == "train"
    if trained == 3:  # the first of two clients of the second round
        os.kill(os.getpid(), signal.SIGKILL)
    return done

_in_process.perform = perform
run(sys.argv[1], sys.argv[2])
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(SEARCH, tmp_path_factory.mktemp("whole") / "run")


def state_of(found: Run) -> Searching:
    return codec.read(Searching, found.server_path(found.last_round()))


def test_killed_in_mid_search_and_resumed_to_the_same_bytes(whole: Run, tmp_path: Path):
    config, path = tmp_path / "config.toml", tmp_path / "run"
    write_config(make_config(SEARCH), config)
    command = [sys.executable, "-c", KILLED, str(config), str(path)]
    assert subprocess.run(command, check=False).returncode == -9
    left = Run(path)
    assert left.last_round() == 1
    before = state_of(left)
    assert SHARED in before.policies.numbers and before.policies.alphas.any()
    resumed = resume(path)
    assert digest(resumed) == digest(whole)
    after, expected = state_of(resumed), state_of(whole)
    assert codec.digest(after) == codec.digest(expected)
    assert after.policies.numbers == expected.policies.numbers
    assert set(before.policies.numbers) < set(after.policies.numbers), "it went on"
    assert after.policies.moments.any() and after.past[0].times + after.past[2].times > 1


def test_worker_processes_give_the_same_bytes(whole: Run, tmp_path: Path):
    assert digest(run(SEARCH, tmp_path / "run", engine={"workers": 2})) == digest(whole)


def test_subnets_travel_and_every_byte_is_logged(whole: Run):
    space, bytes_ = read_config(whole.path / "config.toml").space, {}
    for round, client, direction, size in whole.db.query("SELECT * FROM message"):
        bytes_[round, client, direction] = size
    trained = whole.db.query(
        "SELECT round, client, arch, score, cost FROM architecture WHERE role = 'trained'"
    )
    assert len(trained) == 3 * 2 and len(bytes_) == 2 * len(trained)
    supernet = 4 * sum(
        math.prod(shape) for shape in full_shapes(space, TASK, statistics=True).values()
    )
    overflows = 0
    for round, client, arch, score, prices in trained:
        wire = cost.wire_bytes(space, tuple(json.loads(arch)), TASK)  # statistics too
        told = {"genes": json.loads(arch)}  # nothing to repair in this space
        assert bytes_[round, client, "down"] == wire + len(json.dumps(told)) < supernet
        share = cost.training_memory(space, tuple(json.loads(arch)), TASK, 16)
        share /= [8.0, 100.0][client % 2] * 1024**2
        overflow = share > 1
        overflows += overflow
        told = {"accuracy": score, "memory": share}
        assert bytes_[round, client, "up"] == (0 if overflow else wire) + len(json.dumps(told))
        assert score == 0 or not overflow
        assert ("parameters" in json.loads(prices)) != overflow
    assert 0 < overflows < len(trained)


def test_all_clients_are_deployed_within_their_memory(whole: Run):
    rows = whole.db.query("SELECT round, client, cost FROM architecture WHERE role = 'deployed'")
    assert {2, 3} <= {round for round, *_ in rows}
    for round in {round for round, *_ in rows}:
        assert {c for r, c, _ in rows if r == round} == {0, 1, 2, 3}, "also who never trained"
    for _, client, prices in rows:
        assert json.loads(prices)["memory_mb"] <= [8.0, 100.0][client % 2]
    metrics = whole.db.query("SELECT round, client, name FROM metric WHERE split = 'server'")
    assert len(metrics) == 2 * 3 * 2, "reward and entropy of whoever took part"


def test_searching_on_test_data_is_noted(tiny: Callable[..., dict[str, Any]], tmp_path: Path):
    for accuracy, warned in (("val", 0), ("test", 1)):
        table = tiny(algorithm__name="perfedrlnas", algorithm__accuracy=accuracy, rounds=1)
        found = run(table, tmp_path / accuracy)
        told = [text for text in database.warnings(found.db) if "algorithm.accuracy" in text]
        assert len(told) == warned
