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

import os
import selectors
import socket
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from fedtailor import codec
from fedtailor.chain import Piece, pieces_of
from fedtailor.engines import channel
from fedtailor.errors import UserError
from fedtailor.genes import sample_many
from fedtailor.population import walk
from fedtailor.pretrain.processes import Worker, describe, one_thread, space_of
from fedtailor.pretrain.tasks import Marking, SubTask, marking
from fedtailor.pretrain.training import write_whole
from fedtailor.rng import rng_for, seed_for
from fedtailor.supernet import Store
from fedtailor.types import Arch, Examples, Json, SearchSpace, Task, Tensors

SIBLINGS = 4  # architectures of a family
CHUNK = 50  # architectures: half a minute of work that a kill can lose
Progress = Callable[[int, int], None]  # architectures done, and of all


@dataclass(frozen=True, eq=False)
class Table:
    """What architectures achieve on sub-tasks."""

    archs: tuple[Arch, ...]
    tasks: tuple[SubTask, ...]
    accuracy: Tensor  # (architectures, tasks), float32: among the task's classes
    likelihood: Tensor  # (architectures, tasks), float32: mean log-probability of the right class
    plain: Tensor  # (architectures,), float32: on all evaluation images, among all classes
    about: dict[str, Json] = field(default_factory=dict)  # space, task and key of what made it


def draw_archs(
    space: SearchSpace, number: int, rng: torch.Generator, siblings: int = SIBLINGS
) -> list[Arch]:
    """Draw architectures at random, in families that share the first half of their stages.

    That half is computed once for a family. Each by itself is drawn as `genes.sample_many` does.
    """
    later = _later_genes(space)
    parents = sample_many(space, -(-number // siblings), rng)
    found: list[Arch] = []
    for parent in parents:
        for other in (parent, *sample_many(space, siblings - 1, rng)):
            pairs = enumerate(zip(parent, other, strict=True))
            found.append(space.repair(tuple(o if g in later else p for g, (p, o) in pairs)))
    return found[:number]


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
    progress: Progress | None = None,
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
    material = _material(store, archs, examples, tasks, calibration)
    job = _Job(store, material, folder, chunk, _key(store, material, chunk))
    folder.mkdir(parents=True, exist_ok=True)
    numbers = range(len(job.chunks))
    missing = [number for number in numbers if _read(job, number) is None]
    done = len(archs) - sum(len(job.chunks[number]) for number in missing)

    def finished(number: int | None) -> None:
        nonlocal done
        done += 0 if number is None else len(job.chunks[number])
        if progress is not None:
            progress(done, len(archs))

    finished(None)
    if min(workers, len(missing)) > 1:
        _share(job, missing, workers, finished)
    else:
        for number in missing:
            _write(job, number)
            finished(number)
    return _assembled(job, archs, tasks)


def table_key(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    tasks: Sequence[SubTask],
    calibration: Examples | None,
    chunk: int = CHUNK,
) -> str:
    """Tell a table from others by what it is made from; arguments as `accuracy_table`."""
    return _key(store, _material(store, archs, examples, tasks, calibration), chunk)


def write_table(path: Path, table: Table) -> None:
    """Write a table into a file."""
    write_whole(path, table)


def read_table(path: Path, space: SearchSpace, task: Task, key: str | None = None) -> Table:
    """Read a table of this space and task; with a key, only the one that was made from that."""
    table = codec.read(Table, path)
    about = _about(space, task, key or "")
    for name in ("space", "task"):
        if table.about.get(name) != about[name]:
            there, wanted = codec.dumps(table.about.get(name)), codec.dumps(about[name])
            raise UserError(f"{path}: the table is of the {name} {there}, not of {wanted}")
    if key is not None and table.about.get("key") != key:
        raise UserError(
            f"{path}: the table was made from other weights, architectures, images or sub-tasks;"
            " delete it to have it made again"
        )
    return table


def _about(space: SearchSpace, task: Task, key: str) -> dict[str, Json]:
    shape = list(task.shape)
    return {"space": describe(space), "task": {"shape": shape, "classes": task.classes}, "key": key}


@dataclass(frozen=True)
class Chunk:
    """A file's content: some rows of a table."""

    key: str  # of the table
    number: int
    check: str  # of the rows: a damaged number still is one
    accuracy: Tensor
    likelihood: Tensor
    plain: Tensor


@dataclass(frozen=True, eq=False)
class Material:
    """What a table is made from, apart from space and weights; images in random order."""

    archs: tuple[Arch, ...]  # sorted
    examples: Examples
    calibration: Examples | None
    masks: Tensor  # as in a Marking
    times: Tensor


@dataclass(frozen=True, eq=False)
class _Job:
    store: Store
    material: Material
    folder: Path
    size: int  # of a chunk
    key: str  # tells the table from others by its content

    @cached_property
    def chunks(self) -> list[range]:
        """The sorted architectures of every chunk."""
        count = len(self.material.archs)
        return [range(at, min(at + self.size, count)) for at in range(0, count, self.size)]

    @cached_property
    def marking(self) -> Marking:
        labels = self.material.examples.labels
        return Marking(labels, self.material.masks, self.material.times)

    def file(self, number: int) -> Path:
        return self.folder / f"chunk-{number:05d}.safetensors"


def _material(
    store: Store,
    archs: Sequence[Arch],
    examples: Examples,
    tasks: Sequence[SubTask],
    calibration: Examples | None,
) -> Material:
    mixed = torch.randperm(len(examples), generator=rng_for(0, "table", "order"))
    few = None
    if calibration is not None:
        size = len(calibration)
        few = _only(calibration, torch.randperm(size, generator=rng_for(0, "table", "calibration")))
    found = marking(examples.labels[examples.index], tasks, store.task.classes)
    chosen = tuple(archs[at] for at in _sorted(store, archs))
    return Material(chosen, _only(examples, mixed), few, found.masks, found.times[mixed])


def _key(store: Store, material: Material, chunk: int) -> str:
    return codec.digest([describe(store.space), store.task, store.copy(), material, chunk])


def _sorted(store: Store, archs: Sequence[Arch]) -> tuple[int, ...]:
    """Return the places of architectures, those together that share their first pieces."""
    numbers: dict[Piece, int] = {}
    chains = [
        [numbers.setdefault(p, len(numbers)) for p in pieces_of(store.space, arch, store.task)]
        for arch in archs
    ]
    return tuple(sorted(range(len(archs)), key=chains.__getitem__))


def _only(examples: Examples, rows: Tensor) -> Examples:
    """Return some rows of examples as examples that hold nothing else.

    In random order: sorted by class, batches would have statistics that give the class away.
    """
    at = examples.index[rows]
    images, labels = examples.images[at], examples.labels[at]
    return Examples(images, labels, torch.arange(len(rows)), examples.mean, examples.std)


def _compute(job: _Job, number: int) -> Chunk:
    rows, material = job.chunks[number], job.material
    labels, archs = material.examples.labels, material.archs[rows.start : rows.stop]
    shape = len(rows), material.masks.shape[1]
    accuracy, likelihood, plain = torch.empty(shape), torch.empty(shape), torch.empty(len(rows))
    cuda = [torch.device(job.store.device)] if job.store.device.startswith("cuda") else []
    with one_thread(), torch.random.fork_rng(devices=cuda):
        torch.manual_seed(seed_for(0, "table", number))  # for operations that are noise
        for at, logits in walk(job.store, archs, material.examples, material.calibration):
            accuracy[at] = job.marking.accuracies(logits)
            likelihood[at] = job.marking.likelihoods(logits)
            plain[at] = (logits.argmax(1) == labels).float().mean()
    check = codec.digest([accuracy, likelihood, plain])
    return Chunk(job.key, number, check, accuracy, likelihood, plain)


def _write(job: _Job, number: int) -> None:
    write_whole(job.file(number), _compute(job, number))


def _read(job: _Job, number: int) -> Chunk | None:
    """Return a chunk that is there, whole and of this table; else None."""
    try:
        chunk = codec.read(Chunk, job.file(number))
    except (UserError, OSError):
        return None
    whole = chunk.check == codec.digest([chunk.accuracy, chunk.likelihood, chunk.plain])
    return chunk if whole and (chunk.key, chunk.number) == (job.key, number) else None


def _assembled(job: _Job, archs: Sequence[Arch], tasks: Sequence[SubTask]) -> Table:
    shape = len(archs), len(tasks)
    accuracy, likelihood, plain = torch.empty(shape), torch.empty(shape), torch.empty(len(archs))
    order = torch.tensor(_sorted(job.store, archs), dtype=torch.int64)
    for number, rows in enumerate(job.chunks):
        chunk = _read(job, number)
        if chunk is None:
            raise UserError(f"{job.file(number)}: it was written but cannot be read")
        at = order[rows.start : rows.stop]
        accuracy[at], likelihood[at] = chunk.accuracy, chunk.likelihood
        plain[at] = chunk.plain
    about = _about(job.store.space, job.store.task, job.key)
    return Table(tuple(archs), tuple(tasks), accuracy, likelihood, plain, about)


def _share(
    job: _Job, missing: Sequence[int], workers: int, finished: Callable[[int | None], None]
) -> None:
    """Have worker processes compute the chunks, each the next when it is done with one."""
    tensors, tree = codec.pack((job.material, job.store.copy()), copy=False)
    head = {
        "space": describe(job.store.space),
        "task": codec.pack(job.store.task)[1],
        "tree": tree,
        "device": job.store.device,
        "folder": str(job.folder.resolve()),
        "size": job.size,
        "key": job.key,
    }
    shared, waiting = channel.share(tensors), deque(missing)
    team: list[Worker] = []
    try:
        with selectors.DefaultSelector() as selector:
            for _ in range(min(workers, len(missing))):
                team.append(Worker(serve, head, shared))
                team[-1].send({"chunk": waiting.popleft()})
                selector.register(team[-1].talk, selectors.EVENT_READ, team[-1])
            for _ in missing:
                worker: Worker = selector.select()[0][0].data
                number = worker.receive()[0]["chunk"]
                if waiting:
                    worker.send({"chunk": waiting.popleft()})
                finished(number)
    finally:
        os.close(shared[0])
        for worker in team:
            worker.close()


def serve(parent: socket.socket, head: Json, tensors: Tensors) -> None:
    """Compute the chunks that the parent asks for: the work of a worker process."""
    material, weights = codec.unpack(tuple[Material, Tensors], tensors, head["tree"], copy=False)
    task = codec.unpack(Task, {}, head["task"])
    store = Store(space_of(head["space"]), task, weights, head["device"])
    job = _Job(store, material, Path(head["folder"]), head["size"], head["key"])
    while True:
        number = channel.receive(parent)[0]["chunk"]
        _write(job, number)
        channel.send(parent, {"chunk": number})
