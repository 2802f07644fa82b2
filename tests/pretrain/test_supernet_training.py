"""Training a supernet for pre-training: what a step is, who is trained, and a way back in."""

import gc
import os
import signal
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.processes import Work
from fedtailor.core.rng import rng_for, seed_for
from fedtailor.core.space import Task
from fedtailor.core.types import Augment, Examples, Setting, Tensors
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store, usage, view
from fedtailor.pretrain import supernet_training
from fedtailor.pretrain.resumable import NOWHERE
from fedtailor.pretrain.supernet_training import PAPER, SupernetTraining, step_archs, train_supernet
from fedtailor.pretrain.team import Worker
from fedtailor.search import schemes
from fedtailor.search.genes import option_counts
from fedtailor.spaces.darts import DARTS
from fedtailor.training.population import population_scores
from tests.helpers.tiny_space import Tiny

SPACE = Tiny()
TASK = Task((3, 8, 8), 4)
FEW = SupernetTraining(
    "sandwich", steps=6, batch=16, randoms=1, warmup=2, crop=1, optimizer="adamw", lr=0.01,
    label_smoothing=0.1,
)  # fmt: skip


def easy(count: int = 40) -> Examples:
    """Return noise whose mean colour tells the class."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % TASK.classes
    images = 30 * torch.randn(count, *TASK.shape, generator=rng) + 128
    images += 40 * torch.eye(4)[labels][:, :3, None, None]
    pixels = images.clamp(0, 255).to(torch.uint8)
    return Examples(pixels, labels, torch.arange(count), (0.5,) * 3, (0.25,) * 3)


def weights_of(settings: SupernetTraining, **how: Any) -> Tensors:
    return train_supernet(SPACE, TASK, easy(), settings, **how).copy()


def same(first: Tensors, second: Tensors) -> bool:
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def stop_after(step: int):
    def progress(done: int, steps: int) -> None:
        assert steps == FEW.steps
        if done == step:
            raise KeyboardInterrupt

    return progress


@pytest.mark.parametrize(
    "settings",
    [FEW, replace(FEW, optimizer="sgd", lr=0.1), replace(FEW, scheme="fair", parts=1)],
    ids=["sandwich", "sgd", "fair"],
)
def test_stopped_and_resumed_it_ends_in_the_same_bytes(settings: SupernetTraining, tmp_path: Path):
    file, whole = tmp_path / "supernet.safetensors", weights_of(settings)
    for stop in (1, 4):
        with pytest.raises(KeyboardInterrupt):
            weights_of(settings, checkpoint=file, every=0, progress=stop_after(stop))
    seen: list[int] = []
    resumed = weights_of(settings, checkpoint=file, progress=lambda done, _: seen.append(done))
    assert seen == [5, 6] and same(whole, resumed)
    assert same(whole, weights_of(settings, checkpoint=file, progress=stop_after(0)))
    assert not same(whole, weights_of(replace(settings, seed=1)))


@pytest.fixture
def started(monkeypatch: Any) -> list[Worker]:
    """Return the list of worker processes that are started."""
    found: list[Worker] = []
    begin = Worker.__init__

    def known(worker: Worker, work: Work) -> None:
        begin(worker, work)
        found.append(worker)

    monkeypatch.setattr(Worker, "__init__", known)
    return found


def test_a_worker_killed_is_one_sentence_and_resumed_with_one_process_it_is_the_same_bytes(
    started: list[Worker], tmp_path: Path
):
    file, seen = tmp_path / "supernet.safetensors", []

    def progress(done: int, steps: int) -> None:
        if done == 3:
            os.kill(started[0].process.pid, signal.SIGKILL)

    with pytest.raises(UserError, match=r"^pretrain: a worker process died \(SIGKILL\); .* again$"):
        weights_of(FEW, checkpoint=file, every=0, progress=progress, workers=2)
    resumed = weights_of(FEW, checkpoint=file, progress=lambda done, _: seen.append(done))
    assert len(started) == 1 and seen in ([4, 5, 6], [5, 6])  # it may have handed in the fourth
    assert same(weights_of(FEW), resumed)


def test_stopped_it_leaves_no_process_no_descriptor_and_torch_as_it_was(started: list[Worker]):
    with torch.random.fork_rng(devices=[]):
        threads, before = torch.get_num_threads(), torch.get_rng_state()
        torch.set_num_threads(2)
        gc.collect()  # what others left is not to be counted
        descriptors = len(list(Path("/dev/fd").iterdir()))
        with pytest.raises(KeyboardInterrupt):
            weights_of(FEW, progress=stop_after(2), workers=5)
        gc.collect()
        assert len(list(Path("/dev/fd").iterdir())) == descriptors
        assert torch.get_num_threads() == 2 and torch.equal(torch.get_rng_state(), before)
        torch.set_num_threads(threads)
    assert len(started) == 1 and started[0].process.returncode is not None


def test_a_step_by_hand():
    """Two parts of a batch, the largest taught by labels, the others by the largest as well.

    The parts have eight images and seven: each image counts alike.
    """
    settings = replace(FEW, steps=1, warmup=0, momentum=0.0, weight_decay=0.0, clip=0.0, flip=False)
    settings = replace(settings, batch=15, crop=0, distil=0.3, optimizer="sgd", lr=0.1)
    examples, trained = easy(), weights_of(settings)
    store = Store(SPACE, TASK, initial_supernet(Setting(TASK, SPACE, 1, 0)))
    archs = step_archs(SPACE, settings, 0)
    assert archs[:2] == (SPACE.largest(), SPACE.smallest()) and len(archs) == 3
    order = torch.randperm(40, generator=rng_for(0, "supernet", 0, "order"))
    moved = store.copy()
    for part, rows in enumerate((order[:8], order[8:15])):
        torch.manual_seed(seed_for(0, "supernet", 0, "dropout", part))
        images, labels = batch(replace(examples, augment=Augment()), rows, None, "cpu")
        taught = None
        for arch in archs:
            model = store.bind(arch)
            logits = model(images)
            hard = 0.9 * F.one_hot(labels, 4) + 0.1 / 4
            wanted = hard if taught is None else 0.7 * hard + 0.3 * taught
            loss = -(wanted * logits.log_softmax(1)).sum() / 15
            loss.backward()
            taught = logits.detach().softmax(1) if taught is None else taught
            for name, parameter in model.named_parameters():
                assert parameter.grad is not None
                change = view(moved[name], tuple(parameter.shape))
                change.sub_(parameter.grad, alpha=settings.lr)
    assert all(torch.allclose(weight, moved[name], atol=1e-6) for name, weight in trained.items())
    assert not same(trained, store.copy())


def test_fair_steps_train_every_option_equally_often():
    """Strict fairness in DARTS: eight networks a step, each operation of each edge in one."""
    space, settings = DARTS(channels=2, cells=3, resolution=4), replace(PAPER, batch=8, steps=1)
    archs = step_archs(space, settings, 0)
    touched = Counter((gene, option) for arch in archs for gene, option in enumerate(arch))
    every = {(g, o): 1 for g, count in enumerate(option_counts(space)) for o in range(count)}
    assert touched == every and len(archs) == 8
    trained = train_supernet(space, TASK, easy(8), settings).weights
    first = initial_supernet(Setting(TASK, space, 1, 0))
    times = usage(space, Counter(archs), TASK)
    for name, weight in trained.items():
        assert (times[name] > 0).all()
        assert not torch.equal(weight, first[name]), f"{name} was not trained"


def test_schemes_are_drawn_anew_in_every_step():
    for scheme in ("sandwich", "fair", "single_path"):
        settings = SupernetTraining(scheme)  # pyright: ignore[reportArgumentType]
        first, again = (step_archs(SPACE, settings, 0) for _ in range(2))
        assert first == again != step_archs(SPACE, settings, 1)
    assert len(step_archs(SPACE, SupernetTraining("single_path"), 0)) == 1
    assert len(step_archs(SPACE, SupernetTraining("sandwich", randoms=3), 0)) == 5


def test_it_learns():
    """Random architectures tell easy images apart, which they do not at first."""
    store = train_supernet(SPACE, TASK, easy(64), replace(FEW, steps=30, batch=32, lr=0.05))
    archs = [schemes.single_path(SPACE, torch.Generator().manual_seed(n))[0] for n in range(4)]
    assert min(population_scores(store, archs, easy(200), "accuracy")) > 0.7


def test_every_image_is_seen_once_an_epoch_but_for_a_rest():
    problem = supernet_training._Problem(SPACE, TASK, easy(40), FEW, "cpu")
    first = supernet_training._first_state(problem, NOWHERE)
    trainer = supernet_training._Trainer(problem, first)
    batches = [trainer._rows(step).tolist() for step in range(4)]
    assert [len(rows) for rows in batches] == [16] * 4  # 40 images are two batches
    epochs = [batches[0] + batches[1], batches[2] + batches[3]]
    assert all(len(set(epoch)) == 32 for epoch in epochs) and epochs[0] != epochs[1]
    assert replace(FEW, steps=None, epochs=3).length(40) == 6


def test_the_learning_rate_rises_and_falls():
    rates = [SupernetTraining(lr=0.1, warmup=10).rate(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(0.01) and rates[50] == pytest.approx(0.05)
    assert max(rates) == max(rates[8:12]) and 0 < rates[-1] < 1e-4
    assert SupernetTraining(lr=0.1, warmup=0, schedule="constant").rate(99, 100) == 0.1


def test_checkpoints_of_other_trainings_and_broken_ones_are_refused(tmp_path: Path):
    file, short = tmp_path / "supernet.safetensors", replace(FEW, steps=1)
    weights_of(short, checkpoint=file)
    with pytest.raises(UserError, match=r"supernet\.safetensors: it is of a supernet of another"):
        weights_of(replace(short, lr=0.2), checkpoint=file)
    with pytest.raises(UserError, match="another space"):
        train_supernet(Tiny(layers=2), TASK, easy(), short, file)
    with pytest.raises(UserError, match="another space or data"):
        train_supernet(SPACE, TASK, easy(39), short, file)
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"supernet\.safetensors: not a readable"):
        weights_of(short, checkpoint=file)


def test_batches_too_small_and_gradients_too_large_are_told_in_a_sentence():
    with pytest.raises(
        UserError, match=r"pretrain\.supernet\.batch: a batch of 16 in 9 parts leaves 1"
    ):
        weights_of(replace(FEW, parts=9))
    wild = replace(FEW, optimizer="sgd", lr=1e30, clip=0.0, warmup=0)
    with pytest.raises(
        UserError, match=r"pretrain\.supernet\.lr: .* not finite in step \d; lower it"
    ):
        weights_of(wild)
