"""The NASViT space."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Interval

from fedtailor.chain import ChainSpace, Piece
from fedtailor.spaces._mobile import Bottleneck, Classifier, Features, Stem, rounded
from fedtailor.spaces._nasvit import Transformer
from fedtailor.types import Arch, Choice, Task


@dataclass(frozen=True)
class Stage:
    """What the blocks of a stage can be; with attention, all but the first are transformers."""

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    kernels: tuple[int, ...]
    expansions: tuple[int, ...]
    excite: bool
    attention: bool


STAGES = {
    "mb1": Stage((16, 24), (1, 2), (3, 5), (1,), False, False),
    "mb2": Stage((24, 32), (3, 4, 5), (3, 5), (4, 5, 6), False, False),
    "mb3": Stage((32, 40), (3, 4, 5, 6), (3,), (4, 5, 6), True, False),
    "mb4": Stage((64, 72), (3, 4, 5, 6), (3,), (4, 5, 6), False, True),
    "mb5": Stage((112, 120, 128), (3, 4, 5, 6, 7, 8, 9), (3,), (4, 5, 6), True, True),
    "mb6": Stage((160, 168, 176, 184), (3, 4, 5, 6, 7, 8), (3,), (6,), True, True),
    "mb7": Stage((208, 216, 224), (3, 4, 5, 6), (3,), (6,), True, True),
}
STEM, HEAD = (16, 24), (1792, 1984)
Stride = Annotated[int, Interval(ge=1, le=2)]
Strides = tuple[Stride, Stride, Stride, Stride, Stride, Stride, Stride, Stride]


@dataclass(frozen=True)
class NASViT(ChainSpace):
    """The NASViT space."""

    width: Annotated[float, Gt(0)] = 1.0  # all channels times this, in multiples of 8
    resolutions: tuple[Annotated[int, Ge(8)], ...] = ()  # pixels; none: as the images are
    strides: Strides = (1, 1, 2, 2, 1, 2, 1, 2)  # of the stem and of mb1 to mb7

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"resolutions": (192, 224, 256, 288), "strides": (2, 1, 2, 2, 2, 2, 1, 2)},
        "cpu": {"width": 0.15, "resolutions": (18, 21, 24, 27), "strides": (2, 1, 2, 1, 2, 1, 1, 2)},
    }

    @property
    def choices(self) -> tuple[Choice, ...]:
        """In the order of a forward pass; what has one option only is no choice."""
        return tuple(Choice(*gene) for gene in self._genes() if len(gene[1]) > 1)

    def _genes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield "resolution", tuple(sorted(set(self.resolutions))) or (0,)
        yield "stem width", scaled(STEM, self.width)
        for name, stage in STAGES.items():
            yield f"{name} width", scaled(stage.widths, self.width)
            yield f"{name} depth", stage.depths
            yield f"{name} kernel", stage.kernels
            yield f"{name} expansion", stage.expansions
        yield "head width", scaled(HEAD, self.width)

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        taken = iter(arch)
        chosen = {n: o[next(taken)] if len(o) > 1 else o[0] for n, o in self._genes()}
        resolution, before = chosen["resolution"], chosen["stem width"]
        size = (resolution, resolution) if resolution else task.shape[1:]
        size = strided(size, self.strides[0])
        found = [Piece("stem", Stem, (task.shape[0], before, self.strides[0], "swish", resolution))]
        for (name, stage), stride in zip(STAGES.items(), self.strides[1:], strict=True):
            size = strided(size, stride)
            width, depth, kernel, expansion = (
                chosen[f"{name} {gene}"] for gene in ("width", "depth", "kernel", "expansion")
            )
            for number in range(1, depth + 1):
                if stage.attention and number > 1:
                    piece = Piece(f"{name}_{number}", Transformer, (width, size, depth))
                else:
                    widths = (before, before * expansion, width)
                    how = (widths, kernel, stride, stage.excite, "swish", "always")
                    piece = Piece(f"{name}_{number}", Bottleneck, how)
                found.append(piece)
                before, stride = width, 1
        features = chosen["head width"]
        found.append(Piece("last", Features, (before, 6 * before, features, "swish")))
        found.append(Piece("head", Classifier, (features, task.classes)))
        return tuple(found)


def scaled(options: tuple[int, ...], width: float) -> tuple[int, ...]:
    """Scale widths to multiples of 8, and keep them apart."""
    found: list[int] = []
    for option in options:
        found.append(max(rounded(option * width), found[-1] + 8 if found else 8))
    return tuple(found)


def strided(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return (size[0] - 1) // stride + 1, (size[1] - 1) // stride + 1
