"""Stores that are handed out again: as new, but for their modules, which are not built again."""

import functools
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core import registry
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Client, Tensors
from fedtailor.networks import store_pool
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.norms import norms_of
from fedtailor.networks.store import Store
from fedtailor.networks.store_pool import store_of
from fedtailor.search import genes
from fedtailor.spaces.darts import DARTS
from fedtailor.training import learn
from fedtailor.training.population import population_scores
from fedtailor.training.supernet import SupernetTrainer
from tests.helpers.tiny_space import Tiny

MOBILE = registry.find("space", "mobilenetv3")
SPACES: dict[str, SearchSpace] = {
    "tiny": Tiny(),
    "mobilenetv3": MOBILE(width=0.25, resolution=8),
    "darts": DARTS(channels=4, cells=3, resolution=8),
}
EACH = pytest.mark.parametrize("space", SPACES.values(), ids=list(SPACES))
KEPT = pytest.mark.parametrize("statistics", [False, True])


@pytest.fixture(autouse=True)
def empty_shelves() -> Iterator[None]:
    store_pool._shelf.cache_clear()
    yield
    store_pool._shelf.cache_clear()


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List the pieces that are built."""
    found: list[str] = []
    build = Store._build
    monkeypatch.setattr(
        Store, "_build", lambda self, piece: found.append(piece.name) or build(self, piece)
    )
    return found


def learner_of(client: Client, space: SearchSpace, number: int = 0) -> Client:
    """Return a client with a few images."""
    setting, info = replace(client.setting, space=space), replace(client.info, id=number)
    train, val = (replace(part, index=part.index[:8]) for part in (client.train, client.val))
    return replace(client, setting=setting, info=info, train=train, val=val)


def weights_of(learner: Client, statistics: bool = False) -> Tensors:
    """Return weights that are another client's own, statistics included."""
    rng = torch.Generator().manual_seed(learner.info.id)
    first = initial_supernet(learner.setting, statistics)
    opened = {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in first.items()}
    return {n: w.abs() if n.endswith("running_var") else w for n, w in opened.items()}


def some(learner: Client) -> list[Arch]:
    rng = torch.Generator().manual_seed(7 + learner.info.id)
    return genes.sample_many(learner.setting.space, 2, rng)


def work(learner: Client, store: Store) -> Iterator[Any]:
    """Score, train and score a supernet, and tell all that came of it, step by step."""
    archs = some(learner)
    ways: list[dict[str, Any]] = [{}, {"calibration": learner.train}]
    ways += [{"kept": True}] if store.keeps_statistics else []
    score = functools.partial(population_scores, store, archs, learner.val, "likelihood")
    yield [score(**way) for way in ways]
    recipe = learn.Recipe(batch=4, lr=0.01, weight_decay=0.01)
    trainer = SupernetTrainer(learner, store, recipe)
    torch.manual_seed(learner.info.id)
    yield trainer.epochs(1, lambda rng: [archs[int(torch.randint(2, (), generator=rng))]])
    yield [score(**way) for way in ways]
    model = store.bind(archs[0])
    yield {name: b.clone() for name, b in model.named_buffers()}
    yield store.copy()


def plain(told: Any) -> Any:
    """Return what can be compared."""
    if not isinstance(told, dict):
        return told
    return {name: tensor.contiguous().numpy().tobytes() for name, tensor in told.items()}


def as_new(learner: Client, statistics: bool) -> list[Any]:
    setting = learner.setting
    store = Store(setting.space, setting.task, weights_of(learner, statistics))
    return [plain(told) for told in work(learner, store)]


@EACH
@KEPT
def test_whoever_held_it_before_it_computes_the_same_bits(
    client: Client, space: SearchSpace, statistics: bool
):
    stores = []
    learners = [learner_of(client, space, number) for number in (0, 1)]
    alone = [as_new(learner, statistics) for learner in learners]
    for number in (0, 1, 0):
        with learn.store_of(learners[number], weights_of(learners[number], statistics)) as store:
            stores.append(store)
            found = [plain(told) for told in work(learners[number], store)]
        assert found == alone[number]
    assert stores[0] is stores[1] is stores[2]


@EACH
def test_two_at_once_are_two(client: Client, space: SearchSpace):
    """Two do their work in turns; the next two are given the same stores, the other way round."""
    first, second = (learner_of(client, space, number) for number in (0, 1))
    alone = [as_new(learner, False) for learner in (first, second)]
    known = []
    for one, other in ((0, 1), (1, 0)):
        learners = (first, second)[one], (first, second)[other]
        with (
            learn.store_of(learners[0], weights_of(learners[0])) as left,
            learn.store_of(learners[1], weights_of(learners[1])) as right,
        ):
            assert left is not right
            known.append({id(left), id(right)})
            both = zip(work(learners[0], left), work(learners[1], right), strict=True)
            told = [(plain(a), plain(b)) for a, b in both]
        assert [a for a, _ in told] == alone[one]
        assert [b for _, b in told] == alone[other]
    assert known[0] == known[1]


@EACH
@KEPT
def test_nothing_is_built_again(
    client: Client, space: SearchSpace, statistics: bool, builds: list[str]
):
    learner, built = learner_of(client, space), list[int]()
    for _ in range(3):
        with learn.store_of(learner, weights_of(learner, statistics)) as store:
            list(work(learner, store))
        built.append(len(builds))
    once = built[0]
    assert built == [once] * 3 and once > 3
    with learn.store_of(learner, weights_of(learner, not statistics)) as store:
        assert store.keeps_statistics is not statistics
        store.bind(some(learner)[0])
    assert len(builds) > once, "one with statistics is not one without"


def _used_up(model: nn.Module, images: Tensor) -> None:
    """Leave traces of all kinds in a network."""
    model(images).sum().backward()
    model.eval()
    for parameter in list(model.parameters())[::2]:
        parameter.requires_grad_(False)


@pytest.mark.parametrize("broken", [False, True])
@KEPT
def test_no_trace_is_left(client: Client, statistics: bool, broken: bool):
    """Neither in weights nor in the modules, as they are before anyone binds them."""
    learner = learner_of(client, MOBILE(width=0.25, resolution=8))
    setting, arch = learner.setting, some(learner)[0]
    weights = weights_of(learner, statistics)
    images = next(learn.batches(learner, 16, purpose="any")).images
    with pytest.raises(RuntimeError) if broken else nullcontext():
        with learn.store_of(learner, weights) as store:
            model = store.bind(arch)
            _used_up(model, images)
            for weight in store.weights.values():
                weight.fill_(3.0)
            if broken:
                raise RuntimeError
    fresh = Store(setting.space, setting.task, weights)
    new = fresh.bind(arch)
    with learn.store_of(learner, weights) as again:
        assert again is store
        for name, weight in again.weights.items():
            assert torch.equal(weight, weights[name])
            assert weight.stride() == fresh.weights[name].stride()
        for name, parameter in model.named_parameters():
            assert parameter.grad is None and parameter.requires_grad
            assert torch.equal(parameter, new.get_parameter(name))
        for name, buffer in model.named_buffers():
            assert torch.equal(buffer, new.get_buffer(name)), name
        assert all(module.training for piece in model.children() for module in piece.modules())
        assert norms_of(model)


def test_other_weights_need_another_store(client: Client):
    learner = learner_of(client, Tiny())
    weights = weights_of(learner)
    store = Store(Tiny(), learner.setting.task, weights)
    name = next(iter(weights))
    others: list[Tensors] = [
        {n: w for n, w in weights.items() if n != name},
        weights | {"more": torch.zeros(1)},
        weights | {name: weights[name][:1]},
        weights | {name: weights[name].double()},
    ]
    for other in others:
        with pytest.raises(ValueError, match="names, shapes or types"):
            store.load({n: w + 1 for n, w in other.items()})
        assert all(torch.equal(w, weights[n]) for n, w in store.weights.items())
    with store_of(Tiny(), learner.setting.task, weights) as one:
        pass
    with store_of(Tiny(), learner.setting.task, others[3]) as other:
        assert other is not one and other.weights[name].dtype == torch.float64


def test_as_many_are_kept_as_were_held_at_once_of_a_few_kinds(client: Client):
    task = client.setting.task
    kinds = [Tiny(layers) for layers in range(1, store_pool.KEPT_KINDS + 2)]
    first = {}
    for space in kinds:
        weights = weights_of(learner_of(client, space))
        for _ in range(5):
            with store_of(space, task, weights) as one, store_of(space, task, weights) as two:
                first.setdefault(space, {one, two})
                assert first[space] == {one, two}
    with store_of(kinds[-1], task, weights_of(learner_of(client, kinds[-1]))) as last:
        assert last in first[kinds[-1]]
    with store_of(kinds[0], task, weights_of(learner_of(client, kinds[0]))) as gone:
        assert gone not in first[kinds[0]]
