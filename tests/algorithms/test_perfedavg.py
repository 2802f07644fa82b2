"""Per-FedAvg: its gradients against autograd through the inner step, and the traps of others."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from fedtailor.algorithms.fedavg import Global
from fedtailor.algorithms.perfedavg import PerFedAvg
from fedtailor.core.types import (
    Batch,
    Client,
    ClientInfo,
    Message,
    Result,
    Server,
    Setting,
    Tensors,
)
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import learn


class Smooth(nn.Module):
    """A network without kinks, in double precision: finite differences are then nearly exact."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)
        self.double()

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.hidden(images.flatten(1)).tanh())


def batch_of(seed: int) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randn(7, 1, 2, 3, generator=rng, dtype=torch.float64)
    return Batch(images, torch.randint(3, (7,), generator=rng))


@pytest.fixture
def smooth(client: Client) -> Network:
    torch.manual_seed(0)
    return Network(Smooth(), client.setting.space, client.setting.task)


def through_the_inner_step(network: Network, inner: Batch, outer: Batch, alpha: float) -> Tensors:
    """Differentiate f(w - alpha grad f(w; inner); outer) by autograd, the inner step included."""
    w = {n: p.detach().requires_grad_() for n, p in network.live.items()}

    def loss(at: Tensors, batch: Batch) -> Tensor:
        return F.cross_entropy(functional_call(network.module, at, (batch.images,)), batch.labels)

    first = torch.autograd.grad(loss(w, inner), list(w.values()), create_graph=True)
    ahead = {n: w[n] - alpha * g for n, g in zip(w, first, strict=True)}
    found = torch.autograd.grad(loss(ahead, outer), list(w.values()))
    return dict(zip(w, found, strict=True))


def test_hf_is_the_gradient_through_the_inner_step(smooth: Network):
    """Where the third batch is the first, the curvature is that of the inner step."""
    inner, outer = batch_of(1), batch_of(2)
    algorithm = PerFedAvg(variant="hf", inner_lr=0.3, delta=1e-4)
    found, _ = algorithm.gradient(smooth, inner, outer, inner)
    wanted = through_the_inner_step(smooth, inner, outer, 0.3)
    first_order, _ = replace(algorithm, variant="fo").gradient(smooth, inner, outer, inner)
    for name, gradient in found.items():
        assert torch.allclose(gradient, wanted[name], rtol=1e-5, atol=1e-8)
        assert not torch.allclose(first_order[name], wanted[name], rtol=1e-2, atol=1e-8)


def test_hf_takes_the_curvature_of_the_third_batch(smooth: Network):
    inner, outer, curve = (batch_of(n) for n in (1, 2, 3))
    found, _ = PerFedAvg(variant="hf", inner_lr=0.3, delta=1e-4).gradient(
        smooth, inner, outer, curve
    )
    w = {n: p.detach().requires_grad_() for n, p in smooth.live.items()}
    ahead, _ = PerFedAvg(inner_lr=0.3).gradient(smooth, inner, outer, curve)
    loss = F.cross_entropy(functional_call(smooth.module, w, (curve.images,)), curve.labels)
    slopes = torch.autograd.grad(loss, list(w.values()), create_graph=True)
    along = sum((s * ahead[n]).sum() for n, s in zip(w, slopes, strict=True))
    curved = torch.autograd.grad(torch.as_tensor(along), list(w.values()))
    for name, bend in zip(w, curved, strict=True):
        assert torch.allclose(found[name], ahead[name] - 0.3 * bend, rtol=1e-5, atol=1e-8)


def test_fo_is_the_gradient_one_step_ahead(smooth: Network):
    inner, outer = batch_of(1), batch_of(2)
    found, loss = PerFedAvg(inner_lr=0.3).gradient(smooth, inner, outer, batch_of(3))
    first = torch.autograd.grad(smooth.loss(inner), list(smooth.live.values()))
    with torch.no_grad():
        for parameter, slope in zip(smooth.live.values(), first, strict=True):
            parameter -= 0.3 * slope
    there = smooth.loss(outer)
    wanted = torch.autograd.grad(there, list(smooth.live.values()))
    assert loss.item() == pytest.approx(there.item())
    assert all(torch.allclose(found[n], g) for n, g in zip(smooth.live, wanted, strict=True))


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_a_round_is_plain_steps_along_these_gradients(client: Client, variant: Any):
    algorithm = PerFedAvg(variant=variant, lr=0.1, inner_lr=0.05, delta=0.01, epochs=2, batch=16)
    start = initial_weights(client.setting)
    _, reply = algorithm.train(client, None, Message(start))
    network = learn.network(client, start)
    streams = [learn.batches(client, 16, epochs=2, purpose=p) for p in ("inner", "outer", "curve")]
    for three in zip(*streams, strict=True):
        gradient, _ = algorithm.gradient(network, *three)
        with torch.no_grad():
            for name, parameter in network.live.items():
                parameter -= 0.1 * gradient[name]
    for name, weight in network.weights().items():
        assert torch.allclose(reply.message.tensors[name], weight, atol=1e-6)


def test_three_independent_batches_a_step(client: Client, monkeypatch: pytest.MonkeyPatch):
    seen: list[Tensor] = []
    plain = Network.gradient

    def recorded(self: Network, batch: Batch, *rest: Any, **named: Any) -> Any:
        seen.append(batch.images)
        return plain(self, batch, *rest, **named)

    monkeypatch.setattr(Network, "gradient", recorded)
    PerFedAvg(variant="hf", batch=16).train(client, None, Message(initial_weights(client.setting)))
    steps = [seen[i : i + 4] for i in range(0, len(seen), 4)]
    assert len(steps) == 3
    for inner, outer, up, down in steps:
        assert up is down
        different = itertools.combinations((inner, outer, up), 2)
        assert all(a.shape != b.shape or not torch.equal(a, b) for a, b in different)


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_statistics_are_moved_by_the_outer_batches_alone(client: Client, variant: Any):
    client = replace(client, setting=Setting(client.setting.task, ResNet18(width=4), 10, 3))
    start = initial_weights(client.setting)
    still = PerFedAvg(variant=variant, lr=1e-12, inner_lr=1e-12, delta=1e-12, batch=16)
    _, reply = still.train(client, None, Message(start))
    plain = learn.network(client, start)
    for batch in learn.batches(client, 16, purpose="outer"):
        plain(batch.images)
    for name, weight in plain.weights().items():
        assert torch.allclose(reply.message.tensors[name], weight, atol=1e-5), name
    assert not torch.equal(reply.message.tensors["norm.running_mean"], start["norm.running_mean"])


@pytest.mark.parametrize("steps", [0, 1, 5])
def test_it_is_used_after_steps_on_training_data(client: Client, steps: int):
    """Five steps are more than an epoch; statistics and the server's weights stay."""
    client = replace(client, setting=Setting(client.setting.task, ResNet18(width=4), 10, 3))
    start = initial_weights(client.setting)
    algorithm = PerFedAvg(inner_steps=steps, inner_lr=0.05, batch=16, finetune_epochs=0)
    ((label, used),) = algorithm.deploy(client, None, Message(start))
    assert label == "untuned"
    hand = learn.network(client, start)
    batches = learn.batches(client, 16, epochs=5, purpose="adapt")
    for batch in itertools.islice(batches, steps):
        gradient, _ = hand.gradient(batch)
        with torch.no_grad():
            for name, parameter in hand.live.items():
                parameter -= 0.05 * gradient[name]
    for name, weight in hand.weights().items():
        assert torch.allclose(used.weights()[name], weight, rtol=1e-3, atol=1e-4)
    swapped = replace(client, val=client.test, test=client.val)
    ((_, other),) = algorithm.deploy(swapped, None, Message(start))
    assert all(torch.equal(w, used.weights()[n]) for n, w in other.weights().items())


@pytest.mark.parametrize(("weighted", "expected"), [(False, 2.0), (True, 2.5)])
def test_averages_plainly_unless_told(client: Client, weighted: bool, expected: float):
    weights = initial_weights(client.setting)
    infos = tuple(ClientInfo(i, examples) for i, examples in enumerate((10, 30, 60)))
    results = [
        Result(info, {}, Message({n: w + step for n, w in weights.items()}), 1.0, 0)
        for info, step in zip(infos, (1.0, 2.0, 3.0), strict=True)
    ]
    server = Server(client.setting, 1, infos)
    after = PerFedAvg(weighted=weighted).aggregate(server, Global(weights), results)
    assert all(
        torch.allclose(t, weights[n] + expected, atol=1e-4) for n, t in after.weights.items()
    )
