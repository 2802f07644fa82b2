"""The table of accuracies: its numbers, the same for all who share the work, and a way back in."""

import functools
import itertools
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core import compute, processes, registry
from fedtailor.core.errors import UserError
from fedtailor.core.processes import Work
from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Examples, Json, Setting, Tensors
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network
from fedtailor.networks.pieces import pieces_of
from fedtailor.networks.store import Store
from fedtailor.pretrain import accuracy_table as tables
from fedtailor.pretrain.accuracy_table import Table, accuracy_table, families
from fedtailor.pretrain.sub_tasks import SubTask, draw_tasks
from fedtailor.pretrain.team import Worker
from fedtailor.search import genes
from fedtailor.training.evaluate import recalibrate
from tests.helpers.tiny_space import Tiny

SPACE = Tiny()
TASK = Task((3, 8, 8), 5)


def examples(count: int, seed: int) -> Examples:
    """Return images in the order of their classes, in the odd rows of a larger array."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (2 * count, *TASK.shape), generator=rng).to(torch.uint8)
    labels = (torch.arange(2 * count) * TASK.classes).div(2 * count, rounding_mode="floor")
    return Examples(images, labels, torch.arange(1, 2 * count, 2), (0.5,) * 3, (0.25,) * 3)


EVALUATION, CALIBRATION = examples(60, 0), examples(30, 1)


@functools.cache
def store() -> Store:
    weights = initial_supernet(Setting(TASK, SPACE, 1, 0))
    rng = torch.Generator().manual_seed(1)
    opened = {n: w + 0.1 * torch.randn(w.shape, generator=rng) for n, w in weights.items()}
    return Store(SPACE, TASK, opened)


@functools.cache
def archs() -> list[Arch]:
    drawn = genes.sample_many(SPACE, 6, torch.Generator().manual_seed(2))
    return [*drawn, drawn[0]]


@functools.cache
def tasks() -> tuple[SubTask, ...]:
    labels = [each.labels[each.index] for each in (EVALUATION, CALIBRATION)]
    return draw_tasks(labels[0], labels[1], 9, np.random.default_rng(0))


def made(folder: Path, calibration: Examples | None = CALIBRATION, **how: Any) -> Table:
    how = {"workers": 1, "chunk": 3} | how
    return accuracy_table(store(), archs(), EVALUATION, tasks(), calibration, folder=folder, **how)


def same(first: Table, second: Table) -> bool:
    fields = ("accuracy", "likelihood", "halves", "plain")
    return all(torch.equal(getattr(first, field), getattr(second, field)) for field in fields)


def slow_accuracy(logits: torch.Tensor, labels: torch.Tensor, task: SubTask) -> float:
    answers = [max(task.classes, key=lambda c: float(logits[i, c])) for i in task.images]
    return float(np.mean([a == int(labels[i]) for a, i in zip(answers, task.images, strict=True)]))


def test_recalibrated_accuracies_against_one_network_and_image_at_a_time(tmp_path: Path):
    found, labels = made(tmp_path), EVALUATION.labels[EVALUATION.index]
    rng = tables.rng_for(0, "table", "calibration")
    mixed = replace(CALIBRATION, index=CALIBRATION.index[torch.randperm(30, generator=rng)])
    for number, arch in enumerate(archs()):
        model = store().bind(arch)
        recalibrate(Network(model, SPACE, TASK), mixed)
        with torch.inference_mode():
            logits = model(batch(EVALUATION, torch.arange(60), None, "cpu")[0])
        expected = [slow_accuracy(logits, labels, task) for task in tasks()]
        assert found.accuracy[number].tolist() == pytest.approx(expected, abs=1e-6)
        for task, value in zip(tasks(), found.likelihood[number].tolist(), strict=True):
            classes = torch.tensor(task.classes)
            logs = logits[task.images][:, classes].log_softmax(1)
            right = labels[task.images][:, None] == classes
            assert value == pytest.approx(float(logs[right].mean()), rel=1e-4)
        assert float(found.plain[number]) == pytest.approx(
            float((logits.argmax(1) == labels).float().mean())
        )
    assert found.accuracy.shape == (7, 9) and found.accuracy.dtype == torch.float32
    assert len(found.accuracy.unique()) > 10
    assert torch.equal(found.accuracy[0], found.accuracy[6])  # the same architecture


def test_without_calibration_each_batch_has_its_own_statistics(tmp_path: Path):
    found, labels = made(tmp_path, None), EVALUATION.labels[EVALUATION.index]
    assert not same(found, made(tmp_path))
    model = store().bind(archs()[2]).eval()
    for part in model.modules():
        if isinstance(part, torch.nn.BatchNorm2d):
            part.train()
    with torch.inference_mode():
        logits = model(batch(EVALUATION, torch.arange(60), None, "cpu")[0])
    expected = [slow_accuracy(logits, labels, task) for task in tasks()]
    assert found.accuracy[2].tolist() == pytest.approx(expected, abs=0.02)  # sums in another order


def die(folder: str) -> None:
    """Make the table by two workers and be killed after the first chunk."""

    def progress(done: int, total: int) -> None:
        if done:
            os.kill(os.getpid(), signal.SIGKILL)

    made(Path(folder), workers=2, progress=progress, chunk=1)


def test_killed_and_resumed_with_any_number_of_workers_it_is_the_same_bytes(tmp_path: Path):
    whole = made(tmp_path / "whole", chunk=1)
    half = tmp_path / "half"
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])}
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from tests.pretrain import test_accuracy_table as t; t.die({str(half)!r})",
        ],
        env=env,
        check=False,
        capture_output=True,  # waits until the workers, too, have closed the pipes
        text=True,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    files = sorted(half.glob("chunk-*.safetensors"))
    assert 1 <= len(files) < 7
    kept = {file: file.stat().st_mtime_ns for file in files}
    seen: list[tuple[int, int]] = []
    assert same(whole, made(half, progress=lambda *done: seen.append(done), chunk=1))
    assert seen == [(done, 7) for done in range(len(files), 8)]
    assert all(file.stat().st_mtime_ns == at for file, at in kept.items())
    for file in sorted((tmp_path / "whole").iterdir()):
        assert file.read_bytes() == (half / file.name).read_bytes()


def test_a_worker_killed_is_one_sentence_and_what_was_computed_is_kept(
    tmp_path: Path, monkeypatch: Any
):
    started: list[Worker] = []
    begin = Worker.__init__

    def known(worker: Worker, work: Work) -> None:
        begin(worker, work)
        started.append(worker)

    def progress(done: int, total: int) -> None:
        if done:
            os.kill(started[0].process.pid, signal.SIGKILL)

    monkeypatch.setattr(Worker, "__init__", known)
    with pytest.raises(UserError, match=r"^pretrain: a worker process died \(SIGKILL\); .* again$"):
        made(tmp_path, workers=2, progress=progress, chunk=1)
    assert len(started) == 2 and all(w.process.returncode is not None for w in started)
    assert list(tmp_path.glob("chunk-*.safetensors"))


def test_broken_and_foreign_chunks_are_computed_again(tmp_path: Path):
    whole, files = made(tmp_path), sorted(tmp_path.glob("chunk-*"))
    good = [file.read_bytes() for file in files]
    files[0].write_bytes(good[0][:-1])
    flipped = bytearray(good[1])
    flipped[-5] ^= 1  # a bit of a number
    files[1].write_bytes(flipped)
    files[2].write_bytes(good[0])  # of this table, but not this chunk
    assert same(whole, made(tmp_path))
    assert [file.read_bytes() for file in files] == good
    other = made(tmp_path, None)  # of another table
    assert not same(whole, other) and same(whole, made(tmp_path))


def test_a_supernet_that_diverged_is_told_in_a_sentence(tmp_path: Path):
    broken = Store(SPACE, TASK, {n: w / 0 for n, w in store().copy().items()})
    with pytest.raises(UserError, match=r"pretrain\.supernet: .*outputs are not finite"):
        accuracy_table(broken, archs(), EVALUATION, tasks(), None, 1, tmp_path)


def fail(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    """Do no work."""
    raise UserError(head["why"]) if head["known"] else ValueError(head["why"])


@pytest.mark.parametrize("known", [True, False])
def test_a_worker_that_fails_says_why(known: bool, monkeypatch: Any, capsys: Any):
    """Its side is run here; an error of the user's comes without a traceback."""
    monkeypatch.setattr(processes, "_die_with_parent", lambda lifeline: None)
    worker = object.__new__(Worker)
    worker.talk, theirs = socket.socketpair()
    worker.send({"why": "too large", "known": known})
    with compute.one_thread():
        processes.main(f"{__name__}:fail", theirs.detach(), -1)
    sentence = "too large" if known else "pretrain: a worker process failed (ValueError: too large)"
    with worker.talk, pytest.raises(UserError, match=f"^{re.escape(sentence)}$"):
        worker.receive()
    assert ("Traceback" in capsys.readouterr().err) != known


def test_architectures_that_share_their_first_pieces_are_computed_together():
    drawn = genes.sample_many(SPACE, 60, torch.Generator().manual_seed(3))
    order = tables._sorted(store(), drawn)
    assert sorted(order) == list(range(60))
    chains = [pieces_of(SPACE, drawn[at], TASK) for at in order]
    for length in (1, 2, 3):
        starts = [chain[:length] for chain in chains]
        changes = sum(a != b for a, b in itertools.pairwise(starts))
        assert changes == len(set(starts)) - 1  # each beginning is in one place


@pytest.mark.parametrize("name", ["mobilenetv3", "darts", "nasvit"])
def test_families_share_their_first_pieces_and_are_drawn_as_any_other(name: str):
    kind = registry.find("space", name)
    space = kind(**kind.presets["cpu"])
    drawn = list(itertools.islice(families(space, torch.Generator().manual_seed(4)), 810))
    assert all(genes.is_legal(space, arch) for arch in drawn)
    chains = [pieces_of(space, arch, TASK) for arch in drawn[:100]]
    shared = []
    for first in range(0, 100, 4):
        family = chains[first : first + 4]
        same = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*family, strict=False))
        shared.append(len(list(same)) / min(map(len, family)))
    assert 0.25 < np.mean(shared) < 0.75 and len(set(drawn)) > 800
    alone = genes.sample_many(space, 4000, torch.Generator().manual_seed(5))
    often = [genes.one_hot(space, archs).mean(0) for archs in (drawn, alone)]
    assert (often[0] - often[1]).abs().max() < 0.12  # 203 families: three deviations are 0.1


def test_architectures_without_stages_share_the_first_half_of_their_genes():
    drawn = list(itertools.islice(families(SPACE, torch.Generator().manual_seed(4), 5), 10))
    for family in (drawn[:5], drawn[5:]):
        assert len({arch[:3] for arch in family}) == 1 < len({arch[3:] for arch in family})
