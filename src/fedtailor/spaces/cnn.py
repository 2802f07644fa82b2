"""A small convolutional network: the fixed model of quick experiments.

Two 3x3 convolutions with pooling, then two linear layers, as in McMahan et al. 2017 but with
3x3 kernels and configurable sizes. About 0.48 M parameters on 32x32 colour images.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task


@dataclass(frozen=True)
class CNN(SearchSpace):
    """A fixed model: a space without choices."""

    width: Annotated[int, Ge(1)] = 32  # channels of the first convolution; the second has twice
    hidden: Annotated[int, Ge(1)] = 112  # units before the classifier

    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network."""
        if min(task.shape[1:]) < 4:
            raise UserError(f"space.name: cnn needs images of 4x4 at least, not {task.shape[1:]}")
        return _Network(self.width, self.hidden, task)


class _Network(nn.Module):
    def __init__(self, width: int, hidden: int, task: Task) -> None:
        super().__init__()
        channels, height, breadth = task.shape
        self.conv1 = nn.Conv2d(channels, width, 3, padding=1)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.hidden = nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden)
        self.head = nn.Linear(hidden, task.classes)

    def forward(self, images: Tensor) -> Tensor:
        features = F.max_pool2d(F.relu(self.conv1(images)), 2)
        features = F.max_pool2d(F.relu(self.conv2(features)), 2)
        return self.head(F.relu(self.hidden(features.flatten(1))))
