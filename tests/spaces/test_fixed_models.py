"""The fixed models: published sizes, and what is particular to each."""

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core import registry
from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import network_of
from fedtailor.spaces.levit import LeViT, _Attention

CIFAR = Task((3, 32, 32), 10)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("cnn", 479_386),
        ("resnet18", 11_173_962),
        ("mobilenetv3_large", 4_214_842),
        ("levit", 7_011_610),
    ],
)
def test_parameter_counts_of_published_sizes(name: str, parameters: int):
    assert cost.parameters(registry.find("space", name)(), (), CIFAR) == parameters


def test_levit_128s_at_the_papers_size():
    """7.8 M parameters with the second head that distillation needs, and 305 M multiply-adds."""
    space, task = LeViT((2, 2, 2, 2)), Task((3, 224, 224), 1000)
    second_head = 384 * 1000 + 1000 + 2 * 384
    assert round((cost.parameters(space, (), task) + second_head) / 1e6, 1) == 7.8
    assert cost.forward_macs(space, (), task) == pytest.approx(305e6, rel=0.01)


def test_levit_looks_distances_up_whoever_had_the_network_before():
    """Its table of distances is no weight: loading weights must leave it alone."""
    setting = Setting(Task((3, 16, 16), 4), LeViT(), 1, 0)
    weights = initial_weights(setting)
    assert not any("distance" in name for name in weights)
    for _ in range(2):
        model = network_of(setting.space, (), setting.task, weights).module
        table = dict(model.named_buffers())["blocks.0.inner.distance"]
        assert table[0].tolist() == [row * 8 + column for row in range(8) for column in range(8)]
        assert torch.equal(table, table.T)


def test_residual_branches_of_levit_begin_closed():
    setting = Setting(CIFAR, LeViT(), 1, 0)
    weights = initial_weights(setting)
    assert weights["blocks.0.inner.project.norm.weight"].abs().max() == 0
    assert weights["blocks.0.inner.query.norm.weight"].min() == 1
    assert weights["blocks.0.inner.position_bias"].abs().max() == 0


def test_levit_attention_against_a_loop_over_queries():
    """One attention with a stride, token by token, head by head."""
    torch.manual_seed(0)
    size, stride, heads = 3, 2, 2
    attention = _Attention(8, 12, heads, 4, size, stride).eval()
    torch.nn.init.normal_(attention.position_bias)
    tokens = torch.randn(1, size * size, 8)
    both = attention.key_value(tokens)[0].view(size * size, heads, -1)
    found = []
    for row in range(0, size, stride):
        for column in range(0, size, stride):
            asked = attention.query(tokens[:, row * size + column][:, None])[0, 0].view(heads, -1)
            value = []
            for head in range(heads):
                scores = torch.stack([
                    asked[head] @ both[k, head, :16] / 4
                    + attention.position_bias[head, abs(row - k // 3) * 3 + abs(column - k % 3)]
                    for k in range(size * size)
                ])  # fmt: skip
                value.append(scores.softmax(0) @ both[:, head, 16:])
            found.append(torch.cat(value))
    expected = attention.project(F.hardswish(torch.stack(found))[None])
    assert torch.allclose(attention(tokens), expected, atol=1e-5)
