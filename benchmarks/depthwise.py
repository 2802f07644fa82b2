"""The weight gradient of depthwise convolutions: what we choose against the stock operator.

CPU time, one thread, batch 32, channels_last, lowest of interleaved repeats. `speedup` is the
geometric mean over the shapes that MobileNetV3 has on small images; `lowest` the worst of them.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.depthwise import prefers_shifts, shifted_weight_gradient

KERNELS = (3, 5, 7)
MAPS = {32: (16, 48), 16: (72, 96), 8: (120, 240), 4: (240, 480, 672), 2: (480, 672, 960)}
REPEATS = 9


def stock(images: Tensor, gradient: Tensor, weight: Tensor, padding: int) -> Tensor:
    """Return the weight gradient that torch computes."""
    return torch.ops.aten.convolution_backward(
        gradient, images, weight, None, [1, 1], [padding] * 2, [1, 1], False, [0, 0], len(weight),
        [False, True, False],
    )[1]  # fmt: skip


def seconds(work: Callable[[], Tensor]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(kernel: int, size: int, channels: int) -> tuple[float, float]:
    """Return the seconds of the stock gradient and of the one we choose."""
    rng = torch.Generator().manual_seed(0)
    shape = (32, channels, size, size)
    images, gradient = (
        torch.randn(shape, generator=rng).contiguous(memory_format=torch.channels_last)
        for _ in range(2)
    )
    weight, padding = torch.randn(channels, 1, kernel, kernel, generator=rng), kernel // 2

    def floor() -> Tensor:
        return stock(images, gradient, weight, padding)

    def ours() -> Tensor:
        if prefers_shifts(images.shape, kernel):
            return shifted_weight_gradient(images, gradient, weight, 1, padding, 1)
        return stock(images, gradient, weight, padding)

    times = [(seconds(floor), seconds(ours)) for _ in range(REPEATS)]
    return min(t[0] for t in times), min(t[1] for t in times)


def main() -> None:
    torch.set_num_threads(1)
    floor_s = ours_s = 0.0
    ratios = []
    for kernel in KERNELS:
        for size, widths in MAPS.items():
            for channels in widths:
                floor, ours = compare(kernel, size, channels)
                floor_s, ours_s = floor_s + floor, ours_s + ours
                ratios.append(floor / ours)
                print(f"{kernel}x{kernel}, {channels} channels, {size}x{size}: {ratios[-1]:.2f}")
    result = {
        "name": "depthwise",
        "floor_s": round(floor_s, 4),
        "ours_s": round(ours_s, 4),
        "speedup": round(statistics.geometric_mean(ratios), 3),
        "lowest": round(min(ratios), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
