"""Training a supernet: schemes, distillation, metering, and that it learns."""

import functools
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Client, Tensors
from fedtailor.data.batches import batch, epoch
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store, coverage, usage, view
from fedtailor.search import schemes
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato
from fedtailor.training import learn
from fedtailor.training.merge import Part, merge, pack_masks, unpack_masks, weighed
from fedtailor.training.optimise import SupernetOptimizer, gradients
from fedtailor.training.supernet import SupernetTrainer

SPACE = MobileNetV3Plato(width=0.25, resolution=8)


@pytest.fixture
def learner(client: Client) -> Client:
    """Return the client with a search space in its setting."""
    return replace(client, setting=replace(client.setting, space=SPACE))


def store_of(client: Client) -> Store:
    return Store(SPACE, client.setting.task, initial_supernet(client.setting))


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_overlapping_windows_against_an_optimiser_of_the_whole(learner: Client, kind: str):
    """Four steps of random architectures, two to a step: momentum and steps are per entry.

    Against a slow obvious version: every tensor full, every rule on masked entries.
    """
    store, rng = store_of(learner), torch.Generator().manual_seed(0)
    optimizer = SupernetOptimizer(store, kind, 0.9, 0.01, clip=1.0)  # pyright: ignore[reportArgumentType]
    full = {n: w.double() for n, w in store.copy().items()}
    state = {n: [torch.zeros_like(w) for _ in range(3)] for n, w in full.items()}
    images = torch.randn(4, *learner.setting.task.shape, generator=rng)
    labels = torch.arange(4) % learner.setting.task.classes
    for _ in range(4):
        archs = [schemes.single_path(SPACE, rng)[0] for _ in range(2)]
        models = [store.bind(arch) for arch in archs]
        for model in models:
            F.cross_entropy(model(images), labels).backward()
        total = {n: torch.zeros_like(w) for n, w in full.items()}
        seen = set()
        for model in models:
            for name, p in model.named_parameters():
                if id(p) not in seen and p.grad is not None:
                    seen.add(id(p))
                    view(total[name], tuple(p.shape)).add_(p.grad.double())
        masks = coverage(SPACE, archs, learner.setting.task)
        _whole_step(full, state, total, masks, kind)
        optimizer.step(models, 0.05)
    for name, weight in store.weights.items():
        assert torch.allclose(weight.double(), full[name], atol=1e-5, rtol=1e-4), name


def _whole_step(
    full: Tensors, state: dict[str, list[torch.Tensor]], total: Tensors, masks: Tensors, kind: str
) -> None:
    norm = torch.stack([g.norm() for g in total.values()]).norm()
    for name, gradient in total.items():
        g, w, on = gradient * min(1.0, 1.0 / (float(norm) + 1e-6)), full[name], masks[name]
        first, second, steps = state[name]
        if kind == "sgd":
            g = g + 0.01 * w
            first[on] = (0.9 * first + g)[on]
            w[on] = (w - 0.05 * first)[on]
        else:
            steps[on] += 1
            first[on] = (0.9 * first + 0.1 * g)[on]
            second[on] = (0.999 * second + 0.001 * g * g)[on]
            m, v = first / (1 - 0.9**steps), second / (1 - 0.999**steps)
            moved = w * (1 - 0.05 * 0.01) - 0.05 * m / (v.sqrt() + 1e-8)
            w[on] = moved[on]


@pytest.mark.parametrize("scheme", [schemes.single_path, schemes.sandwich, schemes.fair])
def test_every_scheme_trains_and_is_metered(learner: Client, scheme: object):
    """What was trained is told exactly, and paid for."""
    store, recipe = store_of(learner), learn.Recipe(batch=16, epochs=2)
    before = store.copy()
    draw = functools.partial(scheme, SPACE)  # pyright: ignore[reportArgumentType, reportCallIssue]
    found = SupernetTrainer(learner, store, recipe, lr=0.01)
    found.epochs(2, draw)
    task = learner.setting.task
    counted = usage(SPACE, found.times, task)
    for name, weight in store.weights.items():
        assert torch.equal(weight.cpu()[counted[name] == 0], before[name][counted[name] == 0])
    sizes = [len(rows) for rows in epoch(learner.train, 16, learner.rng("x"))]
    assert len(set(sizes)) <= 2
    spent = sum(cost.training_macs(SPACE, a, task) * n for a, n in found.times.items())
    assert learner.meter.macs == pytest.approx(spent * len(learner.train) / len(sizes), rel=0.2)


def test_the_same_seed_gives_the_same_bytes_whatever_was_bound_before(learner: Client):
    recipe, draw = learn.Recipe(batch=16), functools.partial(schemes.single_path, SPACE)
    stores = [store_of(learner) for _ in range(2)]
    for arch in (SPACE.largest(), SPACE.smallest(), SPACE.middle()):
        stores[1].bind(arch)
    for store in stores:
        SupernetTrainer(learner, store, recipe, lr=0.05).epochs(1, draw)
    first, second = (store.copy() for store in stores)
    assert all(torch.equal(first[n], second[n]) for n in first)


def test_single_paths_learn(learner: Client):
    """After a few epochs random architectures do better than before, and than chance."""
    store, recipe = store_of(learner), learn.Recipe(batch=16, epochs=30)
    draw = functools.partial(schemes.single_path, SPACE)
    losses = [SupernetTrainer(learner, store, recipe, lr=0.05).epochs(n, draw) for n in (1, 30)]
    assert losses[1] < 0.7 * losses[0]


def test_distillation_follows_the_first_networks_outputs(learner: Client):
    """One step by hand: the largest learns the labels, the smallest the largest's outputs."""
    archs = (SPACE.largest(), SPACE.smallest())
    store, other = store_of(learner), store_of(learner)
    one = replace(learner, train=replace(learner.train, index=learner.train.index[:8]))
    recipe = learn.Recipe(batch=8, momentum=0.0)
    trainer = SupernetTrainer(one, store, recipe, lr=0.1)
    for step in trainer.batches(1):
        networks = trainer.bind(archs)
        outputs = networks[0](step.images)
        F.cross_entropy(outputs, step.labels).backward()
        F.cross_entropy(networks[1](step.images), outputs.detach().softmax(1)).backward()
        trainer.move(networks)
    assert trainer.times == dict.fromkeys(archs, 1)
    rng = one.rng("train")
    (rows,) = epoch(one.train, 8, rng)
    images, labels = batch(one.train, rows, rng, "cpu")
    large, small = (other.bind(arch) for arch in archs)
    taught = large(images)
    F.cross_entropy(taught, labels).backward()
    target = taught.detach().softmax(1)
    loss = -(target * small(images).log_softmax(1)).sum(1).mean()
    loss.backward()
    SupernetOptimizer(other, "sgd", 0.0).step([large, small], 0.1)
    assert all(torch.allclose(w, other.weights[n], atol=1e-6) for n, w in store.weights.items())


def test_gradients_of_shared_pieces_count_once(learner: Client):
    store, arch = store_of(learner), SPACE.middle()
    images = torch.randn(4, *learner.setting.task.shape)
    models = [store.bind(arch), store.bind(arch)]
    for model in models:
        model(images).sum().backward()
    doubled = {p.name: p.gradient for p in gradients(models)}
    single = store.bind(arch)
    single(images).sum().backward()
    for name, p in single.named_parameters():
        assert torch.allclose(doubled[name], 2 * p.grad, rtol=1e-3, atol=1e-4)  # pyright: ignore[reportOperatorIssue]


def slow_merge(server: Tensors, parts: list[tuple[Tensors, Tensors]]) -> Tensors:
    """Return the weighted mean of differences by entry, from full tensors and their weights."""
    merged = {}
    for name, weight in server.items():
        flat = weight.flatten().double()
        result = flat.clone()
        for i in range(len(flat)):
            say = [(p[0][name].flatten()[i], p[1][name].flatten()[i]) for p in parts]
            total = sum(float(w) for _, w in say)
            if total:
                change = sum(float(w) * (float(x) - float(flat[i])) for x, w in say)
                result[i] = flat[i] + change / total
        merged[name] = result.view(weight.shape)
    return merged


@pytest.mark.parametrize("rule", ["count", "count_samples", "frequency", "fedavg"])
def test_merge_rules_against_a_loop_over_entries(rule: str):
    """Two clients with windows, one with a mask that is no window."""
    rng = torch.Generator().manual_seed(0)
    server = {"a": torch.randn(4, 3, generator=rng), "b": torch.randn(2, 1, 3, 3, generator=rng)}
    windows = [
        {"a": torch.randn(2, 3, generator=rng), "b": torch.randn(2, 1, 1, 1, generator=rng)},
        {"a": torch.randn(4, 1, generator=rng)},
    ]
    trained = {n: torch.randn(w.shape, generator=rng) for n, w in server.items()}
    times = {n: torch.randint(0, 3, w.shape, generator=rng) for n, w in server.items()}
    trained = {n: torch.where(times[n] > 0, trained[n], server[n]) for n in server}
    examples, batches = (10, 30, 60), (4.0, 2.0)
    parts = [
        weighed(rule, windows[0], examples[0], batches[0]),  # pyright: ignore[reportArgumentType]
        weighed(rule, windows[1], examples[1], batches[1]),  # pyright: ignore[reportArgumentType]
        weighed(rule, trained, examples[2], times),  # pyright: ignore[reportArgumentType]
    ]
    slow = []
    for k, (given, count) in enumerate([(windows[0], 4.0), (windows[1], 2.0), (trained, times)]):
        full = {n: w.clone() for n, w in server.items()}
        often = {n: torch.zeros_like(w) for n, w in server.items()}
        for name, tensor in given.items():
            view(full[name], tuple(tensor.shape)).copy_(tensor)
            own = count[name].float() if isinstance(count, dict) else count
            view(often[name], tuple(tensor.shape)).copy_(torch.as_tensor(own))
        on = {n: (o > 0).float() for n, o in often.items()}
        say = {
            "count": on,
            "count_samples": {n: examples[k] * o for n, o in on.items()},
            "frequency": often,
            "fedavg": {n: torch.full_like(o, examples[k]) for n, o in on.items()},
        }[rule]
        slow.append((full, say))
    merged, expected = merge(server, parts), slow_merge(server, slow)
    for name in server:
        assert torch.allclose(merged[name].double(), expected[name], atol=1e-6)


def test_numbers_and_other_precisions_are_merged_too():
    server = {"n": torch.tensor(2.0), "d": torch.ones(3, dtype=torch.float64)}
    client = {"n": torch.tensor(4.0), "d": torch.full((2,), 5.0, dtype=torch.float64)}
    merged = merge(server, [Part(client), Part({"n": torch.tensor(2.0)}, 3.0)])
    assert merged["n"] == 2.5 and merged["d"].tolist() == [5.0, 5.0, 1.0]
    assert merged["d"].dtype == torch.float64


def test_a_negative_zero_survives_a_merge():
    server = {"a": torch.tensor([-0.0, 0.0, 1.0])}
    merged = merge(server, [Part({"a": server["a"].clone()}, 3.0), Part({"a": server["a"][:2]})])
    assert torch.signbit(merged["a"]).tolist() == [True, False, False]


def test_masks_travel_as_bits():
    masks: Tensors = coverage(SPACE, [SPACE.smallest()], _task())
    packed = pack_masks(masks)
    assert all(packed[n].numel() == -(-m.numel() // 8) for n, m in masks.items())
    back = unpack_masks(packed, masks)
    assert all(torch.equal(back[n], m) for n, m in masks.items())


def _task() -> Task:
    return Task((3, 8, 8), 4)


def test_coverage_is_the_union_of_windows():
    archs: list[Arch] = [SPACE.smallest(), SPACE.middle()]
    union = coverage(SPACE, archs, _task())
    each = [coverage(SPACE, [arch], _task()) for arch in archs]
    assert all(torch.equal(m, each[0][n] | each[1][n]) for n, m in union.items())
    boxes = [m for m in union.values() if m.any() and not m.all()]
    assert boxes
