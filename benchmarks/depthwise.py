"""The gradients of depthwise convolutions: what we choose against the stock operator.

CPU time, one thread, batch 32, channels_last, lowest of interleaved repeats. `speedup` is the
geometric mean over the shapes that MobileNetV3 and DARTS have on small images; `lowest` the worst.
"""

import json
import statistics
import time
from collections.abc import Callable

import torch
from torch.nn import functional as F

from fedtailor.networks.depthwise import depthwise

# (kernel, stride, dilation) and (pixels, channels)
MOBILE = [(kernel, stride, 1) for kernel in (3, 5, 7) for stride in (1, 2)]
MOBILE_MAPS = [(32, 16), (32, 48), (16, 72), (16, 96), (8, 120), (8, 240), (4, 240), (4, 480)]
MOBILE_MAPS += [(4, 672), (2, 480), (2, 672), (2, 960)]
CELLS = [
    (kernel, stride, dilation) for kernel in (3, 5) for stride in (1, 2) for dilation in (1, 2)
]
CELL_MAPS = [(32, 16), (16, 32), (8, 64)]
CASES = [(*how, *where) for how in MOBILE for where in MOBILE_MAPS if how[1] == 1 or where[0] > 2]
CASES += [(*how, *where) for how in CELLS for where in CELL_MAPS if (*how, *where) not in CASES]
REPEATS = 9


def seconds(work: Callable[[], None]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(
    kernel: int, stride: int, dilation: int, size: int, channels: int
) -> tuple[float, float]:
    """Return the seconds of the stock gradients and of ours."""
    rng = torch.Generator().manual_seed(0)
    out, padding = (size - 1) // stride + 1, dilation * (kernel - 1) // 2
    images, gradient = (
        torch.randn(32, channels, pixels, pixels, generator=rng).contiguous(
            memory_format=torch.channels_last
        )
        for pixels in (size, out)
    )
    weight = torch.randn(channels, 1, kernel, kernel, generator=rng)
    both = (images.requires_grad_(), weight.requires_grad_())
    stock = F.conv2d(images, weight, None, stride, padding, dilation, groups=channels)
    chosen = depthwise(images, weight, stride, padding, dilation)

    def floor() -> None:
        torch.autograd.grad(stock, both, gradient, retain_graph=True)

    def ours() -> None:
        torch.autograd.grad(chosen, both, gradient, retain_graph=True)

    times = [(seconds(floor), seconds(ours)) for _ in range(REPEATS)]
    return min(t[0] for t in times), min(t[1] for t in times)


def main() -> None:
    torch.set_num_threads(1)
    floor_s = ours_s = 0.0
    ratios = []
    for case in CASES:
        floor, ours = compare(*case)
        floor_s, ours_s = floor_s + floor, ours_s + ours
        ratios.append(floor / ours)
        kernel, stride, dilation, size, channels = case
        how = f"{kernel}x{kernel}, stride {stride}, dilation {dilation}"
        where = f"{channels} channels, {size}x{size}"
        print(f"{how}, {where}: {1e3 * floor:.2f} / {1e3 * ours:.2f} ms = {ratios[-1]:.2f}")
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
