"""Whole runs of SPIDER: through its three phases, killed in each, in workers, and what leaves."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from fedtailor.algorithms.fedavg import Global
from fedtailor.algorithms.spider import Private
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.planning import plan
from fedtailor.experiment.prepare import prepare
from fedtailor.networks.store import full_shapes
from fedtailor.runs.config import make_config, write_config
from fedtailor.runs.database import client_states
from fedtailor.runs.folder import Run, state_file
from fedtailor.runs.summary import digest, summarise
from tests.helpers import few_edges
from tests.helpers.few_edges import BOTH, FewEdges
from tests.helpers.silos import OPEN, equal
from tests.helpers.whole_runs import Step, kill, recorded

SEARCHERS = ("accuracy", "loss", "printed", "random", "milenas", "none")


def table(**changes: Any) -> dict[str, Any]:
    """Return a small experiment: searches in rounds 2 and 3, then all is decided."""
    algorithm = {"name": "spider", "warmup": 1, "recovery": 1, "batch": 16, "lr": 0.05}
    return {
        "rounds": 4,
        "eval_every": 2,
        "algorithm": algorithm | changes,
        "space": {"name": f"{few_edges.__file__}:FewEdges", "arch": "largest"},
        "data": {"clients": 2, "per_client": 40, "partition": "iid"},
        "engine": {"workers": 0},
    }


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(table(), tmp_path_factory.mktemp("whole") / "run")


def owns(found: Run) -> dict[int, Private]:
    """Read the silos' private states after the last round."""
    states = client_states(found.db, found.last_round())
    return {c: codec.read(Private, found.states / state_file(c, made)) for c, made, _ in states}


def decisions(found: Run, client: int) -> list[tuple[int, Arch]]:
    rows = found.db.query(
        "SELECT round, arch FROM architecture WHERE role = 'decided' AND client = ? ORDER BY rowid",
        client,
    )
    return [(round, tuple(json.loads(arch))) for round, arch in rows]


def test_a_run_goes_through_its_phases(whole: Run):
    for client, own in owns(whole).items():
        assert own.rounds == 4
        told = decisions(whole, client)
        assert [round for round, _ in told] == [2, 2, 3, 3] and told[-1][1] == own.arch
        still_open = [sum(gene == BOTH for gene in arch) for _, arch in told]
        assert still_open == [3, 2, 1, 0]
        names = whole.db.query(
            "SELECT round, name FROM metric WHERE client = ? AND name LIKE 'without/%'", client
        )
        assert sorted(round for round, _ in names) == [2, 2, 2, 2, 3, 3, 3, 3]
        assert {name.rpartition("/")[2] for _, name in names} == {"skip_connect", "sep_conv_3x3"}
    deployed = whole.db.query(
        "SELECT client, arch FROM architecture WHERE role = 'deployed' AND round = 4"
    )
    assert {c: tuple(json.loads(a)) for c, a in deployed} == {
        c: own.arch for c, own in owns(whole).items()
    }
    summary = summarise(whole)
    assert summary["search"].keys() == {"choices"}, "the server knows nothing else of it"
    assert list(summary["cost"]["parts"]) == ["search", "supernet", "own network"]
    assert set(summary["test_accuracy"]["per_client"]) == {0, 1}
    assert summary["test_accuracy"] == summary["untuned"], "what counts is not tuned"


def test_once_all_is_decided_nothing_is_validated_nor_selected(whole: Run):
    """After round 2 edges are undecided; after round 4 validation images are trained on."""
    validated = whole.db.query(
        "SELECT DISTINCT round, client FROM metric WHERE split = 'val' AND model = 'untuned'"
        " AND name = 'accuracy'"
    )
    assert sorted(validated) == [(2, 0), (2, 1)]
    scores = whole.db.query("SELECT round, score FROM architecture WHERE role = 'deployed'")
    assert {(round, score is None) for round, score in scores} == {(2, False), (4, True)}
    assert summarise(whole)["val_selected"] is None


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_bytes(workers: int, whole: Run, tmp_path: Path):
    other = run(table() | {"engine": {"workers": workers}}, tmp_path / "run")
    assert digest(other) == digest(whole)


def test_milenas_decides_all_edges_in_one_round(tmp_path: Path):
    found = run(table(searcher="milenas", search_rounds=2), tmp_path / "run")
    assert all([round for round, _ in decisions(found, client)] == [3] for client in (0, 1))
    assert all(len(set(own.alphas)) > 4 for own in owns(found).values())


def test_killed_in_each_phase_and_resumed_to_the_same_bytes(whole: Run, tmp_path: Path):
    """In the first round, in the third, in which it searches, and in the last, by then decided."""
    config, path = tmp_path / "config.toml", tmp_path / "run"
    write_config(make_config(table()), config)
    for committed, last in ((0, 1), (2, 6), (3, 3)):
        kill(config, path, last)
        assert Run(path).last_round() == committed
    assert digest(resume(path)) == digest(whole)


@cache
def messages(searcher: str, strength: float, folder: Path) -> list[Step]:
    """Run, and record each step's kind, what was sent for it and what came back."""
    with recorded() as found:
        run(table(searcher=searcher, strength=strength), folder / f"{searcher}-{strength}")
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("messages")


@pytest.mark.parametrize("searcher", SEARCHERS)
def test_nothing_of_the_own_network_is_in_any_message(searcher: str, folder: Path):
    """The same bits whatever is found, and all of them: neither names nor values tell of it."""
    task = load_federation(make_config(table()).data).task
    wanted = full_shapes(FewEdges(), task)
    seen = messages(searcher, 0.01, folder)
    assert [step for step, *_ in seen].count("train") == 8
    for step, sent, reply in seen:
        assert sent.info == {} and reply.info == {}
        assert {n: tuple(t.shape) for n, t in sent.tensors.items()} == wanted
        assert {n: tuple(t.shape) for n, t in reply.tensors.items()} == (
            wanted if step == "train" else {}
        )
    if searcher in ("none", "milenas"):  # validation images join in other rounds
        return
    other = messages("random", 1.0, folder)
    for (_, *one), (_, *another) in zip(seen, other, strict=True):
        for message, same in zip(one, another, strict=True):
            assert equal(message.tensors, same.tensors)


def test_alone_there_are_no_messages_at_all(folder: Path):
    for _, sent, reply in messages("accuracy", 0.0, folder):
        assert sent.nbytes == reply.nbytes == 0
    found = Run(folder / "accuracy-0.0")
    assert codec.read(Global, found.server_path(4)).weights == {}
    assert all(BOTH not in own.arch for own in owns(found).values()), "it searches all the same"
    assert plan(make_config(table(strength=0.0)))["bytes"] == {"down": 0, "up": 0}


def test_with_half_of_the_silos_in_a_round_every_silo_decides_all_edges(tmp_path: Path):
    """Each counts its own rounds: searches are in its third and fifth, whichever those are."""
    changes = {"warmup": 1, "recovery": 2, "epochs": 0, "searcher": "random"}
    config = table(**changes)
    config |= {"rounds": 16, "cohort": 2, "eval_every": 16, "data": config["data"] | {"clients": 4}}
    found = run(config, tmp_path / "run")
    missed = 0
    for client, own in owns(found).items():
        took_part = [
            r for (r,) in found.db.query(
                "SELECT DISTINCT round FROM message WHERE client = ? AND direction = 'up'"
                " ORDER BY round", client)
        ]  # fmt: skip
        assert own.rounds == len(took_part) >= 5
        third, fifth = took_part[2], took_part[4]
        assert [round for round, _ in decisions(found, client)] == [third, third, fifth, fifth]
        assert BOTH not in own.arch
        missed += (third - 1) % 2 + (fifth - 1) % 2
    assert missed, "rounds of the run would have been other ones"


def test_two_inputs_to_a_node(tmp_path: Path):
    config = table(inputs=2, searcher="loss")
    config["space"] = config["space"] | {"crowded": True}
    found = run(config, tmp_path / "run")
    for client, own in owns(found).items():
        assert sum(map(bool, own.arch[2:5])) == sum(map(bool, own.arch[16:19])) == 2
        assert [round for round, _ in decisions(found, client)] == [2, 2, 3, 3, 4, 4]
        names = found.db.query(
            "SELECT name FROM metric WHERE client = ? AND round = 4 AND name LIKE 'without/%'",
            client,
        )
        sources = ("c_{k-2}", "c_{k-1}", "0")
        assert {name for (name,) in names} == {
            f"without/{cell} {source} to 1"
            for cell in ("normal", "reduction")
            for source in sources
        }


def test_a_search_that_was_not_done_in_time_leaves_a_network_all_the_same(tmp_path: Path):
    found = run(table(warmup=9) | {"rounds": 2}, tmp_path / "run")
    assert all(own.arch == OPEN for own in owns(found).values())
    assert found.finished() and not decisions(found, 0)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"space": {"name": "darts"}}, "space.name: spider searches darts"),
        ({"space": {"name": "nasvit"}}, "space.name: spider searches darts"),
        ({"algorithm": {"name": "spider", "inputs": 1}}, "algorithm.inputs: "),
        ({"algorithm": {"name": "spider", "recovery": 0}}, "algorithm.recovery: "),
        ({"algorithm": {"name": "spider", "searcher": "all"}}, "algorithm.searcher: "),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(changes: dict[str, Any], sentence: str):
    with pytest.raises(UserError) as refused:
        config = make_config(table() | changes)
        prepare(config, load_federation(config.data))
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
