"""1x1 convolutions: a matrix product on small maps, and a guard against a bug of oneDNN's."""

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

SMALL = 64  # pixels of a map up to which a matrix product is the faster one
OVERRUN = range(2, 8)  # input channels with which oneDNN's strided backward pass overruns


class PointwiseConv2d(nn.Conv2d):
    """A 1x1 convolution without bias."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__(before, after, 1, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        """Convolve; the product needs no copy where channels are last."""
        if input.device.type != "cpu" or input.shape[2] * input.shape[3] > SMALL:
            return super().forward(input)
        return F.linear(input.permute(0, 2, 3, 1), self.weight.flatten(1)).permute(0, 3, 1, 2)


def stride_by_slicing(part: nn.Module) -> None:
    """Have a strided 1x1 convolution of few channels skip pixels before it convolves.

    With channels last and AVX2, but no AVX-512, the backward pass of torch 2.13's oneDNN writes
    outside its memory for these. The pixels that a 1x1 kernel skips do not matter to it.
    """
    if (
        isinstance(part, nn.Conv2d)
        and part.in_channels in OVERRUN
        and part.kernel_size == (1, 1)
        and part.padding in ((0, 0), "valid", "same")
        and part.groups == 1
        and max(part.stride) > 1
    ):
        part.register_forward_pre_hook(_Skip(*part.stride))
        part.stride = (1, 1)


class _Skip:
    """Hand on every so many rows and columns."""

    def __init__(self, rows: int, columns: int) -> None:
        self.rows, self.columns = rows, columns

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return (inputs[0][..., :: self.rows, :: self.columns], *inputs[1:])
