"""1x1 convolutions: right on every processor."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, Choice, SearchSpace, Task
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.networks.store import Store

TASK = Task((3, 12, 12), 5)
OWN = """
from tests.networks.test_pointwise import train_own_model
train_own_model()
"""


class Strided(nn.Module):
    """What a user might write: 1x1 convolutions of few channels, with strides."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 1, stride=2)
        self.second = nn.Conv2d(width, 16, 1, stride=(1, 2), bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.second(self.first(images).relu()).mean((2, 3)))


@dataclass(frozen=True)
class Own(SearchSpace):
    @property
    def choices(self) -> tuple[Choice, ...]:
        return (Choice("width", (2, 4, 7)),)

    def build(self, arch: Arch, task: Task) -> nn.Module:
        return Strided(self.choices[0].options[arch[0]])  # pyright: ignore[reportArgumentType]


def store() -> Store:
    rng = torch.Generator().manual_seed(0)
    full = blueprint(lambda: Strided(7)).named_parameters()
    return Store(Own(), TASK, {n: torch.randn(p.shape, generator=rng) for n, p in full})


def train_own_model() -> None:
    """Train such a model for some steps; memory that is overrun shows in what comes after."""
    rng, supernet = torch.Generator().manual_seed(1), store()
    for step in range(30):
        model = supernet.bind((step % 3,))
        images = torch.randn(8, *TASK.shape, generator=rng)
        images = images.contiguous(memory_format=torch.channels_last).requires_grad_()
        F.cross_entropy(model(images), torch.arange(8) % 5).backward()
        assert [torch.randn(n * 37 % 999 + 1) for n in range(50)]


@pytest.mark.skipif(sys.platform != "linux", reason="glibc tells when its heap is broken")
def test_a_model_of_few_channels_trains_on_a_processor_with_avx2_alone():
    limits = {"ONEDNN_MAX_CPU_ISA": "AVX2", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
    there = os.environ | limits | {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", OWN], env=there, cwd=root, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.parametrize("width", [0, 1, 2])
def test_skipping_pixels_first_is_the_strided_convolution(width: int):
    supernet = store()
    guarded = supernet.bind((width,))
    plain = Strided((2, 4, 7)[width])
    plain.load_state_dict(supernet.cut((width,)))
    plain.double()
    images = torch.randn(4, *TASK.shape, generator=torch.Generator().manual_seed(2))
    seen = images.contiguous(memory_format=torch.channels_last).requires_grad_()
    exact = images.double().requires_grad_()
    made, wanted = guarded(seen), plain(exact)
    assert torch.allclose(made.double(), wanted, atol=1e-4)
    made.square().sum().backward()
    wanted.square().sum().backward()
    assert seen.grad is not None and exact.grad is not None
    assert torch.allclose(seen.grad.double(), exact.grad, rtol=1e-3, atol=1e-3)
    for name, parameter in guarded.named_parameters():
        gradient, right = parameter.grad, plain.get_parameter(name).grad
        assert gradient is not None and right is not None
        assert torch.allclose(gradient.double(), right, rtol=1e-3, atol=1e-3), name


def test_only_what_is_unsafe_is_changed():
    def strides(*convolution: Any, **how: Any) -> tuple[int, ...]:
        module = allocate(blueprint(lambda: nn.Conv2d(*convolution, **how)), "cpu")
        assert isinstance(module, nn.Conv2d)
        return module.stride

    assert strides(7, 16, 1, stride=2) == (1, 1)
    assert strides(1, 16, 1, stride=2) == strides(8, 16, 1, stride=2) == (2, 2)
    assert strides(4, 16, 3, stride=2) == strides(4, 16, 1, stride=2, padding=1) == (2, 2)
    assert strides(4, 16, 1, stride=2, groups=2) == (2, 2)
