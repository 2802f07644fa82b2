"""One table over every algorithm there is: a new file is tested from its first day."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.algorithms._base import state_types
from fedtailor.algorithms._replies import check_reply
from fedtailor.core import codec, registry
from fedtailor.core.types import NEVER, Result, Server
from fedtailor.data.federation import load_federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.runs.config import make_config
from fedtailor.runs.summary import digest, summarise

EVERY = registry.names("algorithm")
ADAPTS = {"perfedavg": {"algorithm__inner_steps": 0}}  # steps that are part of the method
BESIDE = {"knnper": ["remembering"]}  # what is deployed beside the model and the tuned one
Tiny = Callable[..., dict[str, Any]]


@pytest.fixture
def site(tiny: Tiny, tmp_path: Path) -> Callable[..., ClientHost]:
    def make(name: str, **changes: Any) -> ClientHost:
        config = make_config(tiny(algorithm__name=name, **changes))
        federation = load_federation(config.data)
        clients = clients_of(federation, config)
        return ClientHost(
            config.algorithm, setting_of(config, federation), federation, clients, tmp_path, None
        )

    return make


def one_round(
    site: ClientHost, round: int, state: Any, versions: dict[int, int]
) -> tuple[Any, list[Done]]:
    """Do a round of clients 0 to 2 by hand."""
    server = Server(site.setting, round, site.clients)
    messages = site.algorithm.configure(server, state, list(site.clients[:3]))
    done = [
        perform(site, Ticket("train", i, round, versions.get(i, NEVER)), messages[i])
        for i in messages
    ]
    results = [
        Result(site.clients[i], messages[i].info, d.reply.message, 1.0, round - 1)
        for i, d in zip(messages, done, strict=True)
    ]
    versions |= {i: round for i, d in zip(messages, done, strict=True) if d.state_digest}
    return site.algorithm.aggregate(server, state, iter(results)), done


@pytest.mark.parametrize("name", EVERY)
def test_learns_above_chance(name: str, tiny: Tiny, tmp_path: Path):
    table = tiny(
        algorithm__name=name, rounds=8, cohort=None, eval_every=8, algorithm__epochs=5,
        algorithm__lr=0.1, algorithm__momentum=0.9, algorithm__finetune_lr=0.02,
        algorithm__finetune_epochs=5, space__width=8, space__hidden=32, data__per_client=100,
        data__alpha=100.0,
    )  # fmt: skip
    found = summarise(run(table, tmp_path / "run"))["test_accuracy"]
    assert len(found["per_client"]) == 5
    assert found["mean"] > 0.5, "chance is 0.1"


@pytest.mark.parametrize("name", EVERY)
def test_resumes_identically(name: str, tiny: Tiny, tmp_path: Path):
    """Stopped after every round but the last, against never stopped."""
    whole = run(tiny(algorithm__name=name), tmp_path / "whole")

    from fedtailor.runs.folder import Run

    committed = Run.commit

    def commit_and_stop(self: Run, page: Any, server: Any) -> None:
        committed(self, page, server)
        raise KeyboardInterrupt

    patch = pytest.MonkeyPatch()
    patch.setattr(Run, "commit", commit_and_stop)
    with pytest.raises(KeyboardInterrupt):
        run(tiny(algorithm__name=name), tmp_path / "parts")
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "parts")
    patch.undo()
    assert digest(resume(tmp_path / "parts")) == digest(whole)


@pytest.mark.parametrize("name", EVERY)
def test_states_pack_and_unpack(name: str, site: Callable[..., ClientHost]):
    where = site(name)
    server_kind, client_kind = state_types(where.algorithm)
    state = where.algorithm.server_init(Server(where.setting, 0, where.clients))
    versions: dict[int, int] = {}
    for round in (1, 2):
        state, _ = one_round(where, round, state, versions)
    back = codec.unpack(server_kind, *codec.pack(state))
    assert codec.digest(back) == codec.digest(state)
    own = where.algorithm.client_init(where.client(Ticket("train", 4, 1)))
    if own is not None:
        assert codec.digest(codec.unpack(client_kind, *codec.pack(own))) == codec.digest(own)
        assert set(versions) == {0, 1, 2}


@pytest.mark.parametrize("name", EVERY)
def test_sends_only_what_it_declares(name: str, site: Callable[..., ClientHost]):
    """And declares nothing that it never sends: some is sent only if memory is limited."""
    forms, seen = site(name).algorithm.sends(), set[str]()
    told: set[tuple[str, str]] = set()
    for budget in ({}, {"budget__memory_mb": 1e6}, {"budget__memory_mb": 1e-3}):
        where = site(name, **budget)
        state = where.algorithm.server_init(Server(where.setting, 0, where.clients))
        server = Server(where.setting, 1, where.clients)
        messages = where.algorithm.configure(server, state, list(where.clients[:3]))
        _, done = one_round(where, 1, state, {})
        for client, step in enumerate(done):
            reply = step.reply.message
            form = check_reply(forms, messages[client], reply)
            seen.add(form)
            told |= {(form, key) for key in reply.info}
            tensors = any(sent.kind == "tensor" for sent in forms[form])
            assert bool(reply.tensors) == tensors, "a declaration of what is never sent"
    assert seen == set(forms), "a form that no reply has"
    assert told == {(f, s.name) for f, form in forms.items() for s in form if s.kind != "tensor"}


@pytest.mark.parametrize("name", EVERY)
def test_a_round_without_training_changes_nothing(name: str, site: Callable[..., ClientHost]):
    """The weights to the bit; and where clients tell nothing else, the whole state."""
    from dataclasses import replace

    where = site(name)
    still = replace(where.algorithm, epochs=0, **({"head_epochs": 0} if name == "fedrep" else {}))
    where = replace(where, algorithm=still)
    state = where.algorithm.server_init(Server(where.setting, 0, where.clients))
    after, _ = one_round(where, 1, state, {})
    if any(
        sent.kind != "tensor" for form in still.sends().values() for sent in form
    ):  # what they tell may be remembered
        assert state.weights, "the server's weights"
        state, after = state.weights, after.weights
    assert codec.digest(after) == codec.digest(state)


@pytest.mark.parametrize("name", EVERY)
def test_deploys_for_clients_never_sampled_and_yields_untuned_first(
    name: str, site: Callable[..., ClientHost]
):
    where = site(name, **ADAPTS.get(name, {}))
    state = where.algorithm.server_init(Server(where.setting, 0, where.clients))
    state, _ = one_round(where, 1, state, {})
    message = where.algorithm.serve(
        Server(where.setting, 1, where.clients), state, where.clients[4]
    )
    client = where.client(Ticket("deploy", 4, 1))
    own = where.algorithm.client_init(client)
    labels, weights = [], []
    for label, model in where.algorithm.deploy(client, own, message):
        labels.append(label)
        weights.append(model.weights())
    assert labels == ["untuned", "tuned", *BESIDE.get(name, [])]
    assert any(not torch.equal(weights[0][n], weights[1][n]) for n in weights[0])
    shared = {n: t for n, t in message.tensors.items() if n in weights[0]}
    assert all(torch.equal(weights[0][n], t) for n, t in shared.items()), "starts from the global"
