"""Evaluating a population at once against one network at a time."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Client, Examples, Meter, Setting, Tensors
from fedtailor.data.batches import batch, chunks
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network, network_of
from fedtailor.networks.norms import norms_of
from fedtailor.networks.pieces import pieces_of
from fedtailor.networks.store import Store
from fedtailor.search import genes
from fedtailor.training import evaluate as testing
from fedtailor.training import learn, population
from fedtailor.training.population import population_scores, scores_of_kinds, walk
from fedtailor.training.supernet import SupernetTrainer

TASK = Task((3, 16, 16), 4)
NAMES = [n for n in registry.names("space") if registry.find("space", n)().choices]


def examples(count: int, seed: int) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *TASK.shape), generator=rng).to(torch.uint8)
    labels = torch.randint(TASK.classes, (count,), generator=rng)
    order = torch.randperm(count, generator=rng)
    return Examples(images, labels, order, (0.5,) * 3, (0.25,) * 3)


MODES: dict[str, dict[str, Any]] = {
    "batch": {},
    "calibrated": {"calibration": examples(11, 4)},
    "kept": {"kept": True},
}
IN_EACH_MODE = pytest.mark.parametrize("mode", MODES)


@functools.cache
def _weights(name: str, statistics: bool) -> tuple[SearchSpace, Tensors]:
    kind = registry.find("space", name)
    space = kind(**kind.presets["cpu"])
    weights = initial_supernet(Setting(TASK, space, 1, 0), statistics)
    rng = torch.Generator().manual_seed(1)
    opened = {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in weights.items()}
    return space, {n: w.abs() if n.endswith("running_var") else w for n, w in opened.items()}


def store_of(name: str, mode: str = "batch") -> Store:
    space, weights = _weights(name, mode == "kept")
    return Store(space, TASK, weights)


def some(space: SearchSpace) -> list[Arch]:
    """Return a population that shares prefixes, with an architecture that occurs twice."""
    rng = torch.Generator().manual_seed(2)
    parent = genes.sample(space, rng)
    near = [genes.mutate(space, parent, rng, 0.05) for _ in range(4)]
    return [parent, *near, genes.sample(space, rng), parent]


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of 5, of which 2 are held at once."""
    for module in (testing, population):
        monkeypatch.setattr(module, "EVALUATION_BATCH", 5)
    monkeypatch.setattr(population, "HELD", 2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_batches")
def test_recalibrated_is_the_same_to_the_bit_as_one_by_one(name: str):
    """Several batches of each: 5, 5 and 2; 5 and 6."""
    store, tested, few = store_of(name), examples(12, 3), examples(11, 4)
    archs = some(store.space)
    together = dict(walk(store, archs, tested, few))
    for number, arch in enumerate(archs):
        model = store.bind(arch)
        learn.recalibrate(Network(model, store.space, store.task), few)
        with torch.inference_mode():
            alone = [model(batch(tested, rows, None, "cpu")[0]) for rows in chunks(tested, 5)]
        assert torch.equal(together[number], torch.cat(alone))


@pytest.mark.parametrize("name", NAMES)
def test_with_batch_statistics_it_is_the_training_mode_without_dropout(name: str):
    store, tested = store_of(name), examples(12, 3)
    archs = some(store.space)
    together = dict(walk(store, archs, tested))
    images = batch(tested, torch.arange(12), None, "cpu")[0]
    for number, arch in enumerate(archs):
        model = _by_batch(store.bind(arch))
        with torch.inference_mode():
            assert torch.equal(together[number], model(images))


def _by_batch(model: nn.Module) -> nn.Module:
    model.eval()
    for part in model.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.train()
    return model


@pytest.mark.parametrize("name", NAMES)
@IN_EACH_MODE
@pytest.mark.usefixtures("small_batches")
def test_scores_are_those_of_networks_that_are_built_one_by_one(name: str, mode: str):
    """Batches of 5, 5, 5, 5 and 3, which go through the trie by twos."""
    store, tested = store_of(name, mode), examples(23, 3)
    archs = some(store.space)[3:6]
    accuracies = population_scores(store, archs, tested, "accuracy", **MODES[mode])
    likelihoods = population_scores(store, archs, tested, "likelihood", **MODES[mode])
    for arch, accuracy, likelihood in zip(archs, accuracies, likelihoods, strict=True):
        right, total = _alone(store, arch, tested, mode)
        assert accuracy == pytest.approx(right / 23)
        assert likelihood == pytest.approx(total / 23, rel=1e-3)
    assert len(set(likelihoods)) == 3


def _alone(store: Store, arch: Arch, tested: Examples, mode: str) -> tuple[int, float]:
    """Return the number of right answers and the sum of the true classes' log-probabilities."""
    network = network_of(store.space, arch, TASK, store.cut(arch))
    if mode == "batch":
        _by_batch(network.module)
    elif mode == "kept":
        network.module.eval()
    else:
        learn.recalibrate(network, MODES[mode]["calibration"])
    right, total = 0, 0.0
    with torch.inference_mode():
        for rows in torch.arange(len(tested)).split(5):
            images, labels = batch(tested, rows, None, "cpu")
            chances = network.module(images).softmax(1)
            right += int((chances.argmax(1) == labels).sum())
            total += float(chances[torch.arange(len(rows)), labels].log().sum())
    return right, total


@pytest.mark.parametrize("name", NAMES)
@IN_EACH_MODE
@pytest.mark.usefixtures("small_batches")
def test_scores_do_not_hang_on_how_many_images_are_held(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
):
    """To the bit; and the logits of all images at once say the same."""
    store, tested = store_of(name, mode), examples(23, 3)
    archs, labels = some(store.space)[3:6], tested.labels[tested.index]
    found = []
    for held in (1, 2, 99):
        monkeypatch.setattr(population, "HELD", held)
        found.append(population_scores(store, archs, tested, "likelihood", **MODES[mode]))
    assert found[0] == found[1] == found[2]
    whole = dict(walk(store, archs, tested, **MODES[mode]))
    each = [-F.cross_entropy(whole[n], labels, reduction="none") for n in range(len(archs))]
    assert found[0] == [values.mean().item() for values in each]


@IN_EACH_MODE
@pytest.mark.usefixtures("small_batches")
def test_scores_of_several_kinds_take_one_walk(mode: str):
    store, tested, meters = store_of("darts", mode), examples(23, 3), (Meter(), Meter())
    archs = some(store.space)[3:6]
    both = scores_of_kinds(
        store, archs, tested, ("likelihood", "accuracy"), meter=meters[0], **MODES[mode]
    )
    alone = population_scores(store, archs, tested, "accuracy", meter=meters[1], **MODES[mode])
    assert both == [population_scores(store, archs, tested, "likelihood", **MODES[mode]), alone]
    assert meters[0].macs == meters[1].macs > 0


def test_no_calibration_image_is_mean_0_and_variance_1():
    store, tested = store_of("mobilenetv3"), examples(12, 3)
    archs, nothing = some(store.space), replace(tested, index=tested.index[:0])
    found = population_scores(store, archs, tested, "likelihood", calibration=nothing)
    for arch, likelihood in zip(archs, found, strict=True):
        alone = network_of(store.space, arch, TASK, store.cut(arch))
        assert likelihood == pytest.approx(-learn.evaluate(alone, tested)["loss"], rel=1e-3)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """List for every piece that is computed how many images it measures and judges."""
    found: list[tuple[int, int]] = []
    through = population._Trie._through

    def counted(self: Any, piece: Any, place: Any, states: list[list[Any]]) -> list[list[Any]]:
        sizes = [sum(len(_first(state)) for state in some) for some in states]
        found.append((sizes[0], sizes[1]))
        return through(self, piece, place, states)

    monkeypatch.setattr(population._Trie, "_through", counted)
    return found


def _first(state: Any) -> Tensor:
    return state[0] if isinstance(state, tuple) else state


def test_what_is_shared_is_computed_once(passes: list[tuple[int, int]]):
    store = store_of("mobilenetv3")
    archs = some(store.space)
    population_scores(store, archs, examples(4, 3), "accuracy")
    chains = [pieces_of(store.space, arch, TASK) for arch in archs]
    prefixes = {chain[: n + 1] for chain in chains for n in range(len(chain))}
    assert passes == [(0, 4)] * len(prefixes)
    assert len(prefixes) < sum(len(chain) for chain in chains)


@pytest.mark.usefixtures("small_batches")
def test_few_images_are_held_and_each_is_measured_once(passes: list[tuple[int, int]]):
    store, arch = store_of("mobilenetv3"), _weights("mobilenetv3", False)[0].smallest()
    pieces = len(pieces_of(store.space, arch, TASK))
    population_scores(store, [arch], examples(23, 3), "accuracy", calibration=examples(11, 4))
    assert passes == [(11, 10)] * pieces + [(0, 10)] * pieces + [(0, 3)] * pieces


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("small_batches")
def test_charged_is_what_torch_counts(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(population, "HELD", 1)
    store, meter = store_of(name), Meter()
    archs, tested, few = some(store.space)[::3], examples(7, 3), examples(3, 4)
    score = functools.partial(population_scores, store, archs, tested, "accuracy", calibration=few)
    score(meter=meter)
    with FlopCounterMode(display=False) as counter:
        score()
    assert meter.macs == counter.get_total_flops() / 2
    macs = [cost.forward_macs(store.space, arch, TASK) for arch in archs]
    assert max(macs) * 10 < meter.macs < sum(macs) * 10


@IN_EACH_MODE
@pytest.mark.usefixtures("small_batches")
def test_one_architecture_costs_what_its_forward_passes_do(mode: str):
    store, meter = store_of("mobilenetv3", mode), Meter()
    arch, images = store.space.smallest(), 23 + (11 if mode == "calibrated" else 0)
    for _ in range(2):
        population_scores(store, [arch], examples(23, 3), "accuracy", meter=meter, **MODES[mode])
    assert meter.macs == 2 * images * cost.forward_macs(store.space, arch, TASK)


def _state(store: Store, model: nn.Module) -> Iterator[Any]:
    """Tell all that a population's test might change."""
    yield {name: _bytes(weight) for name, weight in store.weights.items()}
    yield {name: (id(b), _bytes(b)) for name, b in model.named_buffers()}
    yield {name: part.training for name, part in model.named_modules()}
    yield [(norm.momentum, norm.track_running_stats) for norm in norms_of(model)]


def _bytes(tensor: Tensor) -> bytes:
    return tensor.contiguous().numpy().tobytes()


def _in_use(store: Store, arch: Arch) -> nn.Module:
    """Return a bound network that has seen images and stands in mixed modes."""
    model = store.bind(arch)
    model(batch(examples(8, 6), torch.arange(8), None, "cpu")[0])
    for number, part in enumerate(model.modules()):
        part.training = number % 3 == 0
    return model


@pytest.mark.parametrize("name", ["mobilenetv3", "darts"])
@IN_EACH_MODE
def test_it_leaves_everything_as_it_was(name: str, mode: str):
    store = store_of(name, mode)
    archs = some(store.space)
    model = _in_use(store, archs[0])
    before = list(_state(store, model))
    population_scores(store, archs, examples(9, 3), "accuracy", **MODES[mode])
    list(walk(store, archs, examples(9, 3), **MODES[mode]))
    assert list(_state(store, model)) == before


@IN_EACH_MODE
@pytest.mark.parametrize("fatal", [1, 3])
@pytest.mark.usefixtures("small_batches")
def test_it_leaves_everything_as_it_was_even_if_a_module_raises(mode: str, fatal: int):
    """At the first batch and at the third; of a calibration's two, the first and none."""
    store = store_of("mobilenetv3", mode)
    arch = store.space.smallest()
    model = _in_use(store, arch)
    before, calls = list(_state(store, model)), []

    def fail(*_: Any) -> None:
        calls.append(1)
        if len(calls) == fatal:
            raise RuntimeError("broken")

    hook = norms_of(model)[5].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        population_scores(store, [arch], examples(23, 3), "accuracy", **MODES[mode])
    hook.remove()
    assert list(_state(store, model)) == before


def test_outputs_that_are_not_finite_are_refused():
    space, weights = _weights("mobilenetv3", False)
    store = Store(space, TASK, {name: weight / 0 for name, weight in weights.items()})
    with pytest.raises(FloatingPointError, match="not finite"):
        population_scores(store, some(space), examples(9, 3), "accuracy")


def test_statistics_that_are_kept_must_be_there_and_alone():
    with pytest.raises(ValueError, match="statistics"):
        population_scores(store_of("darts"), [], examples(9, 3), "accuracy", kept=True)
    store, few = store_of("darts", "kept"), examples(4, 3)
    with pytest.raises(ValueError, match="statistics"):
        population_scores(store, [], few, "accuracy", kept=True, calibration=few)


def test_a_store_can_be_trained_after_a_population_was_tested(client: Client):
    store = store_of("mobilenetv3")
    weights = store.copy()
    population_scores(store, some(store.space), examples(4, 3), "accuracy")
    assert all(torch.equal(w, weights[n]) for n, w in store.weights.items())
    setting = replace(client.setting, space=store.space, task=TASK)
    trained = replace(client, setting=setting, train=examples(8, 5))
    small = (store.space.smallest(),)
    SupernetTrainer(trained, store, learn.Recipe(batch=4), lr=0.01).epochs(1, lambda rng: small)
    assert any(not torch.equal(w, weights[n]) for n, w in store.weights.items())
