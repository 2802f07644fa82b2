"""What PerFedSDE-NAS sends: supernet entries, masks and statistics, whatever the options."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch

from fedtailor.algorithms.fedavg import Global
from fedtailor.algorithms.perfedsde import PerFedSDENAS, Supernet
from fedtailor.core import codec
from fedtailor.core.types import Tensors
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import full_shapes
from fedtailor.runs.config import make_config
from fedtailor.training.updates import MASK
from tests.helpers.sde_setting import table, write_generator
from tests.helpers.tiny_space import Tiny
from tests.helpers.whole_runs import Step, recorded

OPTIONS: dict[str, tuple[Any, ...]] = {
    "merge": ("count_samples", "fedavg"),
    "statistics": ("own",),
    "fitness": ("likelihood",),
    "reevaluate": ("iteration",),
    "surrogate": ("ridge", "none"),
    "proposer": ("random", "effects"),
    "guide": ("data", "scores", "both", "none"),
    "accuracy": ("test",),
    "archive": (0,),
    "epochs": (0, 2),
    "iterations": (1,),
    "population": (5,),
    "candidates": (20,),
    "offspring": (1,),
    "finetune_epochs": (0,),
    "optimizer": ("adamw",),
    "schedule": ("cosine", "step"),
}  # beside the defaults
NUMBERS = {"batch", "lr", "finetune_lr", "momentum", "weight_decay", "clip", "label_smoothing"}
EVERY = [{}, *({key: value} for key, values in OPTIONS.items() for value in values)]
TOGETHER = [
    {"merge": merge, "statistics": "own", "guide": "both", "surrogate": "ridge"}
    for merge in ("count", "fedavg")
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_generator(tmp_path_factory.mktemp("generator"))


@pytest.fixture
def passed() -> Iterator[list[Step]]:
    """List every step of a run with what the server sent and what came back, as it arrives."""
    with recorded() as found:
        yield found


def test_every_option_is_tried():
    """Also one that is added: all values that have names, and all fields but those of the steps."""
    for name, kind in get_type_hints(PerFedSDENAS).items():
        if get_origin(kind) is Literal:
            usual = table()["algorithm"].get(name, getattr(PerFedSDENAS, name))
            beside = {"diffusion"} if name == "proposer" else set()  # whatever guides it, below
            assert {*OPTIONS[name], usual} | beside == {*get_args(kind)}, name
    there = {field.name for field in fields(PerFedSDENAS)}
    assert there == {*OPTIONS, *NUMBERS, "generator", "encoder"}  # files, which `guide` needs


@pytest.mark.parametrize("how", [*EVERY, *TOGETHER], ids=str)
def test_nothing_but_weights_and_masks_leaves_a_client_whatever_the_options(
    how: dict[str, Any],
    made: str,
    tmp_path: Path,
    passed: list[Step],
):
    """Every message of a whole run is read. Masks are bits; all else has the supernet's shapes."""
    files = {"proposer": "diffusion", "generator": made} if "guide" in how else {}
    config = table(**files | how) | {"rounds": 2, "eval_every": 1}
    run(config, tmp_path / "run")
    statistics = how.get("statistics", "merged") == "merged"
    task = load_federation(make_config(config).data).task
    shapes = full_shapes(Tiny(), task, statistics)
    assert any(map(is_statistic, shapes)) == statistics
    steps = [step for step, _, _ in passed]
    assert steps.count("train") == 4 and {"evaluate", "deploy"} <= {*steps}
    for step, sent, reply in passed:
        assert sent.info == reply.info == {}, "never an architecture, an accuracy or anything else"
        assert {name: tuple(t.shape) for name, t in sent.tensors.items()} == shapes
        if step != "train" or how.get("epochs") == 0:
            assert reply.tensors == {}
            continue
        masks = {n: t for n, t in reply.tensors.items() if n.startswith(MASK)}
        plain = {n: tuple(t.shape) for n, t in reply.tensors.items() if n not in masks}
        assert plain == shapes
        bits = {MASK + name: (torch.Size(shape).numel() + 7) // 8 for name, shape in shapes.items()}
        assert {n: t.numel() for n, t in masks.items()} == (
            {} if how.get("merge") == "fedavg" else bits
        )
        assert all(mask.dtype == torch.uint8 for mask in masks.values())


def test_all_clients_of_a_round_get_the_same(tmp_path: Path, passed: list[Step]):
    """The server knows nothing of a client, so it has nothing of its own to say to one."""
    run(table() | {"rounds": 1, "cohort": None}, tmp_path / "run")
    digests = {codec.digest(sent.tensors) for step, sent, _ in passed if step == "train"}
    assert len(digests) == 1


def test_a_fixed_model_gives_the_weights_of_fedavg(tmp_path: Path):
    """Without batch norm, weighted by examples, as many epochs: the same steps."""
    fixed = {
        "rounds": 2,
        "eval_every": 2,
        "space": {"name": "cnn", "width": 4, "hidden": 16},
        "data": {"clients": 12, "partition": "dirichlet", "alpha": 0.5},
    }

    def weights(kind: type[Any], **algorithm: Any) -> Tensors:
        config = (
            table()
            | fixed
            | {"algorithm": algorithm | {"batch": 16, "lr": 0.1, "finetune_epochs": 0}}
        )
        return codec.read(kind, run(config, tmp_path / str(algorithm)).server_path(2)).weights

    averaged = weights(Global, name="fedavg", epochs=2)
    for merge in ("count_samples", "fedavg", "count"):
        found = weights(Supernet, name="perfedsde", iterations=2, merge=merge)
        assert set(found) == set(averaged)
        far = [float((found[name] - weight).abs().max()) for name, weight in averaged.items()]
        assert min(far) > 1e-3 if merge == "count" else max(far) < 1e-5, "clients differ in size"
