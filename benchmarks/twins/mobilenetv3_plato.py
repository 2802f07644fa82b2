"""The MobileNetV3 of Plato's PerFedRLNAS as a static network, one setting per stage."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.twins.mobilenetv3 import bottleneck, convolution, head

SQUEEZES = (True, False, True, True, True)
STRIDES = (2, 2, 2, 2, 1, 2)


class Shortcut(nn.Module):
    """Bring the input to the size of a block's output: average pool, then 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        same = inputs == outputs
        self.project = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Pool and project."""
        if self.stride > 1:
            # An odd map is padded, as then the convolutions' output is rounded up.
            padding = (x.shape[2] % 2, x.shape[3] % 2)
            x = F.avg_pool2d(x, self.stride, padding=padding)
        return self.project(x)


class Block(nn.Module):
    """An inverted bottleneck that has a shortcut whatever its stride and widths."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int,
        expand: int,
        squeeze: bool,
        activation: type[nn.Module] = nn.Hardswish,
    ) -> None:
        super().__init__()
        self.body = bottleneck(inputs, outputs, kernel, stride, expand, squeeze, activation)
        self.shortcut = Shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of both branches."""
        return self.body(x) + self.shortcut(x)


def build(
    widths: Sequence[int],
    depths: Sequence[int],
    kernels: Sequence[int],
    expands: Sequence[int],
    classes: int,
    channels: int = 3,
    strides: Sequence[int] = STRIDES,
) -> nn.Module:
    """Return the network; widths are those of the stem, the five stages and the features."""
    stem, *stages, features = widths
    layers: list[nn.Module] = [
        convolution(channels, stem, 3, strides[0], activation=nn.Hardswish),
    ]
    current = stem
    for stage, outputs in enumerate(stages):
        for layer in range(depths[stage]):
            stride = strides[stage + 1] if layer == 0 else 1
            options = kernels[stage], stride, expands[stage], SQUEEZES[stage]
            layers.append(Block(current, outputs, *options))
            current = outputs
    return nn.Sequential(*layers, head(current, 6 * current, features, classes, nn.Hardswish))
