"""What the counter says of shapes without torch is what torch computes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.networks.flops import FlopCounter

CALLS: dict[str, Callable[[Any], Tensor]] = {
    "mean of all": lambda x: x.mean(),
    "mean of some": lambda x: x.mean((2, -1)),
    "mean of one, kept": lambda x: x.mean(-1, keepdim=True),
    "sum of two": lambda x: x + x[:, :1],
    "sum with a number": lambda x: x + 1,
    "sum of halves": lambda x: torch.add(x, x, alpha=0.5),
    "mask times values": lambda x: (x > 0) * x,
    "whole numbers times a number": lambda x: x.long() * 2,
    "whole numbers times a fraction": lambda x: x.long() * 0.5,
    "larger times smaller": lambda x: x[0, 0] * x,
    "quotient": lambda x: x / 3,
    "quotient of whole numbers": lambda x: x.long() / 3,
    "quotient rounded": lambda x: x.long() // 3,
    "joined": lambda x: torch.cat([x, x[:, :2]], -3),
    "joined with nothing": lambda x: torch.cat([torch.empty(0, device=x.device), x], 1),
    "linear": lambda x: torch.addmm(x[0, 0, 0], x[0, 0], x[0, 0].T),
}


@pytest.mark.parametrize("name", CALLS)
def test_shapes_and_kinds_are_those_of_torch(name: str):
    wanted = CALLS[name](torch.ones(2, 3, 5, 5))
    with FlopCounter():
        told = CALLS[name](torch.empty(2, 3, 5, 5, device="meta"))
    assert (told.shape, told.dtype) == (wanted.shape, wanted.dtype)
