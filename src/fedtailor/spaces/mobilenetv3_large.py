"""MobileNetV3-Large with strides for small images: a fixed model.

Howard et al. 2019, "Searching for MobileNetV3". 4,214,842 parameters with 10 classes. The stem has
stride 1, so that images of 32 pixels end on a 2x2 map; `stem_stride = 2` is the paper's.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.networks.depthwise import DepthwiseConv2d
from fedtailor.spaces._mobile import SqueezeExcite

# kernel, expanded channels, channels, squeeze and excite, hard swish (else ReLU), stride
BLOCKS = (
    (3, 16, 16, False, False, 1),
    (3, 64, 24, False, False, 2),
    (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2),
    (5, 120, 40, True, False, 1),
    (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2),
    (3, 200, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1),
    (3, 480, 112, True, True, 1),
    (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2),
    (5, 960, 160, True, True, 1),
    (5, 960, 160, True, True, 1),
)
STEM, LAST, FEATURES = 16, 960, 1280


@dataclass(frozen=True)
class MobileNetV3Large(SearchSpace):
    """A fixed model: a space without choices."""

    stem_stride: Annotated[int, Interval(ge=1, le=2)] = 1  # the papers, with larger images, have 2
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.2  # before the classifier

    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network."""
        return _Network(self.stem_stride, self.dropout, task)


class _Block(nn.Module):
    """Expand, convolve each channel, excite, project; with a shortcut where shapes allow it."""

    def __init__(self, before: int, row: tuple[int, int, int, bool, bool, int]) -> None:
        super().__init__()
        kernel, middle, after, excite, swish, stride = row
        self.activation = nn.Hardswish() if swish else nn.ReLU()
        self.expand = nn.Sequential()
        if middle != before:
            self.expand.append(nn.Conv2d(before, middle, 1, bias=False)).append(_norm(middle))
            self.expand.append(self.activation)
        self.depthwise = DepthwiseConv2d(middle, kernel, stride)
        self.norm = _norm(middle)
        self.excite = SqueezeExcite(middle) if excite else nn.Identity()
        self.project = nn.Conv2d(middle, after, 1, bias=False)
        self.last_norm = _norm(after)
        self.shortcut = stride == 1 and before == after

    def forward(self, x: Tensor) -> Tensor:
        inner = self.activation(self.norm(self.depthwise(self.expand(x))))
        inner = self.last_norm(self.project(self.excite(inner)))
        return x + inner if self.shortcut else inner


class _Network(nn.Module):
    def __init__(self, stem_stride: int, dropout: float, task: Task) -> None:
        super().__init__()
        self.stem = nn.Conv2d(task.shape[0], STEM, 3, stem_stride, padding=1, bias=False)
        self.norm = _norm(STEM)
        befores = [STEM, *(row[2] for row in BLOCKS)]
        self.blocks = nn.Sequential(*(_Block(b, r) for b, r in zip(befores, BLOCKS, strict=False)))
        self.last = nn.Conv2d(befores[-1], LAST, 1, bias=False)
        self.last_norm = _norm(LAST)
        self.features = nn.Linear(LAST, FEATURES)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(FEATURES, task.classes)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks(F.hardswish(self.norm(self.stem(images))))
        pooled = F.hardswish(self.last_norm(self.last(maps))).mean((2, 3))
        return self.head(self.dropout(F.hardswish(self.features(pooled))))


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
