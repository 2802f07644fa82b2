"""One architecture of a search's supernet, deployed to all clients."""

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from fedtailor.algorithms.perfedsde import Supernet
from fedtailor.core import codec
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.network import network_of
from fedtailor.networks.store import Store
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.training import learn
from tests.helpers.sde_setting import table

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("one_of_supernet")


def test_everyone_gets_the_supernets_network(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    config: dict[str, Any] = table(proposer="evolution") | {"rounds": 1, "cohort": 2}
    searched, file = run(config, tmp_path / "searched"), tmp_path / "largest.safetensors"
    words = ["", str(searched.path), str(file), "--arch", "largest"]
    monkeypatch.setattr("sys.argv", words)
    script.main()
    plain = {"name": "fedavg", "finetune_epochs": 0}
    same = {"rounds": 0, "start": str(file), "space": config["space"] | {"arch": "largest"}}
    deployed = run(config | same | {"algorithm": plain}, tmp_path / "deployed")
    made = read_config(searched.path / "config.toml")
    federation = load_federation(made.data)
    setting = setting_of(made, federation)
    weights = codec.read(Supernet, searched.server_path(1)).weights
    store = Store(setting.space, setting.task, weights)
    largest = setting.space.largest()
    network = network_of(setting.space, largest, setting.task, store.cut(largest))
    torch.set_num_threads(1)
    values = dict(database.of_clients(deployed.db, 0, "test", "untuned", "accuracy"))
    assert len(values) == federation.clients
    for client, value in values.items():
        found = learn.evaluate(network, federation.examples(client, "test"))
        assert value == pytest.approx(found["accuracy"])
