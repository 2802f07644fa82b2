"""What is particular to each algorithm, against an independent computation."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms.ditto import Ditto, Personal
from fedtailor.algorithms.fedavg import FedAvg, Global
from fedtailor.algorithms.fedbabu import FedBABU
from fedtailor.algorithms.fedrep import Body, FedRep
from fedtailor.algorithms.perfedavg import PerFedAvg
from fedtailor.core.types import Client, ClientInfo, Message, Result, Server, Tensors
from fedtailor.networks.initial import initial_weights
from fedtailor.training import learn


def weights_and_server(client: Client) -> tuple[Tensors, Server]:
    infos = tuple(ClientInfo(i, examples) for i, examples in enumerate((10, 30, 60)))
    return initial_weights(client.setting), Server(client.setting, 1, infos)


def results(server: Server, weights: Tensors) -> list[Result]:
    """Three clients that moved all weights by 1, 2 and 3."""
    moved = [{n: w + step for n, w in weights.items()} for step in (1.0, 2.0, 3.0)]
    return [
        Result(info, {}, Message(m), 1.0, 0) for info, m in zip(server.clients, moved, strict=True)
    ]


def shift(after: Tensors, before: Tensors) -> float:
    steps = torch.cat([(after[n] - before[n]).flatten() for n in after])
    assert torch.allclose(steps, steps[0].expand_as(steps), atol=1e-4)
    return steps[0].item()


def test_fedavg_weighs_by_examples(client: Client):
    weights, server = weights_and_server(client)
    after = FedAvg().aggregate(server, Global(weights), results(server, weights))
    assert shift(after.weights, weights) == pytest.approx((10 + 60 + 180) / 100, abs=1e-4)


@pytest.mark.parametrize(("weighted", "expected"), [(False, 2.0), (True, 2.5)])
def test_ditto_and_fedbabu_average_plainly_unless_told(
    client: Client, weighted: bool, expected: float
):
    weights, server = weights_and_server(client)
    ditto = Ditto(weighted=weighted).aggregate(server, Global(weights), results(server, weights))
    assert shift(ditto.weights, weights) == pytest.approx(expected, abs=1e-4)
    babu = FedBABU(weighted=weighted).aggregate(server, Body(weights), results(server, weights))
    assert shift(babu.weights, weights) == pytest.approx(expected, abs=1e-4)


def test_ditto_trains_both_models_as_if_alone(client: Client):
    """The global part is FedAvg's; the personal part is pulled to what the server sent."""
    weights, _ = weights_and_server(client)
    ditto = Ditto(strength=0.5, epochs=2, lr=0.1)
    other = {name: w + 0.1 for name, w in weights.items()}
    own, reply = ditto.train(client, Personal(other), Message(weights))
    model = learn.network(client, weights)
    learn.fit(client, model, ditto, lr=0.1, purpose="global")
    assert all(torch.equal(reply.message.tensors[n], w) for n, w in model.weights().items())
    model = learn.network(client, other)
    steps = learn.optimizer(model, ditto, 0.1)
    for batch in learn.batches(client, ditto.batch, epochs=2, purpose="personal"):
        steps.zero_grad()
        distance = sum((p - weights[n]).square().sum() for n, p in model.live.items())
        (model.loss(batch) + 0.25 * distance).backward()
        steps.step()
    assert own.weights is not None
    assert all(torch.allclose(own.weights[n], w, atol=1e-6) for n, w in model.weights().items())


def test_ditto_with_an_endless_pull_stays_at_the_global_model(client: Client):
    weights, _ = weights_and_server(client)
    plain = Ditto(strength=0.0, lr=0.01, momentum=0.0, epochs=20)
    free, _ = plain.train(client, Personal(), Message(weights))
    held, _ = replace(plain, strength=50.0).train(client, Personal(), Message(weights))

    def distance(own: Personal) -> float:
        assert own.weights is not None
        return max((own.weights[n] - w).abs().max().item() for n, w in weights.items())

    assert distance(held) < distance(free) / 4


def test_fedrep_trains_the_head_first_on_the_body_as_received(client: Client):
    algorithm = FedRep(head_epochs=3, epochs=0, lr=0.1)
    weights, server = weights_and_server(client)
    body = algorithm.server_init(server).weights
    own, reply = algorithm.train(client, algorithm.client_init(client), Message(body))
    assert set(own.weights) == {"head.weight", "head.bias"}
    assert set(reply.message.tensors) == set(weights) - set(own.weights)
    assert all(torch.equal(reply.message.tensors[n], w) for n, w in body.items())
    assert not torch.equal(own.weights["head.weight"], weights["head.weight"])


def test_fedrep_keeps_the_head_while_the_body_trains(client: Client):
    algorithm = FedRep(head_epochs=0, epochs=2, lr=0.1, weight_decay=0.1)
    weights, server = weights_and_server(client)
    body = algorithm.server_init(server).weights
    own, reply = algorithm.train(client, algorithm.client_init(client), Message(body))
    assert all(torch.equal(own.weights[n], weights[n]) for n in own.weights)
    assert any(not torch.equal(reply.message.tensors[n], w) for n, w in body.items())


def test_fedrep_tunes_the_head_only(client: Client):
    algorithm = FedRep(finetune_epochs=2, lr=0.1)
    body = algorithm.server_init(weights_and_server(client)[1]).weights
    models = algorithm.deploy(client, algorithm.client_init(client), Message(body))
    untuned = next(models)[1].weights()
    tuned = next(models)[1].weights()
    moved = {n for n in untuned if not torch.equal(untuned[n], tuned[n])}
    assert moved == {"head.weight", "head.bias"}


def test_fedbabu_has_one_fixed_head_for_all_and_tunes_everything(client: Client):
    algorithm = FedBABU(lr=0.1, weight_decay=0.1, epochs=2, finetune_epochs=1)
    weights, server = weights_and_server(client)
    body = algorithm.server_init(server).weights
    _, reply = algorithm.train(client, None, Message(body))
    assert not any(name.startswith("head.") for name in reply.message.tensors)
    other = replace(client, info=ClientInfo(3, 9))
    for who in (client, other):
        models = algorithm.deploy(who, None, Message(body))
        untuned = next(models)[1].weights()
        assert torch.equal(untuned["head.weight"], weights["head.weight"])
        tuned = next(models)[1].weights()
        assert all(not torch.equal(untuned[n], tuned[n]) for n in untuned if n.endswith("weight"))


def test_tuning_uses_the_full_rate_at_the_end_of_a_schedule(client: Client):
    """A cosine that has come down to nothing must not make fine-tuning do nothing."""
    last = replace(client, round=client.setting.rounds)
    weights, _ = weights_and_server(client)
    tuned = []
    for schedule in ("constant", "cosine"):
        models = FedAvg(schedule=schedule, finetune_epochs=2, lr=0.1).deploy(
            last, None, Message(weights)
        )
        next(models)
        tuned.append(next(models)[1].weights())
    assert all(torch.equal(tuned[0][n], tuned[1][n]) for n in weights)


def test_tuning_one_client_does_not_touch_the_next(client: Client):
    """Both start from the same global model, whoever comes first."""
    weights, _ = weights_and_server(client)
    algorithm = FedAvg(finetune_epochs=2, lr=0.1)
    other = replace(client, info=ClientInfo(3, 9))

    def tuned(who: Client) -> Tensors:
        return list(algorithm.deploy(who, None, Message(weights)))[-1][1].weights()

    alone = tuned(other)
    tuned(client)
    after = tuned(other)
    assert all(torch.equal(alone[n], after[n]) for n in alone)


@pytest.mark.parametrize("algorithm", [FedAvg, FedRep, FedBABU, Ditto, PerFedAvg])
def test_tuning_never_sees_validation_or_test_images(
    client: Client, algorithm: type[Algorithm[Any, Any]]
):
    """Validation chooses the round and the search; whoever tunes on it chooses by what it knows."""
    made = algorithm(finetune_epochs=2, lr=0.1)
    message = made.serve(
        server := weights_and_server(client)[1], made.server_init(server), client.info
    )

    def tuned(who: Client) -> Tensors:
        models = made.deploy(who, made.client_init(who), message)
        return list(models)[-1][1].weights()

    usual = tuned(client)
    other = tuned(replace(client, val=client.test, test=client.val))
    fewer = tuned(replace(client, train=replace(client.train, index=client.train.index[:-1])))
    assert all(torch.equal(usual[n], other[n]) for n in usual)
    assert not all(torch.equal(usual[n], fewer[n]) for n in usual)
