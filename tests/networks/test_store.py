"""The supernet of every search space: windows, binding, training, merging, coverage."""

import functools

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.twins.ours import twin_of
from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Examples, Setting, Tensors
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network, load, network_of, weights_of
from fedtailor.networks.store import Store, coverage, full_shapes, shapes, usage, view
from fedtailor.search import genes
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training.evaluate import recalibrate
from fedtailor.training.merge import Part, merge
from fedtailor.training.optimise import SupernetOptimizer

TASK = Task((3, 32, 32), 5)
SEARCHED = [n for n in registry.names("space") if registry.find("space", n)().choices]
KINDS = {name: registry.find("space", name) for name in SEARCHED}
SPACES: dict[str, SearchSpace] = {n: kind(**kind.presets["cpu"]) for n, kind in KINDS.items()}
SPACES |= {
    "mobilenetv3 transforms": MobileNetV3(width=0.25, resolution=16, transforms=True),
    "darts relaxed": DARTS(channels=4, cells=3, resolution=8, operations="s2", form="relaxed"),
    "darts s1": DARTS(channels=4, cells=3, resolution=8, operations="s1"),
    "darts s3": DARTS(channels=4, cells=3, resolution=8, operations="s3"),
    "darts s5": DARTS(channels=4, cells=3, resolution=8, operations="s5"),
    "darts affine": DARTS(channels=4, cells=3, resolution=8, affine=True),
}
EACH = pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))


def archs_of(space: SearchSpace, count: int) -> list[Arch]:
    rng = torch.Generator().manual_seed(1)
    drawn = [genes.sample(space, rng) for _ in range(count)]
    return list(dict.fromkeys([space.smallest(), space.largest(), *drawn]))


@functools.cache
def first_weights(space: SearchSpace) -> Tensors:
    """Return weights of which none is 0, so that nothing hides behind a closed branch."""
    rng = torch.Generator().manual_seed(2)
    found = initial_supernet(Setting(TASK, space, 1, 0))
    return {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in found.items()}


def store_of(space: SearchSpace) -> Store:
    return Store(space, TASK, first_weights(space))


def batch() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(3)
    images = torch.randn(8, *TASK.shape, generator=rng)
    images = images.contiguous(memory_format=torch.channels_last)
    return images, torch.randint(TASK.classes, (8,), generator=rng)


def train_bound(store: Store, arch: Arch, optimizer: SupernetOptimizer, steps: int = 1) -> None:
    images, labels = batch()
    for _ in range(steps):
        model = store.bind(arch)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step([model], 0.05)


def test_windows_lead_in_channels_and_centre_in_kernels():
    full = torch.arange(8 * 6 * 7 * 7).view(8, 6, 7, 7)
    for layout in (torch.contiguous_format, torch.channels_last):
        tensor = full.contiguous(memory_format=layout)[1:, 1:]
        found = view(tensor, (4, 5, 3, 5))
        assert torch.equal(found, tensor[:4, :5, 2:5, 1:6])
        assert found.data_ptr() != tensor.data_ptr() and view(tensor, (7, 5, 7, 7)) is tensor
    assert view(torch.arange(9), (4,)).tolist() == [0, 1, 2, 3]
    for shape in ((10,), (3, 3)):
        with pytest.raises(ValueError, match="has no window"):
            view(torch.arange(9), shape)


@EACH
def test_the_cover_covers(space: SearchSpace):
    """No architecture has a name or an entry that the supernet lacks."""
    full = full_shapes(space, TASK)
    for arch in archs_of(space, 60):
        for name, shape in shapes(space, arch, TASK).items():
            assert len(shape) == len(full[name])
            assert all(map(int.__le__, shape, full[name])), name
            assert all((a - b) % 2 == 0 for a, b in zip(full[name][2:], shape[2:], strict=True))


@pytest.mark.parametrize("name", SEARCHED)
def test_forward_is_that_of_an_independent_static_network(name: str):
    """Of the plain forms: kernel transforms and relaxed cells have tests beside their spaces."""
    space = SPACES[name]
    store, (images, _) = store_of(space), batch()
    for arch in archs_of(space, 6):
        twin = twin_of(space, arch, TASK, store.cut(arch)).double().train()
        model = _double(store, arch)
        for module in (twin, model):
            for part in module.modules():
                if isinstance(part, torch.nn.Dropout) or hasattr(part, "dropout"):
                    part.eval()
        ours, theirs = model(images.double()), twin(images.double().contiguous())
        assert torch.allclose(ours, theirs, rtol=1e-6, atol=1e-8)


def _double(store: Store, arch: Arch) -> torch.nn.Module:
    """Return a network of an architecture in double precision, with the store's weights."""
    model = store.space.build(arch, store.task).double().train()
    load(model, store.cut(arch))
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@EACH
def test_a_bound_network_computes_what_its_cut_does(space: SearchSpace):
    store, (images, _) = store_of(space), batch()
    setting = Setting(TASK, space, 1, 0)
    for arch in archs_of(space, 4):
        bound = store.bind(arch).eval()
        cut = network_of(setting.space, arch, setting.task, store.cut(arch)).module.eval()
        with torch.no_grad():
            assert torch.allclose(bound(images), cut(images), rtol=1e-4, atol=1e-5)


@EACH
def test_merging_untouched_cuts_is_the_identity_to_the_bit(space: SearchSpace):
    server = first_weights(space)
    store = store_of(space)
    parts = [
        Part(store.cut(arch), weight)
        for arch, weight in zip(archs_of(space, 5), (3.0, 1.0, 0.3, 7.0), strict=False)
    ]
    for part in (parts, [Part(p.weights, p.weight, everywhere=True) for p in parts]):
        merged = merge(server, iter(part))
        assert list(merged) == list(server)
        assert all(torch.equal(bits(merged[n]), bits(server[n])) for n in server)


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@EACH
def test_what_one_client_alone_trained_moves_by_its_full_update(space: SearchSpace):
    """Under `count`: the mean of those who trained an entry; others keep the server's value."""
    server, store = first_weights(space), store_of(space)
    first, second = space.smallest(), space.largest()
    cuts = [
        {n: w + step for n, w in store.cut(arch).items()}
        for arch, step in ((first, 1.0), (second, 2.0))
    ]
    merged = merge(server, [Part(cut) for cut in cuts])
    small, large = (coverage(space, [arch], TASK) for arch in (first, second))
    for name, weight in server.items():
        moved = torch.zeros_like(weight)
        moved[small[name]] = 1.0
        moved[large[name]] = 2.0
        moved[small[name] & large[name]] = 1.5
        assert torch.allclose(merged[name] - weight, moved, atol=1e-5), name


@EACH
@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_training_a_bound_network_changes_exactly_its_coverage(space: SearchSpace, kind: str):
    """With momentum and decay, after others were trained: what is not its own stays as it was."""
    store = store_of(space)
    optimizer = SupernetOptimizer(store, kind, weight_decay=0.1)  # pyright: ignore[reportArgumentType]
    train_bound(store, space.largest(), optimizer)
    for arch in archs_of(space, 2):
        before = store.copy()
        train_bound(store, arch, optimizer)
        covered = coverage(space, [arch], TASK)
        for name, weight in store.weights.items():
            changed = weight != before[name]
            assert not (changed & ~covered[name]).any(), name
        total = sum(int(m.sum()) for m in covered.values())
        moved = sum(int((w != before[n]).sum()) for n, w in store.weights.items())
        assert moved > 0.98 * total, "all that it has is trained"


@EACH
def test_a_bound_network_trains_like_its_cut(space: SearchSpace):
    """Three steps with momentum and decay, against torch's own optimiser on separate weights."""
    arch = archs_of(space, 3)[-1]
    images, labels = batch()
    for kind in ("sgd", "adamw"):
        store = store_of(space)
        optimizer = SupernetOptimizer(store, kind, 0.9, 0.01)  # pyright: ignore[reportArgumentType]
        model = network_of(space, arch, TASK, store.cut(arch)).module
        plain = (
            torch.optim.SGD(model.parameters(), 0.005, momentum=0.9, weight_decay=0.01)
            if kind == "sgd"
            else torch.optim.AdamW(model.parameters(), 0.005, weight_decay=0.01)
        )
        for network in (store.bind(arch), model):
            for part in network.modules():
                if hasattr(part, "dropout"):
                    part.dropout = 0.0  # pyright: ignore[reportArgumentType]
        for _ in range(3):
            bound = store.bind(arch)
            F.cross_entropy(bound(images), labels).backward()
            optimizer.step([bound], 0.005)
            plain.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            plain.step()
        ours, theirs = store.cut(arch), weights_of(model)
        start = {n: view(first_weights(space)[n], tuple(w.shape)) for n, w in ours.items()}
        gone = torch.cat([(theirs[n] - start[n]).flatten() for n in ours]).norm()
        apart = torch.cat([(theirs[n] - ours[n]).flatten() for n in ours]).norm()
        assert apart < 0.05 * gone


@EACH
def test_gradients_by_finite_differences(space: SearchSpace):
    """The derivative along a random direction of all weights of a network, in double precision."""
    store, (images, labels) = store_of(space), batch()
    arch = archs_of(space, 1)[-1]
    model = _double(store, arch)
    for part in model.modules():
        if hasattr(part, "dropout"):
            part.dropout = 0.0  # pyright: ignore[reportArgumentType]

    def loss() -> Tensor:
        return F.cross_entropy(model(images.double()), labels)

    loss().backward()
    rng = torch.Generator().manual_seed(4)
    way = [torch.randn(p.shape, generator=rng, dtype=p.dtype) for p in model.parameters()]
    slope = sum((p.grad * w).sum() for p, w in zip(model.parameters(), way, strict=True))  # pyright: ignore
    values = []
    step = 1e-9
    with torch.no_grad():
        for sign in (step, -2 * step):
            for p, w in zip(model.parameters(), way, strict=True):
                p.add_(w, alpha=sign)
            values.append(loss())
    assert float((values[0] - values[1]) / (2 * step)) == pytest.approx(float(slope), rel=1e-3)


@EACH
def test_recalibrating_batch_norm_changes_only_its_statistics(space: SearchSpace):
    store, (images, labels) = store_of(space), batch()
    examples = Examples(images, labels, torch.arange(8), (0.0,) * 3, (1.0,) * 3)
    model = store.bind(archs_of(space, 1)[-1])
    before = {name: t.clone() for name, t in model.state_dict().items()}
    recalibrate(Network(model, store.space, store.task), examples)
    weights = dict(model.named_parameters())
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]) == (name in weights), name
    assert all(torch.equal(w, first_weights(space)[n]) for n, w in store.weights.items())


@EACH
def test_usage_counts_windows(space: SearchSpace):
    first, second = space.smallest(), space.largest()
    counted = usage(space, {first: 2, second: 5}, TASK)
    masks = [coverage(space, [arch], TASK) for arch in (first, second)]
    for name, count in counted.items():
        assert torch.equal(count, 2 * masks[0][name].int() + 5 * masks[1][name].int())
    assert all(
        count.shape == torch.Size(full_shapes(space, TASK)[n]) for n, count in counted.items()
    )


@EACH
def test_encodings_round_trip(space: SearchSpace):
    archs = archs_of(space, 20)
    assert genes.from_integers(space, genes.integers(space, archs)) == archs
    assert genes.from_one_hot(space, genes.one_hot(space, archs)) == archs
