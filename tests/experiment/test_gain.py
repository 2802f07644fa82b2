"""Networks on one another's data: who tunes what on which images, kept pair by pair."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fedtailor.core.errors import UserError
from fedtailor.core.types import Client, Message, Tensors
from fedtailor.data.federation import load_federation
from fedtailor.engines import _in_process
from fedtailor.experiment.gain import measure_gain
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.prepare import setting_of
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from fedtailor.training import learn
from tests.helpers import held_out, sde_setting
from tests.helpers.gain_runs import SPACE, Tiny, pairs, rlnas, rows, table

JOINS = f"{held_out.__file__}:Joins"
EPOCHS = 2


def client_of(path: Path, number: int) -> Client:
    """Return a client of a run as it was in the last round, from its data alone."""
    config = read_config(path / "config.toml")
    federation = load_federation(config.data)
    setting = setting_of(config, federation)
    return sde_setting.client_of(federation, setting, number, config.rounds)


def by_hand(path: Path, client: Client, arch: list[int], weights: Tensors) -> float:
    """Tune a network in the plainest way, and test it."""
    how = read_config(path / "config.toml").algorithm
    network = learn.network(client, weights, tuple(arch))
    learn.fit(client, network, how, lr=how.lr, epochs=EPOCHS, purpose="finetune")
    return learn.evaluate(network, client.test)["accuracy"]


def saved(path: Path, client: int) -> tuple[list[int], Tensors]:
    folder = path / "clients" / f"{client:03d}"
    arch = json.loads((folder / "arch.json").read_text())["arch"]
    return arch, safetensors.torch.load_file(folder / "weights.safetensors")


# What is measured


def test_every_network_on_everybody_s_data_by_hand(tiny: Tiny, tmp_path: Path):
    """Rows are whose data it is, columns whose network; the rate is that before any schedule."""
    changes = {"algorithm__finetune_epochs": 0, "algorithm__schedule": "cosine"}
    done = run(table(tiny, "ditto", **changes), tmp_path / "run").path
    found = measure_gain(done, epochs=EPOCHS)
    expected = [
        [by_hand(done, client_of(done, i), *saved(done, j)) for j in range(3)] for i in range(3)
    ]
    assert found["tuned"] == expected
    assert len({value for row in expected for value in row}) > 3
    deployed = summarise(Run(done))["test_accuracy"]["per_client"]
    for i in range(3):
        one = found["per_client"][i]
        assert one["own_untuned"] == found["untuned"][i][i] == deployed[i]
        others = [expected[i][j] for j in range(3) if j != i]
        assert one["gain"] == pytest.approx(expected[i][i] - sum(others) / 2)
        assert one["others"] == pytest.approx(sum(others) / 2) and one["own"] == expected[i][i]
    each = [one["gain"] for one in found["per_client"].values()]
    assert found["gain"] == pytest.approx(sum(each) / 3)
    assert (found["ways"], found["all_ways"], found["algorithm"]) == (6, True, "ditto")


def test_no_client_s_search_is_asked_and_networks_are_those_deployed(path: Path):
    """With dropout, batch norm and tuned weights: untuned on their own data as they were tested."""
    found = measure_gain(path, epochs=0)
    assert found["tuned"] == found["untuned"], "0 epochs: nothing is tuned"
    deployed = summarise(Run(path))["test_accuracy"]["per_client"]
    assert {c: one["own"] for c, one in found["per_client"].items()} == deployed


@pytest.mark.parametrize("space", [SPACE, {"name": "cnn", "width": 4, "hidden": 16}])
def test_identical_networks_give_0_off_the_diagonal(space: Any, tiny: Tiny, tmp_path: Path):
    """Dropout, shuffling and augmentation know whose data it is, never whose network."""
    changes = {"algorithm__finetune_epochs": 0, "data__augment": ["flip", "crop"]}
    done = run(
        table(tiny, "fedavg", space=space, data__crop_padding=1, **changes), tmp_path / "run"
    )
    found = measure_gain(done.path, epochs=EPOCHS)
    for name in ("tuned", "untuned"):
        assert all(len(set(row)) == 1 for row in found[name])
    assert found["tuned"] != found["untuned"]
    assert found["gain"] == 0 and found["p"] == 1
    assert all(one["gain"] == 0 for one in found["per_client"].values())


@pytest.mark.parametrize(("after", "cohort"), [(-1, 2), (9, 2), (0, 1)])
def test_they_are_tuned_on_what_the_method_trains_on(
    after: int, cohort: int, tiny: Tiny, tmp_path: Path
):
    """From the start, never, or once a client was drawn: which its own state knows."""
    changes = {"algorithm__after": after, "cohort": cohort, "data__fractions": [0.15, 0.65, 0.2]}
    done = run(table(tiny, JOINS, rounds=1, **changes), tmp_path / "run")
    up = done.db.query("SELECT client FROM message WHERE direction = 'up'")
    joins = {-1: {0, 1, 2}, 9: set[int](), 0: {client for (client,) in up}}[after]
    found = measure_gain(done.path, epochs=EPOCHS)
    networks = [saved(done.path, j) for j in range(3)]
    told = 0
    for i, row in enumerate(found["tuned"]):
        client = client_of(done.path, i)
        plain, more = (
            [by_hand(done.path, one, *network) for network in networks]
            for one in (client, learn.joined(client))
        )
        assert row == (more if i in joins else plain)
        told += plain != more
    assert told == 3 and len(up) == cohort


def test_each_network_is_one_message_to_all(path: Path, monkeypatch: pytest.MonkeyPatch):
    sent: list[tuple[int, Message]] = []
    submit = _in_process.InProcess.submit

    def submitted(self: Any, ticket: Any, message: Message) -> None:
        assert (ticket.step, ticket.round) == ("tune", 2)
        sent.append((ticket.client, message))
        submit(self, ticket, message)

    monkeypatch.setattr(_in_process.InProcess, "submit", submitted)
    measure_gain(path, epochs=1)
    assert [client for client, _ in sent] == [0, 1, 2] * 3
    assert len({id(message) for _, message in sent}) == 3
    assert all(set(message.info) == {"arch", "epochs"} for _, message in sent)


# Weights of a global supernet


@pytest.mark.parametrize("statistics", ["merged", "own"])
@pytest.mark.parametrize("name", ["perfedrlnas", "perfedsde"])
def test_global_weights_are_those_that_are_served(
    name: str, statistics: str, tiny: Tiny, tmp_path: Path
):
    """On its own data each architecture does at first what the run's untuned network did."""
    if name == "perfedrlnas":
        config = rlnas(tiny, algorithm__statistics=statistics, algorithm__policy_lr=100.0)
    else:
        config = sde_setting.table(statistics=statistics) | {"save_models": True, "rounds": 2}
    done = run(config, tmp_path / "run")
    found = measure_gain(done.path, epochs=EPOCHS, weights="global")
    untuned = summarise(done)["untuned"]["per_client"]
    assert {c: one["own_untuned"] for c, one in found["per_client"].items()} == untuned
    archs = [tuple(saved(done.path, j)[0]) for j in found["clients"]]
    assert len(set(archs)) > 1
    for row in found["tuned"]:
        for one, arch in enumerate(archs):  # weights are a matter of the architecture alone
            assert row[one] == row[archs.index(arch)]
    theirs = measure_gain(done.path, epochs=EPOCHS)
    assert theirs["tuned"] != found["tuned"], "the two are kept apart"
    assert measure_gain(done.path, epochs=EPOCHS, weights="global") == found


# What is kept


def test_same_bytes_for_any_number_of_workers(original: Path, tmp_path: Path):
    found = []
    for workers in (0, 1, 2):
        path = tmp_path / str(workers)
        shutil.copytree(original, path)
        config = path / "config.toml"
        config.write_text(config.read_text().replace("workers = 0", f"workers = {workers}"))
        assert read_config(config).engine.workers == workers
        measure_gain(path, epochs=EPOCHS)
        found.append(rows(path))
    assert found[0] == found[1] == found[2] and len(found[0]) == 9
    assert len({row[5] for row in found[0]}) > 1


def test_the_run_itself_is_as_it_was(path: Path):
    files = {f: f.read_bytes() for f in path.rglob("*") if f.is_file() and f.name != "run.db"}
    before, told = digest(Run(path)), summarise(Run(path))
    measure_gain(path, epochs=1)
    assert digest(Run(path)) == before and summarise(Run(path)) == told
    assert {f: f.read_bytes() for f in files} == files


def test_killed_in_the_middle_it_goes_on_with_what_is_missing(
    original: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    epochs = 30
    command = [sys.executable, "-m", "fedtailor", "gain", str(path), "--epochs", str(epochs)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    while process.poll() is None and len(pairs(path, epochs)) < 2:
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = pairs(path, epochs)
    assert 2 <= len(kept) < 9, "killed too late to tell"
    order = [(pair.network, pair.client) for pair in kept]
    assert order == [(j, i) for j in range(3) for i in range(3)][: len(kept)]
    asked: list[int] = []
    performed = _in_process.perform

    def perform(host: Any, ticket: Any, message: Any) -> Any:
        asked.append(ticket.client)
        return performed(host, ticket, message)

    monkeypatch.setattr(_in_process, "perform", perform)
    found = measure_gain(path, epochs=epochs)
    assert len(asked) == 9 - len(kept), "only what is missing"
    assert measure_gain(path, epochs=epochs) == found and len(asked) == 9 - len(kept)
    whole = tmp_path / "whole"
    shutil.copytree(original, whole)
    measure_gain(whole, epochs=epochs)
    assert rows(path) == rows(whole)


def test_more_clients_and_more_epochs_are_added(path: Path):
    few = measure_gain(path, epochs=1, clients=2)
    assert few["clients"] == [0, 1] and len(rows(path)) == 4 and few["ways"] == 2
    every = measure_gain(path, epochs=1)
    assert len(rows(path)) == 9
    assert [row[:2] for row in every["tuned"][:2]] == few["tuned"]
    longer = measure_gain(path, epochs=3, clients=2)
    assert longer["tuned"] != few["tuned"] and len(rows(path)) == 13
    assert measure_gain(path, epochs=1, clients=2) == few


def test_another_network_than_before_is_not_mixed_in(path: Path):
    measure_gain(path, epochs=1, clients=2)
    mine, others = (path / "clients" / name / "weights.safetensors" for name in ("001", "002"))
    shutil.copyfile(others, mine)
    with pytest.raises(UserError, match="the network of client 1 is not the one that some pairs"):
        measure_gain(path, epochs=1)
