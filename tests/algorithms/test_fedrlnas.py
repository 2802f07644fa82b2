"""FedRLNAS: phases, a hand-computed round of the policy and of the averages, whole runs."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.algorithms.fedrlnas import FedRLNAS, Found
from fedtailor.core.errors import UserError
from fedtailor.core.types import Client, ClientInfo, Message, Result, Server, Setting
from fedtailor.data.federation import Federation
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.onboarding import onboard
from fedtailor.networks.initial import initial_supernet, initial_weights
from fedtailor.networks.store import shapes
from fedtailor.training import learn
from tests.helpers import sde_setting
from tests.helpers.tiny_space import Tiny

SPACE = Tiny(layers=1)  # a width of three and a kernel of two options
INFOS = (ClientInfo(0, 30), ClientInfo(1, 10))


def server(federation: Federation, round: int, rounds: int = 10) -> Server:
    return Server(Setting(federation.task, SPACE, rounds, seed=4), round, INFOS)


def reply(sent: Message, accuracy: float | None, added: float, info: ClientInfo) -> Result:
    """Return what a client sends that added something to every weight it got."""
    tensors = {name: tensor + added for name, tensor in sent.tensors.items()}
    told = {} if accuracy is None else {"accuracy": accuracy}
    return Result(info, sent.info, Message(tensors, told), 1.0, 0)


def test_a_round_of_the_search_by_hand(federation: Federation):
    """Accuracies less the usual one, one-hot less probabilities, averaged; a plain step of 0.5."""
    how = FedRLNAS(warmup=1, search_rounds=4, policy_rule="plain", policy_lr=0.5)
    state = how.server_init(server(federation, 0))
    first = how.configure(server(federation, 1), state, list(INFOS))
    results = [reply(first[0], 0.4, 1.0, INFOS[0]), reply(first[1], 0.6, 2.0, INFOS[1])]
    state = how.aggregate(server(federation, 1), state, iter(results))
    assert state.policy.numbers == (), "nothing is learned in the warm-up"
    assert state.usual == pytest.approx(0.5)
    for name, weight in initial_supernet(server(federation, 0).setting, True).items():
        moved = torch.zeros_like(weight)
        for result, added in zip(results, (1.0, 2.0), strict=True):
            if name in result.message.tensors:
                window = tuple(slice(0, size) for size in result.message.tensors[name].shape[:2])
                kernel = moved[window]
                inner = result.message.tensors[name].shape[2:]
                if inner and inner != kernel.shape[2:]:  # a kernel of 1 is the middle of one of 3
                    kernel = kernel[:, :, 1:2, 1:2]
                kernel += result.client.examples / 40 * added
        torch.testing.assert_close(state.weights[name], weight + moved, msg=name)
    second = how.configure(server(federation, 2), state, list(INFOS))
    results = [reply(second[0], 0.9, 0.0, INFOS[0]), reply(second[1], 0.3, 0.0, INFOS[1])]
    state = how.aggregate(server(federation, 2), state, iter(results))
    expected = torch.zeros(5, dtype=torch.float64)
    for result, advantage in zip(results, (0.9 - 0.5, 0.3 - 0.5), strict=True):
        width, kernel = result.sent["genes"]
        hot = torch.tensor([-1 / 3, -1 / 3, -1 / 3, -0.5, -0.5], dtype=torch.float64)
        hot[width] += 1
        hot[3 + kernel] += 1
        expected += 0.5 * advantage * hot / 2
    torch.testing.assert_close(state.policy.alphas[0], expected)
    assert state.usual == pytest.approx(0.5 + 0.99 * (0.6 - 0.5))


def test_what_the_policy_prefers_is_trained_from_its_first_weights(federation: Federation):
    how = FedRLNAS(warmup=0, search_rounds=2, policy_rule="plain", policy_lr=50.0)
    state = how.server_init(server(federation, 0))
    for round in (1, 2):
        assert state.arch is None
        sent = how.configure(server(federation, round), state, list(INFOS))
        assert all(message.info["searching"] for message in sent.values())
        good = [1.0 if m.info["genes"][0] == 2 else 0.0 for m in sent.values()]
        results = [reply(m, a, 1.0, i) for m, a, i in zip(sent.values(), good, INFOS, strict=True)]
        state = how.aggregate(server(federation, round), state, iter(results))
    setting = server(federation, 0).setting
    assert state.arch is not None
    first = initial_weights(setting, state.arch)
    assert first.keys() == state.weights.keys()
    assert all(torch.equal(first[name], state.weights[name]) for name in first)
    sent = how.configure(server(federation, 3), state, list(INFOS))
    assert sent[0] is sent[1] and "searching" not in sent[0].info
    results = [reply(sent[0], None, 1.0, INFOS[0]), reply(sent[1], None, 3.0, INFOS[1])]
    arch, after = state.arch, how.aggregate(server(federation, 3), state, iter(results))
    assert after.arch == arch
    for name, weight in first.items():  # 30 and 10 examples
        torch.testing.assert_close(after.weights[name], weight + 0.75 * 1 + 0.25 * 3)


def test_every_client_gets_a_draw_of_its_own_that_follows_from_the_round(federation: Federation):
    how, cohort = FedRLNAS(), [ClientInfo(number, 10) for number in range(12)]
    state = how.server_init(server(federation, 0))

    def drawn(round: int, clients: list[ClientInfo]) -> dict[int, tuple[int, ...]]:
        sent = how.configure(server(federation, round), state, clients)
        return {client: tuple(message.info["genes"]) for client, message in sent.items()}

    first = drawn(1, cohort)
    assert len(set(first.values())) >= 4, "of six there are"
    assert drawn(1, cohort[5:]) == {client: first[client] for client in range(5, 12)}
    assert drawn(2, cohort) != first


def test_a_drawn_subnet_is_judged_by_validation_images_after_training(federation: Federation):
    how, setting = FedRLNAS(lr=0.1, batch=16, epochs=2), server(federation, 0).setting
    message = how.configure(server(federation, 1), how.server_init(server(federation, 0)), [*INFOS])
    client = sde_setting.client_of(federation, setting, 0, 1)
    untested = replace(client.test, index=client.test.index[:0])  # tests are nobody's business
    _, reply = how.train(replace(client, test=untested), None, message[0])
    network = learn.network(client, reply.message.tensors, tuple(message[0].info["genes"]))
    judged = learn.evaluate(network, client.val)["accuracy"]
    assert reply.message.info == {"accuracy": pytest.approx(judged)}


def test_before_it_is_found_the_most_probable_subnet_is_served(federation: Federation):
    how = FedRLNAS()
    state = how.server_init(server(federation, 0))
    alphas = torch.tensor([[0.0, 0.0, 1.0, 2.0, 0.0]], dtype=torch.float64)
    policy = type(state.policy)((0,), alphas, torch.zeros(1, 3, 5, dtype=torch.float64))
    state = Found(state.weights, policy)
    message = how.serve(server(federation, 1), state, INFOS[0])
    assert message.info == {"genes": [2, 0]}
    wanted = shapes(SPACE, (2, 0), federation.task, statistics=True)
    assert {name: tuple(t.shape) for name, t in message.tensors.items()} == wanted


@pytest.mark.parametrize(
    ("round", "rate"),
    [(1, 1.0), (3, 0.5 * (1 + math.cos(math.pi / 2))), (5, 1.0), (8, 0.5)],
)
def test_the_schedule_begins_anew_with_the_network(round: int, rate: float, federation: Federation):
    """Four rounds of search, six of training: the middle of each has half the rate."""
    how = FedRLNAS(warmup=2, search_rounds=2, schedule="cosine", lr=1.0)
    setting = server(federation, 0).setting
    train, val, test = (federation.examples(0, split) for split in ("train", "val", "test"))
    client = Client(setting, INFOS[0], round, train, val, test)
    assert how._rate(client, searching=round <= 4) == pytest.approx(rate)


@pytest.mark.parametrize(("rounds", "phases"), [(10, (1, 5)), (2, (0, 1)), (300, (30, 150))])
def test_phases_follow_from_the_rounds(
    rounds: int, phases: tuple[int, int], federation: Federation
):
    setting = server(federation, 0, rounds).setting
    how = FedRLNAS()
    assert (how._warmup(setting), how._last_search(setting)) == phases
    how.check(setting)


def test_phases_must_leave_rounds_to_train(federation: Federation):
    with pytest.raises(UserError, match=r"search_rounds: .*12 rounds and leave none of 10"):
        FedRLNAS(warmup=2, search_rounds=10).check(server(federation, 0).setting)


def table(**changes: Any) -> dict[str, Any]:
    own = {"name": "fedrlnas", "batch": 16, "lr": 0.1, "finetune_epochs": 1}
    return sde_setting.table() | {"algorithm": own, "rounds": 5} | changes


def test_one_architecture_is_deployed_and_new_clients_get_it(tmp_path: Path):
    config = table()
    alone = run(config | {"data": config["data"] | {"new_clients": 1}}, tmp_path / "alone")
    deployed = "SELECT DISTINCT arch FROM architecture WHERE role = 'deployed' AND round = 5"
    assert len(alone.db.query(deployed)) == 1
    drawn = "SELECT round, count(*) FROM architecture WHERE role != 'deployed' GROUP BY round"
    assert dict(alone.db.query(drawn)) == {1: 2, 2: 2}, "drawn in two rounds, by two clients each"
    new = onboard(alone.path, tmp_path / "new")
    (theirs,) = new.db.query("SELECT DISTINCT arch FROM architecture WHERE role = 'deployed'")
    assert [theirs] == alone.db.query(deployed)
