"""Clients that never took part: weights stand still, and only the new clients' policies learn."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.algorithms.perfedrlnas import SHARED, PerFedRLNAS, Searching
from fedtailor.cli.app import main
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.engines import _in_process
from fedtailor.engines._base import Ticket
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.onboarding import default_path, onboard
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from fedtailor.search.policy import Policies

Tiny = Callable[..., dict[str, Any]]
NEW = (3, 4)  # the ids after those of three training clients
SEARCH: dict[str, Any] = {
    "rounds": 2,
    "cohort": 2,
    "eval_every": 2,
    "save_models": False,
    "algorithm": {"name": "perfedrlnas", "finetune_epochs": 1, "batch": 16, "warmup": 1},
    "space": {"name": "mobilenetv3_plato", "preset": "cpu", "arch": "smallest"},
    "data": {"clients": 3, "new_clients": 2, "per_client": 20, "partition": "iid"},
    "engine": {"workers": 0},
}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run that kept two clients out."""
    return run(SEARCH, tmp_path_factory.mktemp("old") / "run")


@pytest.fixture(scope="module")
def new(old: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return what these two found."""
    return onboard(old.path, tmp_path_factory.mktemp("new") / "run", rounds=3)


@pytest.fixture
def averaged(tiny: Tiny, tmp_path: Path) -> Run:
    """Return a run of FedAvg that kept two clients out."""
    return run(tiny(data__new_clients=2, rounds=1, data__clients=3), tmp_path / "averaged")


def state_of(found: Run, round: int | None = None) -> Searching:
    round = found.last_round() if round is None else round
    return codec.read(Searching, found.server_path(round))


def hashes(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(f.relative_to(folder)): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def images(path: Path, shape: tuple[int, ...] = (8, 8), classes: int = 10) -> Path:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (80, *shape), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(80) % classes)
    return path


def test_the_supernet_stands_still_and_only_new_policies_learn(old: Run, new: Run):
    assert codec.digest(state_of(new).weights) == codec.digest(state_of(old).weights)
    found = state_of(new)
    assert set(found.policies.numbers) == set(NEW) == set(found.past)
    assert bool((found.policies.alphas != 0).any(dim=1).all()), "both have learned something"
    assert found.past[3].times == 3, "all take part in every round"
    assert set(state_of(old).policies.numbers) <= {0, 1, 2}
    config = read_config(new.path / "config.toml")
    assert isinstance(config.algorithm, PerFedRLNAS) and config.algorithm.frozen
    assert config.algorithm.warmup == 0 and config.cohort is None
    assert config.start == str(old.server_path(2).resolve()) and config.population == "new"


def test_only_accuracies_leave(new: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    sent = new.db.query("SELECT DISTINCT client, bytes FROM message WHERE direction = 'up'")
    assert {client for client, _ in sent} == set(NEW) and max(b for _, b in sent) < 50
    replies, performed = [], _in_process.perform

    def perform(site: Any, ticket: Ticket, message: Any) -> Any:
        done = performed(site, ticket, message)
        replies.append((ticket.step, done.reply.message))
        return done

    monkeypatch.setattr(_in_process, "perform", perform)
    again = onboard(Path(new.config["start"]).parents[1], tmp_path / "again", rounds=1)
    assert again.finished()
    steps = [message for step, message in replies if step == "train"]
    assert len(steps) == 2
    assert all(not m.tensors and set(m.info) == {"accuracy"} for m in steps)
    assert all(not m.tensors and not m.info for step, m in replies if step != "train")


def test_new_clients_are_tested_before_on_the_way_and_at_the_end(new: Run):
    found = summarise(new)
    assert [point["round"] for point in found["curve"]] == [0, 1, 2, 3]
    assert set(found["test_accuracy"]["per_client"]) == {3, 4}
    assert found["finished"] and found["planned_rounds"] == 3
    models = new.db.query("SELECT DISTINCT model FROM metric WHERE round = 3 AND split = 'test'")
    assert {model for (model,) in models} == {"untuned", "tuned", "trained"}
    clients = new.db.query(
        "SELECT DISTINCT client FROM metric UNION SELECT client FROM architecture"
    )
    assert {c for (c,) in clients} == set(NEW)
    json.dumps(found)


def test_killed_and_resumed_to_the_same_digest(
    old: Run, new: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """Stopped before the first state was tested, and after every round."""
    path, committed, tested = tmp_path / "parts", Run.commit, "fedtailor.experiment.rounds._test"

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    def commit_and_stop(self: Run, page: Any, server: Any) -> None:
        committed(self, page, server)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tested, stop)
        with pytest.raises(KeyboardInterrupt):
            onboard(old.path, path, rounds=3)
    assert Run(path).last_round() == -1
    with monkeypatch.context() as patch:
        patch.setattr(Run, "commit", commit_and_stop)
        for round in range(4):
            with pytest.raises(KeyboardInterrupt):
                resume(path)
            assert Run(path).last_round() == round
    assert digest(resume(path)) == digest(new)


def test_the_config_alone_gives_the_same_run(new: Run, tmp_path: Path):
    again = run(new.path / "config.toml", tmp_path / "again")
    assert digest(again) == digest(new)


def test_the_old_run_is_only_read(averaged: Run):
    before = hashes(averaged.path)
    found = onboard(averaged.path)
    assert found.path == averaged.path / "onboard"
    assert default_path(averaged.path) == averaged.path / "onboard-2"
    after = hashes(averaged.path)
    assert {name: after[name] for name in before} == before
    kept = found.db.query("SELECT text FROM event WHERE kind = 'start'")[0][0]
    assert before["state/server-round-000001.safetensors"] in kept


def test_without_search_new_clients_test_and_tune(averaged: Run):
    found = onboard(averaged.path)
    summary = summarise(found)
    assert found.finished() and found.config["rounds"] == 0
    assert [point["round"] for point in summary["curve"]] == [0]
    assert set(summary["untuned"]["per_client"]) == {3, 4}
    assert summary["bytes"] == {"up": 0, "down": 0}
    assert found.db.query(
        "SELECT count(*) FROM metric WHERE model = 'tuned' AND name = 'accuracy'"
    ) == [(4,)]
    assert (found.path / "clients" / "004" / "weights.safetensors").exists()
    assert digest(resume(found.path)) == digest(found)
    with pytest.raises(UserError, match="its clients are new ones already"):
        onboard(found.path)


def test_private_states_begin_anew(tiny: Tiny, tmp_path: Path):
    table = tiny(algorithm__name="fedrep", data__new_clients=1, rounds=1, cohort=5)
    before = run(table, tmp_path / "run")
    found = summarise(onboard(before.path))
    assert set(found["test_accuracy"]["per_client"]) == {5}


def test_a_run_that_is_not_finished(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("fedtailor.experiment.rounds._test_selected", stop)
        with pytest.raises(KeyboardInterrupt):
            run(tiny(data__new_clients=2), tmp_path / "run")
    assert not Run(tmp_path / "run").finished()
    assert onboard(tmp_path / "run").finished()


def test_other_data(old: Run, tmp_path: Path):
    """Its clients count from 0, but have nothing to do with the run's clients of these numbers."""
    path = images(tmp_path / "other.npz")
    found = onboard(old.path, tmp_path / "new", rounds=1, data={"path": str(path), "clients": 2})
    assert set(state_of(found).policies.numbers) <= {0, 1}
    assert codec.digest(state_of(found).weights) == codec.digest(state_of(old).weights)
    assert state_of(found, 0).policies.numbers == () and state_of(found, 0).past == {}
    assert {c for (c,) in found.db.query("SELECT DISTINCT client FROM metric")} == {0, 1}
    kept = Run(old.path).partition()
    data = found.config["data"]
    assert data["mean"] == kept["mean"].tolist(), "scaled as the weights know it"
    assert data["new_clients"] == 0 and data["per_client"] == 20


def test_the_shared_policy_is_for_newcomers_too():
    weights = {"w": torch.ones(1)}
    alphas, moments = torch.arange(6.0).reshape(3, 2), torch.zeros(3, 3, 2)
    state = Searching(weights, Policies((0, SHARED, 7), alphas, moments), {})
    kept = PerFedRLNAS().welcome(state)
    assert kept.policies.numbers == (SHARED,) and kept.policies.alphas.tolist() == [[2.0, 3.0]]
    assert kept.weights is weights
    assert PerFedRLNAS().welcome(replace(state, policies=Policies())).policies.numbers == ()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rounds", "2"], "rounds: fedavg cannot search with its weights frozen"),
        (["rounds=-1"], "rounds: "),
        (["space.width=8"], "space.width: stays as it is in the run"),
        (["algorithm.name=ditto"], "algorithm.name: stays as it is in the run"),
        (["algorithm.lrr=1"], "algorithm.lrr: unknown"),
        (["cohort=3"], "cohort: 3 clients a round, but there are 2"),
        (["data.new_clients=0"], "give other data with --data"),
        (["data.seed=5"], "data: new clients would have images of clients that trained"),
        (["data.name=digits"], "data: new clients would have images of clients that trained"),
        (["--data", "FEW"], "data: there are 4 classes, but the run's networks know 10"),
        (["--data", "WIDE"], "data: the images are 3x9x9, but the run's networks take 1x8x8"),
        (["--data", "none.npz"], "data.path: there is no folder"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    words: list[str], says: str, averaged: Run, tmp_path: Path, capsys: Any
):
    files = {"FEW": images(tmp_path / "few.npz", classes=4),
             "WIDE": images(tmp_path / "wide.npz", (9, 9, 3))}  # fmt: skip
    extra = ["data.per_client=20"] if "--data" in words else []
    before = set(tmp_path.rglob("*"))
    command = ["onboard", str(averaged.path), *(str(files.get(word, word)) for word in words)]
    with pytest.raises(SystemExit) as ended:
        main([*command, *extra])
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and says in errors and len(errors.splitlines()) == 1
    assert set(tmp_path.rglob("*")) == before, "nothing is written"


def test_a_run_without_new_clients_and_one_without_a_state(tiny: Tiny, tmp_path: Path):
    done = run(tiny(rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match=r"data\.new_clients .* --data"):
        onboard(done.path)
    done.db.query("DELETE FROM state")
    with pytest.raises(UserError, match="has no state yet"):
        onboard(done.path)


def test_start_warms_any_run_and_must_fit(averaged: Run, tiny: Tiny, tmp_path: Path):
    state = str(averaged.server_path(1))
    found = run(tiny(start=state, rounds=1), tmp_path / "warm")
    assert [point["round"] for point in summarise(found)["curve"]] == [0, 1]
    for change in ({"space__width": 8}, {"algorithm__name": "local"}):
        with pytest.raises(UserError, match=r"does not fit|not a readable"):
            run(tiny(start=state, **change), tmp_path / "wrong")
    with pytest.raises(UserError, match="the file is missing"):
        run(tiny(start=f"{state}.not"), tmp_path / "wrong")
    with pytest.raises(UserError, match="only a run with a start may have none"):
        run(tiny(rounds=0), tmp_path / "wrong")
    assert not (tmp_path / "wrong").exists()


def test_help_teaches(capsys: Any):
    with pytest.raises(SystemExit) as ended:
        main(["onboard", "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ("--data", "--rounds", "--out", "data.new_clients", "stand still", "accuracies"):
        assert word in text


@pytest.mark.parametrize("overlap", [True, "leaky"])
def test_new_clients_of_clients_that_share_images(overlap: Any, tiny: Tiny, tmp_path: Path):
    """Their images are new to the weights, or the run folder says that they are not."""
    data = {"partition": "dirichlet_equal", "per_client": 300, "clients": 3, "new_clients": 2}
    table = tiny(rounds=1) | {"data": data | {"overlap": overlap}}
    done = run(table, tmp_path / "run")
    rows, bounds = (done.partition()[name] for name in ("rows", "bounds"))
    shared = set(rows[: bounds[2, 3]].tolist()) & set(rows[bounds[3, 0] :].tolist())
    assert bool(shared) == (overlap == "leaky")
    found = onboard(done.path)
    for folder in (done, found):
        texts = database.warnings(folder.db)
        assert ["data.overlap" in text for text in texts] == ([True] if overlap == "leaky" else [])
    with pytest.raises(UserError, match="images of clients that trained"):
        onboard(done.path, tmp_path / "other", data={"overlap": overlap == "leaky"})
