"""A store that keeps batch norm's statistics: windows like weights, measured by whoever trains."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedtailor.core.types import Client, Setting, Tensors
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import network_of
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import Store, coverage, full_shapes, shapes, usage, view
from fedtailor.spaces.darts import DARTS
from fedtailor.training import learn
from fedtailor.training.evaluate import evaluate
from fedtailor.training.population import population_scores
from fedtailor.training.supernet import SupernetTrainer
from tests.helpers.tiny_space import Tiny

SPACES = [Tiny(), DARTS(channels=4, cells=3, affine=True)]


def setting_of(client: Client, space: Tiny | DARTS) -> Setting:
    return Setting(client.setting.task, space, 1, 0)


def store_of(setting: Setting) -> Store:
    return Store(setting.space, setting.task, initial_supernet(setting, statistics=True))


def only_statistics(weights: Tensors) -> Tensors:
    return {name: weight for name, weight in weights.items() if is_statistic(name)}


@pytest.mark.parametrize("space", SPACES)
def test_first_statistics_are_those_of_all_networks(client: Client, space: Tiny | DARTS):
    setting = setting_of(client, space)
    first = initial_supernet(setting, statistics=True)
    plain = initial_supernet(setting)
    assert all(torch.equal(first[n], w) for n, w in plain.items())
    assert {n for n in first if n not in plain} == {n for n in first if is_statistic(n)}
    assert {n: tuple(w.shape) for n, w in first.items()} == full_shapes(space, setting.task, True)
    for arch in (space.smallest(), space.middle(), space.largest()):
        module = space.build(arch, setting.task)
        wanted = {n: tuple(b.shape) for n, b in module.named_buffers() if is_statistic(n)}
        found = shapes(space, arch, setting.task, statistics=True)
        assert {n: s for n, s in found.items() if is_statistic(n)} == wanted
    ones = {n for n, w in only_statistics(first).items() if w.eq(1).all()}
    assert ones == {n for n in first if n.endswith("running_var")}


@pytest.mark.parametrize("space", SPACES)
def test_training_measures_the_windows_of_what_trains_and_no_others(
    client: Client, space: Tiny | DARTS
):
    """The same as a network of its own that starts from what was cut."""
    setting = setting_of(client, space)
    store, arch = store_of(setting), space.smallest()
    torch.manual_seed(0)
    for name, weight in only_statistics(store.weights).items():
        weight.uniform_(0.5, 1.5)
        assert store.weights[name] is weight
    before, batch = store.copy(), next(learn.batches(client, 16, purpose="any"))
    alone = network_of(space, arch, setting.task, store.cut(arch))
    torch.manual_seed(1)
    alone.module(batch.images)
    torch.manual_seed(1)
    store.bind(arch)(batch.images)
    after, wanted = store.copy(), alone.weights()
    for name, statistic in only_statistics(after).items():
        if name not in wanted:
            assert torch.equal(statistic, before[name]), "another network's"
            continue
        window = tuple(wanted[name].shape)
        assert torch.equal(view(statistic, window), wanted[name])
        outside = torch.ones(statistic.shape, dtype=torch.bool)
        view(outside, window).fill_(False)
        assert torch.equal(statistic[outside], before[name][outside])
    assert any(not torch.equal(t, before[n]) for n, t in only_statistics(after).items())


@pytest.mark.parametrize("space", SPACES)
def test_usage_counts_their_windows_too(client: Client, space: Tiny | DARTS):
    """A network's own vectors, built on their own, are the first entries of the supernet's."""
    task, small, large = client.setting.task, space.smallest(), space.largest()
    counted = usage(space, {small: 2, large: 5}, task, statistics=True)
    expected = {n: torch.zeros(s) for n, s in full_shapes(space, task, True).items()}
    for arch, times in ((small, 2), (large, 5)):
        for name, buffer in space.build(arch, task).named_buffers():
            if is_statistic(name):
                expected[name][: len(buffer)] += times
    found = only_statistics(counted)
    assert found.keys() == only_statistics(expected).keys() and found
    assert all(torch.equal(count, expected[name].int()) for name, count in found.items())
    assert len({int(entry) for count in found.values() for entry in count.unique()}) > 1
    plain = usage(space, {small: 2, large: 5}, task)
    assert counted.keys() - found.keys() == plain.keys()
    assert all(torch.equal(count, counted[name]) for name, count in plain.items())
    masks = coverage(space, [small, large], task, statistics=True)
    assert all(torch.equal(mask, counted[name] > 0) for name, mask in masks.items())
    assert masks.keys() == counted.keys()


@pytest.mark.parametrize("space", SPACES)
def test_binding_again_keeps_them(client: Client, space: Tiny | DARTS):
    setting = setting_of(client, space)
    store, batch = store_of(setting), next(learn.batches(client, 16, purpose="any"))
    store.bind(space.middle())(batch.images)
    seen = store.copy()
    for arch in (space.middle(), space.smallest(), space.largest(), space.middle()):
        store.bind(arch)
    assert all(torch.equal(w, seen[n]) for n, w in store.copy().items())


def test_a_store_without_statistics_resets_them_as_ever(client: Client):
    setting = setting_of(client, SPACES[0])
    store = Store(setting.space, setting.task, initial_supernet(setting))
    batch = next(learn.batches(client, 16, purpose="any"))
    assert not store.keeps_statistics
    model = store.bind(setting.space.middle())
    model(batch.images)
    assert any(b.ne(0).any() for n, b in model.named_buffers() if n.endswith("running_mean"))
    again = store.bind(setting.space.middle())
    assert all(b.eq(0).all() for n, b in again.named_buffers() if n.endswith("running_mean"))
    assert not any(is_statistic(name) for name in store.cut(setting.space.middle()))


def test_many_architectures_of_a_round_measure_together(client: Client):
    """A trainer's architectures share windows: the statistics are the moving mean over all."""
    setting = setting_of(client, SPACES[0])
    store, space = store_of(setting), SPACES[0]
    small, large = space.smallest(), space.largest()
    trainer = SupernetTrainer(
        replace(client, setting=setting), store, learn.Recipe(batch=16, lr=1e-9), lr=1e-9
    )
    seen = []
    stem = "layer0.norm.running_mean"
    for batch in trainer.batches(1):
        for network in trainer.bind((small, large)):
            hook = network.module.get_submodule("layer0.conv").register_forward_hook(
                lambda _, __, out: seen.append(out.detach())
            )
            network.loss(batch).backward()
            hook.remove()
        break
    mean = torch.zeros(store.weights[stem].shape)
    for out in seen:
        width = out.shape[1]
        mean[:width] = 0.9 * mean[:width] + 0.1 * out.mean((0, 2, 3))
    assert torch.allclose(store.weights[stem], mean, atol=1e-6)


@pytest.mark.parametrize("space", SPACES)
def test_a_population_is_tested_with_what_is_kept_and_leaves_it_alone(
    client: Client, space: Tiny | DARTS
):
    setting = setting_of(client, space)
    store = store_of(setting)
    for batch in learn.batches(client, 16, purpose="any"):
        store.bind(space.largest())(batch.images)
        store.bind(space.smallest())(batch.images)
    before = store.copy()
    archs = [space.smallest(), space.middle(), space.largest()]
    kept = population_scores(store, archs, client.test, "accuracy", kept=True)
    for arch, accuracy in zip(archs, kept, strict=True):
        alone = network_of(space, arch, setting.task, store.cut(arch))
        assert evaluate(alone, client.test)["accuracy"] == pytest.approx(accuracy)
    score = partial(population_scores, store, archs, client.test, "likelihood")
    assert score() != pytest.approx(score(calibration=client.train))
    assert all(torch.equal(w, before[n]) for n, w in store.copy().items())
