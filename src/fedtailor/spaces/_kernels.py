"""Which kernels are the same on small maps: all whose further taps see padding alone."""

from collections.abc import Sequence

from fedtailor.core.space import Task


def strided(pixels: int, stride: int) -> int:
    """Return the size of the map that a padded convolution makes."""
    return (pixels - 1) // stride + 1


def last_different(kernels: Sequence[int], pixels: int) -> int:
    """Return the last option that is another convolution of a map than all before it.

    Kernels are centred windows of one another, from small to large. At any stride a tap further
    than `pixels - 1` from the middle sees no pixel, so kernels that reach as far are the same.
    """
    enough = (number for number, kernel in enumerate(kernels) if kernel // 2 >= pixels - 1)
    return next(enough, len(kernels) - 1)


def own_size(task: Task) -> int | None:
    """Return the pixels of a task's images; None where they are not square."""
    _, height, width = task.shape
    return height if height == width else None
