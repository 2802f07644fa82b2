"""Parts of mobile networks: inverted bottlenecks, squeeze and excite, elastic kernels."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.networks.depthwise import DepthwiseConv2d, depthwise
from fedtailor.networks.pointwise import PointwiseConv2d

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": lambda: nn.ReLU(inplace=True),
    "hardswish": nn.Hardswish,
    "swish": nn.SiLU,
}


def rounded(channels: float) -> int:
    """Round to a multiple of 8, never down by more than a tenth."""
    found = max(8, int(channels + 4) // 8 * 8)
    return found + 8 if found < 0.9 * channels else found


def scaled(widths: tuple[int, ...], factor: float) -> tuple[int, ...]:
    """Scale the options for a width to multiples of 8, and keep them apart."""
    found: list[int] = []
    for width in widths:
        found.append(max(rounded(width * factor), found[-1] + 8 if found else 8))
    return tuple(found)


class ConvNorm(nn.Module):
    """A convolution without bias, batch norm and an activation."""

    def __init__(
        self, before: int, after: int, kernel: int = 1, stride: int = 1, activation: str = ""
    ) -> None:
        super().__init__()
        self.conv = PointwiseConv2d(before, after)
        if kernel > 1:
            self.conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
        self.norm = nn.BatchNorm2d(after)
        self.activation = ACTIVATIONS[activation]() if activation else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Convolve, normalise, activate."""
        return self.activation(self.norm(self.conv(x)))


class Stem(ConvNorm):
    """The first convolution, on images brought to `size` pixels (0: as they are)."""

    def __init__(
        self, before: int, after: int, stride: int, activation: str, size: int = 0
    ) -> None:
        super().__init__(before, after, 3, stride, activation)
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Resize where needed, convolve."""
        return super().forward(resized(x, self.size))


def resized(images: Tensor, size: int) -> Tensor:
    """Bring images to `size` pixels by bicubic interpolation; 0: leave them as they are."""
    if not size or images.shape[-2:] == (size, size):
        return images
    return F.interpolate(images, (size, size), mode="bicubic", align_corners=False)


class SqueezeExcite(nn.Module):
    """Weigh channels by what the whole map says: a quarter of them in between."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce = nn.Linear(channels, rounded(channels / 4))
        self.expand = nn.Linear(rounded(channels / 4), channels)

    def forward(self, x: Tensor) -> Tensor:
        """Weigh the channels."""
        weights = F.hardsigmoid(self.expand(F.relu(self.reduce(x.mean((2, 3))))))
        return x * weights[:, :, None, None]


class TransformedDepthwise(nn.Module):
    """A depthwise convolution whose smaller kernels are learned linear maps of the larger one.

    Once-for-all (Cai et al. 2020): the 5x5 kernel is the centre of the 7x7 times a matrix, the
    3x3 kernel the centre of that 5x5 times another; one matrix for all channels of a layer.
    A matrix is kept as (1, inputs, rows, columns of the kernel it makes), so that what a 3x3
    kernel needs of the first one is its centred window.
    """

    def __init__(self, channels: int, kernel: int, stride: int) -> None:
        super().__init__()
        self.kernel, self.stride = kernel, stride
        source = 7 if kernel == 7 else 5
        self.weight = nn.Parameter(torch.empty(channels, 1, source, source))
        self.first_values: dict[str, Any] = {}
        for made in (5, 3):
            if kernel <= made:
                same = torch.eye(made * made, device="cpu").view(1, made * made, made, made)
                cut = (made - kernel) // 2
                same = same[..., cut : made - cut, cut : made - cut]
                self.register_parameter(f"to{made}", nn.Parameter(torch.empty(same.shape)))
                self.first_values[f"to{made}"] = same

    def forward(self, x: Tensor) -> Tensor:
        """Make the kernel, convolve."""
        weight = self.weight
        for name, matrix in self.named_parameters():
            if name != "weight":
                weight = (weight.flatten(1) @ matrix.flatten(2)[0]).unflatten(1, matrix.shape[2:])
                weight = weight.unsqueeze(1)
        return depthwise(x, weight, self.stride, self.kernel // 2, 1)


class Bottleneck(nn.Module):
    """Expand, convolve each channel, excite, project; and a shortcut.

    Args:
        widths: channels before, in the middle and after; no expansion where the first two agree.
        shortcut: "same": the input itself where shapes allow it, else none; "always": pooled
            and mapped by a 1x1 convolution where they do not, and the branch begins closed.
    """

    def __init__(
        self,
        widths: Sequence[int],
        kernel: int,
        stride: int,
        excite: bool,
        activation: str,
        shortcut: str = "same",
        transforms: bool = False,
    ) -> None:
        super().__init__()
        before, middle, after = widths
        self.expand = nn.Identity()
        if middle != before:
            self.expand = ConvNorm(before, middle, activation=activation)
        kind = TransformedDepthwise if transforms else DepthwiseConv2d
        self.depthwise = kind(middle, kernel, stride)
        self.norm = nn.BatchNorm2d(middle)
        self.activation = ACTIVATIONS[activation]()
        self.excite = SqueezeExcite(middle) if excite else nn.Identity()
        self.project = ConvNorm(middle, after)
        self.shortcut = None
        if shortcut == "always":
            self.shortcut = Shortcut(before, after, stride)
            self.project.norm.first_values = {"weight": 0.0}  # pyright: ignore
        elif stride == 1 and before == after:
            self.shortcut = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Compute the branch, add the shortcut."""
        inner = self.activation(self.norm(self.depthwise(self.expand(x))))
        inner = self.project(self.excite(inner))
        return inner if self.shortcut is None else self.shortcut(x) + inner


class Shortcut(nn.Module):
    """The way past a block: average pool for its stride, 1x1 convolution where widths differ."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Identity()
        if before != after:
            self.conv = PointwiseConv2d(before, after)

    def forward(self, x: Tensor) -> Tensor:
        """Pool and map."""
        if self.stride > 1:
            odd = x.shape[-2] % 2, x.shape[-1] % 2
            x = F.avg_pool2d(x, self.stride, self.stride, padding=odd)
        return self.conv(x)


class Features(nn.Module):
    """The end of a mobile network: a wide 1x1 convolution, the map's mean, one linear layer."""

    def __init__(self, before: int, wide: int, features: int, activation: str) -> None:
        super().__init__()
        self.conv = ConvNorm(before, wide, activation=activation)
        self.linear = nn.Linear(wide, features, bias=False)
        self.activation = ACTIVATIONS[activation]()

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of each image."""
        return self.activation(self.linear(self.conv(x).mean((2, 3))))


class Classifier(nn.Linear):
    """Dropout and the linear classifier."""

    def __init__(self, features: int, classes: int, dropout: float = 0.0) -> None:
        super().__init__(features, classes)
        self.dropout = dropout

    def forward(self, input: Tensor) -> Tensor:
        """Return the logits."""
        return super().forward(F.dropout(input, self.dropout, self.training))
