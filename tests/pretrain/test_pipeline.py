"""Pre-training as a whole: stopped anywhere, shared by processes, and changed between two calls."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for, rng_for
from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Examples
from fedtailor.networks.store import Store
from fedtailor.pretrain import pipeline
from fedtailor.pretrain.pipeline import OnStage, Subject, pretrain
from fedtailor.pretrain.settings import Pretraining
from fedtailor.pretrain.sub_tasks import divided, draw_tasks, hold_out
from fedtailor.pretrain.supernet_training import SupernetCheckpoint
from fedtailor.search.diffusion.encoder import features
from fedtailor.search.diffusion.generator import Generator, load, save
from fedtailor.training.population import walk
from tests.helpers.tiny_generator import TASK, TINY, encoder, examples
from tests.helpers.tiny_space import Tiny

SPACE = Tiny(2)
STRENGTH = TINY.sampling.strength
SHORT = replace(TINY, clients=0)  # without a test of what is generated


@pytest.fixture(scope="module", autouse=True)
def often() -> Iterator[None]:
    """Have all stages keep what they have after every step, so that little is enough to resume."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "train_supernet", partial(pipeline.train_supernet, every=0.0))
        patch.setattr(pipeline, "accuracy_table", partial(pipeline.accuracy_table, chunk=3))
        patch.setattr(pipeline, "train", partial(pipeline.train, every=1))
        yield


def subject(how: Pretraining = TINY, **changes: Any) -> Subject:
    return replace(Subject(SPACE, TASK, examples(), encoder(), how), **changes)


def content(made: Generator, folder: Path) -> bytes:
    """Return the bytes of a generator's file."""
    save(made, folder / "generator.safetensors")
    return (folder / "generator.safetensors").read_bytes()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a whole pre-training, which nothing changes."""
    folder = tmp_path_factory.mktemp("whole")
    content(pretrain(subject(), folder), folder)
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> bytes:
    return (folder / "generator.safetensors").read_bytes()


@pytest.fixture(scope="module")
def weights(folder: Path) -> Path:
    """Return a file of the supernet's weights."""
    state = codec.read(SupernetCheckpoint, folder / "supernet.safetensors")
    safetensors.torch.save_file(state.weights, folder / "weights.safetensors")
    return folder / "weights.safetensors"


class StopError(Exception):
    """What a test stops a stage by."""


def following(seen: list[tuple[str, int, int]], stop: tuple[str, int] | None = None) -> OnStage:
    """Return what writes down the progress, and ends it at some point of a stage."""

    def progress(stage: str, done: int, of: int) -> None:
        seen.append((stage, done, of))
        if (stage, done) == stop:
            raise StopError

    return progress


def test_four_stages_and_what_they_are_worth(folder: Path, whole: bytes):
    made = load(folder / "generator.safetensors", SPACE)
    about = made.about
    assert whole and json.loads(json.dumps(about, allow_nan=False)) == about
    assert set(about) == {
        *("encoder", "supernet", "unguided", "guided", "targets", "kendall_tau", "accuracy"),
        "in_general",
    }
    assert about["supernet"]["classes"] == 4
    assert 0 <= about["supernet"]["lowest"] <= about["supernet"]["mean"] <= 1
    assert set(about["accuracy"]) == {"guided", "for others", "no data", "unguided"}
    assert all(len(of) == 2 and 0 <= min(of) <= max(of) <= 1 for of in about["accuracy"].values())
    taus = about["kendall_tau"]
    assert {"own_clean", "other_clean", "none_clean"} <= set(taus)
    assert all(-1 <= tau <= 1 for tau in taus.values())
    assert torch.equal(made.score.shares, made.predictor.shares)
    assert made.predictor.feature_size == 12
    legal = made.architectures(9, torch.Generator().manual_seed(0))
    assert all(SPACE.repair(arch) == arch for arch in legal)


def right(
    store: Store, archs: list[Arch], held: Examples, rows: Tensor, classes: list[int]
) -> float:
    """Return the accuracy of networks one by one, on some rows, among some classes."""
    labels, shares = held.labels[held.index[rows]], []
    for arch in archs:
        [(_, logits)] = walk(store, [arch], held)
        best = logits[rows][:, classes].argmax(1)
        shares.append((torch.tensor(classes)[best] == labels).double().mean())
    return float(torch.stack(shares).mean())


def test_what_is_generated_is_tested_on_images_that_nothing_learned_from(folder: Path):
    """Both kept tasks and all that judges, each again by hand."""
    made = load(folder / "generator.safetensors", SPACE)
    store = Store(
        SPACE, TASK, codec.read(SupernetCheckpoint, folder / "supernet.safetensors").weights
    )
    learned, held = hold_out(examples(), TINY.images, numpy_rng_for(TINY.seed, "held out"))
    labels, others = (each.labels[each.index] for each in (held, learned))
    rng = numpy_rng_for(TINY.seed, "tasks")
    first, last = divided(labels, len(labels) // TINY.kept, rng)
    draw_tasks(labels[first], others, 4, rng, TINY.draw)
    tasks = draw_tasks(labels[last], others, 2, rng, TINY.draw)
    supports = [replace(learned, index=learned.index[task.support]) for task in tasks]
    data = [made.embed(features(encoder(), support)) for support in supports]

    def drawn(name: str, number: int, of: Tensor | None, strength: float = STRENGTH) -> list[Arch]:
        sampling = replace(TINY.sampling, strength=strength)
        return made.architectures(number, rng_for(TINY.seed, name), of, sampling)

    own = [drawn(f"client {place - 2}", 3, data[place]) for place in (0, 1)]
    kinds = {"no data": drawn("no data", 6, None), "unguided": drawn("unguided", 6, None, 0.0)}
    assert len({*own[0], *own[1]}) > 1
    for place, task in enumerate(tasks):
        groups = kinds | {"guided": own[place], "for others": own[1 - place]}
        for name, group in groups.items():
            expected = right(store, group, held, last[task.images], list(task.classes))
            assert made.about["accuracy"][name][place] == pytest.approx(expected), name
    for name, group in (kinds | {"guided": own[0] + own[1]}).items():
        expected = right(store, group, held, last, [0, 1, 2, 3])
        assert made.about["in_general"][name] == pytest.approx(expected), name


def test_stopped_in_every_stage_it_ends_in_the_same_bytes(whole: bytes, tmp_path: Path):
    stops = [("supernet", 2), ("table", 3), ("table", 6), ("score", 2), ("predictor", 3)]
    stops += [("clients", 3), ("clients", 6)]
    first: dict[str, tuple[int, int]] = {}
    for stop in stops:
        seen: list[tuple[str, int, int]] = []
        with pytest.raises(StopError):
            pretrain(subject(), tmp_path, progress=following(seen, stop))
        assert seen[-1][:2] == stop
        first = {stage: (done, of) for stage, done, of in reversed(seen)}
    assert "supernet" not in first and "score" not in first, "what is done is not done again"
    assert "predictor" not in first and first["table"] == (8, 8) and first["clients"][0] == 3
    made = pretrain(subject(), tmp_path)
    assert content(made, tmp_path) == whole


def test_where_a_stage_was_stopped_it_goes_on(weights: Path, tmp_path: Path):
    for stage, stop, of in (("table", 6, 8), ("score", 3, 4), ("predictor", 1, 4)):
        seen: list[tuple[str, int, int]] = []
        for at in (stop, of):
            with pytest.raises(StopError):
                pretrain(subject(SHORT), tmp_path, weights, 1, following(seen, (stage, at)))
        own = [done for name, done, _ in seen if name == stage]
        again = own[own.index(stop) + 1 :]
        assert again[0] == (stop if stage == "table" else stop + 1)


def test_any_number_of_workers_makes_the_same_bytes(tmp_path: Path):
    found = []
    for workers in (1, 2):
        folder = tmp_path / str(workers)
        found.append(content(pretrain(subject(SHORT), folder, None, workers), folder))
    assert found[0] == found[1]


def test_the_number_of_threads_does_not_matter(weights: Path, tmp_path: Path):
    threads: set[int] = set()
    torch.set_num_threads(2)
    try:
        pretrain(
            subject(SHORT),
            tmp_path,
            weights,
            progress=lambda *_: threads.add(torch.get_num_threads()),
        )
        assert threads == {1} and torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_given_weights_are_as_good_as_trained_ones(whole: bytes, weights: Path, tmp_path: Path):
    seen: list[tuple[str, int, int]] = []
    made = pretrain(subject(), tmp_path, weights, progress=following(seen))
    assert content(made, tmp_path) == whole
    assert {stage for stage, _, _ in seen} == {
        "table",
        "score",
        "predictor",
        "clients",
    }
    assert not (tmp_path / "supernet.safetensors").exists()


def test_weights_that_do_not_fit_are_refused(weights: Path, tmp_path: Path):
    fewer = subject(task=Task(TASK.shape, 3), examples=examples(3))
    deeper = subject(space=Tiny(3))
    (tmp_path / "text").write_text("no weights")
    for which, file, says in (
        (fewer, weights, f"weights: {weights} is of another space, or was trained on other classes "
         "than the 3 of the data (head.linear.weight does not fit)"),
        (deeper, weights, f"weights: {weights} has no weight layer2"),
        (subject(), tmp_path / "nothing", f"weights: there is no file {tmp_path / 'nothing'}"),
        (subject(), tmp_path / "text", f"weights: {tmp_path / 'text'} is no safetensors file"),
    ):  # fmt: skip
        with pytest.raises(UserError) as error:
            pretrain(which, tmp_path / "work", file)
        assert str(error.value).startswith(says)
    assert not (tmp_path / "work").exists()


CHANGES: dict[str, dict[str, Any]] = {
    "archs": {"archs": 12},
    "tasks": {"tasks": 7},
    "draw": {"draw": replace(SHORT.draw, support=2)},
    "kept": {"kept": 2},
    "calibration": {"calibration": 10},
    "score": {"score": replace(SHORT.score, loops=False)},
    "score_archs": {"score_archs": 41},
    "score_training": {"score_training": replace(SHORT.score_training, steps=5)},
    "predictor": {"predictor": replace(SHORT.predictor, blank=0.5)},
    "predictor_training": {"predictor_training": replace(SHORT.predictor_training, lr=0.1)},
    "over": {"over": "all"},
    "seed": {"seed": 1},
}


def test_nothing_survives_a_change_of_what_it_was_made_from(weights: Path, tmp_path: Path):
    """In a folder that was used for others, everything is as in a folder of its own."""
    used = tmp_path / "used"
    usual = content(pretrain(subject(SHORT), used, weights), used)
    asked = {name: subject(replace(SHORT, **changes)) for name, changes in CHANGES.items()}
    asked["encoder"] = subject(SHORT, encoder=encoder(3))
    for name, each in asked.items():
        fresh = tmp_path / name
        found = content(pretrain(each, used, weights), used)
        assert found == content(pretrain(each, fresh, weights), fresh), name
        assert found != usual, name
    seen: list[tuple[str, int, int]] = []
    assert content(pretrain(subject(SHORT), used, weights, 1, following(seen)), used) == usual
    assert {stage for stage, _, _ in seen} == {"table"}, "both trainings are still there"


def test_a_supernet_is_not_mixed_with_another_nor_lost(tmp_path: Path):
    with pytest.raises(StopError):
        pretrain(subject(), tmp_path, progress=following([], ("supernet", 2)))
    kept = (tmp_path / "supernet.safetensors").read_bytes()
    for other in (
        subject(replace(TINY, seed=1)),
        subject(replace(TINY, images=20)),
        subject(replace(TINY, supernet=replace(TINY.supernet, lr=0.02))),
        subject(replace(TINY, supernet=replace(TINY.supernet, seed=1))),
        subject(examples=examples(count=88)),
        subject(space=Tiny(1)),
    ):
        with pytest.raises(UserError, match="or trained otherwise; delete it or use another"):
            pretrain(other, tmp_path)
    assert (tmp_path / "supernet.safetensors").read_bytes() == kept


def test_settings_that_make_no_network_are_refused_before_anything_is_done(tmp_path: Path):
    for how, says in (
        (replace(TINY, score=replace(TINY.score, width=9)), "pretrain.score: width must be even"),
        (
            replace(TINY, predictor=replace(TINY.predictor, set_width=9)),
            "pretrain.predictor: set_width must be a multiple",
        ),
        (replace(TINY, images=80), "pretrain.images: 80 images are to be held out of 80"),
        (
            replace(TINY, draw=replace(TINY.draw, fewest=5, most=6)),
            "pretrain.data: 4 classes have both",
        ),
    ):
        with pytest.raises(UserError, match=says):
            pretrain(subject(how), tmp_path / "work")
    assert not (tmp_path / "work").exists()


def test_small_spaces_and_few_tasks_give_what_there_is(tmp_path: Path):
    """A space of 6 architectures; 2 of 6 tasks are kept, so no more clients can be judged."""
    seen: list[tuple[str, int, int]] = []
    how = replace(TINY, archs=50, clients=9)
    made = pretrain(subject(how, space=Tiny(1)), tmp_path, progress=following(seen))
    assert ("table", 6, 6) in seen
    assert len(made.about["accuracy"]["guided"]) == 2
