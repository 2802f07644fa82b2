"""A supernet's file: what is measured for it, and that runs can start from it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from fedtailor.core import codec
from fedtailor.core.rng import numpy_rng_for, rng_for
from fedtailor.core.space import SearchSpace
from fedtailor.core.types import Examples, Setting, Tensors
from fedtailor.data.batches import batch
from fedtailor.experiment.lifecycle import run
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import network_of
from fedtailor.networks.norms import is_norm, is_statistic
from fedtailor.networks.store import Store, full_shapes
from fedtailor.pretrain import pipeline, supernet_file
from fedtailor.pretrain.pipeline import Subject, pretrain, pretrain_supernet
from fedtailor.pretrain.sub_tasks import hold_out
from fedtailor.pretrain.supernet_file import measure_statistics, write_supernet
from fedtailor.pretrain.supernet_training import (
    SupernetCheckpoint,
    train_supernet,
)
from fedtailor.runs.summary import digest
from fedtailor.search.diffusion.generator import save
from fedtailor.search.genes import sample_many
from fedtailor.spaces.darts import DARTS
from fedtailor.training import evaluate
from tests.helpers import tiny_space
from tests.helpers.made_up import Dense
from tests.helpers.tiny_generator import TASK, TINY, encoder, examples
from tests.helpers.tiny_space import Tiny

TinyConfig = Callable[..., dict[str, Any]]
SPACE = Tiny(2)
SPACES = [SPACE, Dense(), DARTS(channels=4, cells=3, affine=True)]


def drawn_store(space: SearchSpace) -> Store:
    return Store(space, TASK, initial_supernet(Setting(TASK, space, 1, 0)))


def subject() -> Subject:
    return Subject(SPACE, TASK, examples(), encoder(), TINY)


def seen_by(space: SearchSpace, store: Store, arch: Any, batches: list[Tensor]) -> Tensors:
    """Return the mean and variance of what each batch norm of a network is given, by hand."""
    network = network_of(space, arch, TASK, store.cut(arch))
    found: dict[str, list[Tensor]] = {}

    def look(name: str) -> Any:
        def hook(_: nn.Module, inputs: tuple[Tensor]) -> None:
            flat = inputs[0].detach().movedim(1, 0).flatten(1)
            found.setdefault(f"{name}.running_mean", []).append(flat.mean(1))
            found.setdefault(f"{name}.running_var", []).append(flat.var(1, correction=1))

        return hook

    network.module.eval()
    norms = {name: part for name, part in network.module.named_modules() if is_norm(part)}
    for name, part in norms.items():
        part.train()
        part.register_forward_pre_hook(look(name))
    with torch.no_grad():
        for images in batches:
            network.module(images)
    return {name: torch.stack(values).mean(0) for name, values in found.items()}


@pytest.mark.parametrize("space", SPACES, ids=["tiny", "dense", "darts"])
def test_an_entry_is_the_mean_over_the_architectures_that_have_it(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
):
    """Two batches of 12 images, the cover and three random architectures, one by one."""
    monkeypatch.setattr(supernet_file, "IMAGES", 24)
    monkeypatch.setattr(supernet_file, "RANDOM", 3)
    monkeypatch.setattr(evaluate, "EVALUATION_BATCH", 12)
    store, data, told = drawn_store(space), examples(), []
    before = store.copy()
    found = measure_statistics(store, data, 5, lambda done, of: told.append((done, of)))
    rows = torch.randperm(len(data), generator=rng_for(5, "statistics", "images"))[:24]
    batches = [batch(data, part, None, "cpu")[0] for part in rows.split(12)]
    drawn = sample_many(space, 3, rng_for(5, "statistics", "archs"))
    archs = set(drawn) | {space.repair(arch) for arch in space.cover()}
    sums = {n: torch.zeros(s) for n, s in full_shapes(space, TASK, True).items() if is_statistic(n)}
    times = {name: torch.zeros_like(value) for name, value in sums.items()}
    for arch in archs:
        for name, value in seen_by(space, store, arch, batches).items():
            sums[name][: len(value)] += value
            times[name][: len(value)] += 1
    assert found.keys() == sums.keys() and min(int(t.min()) for t in times.values()) >= 1
    for name, value in found.items():
        assert torch.allclose(value, sums[name] / times[name], rtol=1e-4, atol=1e-6), name
    assert told == [(done, len(archs)) for done in range(1, len(archs) + 1)]
    assert all(torch.equal(weight, before[name]) for name, weight in store.copy().items())


def test_a_file_has_all_weights_and_statistics(tmp_path: Path):
    store = drawn_store(SPACE)
    write_supernet(tmp_path / "deep" / "supernet", store, examples(), 0)
    found = safetensors.torch.load_file(tmp_path / "deep" / "supernet")
    assert {n: tuple(w.shape) for n, w in found.items()} == full_shapes(SPACE, TASK, True)
    assert all(torch.equal(found[name], weight) for name, weight in store.copy().items())
    assert all(w.min() > 0 for n, w in found.items() if n.endswith("running_var"))


# The first stage alone, and with the others


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("whole")
    pretrain_supernet(subject(), folder / "work", folder / "supernet")
    return (folder / "supernet").read_bytes()


def test_it_is_the_supernet_that_generators_are_made_with(whole: bytes, tmp_path: Path):
    made = pretrain(subject(), tmp_path, supernet=tmp_path / "supernet")
    assert (tmp_path / "supernet").read_bytes() == whole
    state = codec.read(SupernetCheckpoint, tmp_path / "supernet.safetensors")
    found = safetensors.torch.load(whole)
    assert state.done == 4
    assert all(torch.equal(found[name], weight) for name, weight in state.weights.items())
    learned, _ = hold_out(examples(), TINY.images, numpy_rng_for(TINY.seed, "held out"))
    measured = measure_statistics(Store(SPACE, TASK, state.weights), learned, TINY.seed)
    assert found.keys() == state.weights.keys() | measured.keys()
    assert all(torch.equal(found[name], value) for name, value in measured.items())
    again = pretrain(subject(), tmp_path / "again", tmp_path / "supernet")
    for name, each in (("own", made), ("given", again)):
        save(each, tmp_path / name)
    assert (tmp_path / "own").read_bytes() == (tmp_path / "given").read_bytes()


def test_stopped_shared_and_done_again_it_is_the_same_bytes(whole: bytes, tmp_path: Path):
    seen: list[tuple[str, int, int]] = []

    def progress(stage: str, done: int, of: int) -> None:
        seen.append((stage, done, of))
        if len(seen) == 2:
            raise KeyboardInterrupt

    def often(*arguments: Any, **named: Any) -> Store:
        return train_supernet(*arguments, **named, every=0.0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "train_supernet", often)
        with pytest.raises(KeyboardInterrupt):
            pretrain_supernet(subject(), tmp_path, tmp_path / "a", None, 2, progress)
        assert not (tmp_path / "a").exists()
        pretrain_supernet(subject(), tmp_path, tmp_path / "a", None, 2, progress)
    assert [done for stage, done, _ in seen if stage == "supernet"] == [1, 2, 3, 4]
    assert {stage for stage, _, _ in seen} == {"supernet", "statistics"}
    assert (tmp_path / "a").read_bytes() == whole
    pretrain_supernet(subject(), tmp_path, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == whole, "when all is there already"
    other = replace(subject(), how=replace(TINY, seed=1))
    pretrain_supernet(other, tmp_path / "other", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() != whole


def test_weights_that_are_given_are_measured(whole: bytes, tmp_path: Path):
    found = safetensors.torch.load(whole)
    bare = {name: weight for name, weight in found.items() if not is_statistic(name)}
    safetensors.torch.save_file(bare, tmp_path / "bare")
    pretrain_supernet(subject(), tmp_path / "work", tmp_path / "made", tmp_path / "bare")
    assert (tmp_path / "made").read_bytes() == whole
    assert not (tmp_path / "work" / "supernet.safetensors").exists(), "nothing was trained"


# Runs that start from it


@pytest.mark.parametrize("classes", [4, 10])
@pytest.mark.parametrize("statistics", ["merged", "own"])
def test_a_run_starts_from_it(tiny: TinyConfig, tmp_path: Path, statistics: str, classes: int):
    """Digits have ten classes: a supernet of four has another head, but all else counts."""
    task = replace(TASK, shape=(1, 8, 8), classes=classes)
    store = Store(SPACE, task, initial_supernet(Setting(task, SPACE, 1, seed=8)))
    pixels = torch.randint(256, (60, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    gray = Examples(pixels.to(torch.uint8), torch.arange(60) % 4, torch.arange(60), (0.5,), (0.25,))
    write_supernet(tmp_path / "warm", store, gray, 0)
    saved = safetensors.torch.load_file(tmp_path / "warm")
    space = {"name": f"{tiny_space.__file__}:Tiny", "layers": 2}
    own = {"name": "perfedrlnas", "statistics": statistics, "finetune_epochs": 1}
    cold, warm = (
        run(tiny(rounds=1, algorithm=own, space=space | start), tmp_path / name)
        for name, start in (("cold", {}), ("run", {"init": str(tmp_path / "warm")}))
    )
    assert digest(cold) != digest(warm)
    setting = Setting(replace(task, classes=10), SPACE, 1, 0, init=str(tmp_path / "warm"))
    first = initial_supernet(setting, statistics == "merged")
    wanted = {name for name in saved if statistics == "merged" or not is_statistic(name)}
    assert first.keys() == wanted
    for name in wanted:
        taken = classes == 10 or not name.startswith("head.")
        assert (first[name].shape == saved[name].shape) == taken
        assert not taken or torch.equal(first[name], saved[name]), name
