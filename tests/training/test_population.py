"""Evaluating a population at once against one network at a time."""

import functools
from dataclasses import replace

import pytest
import torch

from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Client, Examples, Setting
from fedtailor.data.batches import batch, chunks
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network
from fedtailor.networks.pieces import pieces_of
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.training import evaluate as testing
from fedtailor.training import learn, population
from fedtailor.training.population import population_accuracies, population_logits
from fedtailor.training.supernet import SupernetTrainer

TASK = Task((3, 16, 16), 4)
NAMES = [n for n in registry.names("space") if registry.find("space", n)().choices]


def examples(count: int, seed: int) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *TASK.shape), generator=rng).to(torch.uint8)
    labels = torch.randint(TASK.classes, (count,), generator=rng)
    return Examples(images, labels, torch.arange(count), (0.5,) * 3, (0.25,) * 3)


@functools.cache
def store_of(name: str) -> Store:
    kind = registry.find("space", name)
    space = kind(**kind.presets["cpu"])
    weights = initial_supernet(Setting(TASK, space, 1, 0))
    rng = torch.Generator().manual_seed(1)
    opened = {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in weights.items()}
    return Store(space, TASK, opened)


def some(space: SearchSpace) -> list[Arch]:
    """Return a population that shares prefixes, with an architecture that occurs twice."""
    rng = torch.Generator().manual_seed(2)
    parent = genes.sample(space, rng)
    near = [genes.mutate(space, parent, rng, 0.05) for _ in range(4)]
    return [parent, *near, genes.sample(space, rng), parent]


@pytest.mark.parametrize("name", NAMES)
def test_recalibrated_is_the_same_to_the_bit_as_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """Several batches of each: 5, 5 and 2; 5 and 6."""
    for module in (testing, population):
        monkeypatch.setattr(module, "EVALUATION_BATCH", 5)
    store, tested, few = store_of(name), examples(12, 3), examples(11, 4)
    archs = some(store.space)
    together = population_logits(store, archs, tested, few)
    for arch, logits in zip(archs, together, strict=True):
        model = store.bind(arch)
        learn.recalibrate(Network(model, store.space, store.task), few)
        with torch.inference_mode():
            alone = [model(batch(tested, rows, None, "cpu")[0]) for rows in chunks(tested, 5)]
        assert torch.equal(logits, torch.cat(alone))
    accuracies = population_accuracies(store, archs, tested, few)
    found = [learn.evaluate(_ready(store, arch, few), tested)["accuracy"] for arch in archs]
    assert accuracies == pytest.approx(found)


def _ready(store: Store, arch: Arch, few: Examples) -> Network:
    network = Network(store.bind(arch), store.space, store.task)
    learn.recalibrate(network, few)
    return network


@pytest.mark.parametrize("name", NAMES)
def test_with_batch_statistics_it_is_the_training_mode_without_dropout(name: str):
    store, tested = store_of(name), examples(12, 3)
    archs = some(store.space)
    together = population_logits(store, archs, tested)
    images = batch(tested, torch.arange(12), None, "cpu")[0]
    for arch, logits in zip(archs, together, strict=True):
        model = store.bind(arch).eval()
        for part in model.modules():
            if isinstance(part, torch.nn.BatchNorm2d):
                part.train()
        with torch.inference_mode():
            assert torch.equal(logits, model(images))


def test_what_is_shared_is_computed_once(monkeypatch: pytest.MonkeyPatch):
    store = store_of("mobilenetv3")
    archs = some(store.space)
    passes = []
    through = population._through
    monkeypatch.setattr(population, "_through", lambda *a: passes.append(1) or through(*a))
    population_logits(store, archs, examples(4, 3))
    chains = [pieces_of(store.space, arch, TASK) for arch in archs]
    prefixes = {chain[: n + 1] for chain in chains for n in range(len(chain))}
    assert len(passes) == len(prefixes) < sum(len(chain) for chain in chains)


def test_a_store_can_be_trained_after_a_population_was_tested(client: Client):
    store = store_of("mobilenetv3")
    weights = store.copy()
    population_logits(store, some(store.space), examples(4, 3))
    assert all(torch.equal(w, weights[n]) for n, w in store.weights.items())
    setting = replace(client.setting, space=store.space, task=TASK)
    trained = replace(client, setting=setting, train=examples(8, 5))
    small = (store.space.smallest(),)
    SupernetTrainer(trained, store, learn.Recipe(batch=4), lr=0.01).epochs(1, lambda rng: small)
    assert any(not torch.equal(w, weights[n]) for n, w in store.weights.items())
