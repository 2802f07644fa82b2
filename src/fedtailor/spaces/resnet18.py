"""ResNet-18 with the stem for small images (3x3, stride 1, no pooling).

He et al. 2016, "Deep Residual Learning for Image Recognition". Batch norm or group norm (Hsieh et
al. 2020 find group norm safer on non-IID data). 11,173,962 parameters with 10 classes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task


@dataclass(frozen=True)
class ResNet18(SearchSpace):
    """A fixed model: a space without choices."""

    norm: Literal["batch", "group"] = "batch"  # or of groups of channels
    groups: Annotated[int, Ge(1)] = 2  # of group norm
    width: Annotated[int, Ge(1)] = 64  # channels of the first stage

    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network."""
        if self.norm == "batch":
            return _Network(self.width, nn.BatchNorm2d, task)
        if self.width % self.groups:
            raise UserError(f"space.groups: {self.groups} does not divide width {self.width}")
        return _Network(self.width, partial(nn.GroupNorm, self.groups), task)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(
        self, before: int, after: int, stride: int, norm: Callable[[int], nn.Module]
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride > 1 or before != after:
            self.shortcut.append(nn.Conv2d(before, after, 1, stride, bias=False)).append(
                norm(after)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Map images' features."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class _Network(nn.Module):
    def __init__(self, width: int, norm: Callable[[int], nn.Module], task: Task) -> None:
        super().__init__()
        self.stem = nn.Conv2d(task.shape[0], width, 3, padding=1, bias=False)
        self.norm = norm(width)
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks.append(Block(before, after, 1 if stage == 0 else 2, norm))
            blocks.append(Block(after, after, 1, norm))
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, task.classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.blocks(F.relu(self.norm(self.stem(images))))
        return self.head(features.mean((2, 3)))
