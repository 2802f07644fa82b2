"""Testing a network: every image once, in evaluation mode, and scores as others compute them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn import metrics
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.types import Client, Meter, Setting
from fedtailor.data.batches import batch
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network, network_of, weights_of
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import evaluate as testing
from fedtailor.training import learn
from fedtailor.training.evaluate import evaluate, recalibrate, scores


class Moody(nn.Module):
    """A network whose outputs depend on its mode: dropout and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(1)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(64, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.drop(self.norm(images)).flatten(1))


def test_evaluation_is_in_evaluation_mode_whatever_the_mode_before(client: Client):
    torch.manual_seed(0)
    model = Moody()
    network = Network(model, client.setting.space, client.setting.task)
    recalibrate(network, client.train)
    quiet = evaluate(network, client.test)
    statistics = weights_of(model)
    model.train()
    assert evaluate(network, client.test) == quiet
    assert all(torch.equal(w, statistics[n]) for n, w in weights_of(model).items())
    images, labels = batch(client.test, torch.arange(len(client.test)), None, "cpu")
    right = (model.eval()(images).argmax(1) == labels).float().mean().item()
    assert quiet["accuracy"] == pytest.approx(right)


def test_recalibration_leaves_evaluation_mode_and_the_momentum(client: Client):
    model = Moody()
    model.norm.momentum = 0.3
    recalibrate(Network(model.train(), client.setting.space, client.setting.task), client.train)
    assert not any(part.training for part in model.modules())
    assert model.norm.momentum == 0.3


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_scikit_learn(seed: int):
    rng = np.random.default_rng(seed)
    true, guess = rng.integers(0, 6, 40), rng.integers(0, 8, 40)
    confusion = np.zeros((8, 8), dtype=np.int64)
    np.add.at(confusion, (true, guess), 1)
    found = scores(confusion)
    present = sorted(set(true.tolist()))
    f1 = metrics.f1_score(true, guess, labels=present, average="macro")
    recall = metrics.recall_score(true, guess, labels=present, average="macro")
    assert found["accuracy"] == pytest.approx(metrics.accuracy_score(true, guess))
    assert found["balanced_accuracy"] == pytest.approx(recall)
    assert found["macro_f1"] == pytest.approx(f1)


def test_evaluation_counts_every_image_once(client: Client, monkeypatch: pytest.MonkeyPatch):
    setting = client.setting
    network = network_of(setting.space, (), setting.task, initial_weights(setting))
    whole = evaluate(network, client.train)
    images, labels = batch(client.train, torch.arange(len(client.train)), None, "cpu")
    with torch.no_grad():
        logits = network.module(images)
    assert whole["accuracy"] == pytest.approx((logits.argmax(1) == labels).float().mean().item())
    assert whole["loss"] == pytest.approx(F.cross_entropy(logits, labels).item(), rel=1e-5)
    monkeypatch.setattr(testing, "EVALUATION_BATCH", 7)
    pieces = evaluate(network, client.train)
    assert pieces == pytest.approx(whole, rel=1e-5)


def test_recalibration_is_the_mean_over_the_data_and_changes_only_statistics(client: Client):
    setting = Setting(client.setting.task, ResNet18(width=4), 10, 3)
    network = network_of(setting.space, (), setting.task, initial_weights(setting))
    with torch.no_grad():
        network.module.get_submodule("norm").running_mean.fill_(5)  # pyright: ignore
    before = network.weights()
    recalibrate(network, client.train)
    after = network.weights()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved and all(name.endswith(("running_mean", "running_var")) for name in moved)
    images, _ = batch(client.train, torch.arange(len(client.train)), None, "cpu")
    stem = network.module.get_submodule("stem")
    assert isinstance(stem, nn.Conv2d)
    assert torch.allclose(after["norm.running_mean"], stem(images).mean((0, 2, 3)), atol=1e-5)


def test_whoever_tests_or_recalibrates_is_charged_but_not_for_reports(client: Client):
    resnet = replace(client, setting=replace(client.setting, space=ResNet18()))
    weights = initial_weights(resnet.setting)
    each = cost.forward_macs(resnet.setting.space, (), resnet.setting.task)
    for step, images in (
        (lambda network: evaluate(network, resnet.val), len(resnet.val)),
        (lambda network: recalibrate(network, resnet.train), len(resnet.train)),
        (lambda network: evaluate(network, resnet.test, charged=False), 0),
    ):
        charged = replace(resnet, meter=Meter())
        step(learn.network(charged, weights))
        assert charged.meter.macs == each * images


def test_seen_and_unseen_labels_by_hand():
    """Of label 0 two of three are right, of 1 none of one, of 2 three of four; 3 has no images."""
    confusion = np.array([[2, 1, 0, 0], [1, 0, 0, 0], [0, 0, 3, 1], [0, 0, 0, 0]])
    found = testing.scores_apart(confusion, np.array([0, 3]))
    assert found == {"seen_accuracy": 2 / 3, "unseen_accuracy": 3 / 5}
    assert testing.scores_apart(confusion, np.arange(4)) == {"seen_accuracy": 5 / 8}
    assert testing.scores_apart(confusion, np.array([3])) == {"unseen_accuracy": 5 / 8}
