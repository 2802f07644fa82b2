"""Networks in somebody's hands: held apart, charged for, and looked at without being moved."""

import gc
import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor.core.types import Batch, Client, Meter, Setting, Tensors
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network, is_body, is_head, load, network_of
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import learn


@pytest.fixture
def resnet(client: Client) -> Client:
    setting = Setting(client.setting.task, ResNet18(width=4), 10, 3)
    return replace(client, setting=setting, meter=Meter())


def first_batch(client: Client, purpose: str = "any") -> Batch:
    return next(learn.batches(client, 16, purpose=purpose))


def held(client: Client) -> Network:
    return learn.network(client, initial_weights(client.setting))


def test_two_that_are_held_at_once_are_two(resnet: Client):
    one, other = held(resnet), held(resnet)
    assert one.module is not other.module
    with torch.no_grad():
        for parameter in one.live.values():
            parameter.fill_(7.0)
    start = initial_weights(resnet.setting)
    assert all(torch.equal(w, start[n]) for n, w in other.weights().items())


def test_a_module_nobody_holds_is_used_again_and_one_that_a_view_holds_is_not(resnet: Client):
    one = held(resnet)
    module = id(one.module)
    view = one.only(is_head)
    del one
    gc.collect()
    assert id(held(resnet).module) != module
    del view
    gc.collect()
    assert module in {id(network.module) for network in [held(resnet) for _ in range(3)]}


def test_images_are_charged_whoever_passes_them(resnet: Client):
    network, batch, setting = held(resnet), first_batch(resnet), resnet.setting
    forward = cost.forward_macs(setting.space, (), setting.task)
    training = cost.training_macs(setting.space, (), setting.task)

    def spent() -> float:
        found, resnet.meter.macs = resnet.meter.macs, 0.0
        return found

    network(batch.images)
    assert spent() == 16 * training
    with torch.no_grad():
        network(batch.images[:5])
    assert spent() == 5 * forward
    network.loss(batch)
    assert spent() == 16 * training
    network.gradient(batch)
    assert spent() == 16 * training
    frozen = frozenset(name for name in network.live if is_body(name))
    network.only(is_head).loss(batch)
    assert (
        spent() == 16 * cost.training_macs(setting.space, (), setting.task, frozen) < 8 * training
    )


def exact(client: Client, at: Tensors, batch: Batch, smoothing: float) -> tuple[Tensors, float]:
    """Return gradient and loss in double precision, by a plain backward pass."""
    module = client.setting.space.build((), client.setting.task)
    load(module, initial_weights(client.setting) | at)
    module.double().train()
    loss = F.cross_entropy(module(batch.images.double()), batch.labels, label_smoothing=smoothing)
    loss.backward()
    found = {n: p.grad for n, p in module.named_parameters() if p.grad is not None}
    return found, loss.item()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_gradient_is_that_of_a_plain_backward_pass(resnet: Client, elsewhere: bool):
    network, batch = held(resnet), first_batch(resnet)
    before = network.weights()
    at = {n: p.detach() + 0.01 for n, p in network.live.items()} if elsewhere else None
    found, loss = network.gradient(batch, at, smoothing=0.1)
    wanted, right = exact(resnet, at or {}, batch, 0.1)
    assert loss.item() == pytest.approx(right, rel=1e-4)
    assert list(found) == list(network.live)
    for name, gradient in found.items():
        assert torch.allclose(gradient.double(), wanted[name], rtol=1e-2, atol=1e-4), name
    assert all(torch.equal(w, before[n]) for n, w in network.weights().items()), "it moved"
    assert all(p.grad is None for p in network.live.values())


def test_statistics_see_a_batch_only_where_told(resnet: Client):
    network, batch = held(resnet), first_batch(resnet)
    start = network.weights()
    network.gradient(batch, statistics=True)
    seen = network.weights()
    moved = {name for name in start if not torch.equal(start[name], seen[name])}
    assert moved == {name for name in start if "running" in name}
    plain = held(resnet)
    plain(batch.images)
    assert all(torch.equal(w, seen[n]) for n, w in plain.weights().items())


def test_a_gradient_of_some_parameters(resnet: Client):
    network, batch = held(resnet).only(is_head), first_batch(resnet)
    network.train()
    found, _ = network.gradient(batch)
    assert set(found) == {"head.weight", "head.bias"}


def test_what_stands_still_has_no_gradients_and_no_new_statistics(resnet: Client):
    network, batch = held(resnet), first_batch(resnet)
    before = network.weights()
    head = network.only(is_head)
    head.train()
    head.loss(batch).backward()
    assert {n for n, p in network.live.items() if p.grad is not None} == {
        "head.weight",
        "head.bias",
    }
    assert all(torch.equal(w, before[n]) for n, w in network.weights().items())
    network.train()
    network.loss(batch).backward()
    assert all(p.grad is not None for p in network.live.values())
    assert not torch.equal(network.weights()["norm.running_mean"], before["norm.running_mean"])


def test_weights_that_are_not_finite_never_leave(resnet: Client):
    network = held(resnet)
    with torch.no_grad():
        network.live["head.bias"][0] = math.nan
    with pytest.raises(FloatingPointError, match=r"head\.bias.*lower algorithm\.lr"):
        network.weights()


def test_a_plain_module_is_a_network_that_nobody_is_charged_for(client: Client):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    network = Network(module, client.setting.space, client.setting.task)
    assert network(first_batch(client).images).shape == (16, 10)
    assert client.meter.macs == 0


def test_statistics_that_are_not_given_are_reset(resnet: Client):
    setting = resnet.setting
    weights = {n: w for n, w in initial_weights(setting).items() if "running" not in n}
    network = network_of(setting.space, (), setting.task, weights)
    network.loss(first_batch(resnet))
    gone = id(network.module)
    del network
    gc.collect()
    again = network_of(setting.space, (), setting.task, weights)
    assert id(again.module) == gone
    found = again.module.state_dict()
    assert found["norm.running_mean"].eq(0).all() and found["norm.running_var"].eq(1).all()
    assert found["norm.num_batches_tracked"] == 0
