"""MiLeNAS: steps of alphas against ones that are written out, and what is decided by them."""

import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.space import Task
from fedtailor.core.types import Batch, Meter, Setting
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network, network_of
from fedtailor.search import milenas
from fedtailor.spaces._darts_cell import EDGES
from fedtailor.spaces.darts import DARTS

TASK = Task((3, 8, 8), 4)
SPACE = DARTS(channels=4, cells=3, operations="s2", form="relaxed")
WITH_NONE = DARTS(channels=4, cells=3, operations="s3", form="relaxed")


def network(space: DARTS, meter: Meter | None = None) -> Network:
    arch = space.largest()
    weights = initial_weights(Setting(TASK, space, 1, 0), arch)
    found = network_of(space, arch, TASK, weights, meter=meter)
    found.train()
    return found


def batch(seed: int, images: int = 6) -> Batch:
    rng = torch.Generator().manual_seed(seed)
    return Batch(
        torch.randn(images, *TASK.shape, generator=rng),
        torch.randint(TASK.classes, (images,), generator=rng),
        1,
    )


def random_alphas(space: DARTS) -> Tensor:
    return torch.randn(milenas.count(space), generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("space", [SPACE, WITH_NONE])
def test_operations_of_an_edge_share_it_by_softmax(space: DARTS):
    alphas = random_alphas(space)
    normal, reduction = milenas.mixing(space, space.largest(), alphas)
    expected, at = [], 0
    for offered in space.offers:
        shares = alphas[at : at + len(offered)].exp() / alphas[at : at + len(offered)].exp().sum()
        expected += [float(s) for s, n in zip(shares, offered, strict=True) if n != "none"]
        at += len(offered)
    assert at == len(alphas)
    assert torch.cat([normal, reduction]).tolist() == pytest.approx(expected)
    assert len(normal) == 2 * len(EDGES)
    even, _ = milenas.mixing(space, space.largest(), torch.zeros(milenas.count(space)))
    assert even.tolist() == pytest.approx([1 / len(space.offers[0])] * len(even))


@pytest.mark.parametrize("space", [SPACE, WITH_NONE])
def test_a_step_written_out(space: DARTS):
    """A network copied, both losses with gradients by hand; nothing else of it moves."""
    meter = Meter()
    net, alphas = network(space, meter), random_alphas(space)
    before = copy.deepcopy(net.module.state_dict())
    train, val = batch(1), batch(2, images=4)
    mixed = milenas.Mixed(net, alphas, iter([val]), rate=0.1, weight=3.0)
    mixed.learn(train)
    found = mixed.alphas
    plain = copy.deepcopy(net.module)
    point = alphas.clone().requires_grad_()
    loss = F.cross_entropy(
        plain((train.images, milenas.mixing(space, space.largest(), point))), train.labels
    )
    other = F.cross_entropy(
        plain((val.images, milenas.mixing(space, space.largest(), point))), val.labels
    )
    (slope,) = torch.autograd.grad(loss + 3 * other, point)
    torch.testing.assert_close(found, alphas - 0.1 * slope)
    assert (found - alphas).abs().max() > 1e-4 and not found.requires_grad
    assert all(torch.equal(before[name], now) for name, now in net.module.state_dict().items())
    assert all(parameter.grad is None for parameter in net.module.parameters())
    assert meter.macs == 10 * cost.training_macs(space, space.largest(), TASK, frozenset())


def test_the_loss_of_weights_is_of_the_mixed_network():
    net, alphas, one = network(SPACE), random_alphas(SPACE), batch(1)
    loss = milenas.Mixed(net, alphas, iter(()), 0.1, 1.0).loss(one)
    expected = F.cross_entropy(
        copy.deepcopy(net.module)((one.images, milenas.mixing(SPACE, SPACE.largest(), alphas))),
        one.labels,
    )
    torch.testing.assert_close(loss, expected)
    assert not torch.allclose(loss, net.loss(one))


def test_the_largest_alpha_of_each_edge_stays_but_never_none():
    alphas = torch.zeros(milenas.count(WITH_NONE)).view(-1, 3)  # none, skip, convolution
    alphas[:, 0] = 5.0
    alphas[:, 1] = 1.0
    alphas[7, 2] = 2.0
    arch = milenas.strongest(WITH_NONE, WITH_NONE.largest(), alphas.flatten())
    kept = [WITH_NONE.offers[edge][live.bit_length() - 1] for edge, live in enumerate(arch)]
    assert all(live.bit_count() == 1 for live in arch)
    assert kept == ["sep_conv_3x3" if edge == 7 else "skip_connect" for edge in range(28)]


def test_what_is_removed_shares_nothing_and_never_stays():
    alphas, arch = random_alphas(SPACE), list(SPACE.largest())
    arch[3], arch[5] = 1, 0  # one operation left, and none
    normal, reduction = milenas.mixing(SPACE, tuple(arch), alphas)
    assert (len(normal), len(reduction)) == (2 * 14 - 3, 2 * 14)
    assert normal[6] == 1
    whole, _ = milenas.mixing(SPACE, SPACE.largest(), alphas)
    assert normal[7:9].tolist() == whole[8:10].tolist()
    alphas[7], alphas[6] = 9.0, -9.0  # of edge 3 the operation that is gone
    kept = milenas.strongest(SPACE, tuple(arch), alphas)
    assert (kept[3], kept[5]) == (1, 0)
