"""The accuracies of many architectures on many sub-tasks: what a predictor learns from.

Every architecture sees every evaluation image once, with the supernet's weights. Architectures are
sorted so that those which share their first pieces stand together, and are computed in chunks, each
a file of its own: the table is the same bytes for any number of workers and whenever it was
stopped. Differs from the papers: 500,000 architectures on one task there, some thousand on many
tasks here, drawn in families.

Batch norm takes each batch's own statistics unless told otherwise. In briefly trained supernets
that ranked architectures on sub-tasks like calibration on 1,024 images does with a Kendall's tau of
0.80 (darts), 0.51 (mobilenetv3) and 0.63 (nasvit), in four fifths of the time; two calibrations, on
other images each, agree no better: 0.82, 0.53 and 0.65.
"""

import selectors
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedtailor.core import channel, codec
from fedtailor.core.compute import reproducible
from fedtailor.core.errors import UserError
from fedtailor.core.registry import describe, rebuild
from fedtailor.core.rng import rng_for, seed_for
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Examples, Json, Tensors
from fedtailor.networks.pieces import Piece, pieces_of
from fedtailor.networks.store import Store
from fedtailor.pretrain.resumable import OnProgress
from fedtailor.pretrain.sub_tasks import SubTask, TaskMatrices, task_matrices
from fedtailor.pretrain.team import Worker, team
from fedtailor.search.genes import sample_many
from fedtailor.training.population import walk

SIBLINGS = 4  # architectures of a family
CHUNK = 50  # architectures: half a minute of work that a kill can lose


@dataclass(frozen=True, eq=False)
class Table:
    """What architectures achieve on sub-tasks."""

    archs: tuple[Arch, ...]
    tasks: tuple[SubTask, ...]
    accuracy: Tensor  # (architectures, tasks), float32: among the task's classes
    likelihood: Tensor  # (architectures, tasks), float32: mean log-probability of the right class
    halves: Tensor  # (architectures, tasks, 2), float32: the same of two halves of the images
    plain: Tensor  # (architectures,), float32: on all evaluation images, among all classes


def families(space: SearchSpace, rng: torch.Generator, siblings: int = SIBLINGS) -> Iterator[Arch]:
    """Draw architectures without end, some in a row that share the first half of their stages.

    That half is computed once for a family. Each by itself is drawn as `genes.sample` does.
    """
    later = _later_genes(space)
    while True:
        parent, *others = sample_many(space, siblings, rng)
        yield parent
        for other in others:
            pairs = enumerate(zip(parent, other, strict=True))
            yield space.repair(tuple(o if gene in later else p for gene, (p, o) in pairs))


def _later_genes(space: SearchSpace) -> set[int]:
    """Return the genes of the second half of the stages; without stages, of the genes."""
    stages: dict[int, int] = {}
    for token in space.tokens:
        for gene in (*token.genes, *(token.depth or ())[:1]):
            stages[gene] = token.stage
    if len(set(stages.values())) == 1:
        stages = {gene: gene for gene in stages}
    ordered = sorted(set(stages.values()))
    return {gene for gene, stage in stages.items() if stage > ordered[(len(ordered) - 1) // 2]}


def accuracy_table(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    tasks: Sequence[SubTask],
    calibration: Examples | None,
    workers: int,
    folder: Path,
    progress: OnProgress | None = None,
    chunk: int = CHUNK,
) -> Table:
    """Evaluate architectures on all sub-tasks.

    Args:
        store: the supernet's weights.
        archs: the architectures.
        examples: the evaluation images, in any order; the tasks' images are positions in it.
        tasks: the sub-tasks.
        calibration: training images whose batch-norm statistics are used; none: those of each
            evaluation batch, of 256.
        workers: processes that share the work; one: this process does it.
        folder: where chunks are kept. Those that are there are used; broken ones and those of
            another table are computed again.
        progress: told the number of architectures done and of all.
        chunk: architectures to a file.
    """
    order = _sorted(store, archs)
    inputs = _inputs(store, [archs[at] for at in order], examples, tasks, calibration)
    job = _TableJob(store, inputs, folder, chunk, _key(store, inputs, chunk))
    folder.mkdir(parents=True, exist_ok=True)
    missing = [number for number in range(len(job.chunks)) if _read(job, number) is None]
    left = sum(len(job.chunks[number]) for number in missing)
    told = progress or (lambda done, of: None)
    told(len(archs) - left, len(archs))
    for number in _computed(job, missing, workers):
        left -= len(job.chunks[number])
        told(len(archs) - left, len(archs))
    return Table(tuple(archs), tuple(tasks), *_rows(job, torch.tensor(order, dtype=torch.int64)))


@dataclass(frozen=True)
class Chunk:
    """A file's content: some rows of a table."""

    key: str  # of the table
    number: int
    check: str  # of the rows: a damaged number still is one
    accuracy: Tensor
    likelihood: Tensor
    halves: Tensor
    plain: Tensor

    def values(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the rows."""
        return self.accuracy, self.likelihood, self.halves, self.plain


@dataclass(frozen=True, eq=False)
class TableInputs:
    """What a table is made from, apart from space and weights; images in random order."""

    archs: tuple[Arch, ...]  # sorted
    examples: Examples
    calibration: Examples | None
    marking: TaskMatrices


@dataclass(frozen=True, eq=False)
class _TableJob:
    store: Store
    inputs: TableInputs
    folder: Path
    size: int  # of a chunk
    key: str  # tells the table from others by its content

    @cached_property
    def chunks(self) -> list[range]:
        """The sorted architectures of every chunk."""
        count = len(self.inputs.archs)
        return [range(at, min(at + self.size, count)) for at in range(0, count, self.size)]

    def file(self, number: int) -> Path:
        return self.folder / f"chunk-{number:05d}.safetensors"


def _inputs(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    tasks: Sequence[SubTask],
    calibration: Examples | None,
) -> TableInputs:
    """Bring together what a table of these architectures, which are sorted, is made from."""
    mixed = torch.randperm(len(examples), generator=rng_for(0, "table", "order"))
    few = None
    if calibration is not None:
        size = len(calibration)
        few = _copied_rows(
            calibration, torch.randperm(size, generator=rng_for(0, "table", "calibration"))
        )
    found = task_matrices(examples.labels[examples.index], tasks, store.task.classes)
    found = TaskMatrices(found.labels[mixed], found.masks, found.times[mixed], found.first[mixed])
    return TableInputs(tuple(archs), _copied_rows(examples, mixed), few, found)


def _key(store: Store, inputs: TableInputs, chunk: int) -> str:
    return codec.digest([describe("space", store.space), store.task, store.copy(), inputs, chunk])


def _sorted(store: Store, archs: Sequence[Arch]) -> tuple[int, ...]:
    """Return the places of architectures, those together that share their first pieces."""
    numbers: dict[Piece, int] = {}
    chains = [
        [numbers.setdefault(p, len(numbers)) for p in pieces_of(store.space, arch, store.task)]
        for arch in archs
    ]
    return tuple(sorted(range(len(archs)), key=chains.__getitem__))


def _copied_rows(examples: Examples, rows: Tensor) -> Examples:
    """Return some rows of examples as examples that hold nothing else.

    In random order: sorted by class, batches would have statistics that give the class away.
    """
    at = examples.index[rows]
    images, labels = examples.images[at], examples.labels[at]
    return Examples(images, labels, torch.arange(len(rows)), examples.mean, examples.std)


def _compute(job: _TableJob, number: int) -> Chunk:
    rows, inputs = job.chunks[number], job.inputs
    archs, marks = inputs.archs[rows.start : rows.stop], inputs.marking
    shape = len(rows), marks.masks.shape[1]
    accuracy, likelihood, halves = (torch.empty(*shape, *more) for more in ((), (), (2,)))
    plain = torch.empty(len(rows))
    with reproducible(job.store.device):
        torch.manual_seed(seed_for(0, "table", number))  # for operations that are noise
        try:
            for at, logits in walk(job.store, archs, inputs.examples, inputs.calibration):
                accuracy[at] = marks.accuracies(logits)
                likelihood[at], halves[at] = marks.likelihoods(logits)
                plain[at] = (logits.argmax(1) == marks.labels).float().mean()
        except FloatingPointError as error:
            raise UserError(f"pretrain.supernet: {error}") from None
    found = accuracy, likelihood, halves, plain
    return Chunk(job.key, number, codec.digest(found), *found)


def _write(job: _TableJob, number: int) -> None:
    codec.write_whole(job.file(number), _compute(job, number))


def _read(job: _TableJob, number: int) -> Chunk | None:
    """Return a chunk that is there, whole and of this table; else None."""
    try:
        chunk = codec.read(Chunk, job.file(number))
    except (UserError, OSError):
        return None
    whole = chunk.check == codec.digest(chunk.values())
    return chunk if whole and (chunk.key, chunk.number) == (job.key, number) else None


def _rows(job: _TableJob, order: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what all chunks hold, which are sorted, in the order they were asked for."""
    chunks: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for number in range(len(job.chunks)):
        chunk = _read(job, number)
        if chunk is None:
            raise UserError(f"{job.file(number)}: it was written but cannot be read")
        chunks.append(chunk.values())
    back = order.argsort()
    parts = zip(*chunks, strict=True)
    accuracy, likelihood, halves, plain = (torch.cat(part)[back] for part in parts)
    return accuracy, likelihood, halves, plain


def _computed(job: _TableJob, missing: Sequence[int], workers: int) -> Iterator[int]:
    """Compute chunks, here or in processes, and yield the number of each that is there."""
    if min(workers, len(missing)) > 1:
        yield from _shared_out(job, missing, workers)
        return
    for number in missing:
        _write(job, number)
        yield number


def _shared_out(job: _TableJob, missing: Sequence[int], workers: int) -> Iterator[int]:
    """Have worker processes compute the chunks, each the next when it is done with one."""
    tensors, tree = codec.pack((job.inputs, job.store.copy()), copy=False)
    head = {
        "space": describe("space", job.store.space),
        "task": codec.pack(job.store.task)[1],
        "tree": tree,
        "device": job.store.device,
        "folder": str(job.folder.resolve()),
        "size": job.size,
        "key": job.key,
    }
    heads, waiting = [head] * min(workers, len(missing)), deque(missing)
    with team(serve, heads, tensors) as processes, selectors.DefaultSelector() as selector:
        for process in processes:
            process.send({"chunk": waiting.popleft()})
            selector.register(process.talk, selectors.EVENT_READ, process)
        for _ in missing:
            worker: Worker = selector.select()[0][0].data
            number = worker.receive()[0]["chunk"]
            if waiting:
                worker.send({"chunk": waiting.popleft()})
            yield number


def serve(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    """Compute the chunks that the parent asks for: the work of a worker process."""
    inputs, weights = codec.unpack(tuple[TableInputs, Tensors], tensors, head["tree"], copy=False)
    task = codec.unpack(Task, {}, head["task"])
    store = Store(rebuild("space", head["space"]), task, weights, head["device"])
    job = _TableJob(store, inputs, Path(head["folder"]), head["size"], head["key"])
    while True:
        number = channel.receive(parent)[0]["chunk"]
        _write(job, number)
        channel.send(parent, {"chunk": number})
