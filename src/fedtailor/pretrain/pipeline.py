"""Pre-training of a generator for a search space: four stages, each resumed where it was stopped.

PerFedSDE-NAS, section 3.2 and supplement C and D: (a) a supernet is trained, or its weights are
given; (b) architectures are evaluated with its weights, on many sub-tasks at once; (c) the score
network learns which architectures there are; (d) the predictor learns how good they are on which
data. The default differs from the paper: fewer architectures and smaller networks, sub-tasks in
place of the one data set, and a predictor that ranks within a task.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from fedtailor.core import codec
from fedtailor.core.compute import one_thread
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.rng import numpy_rng_for, rng_for
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Examples, Json, Setting, Tensors
from fedtailor.networks.initial import initial_supernet, initialise, read_weights
from fedtailor.networks.store import Store, full_shapes
from fedtailor.pretrain import predictor_training as predicting
from fedtailor.pretrain.accuracy_table import Table, accuracy_table, families
from fedtailor.pretrain.generator_quality import generation_quality
from fedtailor.pretrain.network_training import train
from fedtailor.pretrain.predictor_training import Lessons
from fedtailor.pretrain.resumable import OnProgress
from fedtailor.pretrain.settings import DEFAULT, Pretraining
from fedtailor.pretrain.sub_tasks import SubTask, divided, draw_tasks, hold_out
from fedtailor.pretrain.supernet_file import write_supernet
from fedtailor.pretrain.supernet_training import train_supernet
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Encoder, Features, encoded
from fedtailor.search.diffusion.generator import Generator, rounded
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.score_network import ScoreNetwork
from fedtailor.search.diffusion.tokens import encode, encoding
from fedtailor.search.evolution import distinct

OnStage: TypeAlias = Callable[[str, int, int], None]  # a stage, what of it is done, and of what


@dataclass(frozen=True, eq=False)
class Subject:
    """What a generator is made for, from what, and how."""

    space: SearchSpace
    task: Task
    examples: Examples  # all there are
    encoder: Encoder
    how: Pretraining = DEFAULT


@dataclass(frozen=True, eq=False)
class _Workspace:
    """A subject with its images divided, and where and by whom it is worked on."""

    subject: Subject
    learned: Examples
    judged: Examples  # held out
    folder: Path
    workers: int
    device: str
    progress: OnStage

    def on_progress(self, stage: str) -> OnProgress:
        """Return what a stage tells how far it is."""
        return partial(self.progress, stage)

    def rng(self, purpose: str) -> torch.Generator:
        return rng_for(self.subject.how.seed, purpose)

    def checkpoint(self, stage: str, *learned: object) -> Path:
        """Name a training's file by all that it learns from: with anything else it begins anew."""
        how = self.subject.how
        key = codec.digest([how.seed, encoding(self.subject.space), how.equation(), *learned])
        return self.folder / f"{stage}-{key[:16]}.safetensors"


def pretrain(
    subject: Subject,
    folder: Path,
    weights: Path | None = None,
    workers: int = 1,
    progress: OnStage | None = None,
    device: str = "cpu",
    supernet: Path | None = None,
) -> Generator:
    """Make a generator, or go on where a folder ends; what it is worth is in its `about`.

    Args:
        subject: the space, the data, the encoder and the settings.
        folder: where stages leave what they have; the same call goes on from it.
        weights: a supernet's weights (safetensors), instead of training one.
        workers: processes that share the supernet's work.
        progress: told the stage and how far it is.
        device: where networks are trained; another one gives other bytes.
        supernet: where the first stage's supernet is written to, as `space.init` takes it.
    """
    with one_thread():  # another number of threads gives other bytes
        work = _workspace(subject, folder, workers, progress, device)
        tasks = _tasks(work)  # all that can be checked is, before what takes long
        _check(subject)
        with _first_stage(work, weights, supernet) as store:
            return _later_stages(work, tasks, store)


def pretrain_supernet(
    subject: Subject,
    folder: Path,
    supernet: Path,
    weights: Path | None = None,
    workers: int = 1,
    progress: OnStage | None = None,
    device: str = "cpu",
) -> None:
    """Do the first stage of `pretrain` alone, which goes on from the same folder."""
    with one_thread():
        work = _workspace(subject, folder, workers, progress, device)
        with _first_stage(work, weights, supernet):
            pass


def _workspace(
    subject: Subject, folder: Path, workers: int, progress: OnStage | None, device: str
) -> _Workspace:
    how = subject.how
    parts = hold_out(subject.examples, how.images, numpy_rng_for(how.seed, "held out"))
    told = progress or (lambda stage, done, of: None)
    return _Workspace(subject, *parts, folder, workers, device, told)


@contextmanager
def _first_stage(work: _Workspace, weights: Path | None, supernet: Path | None) -> Iterator[Store]:
    """Yield the supernet, trained or given, while no other process may work in the folder."""
    given = None if weights is None else _read_supernet(work.subject, weights, work.device)
    work.folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(work.folder):
        store = _supernet(work) if given is None else given
        if supernet is not None:
            seed, follow = work.subject.how.seed, work.on_progress("statistics")
            write_supernet(supernet, store, work.learned, seed, follow)
        yield store


def _later_stages(work: _Workspace, tasks: tuple[SubTask, ...], store: Store) -> Generator:
    subject, how = work.subject, work.subject.how
    table = _table(work, store, _distinct_archs(work, how.archs, "architectures"), tasks, "table")
    score = _score(work)
    features = _features(work, tasks)
    lessons = _lessons(work, score, table, features)
    predictor = _predictor(work, lessons)
    made = rounded(Generator(subject.space, score, predictor, sampling=how.sampling))
    about = _quality(work, made, lessons, table) | _tested_for_clients(
        work, made, store, table, features
    )
    return dataclasses.replace(made, about=about)


def _check(subject: Subject) -> None:
    """Refuse sizes of which there are no networks."""
    code, how = encoding(subject.space), subject.how
    try:
        ScoreNetwork(code, how.equation(), how.score)
    except ValueError as error:
        raise UserError(f"pretrain.score: {error}") from None
    try:
        Predictor(code, how.equation(), subject.encoder.size, how.predictor)
    except ValueError as error:
        raise UserError(f"pretrain.predictor: {error}") from None


def _supernet(work: _Workspace) -> Store:
    subject = work.subject
    settings = subject.how.supernet
    return train_supernet(
        subject.space,
        subject.task,
        work.learned,
        dataclasses.replace(settings, seed=settings.seed + subject.how.seed),  # either is new luck
        work.folder / "supernet.safetensors",
        work.on_progress("supernet"),
        work.workers,
        device=work.device,
    )


def _read_supernet(subject: Subject, weights: Path, device: str) -> Store:
    """Read a supernet; one of other classes would have a head of chance."""
    setting = Setting(subject.task, subject.space, 0, subject.how.seed, init=str(weights))
    try:
        saved, wanted = read_weights(weights), full_shapes(subject.space, subject.task)
        _check_head(subject, weights, saved, wanted)
        return Store(subject.space, subject.task, initial_supernet(setting), device)
    except UserError as error:  # of what a config calls so
        raise UserError(str(error).replace("space.init: ", "weights: ", 1)) from None


def _check_head(
    subject: Subject, weights: Path, saved: Tensors, wanted: dict[str, tuple[int, ...]]
) -> None:
    for name in (name for name in wanted if name.startswith("head.")):
        if name not in saved or tuple(saved[name].shape) != wanted[name]:
            raise UserError(
                f"weights: {weights} is of another space, or was trained on other classes than the "
                f"{subject.task.classes} of the data ({name} does not fit)"
            )


def _tasks(work: _Workspace) -> tuple[SubTask, ...]:
    """Draw sub-tasks, the last of which judge the predictor by images that no other task has."""
    how = work.subject.how
    judged, learned = (each.labels[each.index] for each in (work.judged, work.learned))
    parts, rng = _divided_images(work)
    last = _held_back(how, how.tasks)
    found: list[SubTask] = []
    for rows, number in zip(parts, (how.tasks - last, last), strict=True):
        drawn = draw_tasks(judged[rows], learned, number, rng, how.draw)
        found += (dataclasses.replace(task, images=rows[task.images]) for task in drawn)
    return tuple(found)


def _divided_images(work: _Workspace) -> tuple[tuple[Tensor, Tensor], np.random.Generator]:
    """Divide the images of tasks, and go on with the same luck: the second part only judges."""
    labels, rng = (
        work.judged.labels[work.judged.index],
        numpy_rng_for(work.subject.how.seed, "tasks"),
    )
    return divided(labels, _held_back(work.subject.how, len(labels)), rng), rng


def _distinct_archs(work: _Workspace, number: int, purpose: str) -> list[Arch]:
    """Draw distinct architectures, as many as there are."""
    space, rng = work.subject.space, work.rng(purpose)
    return list(dict.fromkeys(distinct(space, families(space, rng).__next__, number, (), rng)))


def _table(
    work: _Workspace, store: Store, archs: Sequence[Arch], tasks: Sequence[SubTask], name: str
) -> Table:
    few = work.subject.how.calibration
    calibration = None
    if few:
        order = torch.randperm(len(work.learned), generator=work.rng("calibration"))[:few]
        calibration = dataclasses.replace(work.learned, index=work.learned.index[order])
    folder, told = work.folder / name, work.on_progress(name)
    return accuracy_table(store, archs, work.judged, tasks, calibration, work.workers, folder, told)


def _score(work: _Workspace) -> ScoreNetwork:
    how, space = work.subject.how, work.subject.space
    known = genes.sample_many(space, how.score_archs, work.rng("score architectures"))
    values = encode(space, known)
    network = ScoreNetwork(encoding(space), how.equation(), how.score)
    initialise(network, work.rng("score weights"))
    network.centre(values)
    network.to(work.device)

    def loss(step: int, rng: torch.Generator) -> Tensor:
        del step
        rows = torch.randint(len(values), (how.score_training.batch,), generator=rng)
        return network.loss(values[rows], rng)

    path = work.checkpoint("score", values, how.score, how.score_training)
    return train(
        network, loss, how.score_training, how.seed, path, progress=work.on_progress("score")
    )


def _features(work: _Workspace, tasks: Sequence[SubTask]) -> list[Features]:
    """Encode the tasks' own images, each once."""
    examples, rows = work.learned, torch.cat([task.support for task in tasks]).unique()
    few = dataclasses.replace(examples, index=examples.index[rows])
    values = encoded(work.subject.encoder, few)
    at = torch.zeros(len(examples), dtype=torch.int64)
    at[rows] = torch.arange(len(rows))
    labels = examples.labels[examples.index]
    return [Features(values[at[task.support]], labels[task.support]) for task in tasks]


def _lessons(
    work: _Workspace, score: ScoreNetwork, table: Table, features: Sequence[Features]
) -> Lessons:
    how = work.subject.how
    kept, target = (
        (_held_back(how, len(table.tasks)), _held_back(how, len(table.archs))),
        how.target,
    )
    return predicting.lessons(work.subject.space, score, table, features, *kept, target)


def _held_back(how: Pretraining, of: int) -> int:
    """Return how many judge the predictor and are not learned from."""
    return max(1, of // how.kept)


def _predictor(work: _Workspace, lessons: Lessons) -> Predictor:
    how, space = work.subject.how, work.subject.space
    size = lessons.values.shape[3]
    network = Predictor(encoding(space), how.equation(), size, how.predictor)
    initialise(network, work.rng("predictor weights"))
    network.shares.copy_(lessons.shares)
    network.to(work.device)
    loss = predicting.loss_of(network, lessons, how.predictor_training, how.per_task, how.over)
    sizes = (how.predictor, how.predictor_training, how.per_task, how.over)
    path, follow = work.checkpoint("predictor", lessons, *sizes), work.on_progress("predictor")
    return train(network, loss, how.predictor_training, how.seed, path, progress=follow)


def _quality(work: _Workspace, made: Generator, lessons: Lessons, table: Table) -> dict[str, Json]:
    """Say how good each stage's result is."""
    how, space = work.subject.how, work.subject.space
    known = genes.sample_many(space, how.score_archs, work.rng("score architectures"))
    others = genes.sample_many(space, 20 * how.drawn, work.rng("reference"))
    found: dict[str, Json] = {
        "encoder": work.subject.encoder.digest,
        "supernet": {
            "classes": work.subject.task.classes,
            "lowest": float(table.plain.min()),
            "mean": float(table.plain.mean()),
            "highest": float(table.plain.max()),
        },
    }
    embedding = made.predictor.embed(lessons.values[-1:], lessons.present[-1:])[0].detach()
    for name, strength in (("unguided", 0.0), ("guided", how.sampling.strength)):
        sampling = dataclasses.replace(how.sampling, strength=strength)
        x = made.tables(how.drawn, work.rng(name), embedding, sampling)
        found[name] = generation_quality(space, x, known, others)
    found["kendall_tau"] = predicting.ranking(made.predictor, lessons, work.rng("ranking"))
    found["targets"] = {"own": lessons.own}
    return found


def _tested_for_clients(
    work: _Workspace, made: Generator, store: Store, table: Table, features: Sequence[Features]
) -> dict[str, Json]:
    """Test what is generated for some tasks that the predictor does not know, on those tasks.

    Few images tell little of architectures, so it is also tested on all images that judge, among
    all classes: whether guidance leads to what is good in general.
    """
    how, sampling = work.subject.how, work.subject.how.sampling
    clients = min(how.clients, _held_back(how, len(table.tasks)))
    if not clients:
        return {}
    drawn = [
        made.architectures(how.per_client, work.rng(f"client {last}"), made.embed(data), sampling)
        for last, data in enumerate(features[-clients:], -clients)
    ]
    many, plain = clients * how.per_client, dataclasses.replace(sampling, strength=0.0)
    kinds = {
        "guided": list(chain(*drawn)),
        "no data": made.architectures(many, work.rng("no data"), None, sampling),
        "unguided": made.architectures(many, work.rng("unguided"), None, plain),
    }
    archs = list(dict.fromkeys(chain(*kinds.values())))
    classes, none = tuple(range(work.subject.task.classes)), torch.empty(0, dtype=torch.int64)
    whole = SubTask(classes, _divided_images(work)[0][1], support=none)
    tested = _table(work, store, archs, (*table.tasks[-clients:], whole), "clients").accuracy
    places = {arch: place for place, arch in enumerate(archs)}

    def mean(group: Iterable[Arch], task: int) -> float:
        return float(tested[[places[arch] for arch in group], task].mean())

    found = {name: [mean(kinds[name], task) for task in range(clients)] for name in kinds}
    found["guided"] = [mean(own, task) for task, own in enumerate(drawn)]
    if clients > 1:
        others = (chain(*drawn[:task], *drawn[task + 1 :]) for task in range(clients))
        found["for others"] = [mean(group, task) for task, group in enumerate(others)]
    return {"accuracy": found, "in_general": {name: mean(kinds[name], -1) for name in kinds}}
