"""The once-for-all MobileNetV3 as a static network, and the parts its relatives share."""

from collections.abc import Sequence

from torch import Tensor, nn

STEM, FINAL, FEATURES = 16, 960, 1280
WIDTHS = (24, 40, 80, 112, 160)
STRIDES = (2, 2, 2, 1, 2)
SQUEEZES = (False, True, False, True, True)
ACTIVATIONS = (nn.ReLU, nn.ReLU, nn.Hardswish, nn.Hardswish, nn.Hardswish)
MOST_LAYERS = 4


def rounded(value: float, step: int = 8) -> int:
    """Round to the nearest multiple of the step, but never down by more than a tenth."""
    nearest = int(value + step / 2) // step * step
    return nearest if nearest >= 0.9 * value else nearest + step


def convolution(
    inputs: int,
    outputs: int,
    kernel: int = 1,
    stride: int = 1,
    groups: int = 1,
    activation: type[nn.Module] = nn.Identity,
) -> nn.Sequential:
    """Return a convolution, its batch norm and its activation."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
        activation(),
    )


class SqueezeExcite(nn.Module):
    """Gate every channel by what all channels hold on average."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = rounded(width / 4)
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(width, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, width, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Scale the channels."""
        return x * self.gate(x)


def bottleneck(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    expand: int,
    squeeze: bool,
    activation: type[nn.Module],
) -> nn.Sequential:
    """Return an inverted bottleneck without its shortcut."""
    middle = inputs if expand == 1 else rounded(inputs * expand)
    layers: list[nn.Module] = []
    if expand != 1:
        layers.append(convolution(inputs, middle, activation=activation))
    layers.append(convolution(middle, middle, kernel, stride, middle, activation))
    if squeeze:
        layers.append(SqueezeExcite(middle))
    return nn.Sequential(*layers, convolution(middle, outputs))


def head(
    inputs: int, final: int, features: int, classes: int, activation: type[nn.Module]
) -> nn.Sequential:
    """Return the last convolution, the global pool, the feature layer and the classifier."""
    return nn.Sequential(
        convolution(inputs, final, activation=activation),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(final, features, bias=False),
        activation(),
        nn.Linear(features, classes),
    )


class Residual(nn.Module):
    """Add what a body makes of the input to the input."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum."""
        return x + self.body(x)


def build(
    depths: Sequence[int],
    kernels: Sequence[int],
    expands: Sequence[int],
    classes: int,
    channels: int = 3,
    width: float = 1.0,
    stem_stride: int = 1,
) -> nn.Module:
    """Return the network; kernels and expands hold four entries per stage, absent layers' too."""
    current = rounded(STEM * width)
    layers: list[nn.Module] = [
        convolution(channels, current, 3, stem_stride, activation=nn.Hardswish),
        Residual(bottleneck(current, current, 3, 1, 1, False, nn.ReLU)),
    ]
    for stage, depth in enumerate(depths):
        outputs = rounded(WIDTHS[stage] * width)
        for layer in range(depth):
            gene = MOST_LAYERS * stage + layer
            stride = STRIDES[stage] if layer == 0 else 1
            options = kernels[gene], stride, expands[gene], SQUEEZES[stage], ACTIVATIONS[stage]
            body = bottleneck(current, outputs, *options)
            layers.append(Residual(body) if stride == 1 and current == outputs else body)
            current = outputs
    final, features = rounded(FINAL * width), rounded(FEATURES * width)
    return nn.Sequential(*layers, head(current, final, features, classes, nn.Hardswish))
