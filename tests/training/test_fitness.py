"""How a client's architectures are scored, however few images it has."""

import functools
import math
from dataclasses import replace

import pytest
import torch

from fedtailor.core import registry
from fedtailor.core.space import Task
from fedtailor.core.types import Client, ClientInfo, Examples, Meter, Setting, Tensors
from fedtailor.data.batches import batch
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import network_of
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.training import learn
from fedtailor.training.fitness import fitness, fitness_of_kinds
from fedtailor.training.population import population_scores

TASK = Task((3, 16, 16), 4)
SMALL = {
    "mobilenetv3": {"resolution": 16},
    "darts": {"resolution": 4},
    "nasvit": {"resolutions": (8, 9, 10, 11)},
}  # so small that maps shrink to a single pixel
NAMES = list(SMALL)


def examples(count: int, seed: int) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *TASK.shape), generator=rng).to(torch.uint8)
    labels = torch.randint(TASK.classes, (count,), generator=rng)
    return Examples(images, labels, torch.arange(count), (0.5,) * 3, (0.25,) * 3)


@functools.cache
def setting_of(name: str) -> Setting:
    kind = registry.find("space", name)
    return Setting(TASK, kind(**kind.presets["cpu"] | SMALL[name]), rounds=1, seed=0)


@functools.cache
def weights_of(name: str, statistics: bool = False) -> Tensors:
    rng = torch.Generator().manual_seed(1)
    first = initial_supernet(setting_of(name), statistics)
    opened = {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in first.items()}
    return {n: w.abs() if n.endswith("running_var") else w for n, w in opened.items()}


def store_of(name: str, statistics: bool = False) -> Store:
    setting = setting_of(name)
    return Store(setting.space, TASK, weights_of(name, statistics))


def client_with(name: str, train: int, val: int) -> Client:
    return Client(
        setting_of(name),
        ClientInfo(0, train),
        1,
        examples(train, 2),
        examples(val, 3),
        examples(1, 4),
    )


def some(name: str) -> list[tuple[int, ...]]:
    return genes.sample_many(setting_of(name).space, 2, torch.Generator().manual_seed(5))


@pytest.mark.parametrize("val", [7, 8])
def test_statistics_are_of_the_images_themselves_or_of_training_images(val: int):
    """Of 300 training images 256 count."""
    client, store, archs = (
        client_with("mobilenetv3", 300, val),
        store_of("mobilenetv3"),
        some(NAMES[0]),
    )
    few, meter = None, Meter()
    if val == 7:
        few = replace(client.train, index=torch.arange(256))
    found = fitness(client, store, archs, "likelihood", client.val)
    assert found == population_scores(
        store, archs, client.val, "likelihood", calibration=few, meter=meter
    )
    assert client.meter.macs == meter.macs
    accuracies = fitness(client, store, archs, "accuracy", client.val)
    kinds = fitness_of_kinds(client, store, archs, ("accuracy", "likelihood"), client.val)
    assert kinds == [accuracies, found] and client.meter.macs == 3 * meter.macs, "by one walk"
    macs = cost.forward_macs(store.space, archs[0], TASK)
    alone = replace(client, meter=Meter())
    fitness(alone, store, archs[:1], "accuracy", client.val)
    assert alone.meter.macs == macs * (263 if val == 7 else 8)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("statistics", [False, True])
def test_two_training_images_and_one_to_judge_by(name: str, statistics: bool):
    client, store, archs = client_with(name, 2, 1), store_of(name, statistics), some(name)
    found = fitness(client, store, archs, "likelihood", client.val)
    for arch, likelihood in zip(archs, found, strict=True):
        alone = network_of(store.space, arch, TASK, store.cut(arch))
        learn.recalibrate(alone, client.train)
        assert likelihood == pytest.approx(-learn.evaluate(alone, client.val)["loss"], rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("statistics", [False, True])
def test_one_training_image_and_one_to_judge_by(name: str, statistics: bool):
    """The statistics that the store keeps, or those that a network begins with."""
    client, store, archs = client_with(name, 1, 1), store_of(name, statistics), some(name)
    found = fitness(client, store, archs, "likelihood", client.val)
    for arch, likelihood in zip(archs, found, strict=True):
        alone = network_of(store.space, arch, TASK, store.cut(arch)).module.eval()
        images, labels = batch(client.val, torch.arange(1), None, "cpu")
        with torch.no_grad():
            truth = alone(images).softmax(1)[0, labels[0]]
        assert likelihood == pytest.approx(math.log(truth), rel=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_single_image_has_no_statistics_of_its_own(name: str):
    """So the tests above are of something."""
    for few in (None, examples(1, 2)):
        with pytest.raises(ValueError, match="more than 1 value per channel"):
            population_scores(
                store_of(name), some(name), examples(1, 3), "accuracy", calibration=few
            )
