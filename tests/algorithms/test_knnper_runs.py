"""Whole runs of kNN-Per: in workers, killed, what leaves a client and what is kept of it."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from fedtailor.algorithms._replies import check_reply
from fedtailor.algorithms.knnper import KNNPer
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.onboarding import onboard
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import CONFIG, Run
from fedtailor.runs.summary import summarise
from tests.helpers.whole_runs import recorded

TABLE: dict[str, Any] = {
    "rounds": 3,
    "cohort": 2,
    "eval_every": 1,
    "algorithm": {"name": "knnper", "lr": 0.1, "batch": 16},
    "space": {"name": "cnn", "width": 4, "hidden": 16},
    "data": {
        "clients": 4, "new_clients": 1, "per_client": 60, "partition": "dirichlet_equal",
        "alpha": 0.3, "test_unseen": 0.3, "public": 40,
    },
    "engine": {"workers": 0},
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(TABLE, tmp_path_factory.mktemp("whole") / "run")


def test_workers_keep_the_same_models(whole: Run, tmp_path: Path):
    other = run(TABLE | {"engine": {"workers": 2}}, tmp_path / "run")
    for client in range(4):
        name = f"clients/{client:03d}/weights.safetensors"
        assert (other.path / name).read_bytes() == (whole.path / name).read_bytes()


def test_nothing_but_the_models_weights_ever_leaves_a_client(tmp_path: Path):
    """Every message of a whole run is read: embeddings, labels, k and share stay at home."""
    with recorded() as steps:
        run(TABLE, tmp_path / "run")
    names = {name for _, sent, _ in steps for name in sent.tensors}
    assert {step for step, *_ in steps} == {"train", "evaluate", "deploy"}
    for step, sent, reply in steps:
        assert reply.info == {} == sent.info
        if step == "train":
            assert check_reply(KNNPer().sends(), sent, reply) == "trained"
            assert set(reply.tensors) == names
            assert all(reply.tensors[n].shape == t.shape for n, t in sent.tensors.items())
        else:
            assert reply.tensors == {}


def test_the_global_model_is_fedavgs(whole: Run, tmp_path: Path):
    table = TABLE | {"algorithm": TABLE["algorithm"] | {"name": "fedavg", "finetune_epochs": 0}}
    other = run(table, tmp_path / "fedavg")
    untuned = "SELECT round, client, split, name, value FROM metric WHERE model = 'untuned'"
    assert whole.db.query(untuned) == other.db.query(untuned)
    states = "SELECT digest FROM state ORDER BY round"
    assert whole.db.query(states) == other.db.query(states)


def test_validation_images_test_only_what_does_not_remember_them(whole: Run):
    found = set(whole.db.query("SELECT DISTINCT split, model FROM metric WHERE model != ''"))
    assert found == {("val", "untuned"), ("test", "untuned"), ("test", "remembering")}
    summary = summarise(whole)
    tested = whole.db.query("SELECT avg(value) FROM metric WHERE model = 'remembering'"
                            " AND name = 'accuracy' AND round = 3")  # fmt: skip
    assert summary["test_accuracy"]["mean"] == pytest.approx(tested[0][0])
    assert summary["val_selected"] is not None


def test_the_kept_model_has_the_clients_memory(whole: Run):
    data = load_federation(read_config(whole.path / CONFIG).data)
    for client in range(4):
        path = whole.path / "clients" / f"{client:03d}" / "weights.safetensors"
        kept = safetensors.torch.load_file(path)
        mine = [data.examples(client, split) for split in ("train", "val")]
        labels = torch.cat([some.labels[some.index] for some in mine])
        assert torch.equal(kept["labels"].argmax(1), labels)
        assert kept["features"].shape == (len(labels), 16)
        assert 1 <= kept["k"] <= 10 and 0 <= kept["share"] <= 1
        assert kept["network.head.weight"].shape == (10, 16)


def test_new_clients_remember_their_own(whole: Run, tmp_path: Path):
    new = onboard(whole.path, tmp_path / "new")
    models = {m for (m,) in new.db.query("SELECT model FROM metric WHERE client = 4")}
    assert models == {"untuned", "remembering"}
    assert list(summarise(new)["test_accuracy"]["per_client"]) == [4]
