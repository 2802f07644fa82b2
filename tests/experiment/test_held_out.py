"""Validation images that are trained on: they judge nothing, select nothing, and tune."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.types import Client, Server
from fedtailor.data.federation import load_federation
from fedtailor.engines import _in_process
from fedtailor.engines._base import ClientHost, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.onboarding import onboard
from fedtailor.experiment.planning import plan
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.experiment.rehearsal import shortened
from fedtailor.report.page import write_report
from fedtailor.runs import database
from fedtailor.runs.config import make_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from fedtailor.training import learn
from tests.helpers import held_out, tiny_space

Tiny = Callable[..., dict[str, Any]]
JOINS = f"{held_out.__file__}:Joins"
SPACE = {"name": f"{tiny_space.__file__}:Tiny", "layers": 1}
EVERY = registry.names("algorithm")


def joining(tiny: Tiny, after: int, **changes: Any) -> dict[str, Any]:
    more: dict[str, Any] = {"cohort": None, "eval_every": 1, "algorithm__after": after} | changes
    return tiny(algorithm__name=JOINS, **more)


def validated(found: Run) -> set[tuple[int, int]]:
    """Return of which rounds and clients there are validation metrics, of whatever model."""
    rows = found.db.query("SELECT DISTINCT round, client FROM metric WHERE split = 'val'")
    return {(round, client) for round, client in rows}


def examined(found: Run) -> set[tuple[int, int]]:
    rows = found.db.query("SELECT DISTINCT round, client FROM metric WHERE split = 'test'")
    return {(round, client) for round, client in rows}


def rounds_with_val(found: Run) -> list[int]:
    rows = found.db.query("SELECT round FROM state WHERE val NOT NULL ORDER BY round")
    return [round for (round,) in rows]


# What is measured


def test_with_a_cohort_it_is_each_client_s_own_matter(tiny: Tiny, tmp_path: Path):
    """Means over those who still hold out would be means over other clients."""
    found = run(joining(tiny, 1, cohort=2, rounds=6), tmp_path / "run")
    trained: dict[int, list[int]] = {client: [] for client in range(5)}
    for round, client in found.db.query("SELECT round, client FROM message WHERE direction = 'up'"):
        trained[client].append(round)
    expected = {
        (r, c) for r in range(1, 7) for c, rounds in trained.items()
        if sum(done <= r for done in rounds) <= 1
    }  # fmt: skip
    assert validated(found) == expected
    assert {(6, c) for c in range(5)} & expected, "some still hold out at the end, others do not"
    whole = [r for r in range(1, 7) if all((r, c) in expected for c in range(5))]
    assert rounds_with_val(found) == whole and 6 not in whole
    assert database.selected_round(found.db) is None


@pytest.mark.parametrize("after", [0, 2])
def test_a_test_accuracy_is_never_an_architecture_s_score(after: int, tiny: Tiny, tmp_path: Path):
    found = run(joining(tiny, after, rounds=3, space=SPACE), tmp_path / "run")
    rows = found.db.query(
        "SELECT round, client, score, value FROM architecture LEFT JOIN metric"
        " USING (round, client) WHERE role = 'deployed' AND split = ? AND model = 'untuned'"
        " AND name = 'accuracy' ORDER BY 1, 2",
        "test",
    )
    assert [row[:2] for row in rows] == [(r, c) for r in (1, 2, 3) for c in range(5)]
    scores = {(round, client): score for round, client, score, _ in rows}
    assert {key for key, score in scores.items() if score is not None} == validated(found)
    for round in range(1, after + 1):
        known = dict(database.of_clients(found.db, round, "val", "untuned", "accuracy"))
        assert {c: scores[round, c] for c in range(5)} == known


# What is selected


def test_once_validation_images_are_trained_on_they_judge_and_select_nothing(
    tiny: Tiny, tmp_path: Path
):
    found = run(joining(tiny, 2), tmp_path / "run")
    assert examined(found) == {(r, c) for r in (1, 2, 3, 4) for c in range(5)}
    assert validated(found) == {(r, c) for r in (1, 2) for c in range(5)}
    assert rounds_with_val(found) == [1, 2]
    assert database.best_round(found.db) in (1, 2)
    assert database.selected_round(found.db) is None
    assert summarise(found)["val_selected"] is None
    tuned = found.db.query("SELECT DISTINCT round FROM metric WHERE model = 'tuned'")
    assert tuned == [(4,)], "nothing but the last round is deployed"
    assert database.events(found.db)[-1][2] == "validation chose no round"
    page = write_report([found], tmp_path / "page.html", None).read_text()
    assert "validation chose no round" in page


def test_while_all_hold_out_the_best_round_is_selected(tiny: Tiny, tmp_path: Path):
    found = run(joining(tiny, 4, algorithm__lr=0.3), tmp_path / "run")
    best = database.best_round(found.db)
    assert rounds_with_val(found) == [1, 2, 3, 4]
    assert best is not None and database.selected_round(found.db) == best
    assert summarise(found)["val_selected"]["round"] == best
    assert database.events(found.db)[-1][2] == f"validation chose round {best}"


def test_a_client_that_could_not_be_tested_at_the_end_selects_as_before(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    performed = _in_process.perform

    def perform(site: Any, ticket: Ticket, message: Any) -> Any:
        if (ticket.step, ticket.round, ticket.client) == ("deploy", 3, 1):
            raise ValueError("not today")
        return performed(site, ticket, message)

    monkeypatch.setattr(_in_process, "perform", perform)
    table = joining(tiny, 9, rounds=3, on_failure="skip")
    found = run(table, tmp_path / "run")
    assert rounds_with_val(found) == [1, 2]
    assert database.selected_round(found.db) == database.best_round(found.db) in (1, 2)


def test_resumed_before_and_after_the_join_to_the_same_bytes(
    tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    whole, committed = run(joining(tiny, 2), tmp_path / "whole"), Run.commit

    def commit(self: Run, record: Any, server: Any) -> None:
        committed(self, record, server)
        if record.round in (2, 3):
            raise KeyboardInterrupt

    path = tmp_path / "parts"
    with monkeypatch.context() as patch:
        patch.setattr(Run, "commit", commit)
        for go_on in (lambda: run(joining(tiny, 2), path), lambda: resume(path)):
            with pytest.raises(KeyboardInterrupt):
                go_on()
    found = resume(path)
    assert digest(found) == digest(whole) and database.selected_round(found.db) is None


# What is tuned on


def host_of(tiny: Tiny, tmp_path: Path, after: int) -> ClientHost:
    config = make_config(joining(tiny, after, algorithm__finetune_epochs=2))
    federation = load_federation(config.data)
    clients = clients_of(federation, config)
    setting = setting_of(config, federation)
    return ClientHost(config.algorithm, setting, federation, clients, tmp_path, None)


@pytest.mark.parametrize(("after", "joined"), [(-1, True), (2, False)])
def test_deployed_networks_are_tuned_on_what_the_method_trains_on(
    after: int, joined: bool, tiny: Tiny, tmp_path: Path
):
    host, ticket = host_of(tiny, tmp_path, after), Ticket("deploy", 2, 1)
    how, server = host.algorithm, Server(host.setting, 1, host.clients)
    message = how.serve(server, how.server_init(server), host.clients[2])

    def by_hand(client: Client) -> float:
        *_, (_, network) = how.deploy(client, how.client_init(client), message)
        return learn.evaluate(network, client.test)["loss"]

    client = host.client(ticket)
    plain, more = by_hand(client), by_hand(learn.joined(client))
    found = {
        (m.split, m.model, m.name): m.value
        for m in perform(host, ticket, message).reply.log.metrics
    }
    assert plain != more
    assert found["test", "tuned", "loss"] == (more if joined else plain)
    assert (("val", "untuned", "accuracy") in found) == (not joined)


# data.join_val


def test_joined_from_the_start_is_joined_in_every_round(tiny: Tiny, tmp_path: Path):
    """By the data, and by a method that does it itself: the same run."""
    plain = run(tiny(algorithm__name="ditto", data__join_val=True), tmp_path / "data")
    never = -1  # held out, not even by clients that were never sampled
    other = run(joining(tiny, never, cohort=3, eval_every=2), tmp_path / "method")
    metrics = plain.db.query("SELECT * FROM metric")
    assert len(metrics) > 50 and metrics == other.db.query("SELECT * FROM metric")
    states = [database.server_state(found.db, 4) for found in (plain, other)]
    assert states[0] == states[1]
    usual = run(tiny(algorithm__name="ditto"), tmp_path / "usual")
    assert database.server_state(usual.db, 4) != states[0]


@pytest.mark.parametrize("name", EVERY)
def test_every_method_takes_it_or_says_why_not(name: str, tiny: Tiny, tmp_path: Path):
    table = tiny(algorithm__name=name, data__join_val=True, rounds=2)
    config = make_config(table)
    federation = load_federation(config.data)
    if config.algorithm.needs_val(setting_of(config, federation)):
        with pytest.raises(UserError, match=rf"^data\.join_val: {name} chooses by validation"):
            run(table, tmp_path / "run")
        assert not (tmp_path / "run").exists()
        return
    found = run(table, tmp_path / "run")
    assert validated(found) == set() and rounds_with_val(found) == []
    assert summarise(found)["val_selected"] is None and len(examined(found)) == 5
    sizes = [client.examples for client in clients_of(federation, config)]
    assert sizes == [48] * 5, "the server weighs by what is trained on: 36 and 12"
    assert plan(config)["sizes"][0] == {"train": 48, "val": 0, "test": 12}


def test_searches_need_validation_images():
    needs = {name for name in EVERY if registry.find("algorithm", name).searches}
    assert needs >= {"perfedrlnas", "perfedsde"}
    assert not needs & {"local", "fedavg", "perfedavg", "ditto", "fedrep", "fedbabu"}


def test_a_rehearsal_takes_no_test_image_for_a_validation_image(tiny: Tiny):
    federation = load_federation(make_config(tiny(data__join_val=True)).data)
    tests = set(federation.examples(0, "test").index.tolist())
    for few in shortened(federation, 16):
        train, val, test = (few.examples(0, s).index.tolist() for s in ("train", "val", "test"))
        assert not val and test and set(test) <= tests and not set(train) & tests


def test_new_clients_of_such_a_run(tiny: Tiny, tmp_path: Path):
    data = {"data__new_clients": 2, "data__join_val": True}
    done = run(tiny(rounds=1, **data), tmp_path / "run")
    found = onboard(done.path)
    assert validated(found) == set() and {c for _, c in examined(found)} == {5, 6}
    with pytest.raises(UserError, match="images of clients that trained"):
        onboard(done.path, tmp_path / "other", data={"seed": 5})
