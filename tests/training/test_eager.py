"""Optimizers without torch's compiler: the same steps, and the compiler is not imported."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtailor.training import eager

UNCOMPILED = """
import sys, tempfile
from fedtailor import run

for name in ("mobilenetv3", "darts", "nasvit", "levit"):
    space = {"name": name} | ({} if name == "levit" else {"preset": "cpu"})
    data = {"clients": 2, "per_client": 16, "partition": "iid"}
    how = {"name": "fedavg", "finetune_epochs": 0, "batch": 8, "lr": 0.001}
    config = {"rounds": 1, "algorithm": how, "space": space, "data": data, "save_models": False}
    run(config | {"engine": {"workers": 0}}, f"{tempfile.mkdtemp()}/run", report=False)
assert "torch._dynamo" not in sys.modules
"""


@pytest.mark.parametrize(
    ("mine", "theirs", "options"),
    [
        (eager.SGD, torch.optim.SGD, {"momentum": 0.9}),
        (eager.SGD, torch.optim.SGD, {}),
        (eager.AdamW, torch.optim.AdamW, {}),
    ],
)
def test_steps_are_those_of_torch(mine: Any, theirs: Any, options: dict[str, Any]):
    assert steps(mine, options) == steps(theirs, options)


def steps(kind: Any, options: dict[str, Any]) -> list[list[float]]:
    """Return what five steps make of a small network."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randn(8, 6, generator=rng)
    network = nn.Linear(6, 3)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    optimizer = kind(network.parameters(), lr=0.1, weight_decay=0.01, foreach=True, **options)
    found: list[Tensor] = []
    for _ in range(5):
        optimizer.zero_grad()
        network(images).square().mean().backward()
        optimizer.step()
        found += [p.detach().clone() for p in network.parameters()]
    assert all(p.requires_grad and p.is_leaf for p in network.parameters())
    return [tensor.flatten().tolist() for tensor in found]


def test_training_imports_no_compiler():
    done = subprocess.run(
        [sys.executable, "-c", UNCOMPILED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
