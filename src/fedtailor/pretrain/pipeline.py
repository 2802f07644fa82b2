"""Pre-training of a generator for a search space: four stages, each resumed where it was stopped.

PerFedSDE-NAS, section 3.2 and supplement C and D: (a) a supernet is trained, or its weights are
given; (b) architectures are evaluated with its weights, on many sub-tasks at once; (c) the score
network learns which architectures there are; (d) the predictor learns how good they are on which
data. The default differs from the paper: fewer architectures and smaller networks, sub-tasks in
place of the one data set, and a predictor that ranks within a task.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
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
from fedtailor.pretrain.settings import DEFAULT, Pretraining
from fedtailor.pretrain.sub_tasks import SubTask, divided, draw_tasks, hold_out
from fedtailor.pretrain.supernet_training import train_supernet
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Encoder, Features, encoded
from fedtailor.search.diffusion.generator import Generator, rounded
from fedtailor.search.diffusion.predictor import Predictor
from fedtailor.search.diffusion.score_network import ScoreNetwork
from fedtailor.search.diffusion.tokens import encode, encoding
from fedtailor.search.evolution import distinct

Progress: TypeAlias = Callable[[str, int, int], None]  # a stage, what of it is done, and of what


@dataclass(frozen=True, eq=False)
class Subject:
    """What a generator is made for, from what, and how."""

    space: SearchSpace
    task: Task
    examples: Examples  # all there are
    encoder: Encoder
    how: Pretraining = DEFAULT


@dataclass(frozen=True, eq=False)
class _Desk:
    """A subject with its images divided, and where and by whom it is worked on."""

    subject: Subject
    learned: Examples
    judged: Examples  # held out
    folder: Path
    workers: int
    device: str
    progress: Progress

    def follow(self, stage: str) -> Callable[[int, int], None]:
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
    progress: Progress | None = None,
    device: str = "cpu",
) -> Generator:
    """Make a generator, or go on where a folder ends; what it is worth is in its `about`.

    Args:
        subject: the space, the data, the encoder and the settings.
        folder: where stages leave what they have; the same call goes on from it.
        weights: a supernet's weights (safetensors), instead of training one.
        workers: processes that share the supernet's work.
        progress: told the stage and how far it is.
        device: where networks are trained; another one gives other bytes.
    """
    how = subject.how
    parts = hold_out(subject.examples, how.images, numpy_rng_for(how.seed, "held out"))
    told = progress or (lambda stage, done, of: None)
    with one_thread():  # another number of threads gives other bytes
        return _made(_Desk(subject, *parts, folder, workers, device, told), weights)


def _made(desk: _Desk, weights: Path | None) -> Generator:
    """Check all that can be checked before what takes long, and go through the stages alone."""
    tasks = _tasks(desk)
    _check(desk.subject)
    given = None if weights is None else _given(desk.subject, weights, desk.device)
    desk.folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(desk.folder):
        return _stages(desk, tasks, given)


def _stages(desk: _Desk, tasks: tuple[SubTask, ...], given: Store | None) -> Generator:
    subject, how = desk.subject, desk.subject.how
    store = _supernet(desk) if given is None else given
    table = _table(desk, store, _strangers(desk, how.archs, "architectures"), tasks, "table")
    score = _score(desk)
    features = _features(desk, tasks)
    lessons = _lessons(desk, score, table, features)
    predictor = _predictor(desk, lessons)
    made = rounded(Generator(subject.space, score, predictor, sampling=how.sampling))
    about = _judged(desk, made, lessons, table) | _gains(desk, made, store, table, features)
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


def _supernet(desk: _Desk) -> Store:
    subject = desk.subject
    settings = subject.how.supernet
    return train_supernet(
        subject.space,
        subject.task,
        desk.learned,
        dataclasses.replace(settings, seed=settings.seed + subject.how.seed),  # either is new luck
        desk.folder / "supernet.safetensors",
        desk.follow("supernet"),
        desk.workers,
        device=desk.device,
    )


def _given(subject: Subject, weights: Path, device: str) -> Store:
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


def _tasks(desk: _Desk) -> tuple[SubTask, ...]:
    """Draw sub-tasks, the last of which judge the predictor by images that no other task has."""
    how = desk.subject.how
    judged, learned = (each.labels[each.index] for each in (desk.judged, desk.learned))
    parts, rng = _parted(desk)
    last = _kept(how, how.tasks)
    found: list[SubTask] = []
    for rows, number in zip(parts, (how.tasks - last, last), strict=True):
        drawn = draw_tasks(judged[rows], learned, number, rng, how.draw)
        found += (dataclasses.replace(task, images=rows[task.images]) for task in drawn)
    return tuple(found)


def _parted(desk: _Desk) -> tuple[tuple[Tensor, Tensor], np.random.Generator]:
    """Divide the images of tasks, and go on with the same luck: the second part only judges."""
    labels, rng = (
        desk.judged.labels[desk.judged.index],
        numpy_rng_for(desk.subject.how.seed, "tasks"),
    )
    return divided(labels, _kept(desk.subject.how, len(labels)), rng), rng


def _strangers(desk: _Desk, number: int, purpose: str) -> list[Arch]:
    """Draw distinct architectures, as many as there are."""
    space, rng = desk.subject.space, desk.rng(purpose)
    return list(dict.fromkeys(distinct(space, families(space, rng).__next__, number, (), rng)))


def _table(
    desk: _Desk, store: Store, archs: Sequence[Arch], tasks: Sequence[SubTask], name: str
) -> Table:
    few = desk.subject.how.calibration
    calibration = None
    if few:
        order = torch.randperm(len(desk.learned), generator=desk.rng("calibration"))[:few]
        calibration = dataclasses.replace(desk.learned, index=desk.learned.index[order])
    folder, told = desk.folder / name, desk.follow(name)
    return accuracy_table(store, archs, desk.judged, tasks, calibration, desk.workers, folder, told)


def _score(desk: _Desk) -> ScoreNetwork:
    how, space = desk.subject.how, desk.subject.space
    known = genes.sample_many(space, how.score_archs, desk.rng("score architectures"))
    values = encode(space, known)
    network = ScoreNetwork(encoding(space), how.equation(), how.score)
    initialise(network, desk.rng("score weights"))
    network.centre(values)
    network.to(desk.device)

    def loss(step: int, rng: torch.Generator) -> Tensor:
        del step
        rows = torch.randint(len(values), (how.score_training.batch,), generator=rng)
        return network.loss(values[rows], rng)

    path = desk.checkpoint("score", values, how.score, how.score_training)
    return train(network, loss, how.score_training, how.seed, path, progress=desk.follow("score"))


def _features(desk: _Desk, tasks: Sequence[SubTask]) -> list[Features]:
    """Encode the tasks' own images, each once."""
    examples, rows = desk.learned, torch.cat([task.support for task in tasks]).unique()
    few = dataclasses.replace(examples, index=examples.index[rows])
    values = encoded(desk.subject.encoder, few)
    at = torch.zeros(len(examples), dtype=torch.int64)
    at[rows] = torch.arange(len(rows))
    labels = examples.labels[examples.index]
    return [Features(values[at[task.support]], labels[task.support]) for task in tasks]


def _lessons(
    desk: _Desk, score: ScoreNetwork, table: Table, features: Sequence[Features]
) -> Lessons:
    how = desk.subject.how
    kept, target = (_kept(how, len(table.tasks)), _kept(how, len(table.archs))), how.target
    return predicting.lessons(desk.subject.space, score, table, features, *kept, target)


def _kept(how: Pretraining, of: int) -> int:
    """Return how many judge the predictor and are not learned from."""
    return max(1, of // how.kept)


def _predictor(desk: _Desk, lessons: Lessons) -> Predictor:
    how, space = desk.subject.how, desk.subject.space
    size = lessons.values.shape[3]
    network = Predictor(encoding(space), how.equation(), size, how.predictor)
    initialise(network, desk.rng("predictor weights"))
    network.shares.copy_(lessons.shares)
    network.to(desk.device)
    loss = predicting.loss_of(network, lessons, how.predictor_training, how.per_task, how.over)
    sizes = (how.predictor, how.predictor_training, how.per_task, how.over)
    path, follow = desk.checkpoint("predictor", lessons, *sizes), desk.follow("predictor")
    return train(network, loss, how.predictor_training, how.seed, path, progress=follow)


def _judged(desk: _Desk, made: Generator, lessons: Lessons, table: Table) -> dict[str, Json]:
    """Say how good each stage's result is."""
    how, space = desk.subject.how, desk.subject.space
    known = genes.sample_many(space, how.score_archs, desk.rng("score architectures"))
    others = genes.sample_many(space, 20 * how.drawn, desk.rng("reference"))
    found: dict[str, Json] = {
        "encoder": desk.subject.encoder.digest,
        "supernet": {
            "classes": desk.subject.task.classes,
            "lowest": float(table.plain.min()),
            "mean": float(table.plain.mean()),
            "highest": float(table.plain.max()),
        },
    }
    embedding = made.predictor.embed(lessons.values[-1:], lessons.present[-1:])[0].detach()
    for name, strength in (("unguided", 0.0), ("guided", how.sampling.strength)):
        sampling = dataclasses.replace(how.sampling, strength=strength)
        x = made.tables(how.drawn, desk.rng(name), embedding, sampling)
        found[name] = generation_quality(space, x, known, others)
    found["kendall_tau"] = predicting.ranking(made.predictor, lessons, desk.rng("ranking"))
    found["targets"] = {"own": lessons.own}
    return found


def _gains(
    desk: _Desk, made: Generator, store: Store, table: Table, features: Sequence[Features]
) -> dict[str, Json]:
    """Test what is generated for some tasks that the predictor does not know, on those tasks.

    Few images tell little of architectures, so it is also tested on all images that judge, among
    all classes: whether guidance leads to what is good in general.
    """
    how, sampling = desk.subject.how, desk.subject.how.sampling
    clients = min(how.clients, _kept(how, len(table.tasks)))
    if not clients:
        return {}
    drawn = [
        made.architectures(how.per_client, desk.rng(f"client {last}"), made.embed(data), sampling)
        for last, data in enumerate(features[-clients:], -clients)
    ]
    many, plain = clients * how.per_client, dataclasses.replace(sampling, strength=0.0)
    kinds = {
        "guided": list(chain(*drawn)),
        "no data": made.architectures(many, desk.rng("no data"), None, sampling),
        "unguided": made.architectures(many, desk.rng("unguided"), None, plain),
    }
    archs = list(dict.fromkeys(chain(*kinds.values())))
    classes, none = tuple(range(desk.subject.task.classes)), torch.empty(0, dtype=torch.int64)
    whole = SubTask(classes, _parted(desk)[0][1], support=none)
    tested = _table(desk, store, archs, (*table.tasks[-clients:], whole), "clients").accuracy
    places = {arch: place for place, arch in enumerate(archs)}

    def mean(group: Iterable[Arch], task: int) -> float:
        return float(tested[[places[arch] for arch in group], task].mean())

    found = {name: [mean(kinds[name], task) for task in range(clients)] for name in kinds}
    found["guided"] = [mean(own, task) for task, own in enumerate(drawn)]
    if clients > 1:
        others = (chain(*drawn[:task], *drawn[task + 1 :]) for task in range(clients))
        found["for others"] = [mean(group, task) for task, group in enumerate(others)]
    return {"accuracy": found, "in_general": {name: mean(kinds[name], -1) for name in kinds}}
