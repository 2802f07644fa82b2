"""The personalisation gain of SPIDER's own networks, and of their architectures alone."""

from pathlib import Path
from typing import Any

import pytest

from fedtailor.algorithms.fedavg import Global
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.experiment.gain import measure_gain
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.store import cut, shapes
from fedtailor.runs.config import read_config
from fedtailor.runs.database import architectures
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise
from fedtailor.training import learn
from tests.helpers import few_edges
from tests.helpers.few_edges import BOTH
from tests.helpers.sde_setting import client_of

EPOCHS = 1


def silos(path: Path, **changes: Any) -> Run:
    """Run three silos whose edges are decided by chance, so that architectures differ."""
    algorithm = {"name": "spider", "warmup": 1, "recovery": 1, "batch": 16, "lr": 0.05}
    config = {
        "rounds": 4,
        "eval_every": 4,
        "algorithm": algorithm | {"searcher": "random", "finetune_epochs": 0} | changes,
        "space": {"name": f"{few_edges.__file__}:FewEdges", "arch": "largest"},
        "data": {"clients": 3, "per_client": 60, "partition": "dirichlet_equal", "alpha": 0.5},
        "engine": {"workers": 0},
    }
    return run(config, path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return silos(tmp_path_factory.mktemp("gain") / "run")


def test_networks_as_they_are_do_at_home_what_the_run_reported(done: Run):
    found = measure_gain(done.path, epochs=EPOCHS)
    reported = summarise(done)["test_accuracy"]["per_client"]
    assert {c: one["own_untuned"] for c, one in found["per_client"].items()} == reported
    assert found["untuned"][0][1] != found["untuned"][0][0]


def test_architectures_alone_have_weights_of_the_last_supernet(done: Run):
    """By hand: cut, statistics of the images of who tunes, who by now trains on all but tests."""
    found = measure_gain(done.path, epochs=EPOCHS, weights="global")
    config = read_config(done.path / "config.toml")
    federation = load_federation(config.data)
    setting = setting_of(config, federation)
    supernet = codec.read(Global, done.server_path(4)).weights
    archs = {row.client: row.genes for row in architectures(done.db, "deployed") if row.round == 4}
    assert len(set(archs.values())) > 1 and all(BOTH not in arch for arch in archs.values())
    for i, row in enumerate(found["tuned"]):
        client = learn.joined(client_of(federation, setting, i, 4))
        assert len(client.train) == 48
        for j, value in enumerate(row):
            wanted = shapes(setting.space, archs[j], setting.task)
            network = learn.network(client, cut(supernet, wanted), archs[j])
            learn.recalibrate(network, client.train)
            assert found["untuned"][i][j] == learn.evaluate(network, client.test)["accuracy"]
            how = config.algorithm
            learn.fit(client, network, how, lr=how.lr, epochs=EPOCHS, purpose="finetune")
            assert value == learn.evaluate(network, client.test)["accuracy"]


def test_one_architecture_for_all_gains_nothing_by_itself(tmp_path: Path):
    found = measure_gain(silos(tmp_path / "run", searcher="none").path, EPOCHS, "global")
    assert found["gain"] == 0 and all(len(set(row)) == 1 for row in found["tuned"])


def test_silos_that_are_alone_have_no_supernet_to_cut_from(tmp_path: Path):
    alone = silos(tmp_path / "run", strength=0.0)
    with pytest.raises(UserError, match=r"^weights: spider with .* has no global supernet") as no:
        measure_gain(alone.path, EPOCHS, "global")
    assert "\n" not in str(no.value)
    assert len(measure_gain(alone.path, EPOCHS)["tuned"]) == 3
