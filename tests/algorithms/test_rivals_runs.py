"""Whole runs of the methods that SPIDER and PerFedRLNAS are compared with: killed, in workers,
every message read; of FedNAS also what it writes down, new clients, and what is refused."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedtailor.algorithms._replies import check_reply
from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.onboarding import onboard
from fedtailor.experiment.prepare import prepare
from fedtailor.runs.config import make_config, write_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from tests.helpers import few_edges, tiny_space
from tests.helpers.whole_runs import Step, kill, recorded

RELAXED = {"name": f"{few_edges.__file__}:FewEdges", "arch": "largest"}
PATHS = {"name": f"{tiny_space.__file__}:Tiny"}
CNN = {"name": "cnn", "width": 4, "hidden": 16}
DECIDES = {"searcher": "perturbation", "warmup": 1, "recovery": 1}  # after rounds 1 and 2
ALPHAS = {"searcher": "milenas", "search_rounds": 2}

METHODS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # algorithm and space
    "fednas milenas": ({"name": "fednas", **ALPHAS}, RELAXED),
    "fednas perturbation": ({"name": "fednas", **DECIDES}, RELAXED),
    "spider milenas": ({"name": "spider", **ALPHAS}, RELAXED),
    "fedrlnas": ({"name": "fedrlnas", "warmup": 1, "search_rounds": 1}, PATHS),
    "knnper": ({"name": "knnper"}, CNN),
}


def table(method: str, **changes: Any) -> dict[str, Any]:
    """Return a small experiment: two clients, two rounds of search and two after it."""
    algorithm, space = METHODS[method]
    shared = {"batch": 16, "lr": 0.05, "finetune_epochs": 1}
    return {
        "rounds": 4,
        "eval_every": 2,
        "algorithm": shared | algorithm | changes,
        "space": space,
        "data": {
            "clients": 2, "new_clients": 1, "per_client": 40, "partition": "iid", "public": 20,
        },
        "engine": {"workers": 0},
        "save_models": False,
    }  # fmt: skip


class Whole(NamedTuple):
    method: str
    run: Run
    steps: list[Step]


@pytest.fixture(scope="module", params=METHODS)
def whole(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Whole]:
    with recorded() as steps:
        found = run(table(request.param), tmp_path_factory.mktemp("whole") / "run")
    yield Whole(request.param, found, steps)


def test_workers_give_the_same_bytes(whole: Whole, tmp_path: Path):
    other = run(table(whole.method) | {"engine": {"workers": 2}}, tmp_path / "run")
    assert digest(other) == digest(whole.run)


def test_killed_while_searching_and_after_and_resumed_to_the_same_bytes(
    whole: Whole, tmp_path: Path
):
    """In the second round; of FedNAS also in the third, by then decided and not yet trained."""
    config, path = tmp_path / "config.toml", tmp_path / "run"
    write_config(make_config(table(whole.method)), config)
    for committed in (1, 2) if whole.method.startswith("fednas") else (1,):
        kill(config, path, after=3)
        assert Run(path).last_round() == committed
    assert digest(resume(path)) == digest(whole.run)


def test_every_message_is_as_declared(whole: Whole):
    listen(whole)


@pytest.mark.parametrize("method", ["fednas milenas", "fednas perturbation"])
def test_statistics_of_its_own_stay_with_a_client(method: str, tmp_path: Path):
    with recorded() as steps:
        found = run(table(method, statistics="own"), tmp_path / "run")
    listen(Whole(method, found, steps), statistics=False)


def listen(whole: Whole, statistics: bool | None = None) -> None:
    """What was received comes back trained; besides, subnets have accuracies, and that is all."""
    sends = make_config(table(whole.method)).algorithm.sends()
    assert [step.step for step in whole.steps].count("train") == 8
    if statistics is None:
        statistics = whole.method not in ("spider milenas", "knnper")
    rounds = [number // 2 + 1 for number in range(8)]
    trained = [step for step in whole.steps if step.step == "train"]
    for round, (_, sent, reply) in zip(rounds, trained, strict=True):
        assert check_reply(sends, sent, reply) == "trained"
        assert {n: (t.shape, t.dtype) for n, t in sent.tensors.items()} == {
            n: (t.shape, t.dtype) for n, t in reply.tensors.items()
        }
        mixed = round <= 2 and whole.method.startswith("fednas milenas")
        assert ("alphas" in reply.tensors) == mixed
        assert any("running" in name for name in reply.tensors) == statistics
        drawn = round <= 2 and whole.method == "fedrlnas"
        assert reply.info.keys() == ({"accuracy"} if drawn else set())
        assert sent.info.keys() <= {"genes", "searching"}
    for _, sent, reply in (step for step in whole.steps if step.step != "train"):
        assert not reply.tensors and not reply.info
        assert "alphas" not in sent.tensors


def test_of_fednas_one_architecture_is_deployed_and_validation_images_join(whole: Whole):
    if not whole.method.startswith("fednas"):
        pytest.skip("others have tests of their own")
    deployed = "SELECT DISTINCT arch FROM architecture WHERE role = 'deployed' AND round = 4"
    assert len(whole.run.db.query(deployed)) == 1
    val = whole.run.db.query("SELECT DISTINCT round FROM metric WHERE split = 'val'")
    assert val == [(2,)], "trained on in rounds 3 and 4"
    search = summarise(whole.run)["search"]
    assert all(len(alive) <= 1 for alive in search["alive"].values())
    assert ("alphas" in search, "without" in search) == (
        ("milenas" in whole.method), ("perturbation" in whole.method)
    )  # fmt: skip
    if "perturbation" in whole.method:
        assert len(search["without"]) == 8, "two operations of four edges"


def test_new_clients_get_what_fednas_found(whole: Whole, tmp_path: Path):
    if not whole.method.startswith("fednas"):
        pytest.skip("others have tests of their own")
    new = onboard(whole.run.path, tmp_path / "new")
    deployed = "SELECT DISTINCT arch FROM architecture WHERE role = 'deployed' AND round = {}"
    assert new.db.query(deployed.format(0)) == whole.run.db.query(deployed.format(4))


@pytest.mark.parametrize("public", [0, 7])
def test_without_images_of_the_server_it_is_one_sentence(public: int, tmp_path: Path):
    config = table("fednas perturbation")
    config["data"] |= {"public": public}
    with pytest.raises(UserError, match=r"^data\.public: fednas decides by .* 8 at the least; set"):
        run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists(), "before anything is written"


def test_validation_images_join_from_the_start_where_nobody_chooses_by_them():
    config = make_config(table("fednas perturbation") | {"data": {"clients": 2, "per_client": 40,
                         "partition": "iid", "public": 20, "join_val": True}})  # fmt: skip
    prepare(config, load_federation(config.data))
    config = make_config(table("fednas milenas") | {"data": {"clients": 2, "per_client": 40,
                         "partition": "iid", "join_val": True}})  # fmt: skip
    with pytest.raises(UserError, match=r"^data\.join_val: fednas chooses by validation"):
        prepare(config, load_federation(config.data))


def test_a_state_of_another_space_is_one_sentence(tmp_path: Path):
    found = run(table("fednas perturbation") | {"rounds": 1}, tmp_path / "run")
    other = table("fednas perturbation")
    other["space"] = {"name": "darts", "channels": 4, "cells": 3, "form": "relaxed",
                      "operations": "s2"}  # fmt: skip
    config = replace(make_config(other), start=str(found.server_path(1)))
    with pytest.raises(UserError, match=r"^start: .*is of another space"):
        run(config, tmp_path / "other")
