"""Images of the server in whole runs: it has them in every round, and nobody else does."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.onboarding import onboard
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.experiment.prepare import prepare
from fedtailor.runs.config import make_config, write_config
from fedtailor.runs.partition_file import check_partition
from fedtailor.runs.summary import digest
from tests.algorithms.test_perfedrlnas_runs import KILLED

Tiny = Callable[..., dict[str, Any]]


@pytest.fixture
def judging(tiny: Tiny, misbehaving: Callable[[str], str]) -> dict[str, Any]:
    """Return a config whose server tests every average on its own images."""
    return tiny(algorithm__name=misbehaving("Judges"), cohort=2, rounds=3, data__public=70)


def test_workers_kill_and_resume_give_the_same_bytes(judging: dict[str, Any], tmp_path: Path):
    whole = run(judging, tmp_path / "whole")
    judged = whole.db.query("SELECT round, value FROM metric WHERE name = 'judged' ORDER BY round")
    assert [round for round, _ in judged] == [1, 2, 3]
    assert all(abs(70 * value - round(70 * value)) < 1e-9 for _, value in judged), "of 70 images"
    assert judged[0][1] <= judged[1][1] <= judged[2][1], "the better one is kept"
    workers = run(judging | {"engine": {"workers": 2}}, tmp_path / "workers")
    assert digest(workers) == digest(whole)
    config, path = tmp_path / "config.toml", tmp_path / "killed"
    write_config(make_config(judging), config)
    command = [sys.executable, "-c", KILLED, str(config), str(path)]
    assert subprocess.run(command, check=False).returncode == -9
    assert digest(resume(path)) == digest(whole)


def test_the_server_keeps_its_images_when_all_others_are_let_go_of(
    judging: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from fedtailor.experiment import lifecycle

    held: list[Any] = []
    monkeypatch.setattr(lifecycle, "do_rounds", held.append)
    run(judging, tmp_path / "run")
    public, data = held[0].server(1).public, load_federation(make_config(judging).data)
    assert public.images.untyped_storage().nbytes() == 70 * 64, "a view would hold all of them"
    assert data.public is not None
    assert torch.equal(public.images, data.images[data.public])
    assert held[0].server(3).public is public


def test_a_run_that_starts_from_a_state_has_them_too(judging: dict[str, Any], tmp_path: Path):
    first = run(judging, tmp_path / "first")
    again = run(judging, tmp_path / "again", start=str(first.server_path(3)), rounds=1)
    assert again.db.query("SELECT count(*) FROM metric WHERE name = 'judged'") == [(1,)]


def test_partition_and_plan_tell_whose_they_are(tiny: Tiny, tmp_path: Path):
    table = tiny(data__public=70, rounds=1)
    found, data = run(table, tmp_path / "run"), load_federation(make_config(table).data)
    assert data.public is not None
    kept = found.partition()
    assert np.array_equal(kept["public"], data.public.numpy())
    assert not np.isin(kept["public"], kept["rows"]).any()
    planned = plan(make_config(table))
    assert planned["public"] == 70
    assert plan_lines(planned)[0].endswith("10 classes; 70 images are the server's")
    plain = plan(make_config(tiny()))
    assert "public" not in plain and plan_lines(plain)[0].endswith("10 classes")
    assert "public" not in run(tiny(rounds=1), tmp_path / "plain").partition()


@pytest.fixture
def named(tiny: Tiny, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Return a maker of configs of six named clients, who keep their images whatever is public."""
    client = np.arange(300) % 6
    x = np.random.default_rng(0).integers(0, 256, (300, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=client % 3, client=client)

    def table(**data: Any) -> dict[str, Any]:
        path = str(tmp_path / "x.npz")
        return tiny(rounds=1, data={"path": path, "partition": "by_client", "clients": 3} | data)

    return table


@pytest.mark.parametrize("before", [{"public": 50}, {"shift": ["blur"]}, {}])
def test_a_run_goes_on_only_with_what_it_began_with(
    before: dict[str, Any], named: Callable[..., dict[str, Any]], tmp_path: Path
):
    found = run(named(**before), tmp_path / "run")
    rows = found.partition()["rows"]
    for now in ({}, {"public": 50}, {"public": 49}, {"shift": ["blur"]}, {"shift": ["noise"]}):
        data = load_federation(make_config(named(**now)).data)
        assert np.array_equal(data.originals()[2], rows), "clients have the same images"
        if now == before:
            check_partition(found, data)
        else:
            with pytest.raises(UserError, match="no longer what the run began with"):
                check_partition(found, data)


def test_new_clients_get_no_images_that_were_the_servers(
    named: Callable[..., dict[str, Any]], tmp_path: Path
):
    """No client trained on any of them, but the server may have."""
    old = run(named(new_clients=1, public=50), tmp_path / "old")
    assert onboard(old.path, tmp_path / "new").finished()
    more = {"new_clients": 3, "public": 0}  # those that were left out
    with pytest.raises(UserError, match="clients that trained or of the server"):
        onboard(old.path, tmp_path / "more", data=more)
    plain = run(named(new_clients=1), tmp_path / "plain")
    assert onboard(plain.path, tmp_path / "all", data=more).finished()


def test_other_data_for_new_clients_are_all_theirs(tiny: Tiny, tmp_path: Path):
    old = run(tiny(data__public=300, rounds=1), tmp_path / "old")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (120, 8, 8), dtype=np.uint8), np.arange(120) % 10
    np.savez(tmp_path / "x.npz", x=x, y=y)
    other = {"path": str(tmp_path / "x.npz"), "clients": 2, "per_client": 50}
    new = onboard(old.path, tmp_path / "new", data=other)
    assert "public" not in new.partition() and len(new.partition()["rows"]) == 100


def test_too_many_is_one_sentence_and_nothing_is_written(tiny: Tiny, tmp_path: Path):
    with pytest.raises(UserError, match=r"^data\.public: with 1600 of 1797 images kept for the"):
        run(tiny(data__public=1600), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_preparing_makes_them_the_servers(tiny: Tiny):
    config = make_config(tiny(data__public=30))
    prepared = prepare(config, load_federation(config.data))
    assert prepared.public is not None and len(prepared.public) == 30
    assert prepare(make_config(tiny()), load_federation(make_config(tiny()).data)).public is None
