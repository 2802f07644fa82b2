"""The NASViT space: convolutions at first, then attention; width, depth, kernel and expansion.

Gong et al. 2022, "NASViT: Neural Architecture Search for Efficient Vision Transformers with
Gradient Conflict-Aware Supernet Training"; the transformer space of PerFedRLNAS and PerFedSDE-NAS.
22 genes, 1.2e10 networks; 23 genes with the resolutions of preset `paper`.
Differs from the public code: images keep their own size, and the stem and mb4 have stride 1, which
leaves a 2x2 map of 32 pixels (preset `paper`: 192 to 288 pixels, total stride 64); the bias of
positions begins at 0 and holds the distances that occur on the map, not all of 18x18; a block's
scales depend on the depth of its stage alone, not on the number of tokens modulo 8; shortcuts that
never change the width have no weights.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Interval

from fedtailor.core.space import Arch, Choice, Task, Token
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces._kernels import last_different, own_size, strided
from fedtailor.spaces._mobile import Bottleneck, Classifier, Features, Stem, rounded, scaled
from fedtailor.spaces._nasvit import Transformer
from fedtailor.spaces._tokens import by_stage


@dataclass(frozen=True)
class Stage:
    """What a stage can be; with attention, all its blocks but the first are transformers."""

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
STEM, FEATURES = (16, 24), (1792, 1984)
LAST = 6  # the last convolution's channels, as a multiple of mb7's

Stride = Annotated[int, Interval(ge=1, le=2)]
Strides = tuple[Stride, Stride, Stride, Stride, Stride, Stride, Stride, Stride]
Size = tuple[int, int]


@dataclass(frozen=True)
class NASViT(ChainSpace):
    """The NASViT space."""

    width: Annotated[float, Gt(0)] = 1.0  # all channels times this, in multiples of 8
    resolutions: tuple[Annotated[int, Ge(8)], ...] = ()  # pixels; none: as the images are
    strides: Strides = (1, 1, 2, 2, 1, 2, 1, 2)  # of the stem and of mb1 to mb7

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"resolutions": (192, 224, 256, 288), "strides": (2, 1, 2, 2, 2, 2, 1, 2)},
        "cpu": {
            "width": 0.0625,
            "resolutions": (18, 21, 24, 27),
            "strides": (2, 1, 2, 1, 2, 1, 1, 2),
        },
    }

    @property
    def choices(self) -> tuple[Choice, ...]:
        """In the order of a forward pass; what has one option is no choice."""
        return tuple(gene for gene in self._genes() if len(gene.options) > 1)

    @property
    def tokens(self) -> tuple[Token, ...]:
        """One per choice; the stem is the first stage, as is the resolution, the head the last."""
        stages = {name: number for number, name in enumerate(("stem", *STAGES, "head"))}
        return by_stage(self.choices, {"resolution": 0, **stages})

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List the stem, the blocks of the stages, the last convolution and the head."""
        genes = self._decode(arch)
        channels, *shape = task.shape
        pixels, before = genes["resolution"], genes["stem width"]
        size = _strided((pixels, pixels) if pixels else (shape[0], shape[1]), self.strides[0])
        found = [Piece("stem", Stem, (channels, before, self.strides[0], "swish", pixels))]
        for name, stride in zip(STAGES, self.strides[1:], strict=True):
            size = _strided(size, stride)
            found += _blocks(name, genes, before, stride, size)
            before = genes[f"{name} width"]
        features = genes["head width"]
        found.append(Piece("last", Features, (before, LAST * before, features, "swish")))
        found.append(Piece("head", Classifier, (features, task.classes)))
        return tuple(found)

    def at(self, task: Task) -> Self:
        """Take images as they are for ones that are resized to their own size."""
        size = own_size(task)
        return replace(self, resolutions=self.resolutions or ((size,) if size else ()))

    def merged(self, arch: Arch) -> Arch:
        """Set kernels to the smallest that sees as much; a stage's first block has most to see."""
        if not self.resolutions:
            return arch
        last = _last_kernels(self._decode(arch)["resolution"], self.strides)
        pairs = zip(self.choices, arch, strict=True)
        return tuple(min(gene, last.get(choice.name, gene)) for choice, gene in pairs)

    def cover(self) -> tuple[Arch, ...]:
        """Return the largest networks of every depth, and two whose widths change everywhere.

        A block's scales depend on the depth of its stage; and where neighbours are equally wide,
        as the stem and mb1 can be, there is no shortcut's convolution.
        """
        names = [choice.name for choice in self.choices]
        largest = tuple(len(choice.options) - 1 for choice in self.choices)
        found = [largest]
        for less in range(1, max(len(stage.depths) for stage in STAGES.values())):
            found.append(
                tuple(
                    max(gene - less, 0) if name.endswith("depth") else gene
                    for name, gene in zip(names, largest, strict=True)
                )
            )
        widths = [place for place, name in enumerate(names) if name.endswith("width")]
        for narrower in (widths[::2], widths[1::2]):
            found.append(tuple(g - (place in narrower) for place, g in enumerate(largest)))
        return tuple(found)

    def _genes(self) -> Iterator[Choice]:
        yield Choice("resolution", tuple(sorted(set(self.resolutions))) or (0,))
        yield Choice("stem width", scaled(STEM, self.width))
        for name, stage in STAGES.items():
            yield Choice(f"{name} width", scaled(stage.widths, self.width))
            yield Choice(f"{name} depth", stage.depths)
            yield Choice(f"{name} kernel", stage.kernels)
            yield Choice(f"{name} expansion", stage.expansions)
        yield Choice("head width", scaled(FEATURES, self.width))

    def _decode(self, arch: Arch) -> dict[str, int]:
        taken = iter(arch)
        return {
            gene.name: int(gene.options[next(taken) if len(gene.options) > 1 else 0])
            for gene in self._genes()
        }


def _blocks(
    name: str, genes: dict[str, int], before: int, stride: int, size: Size
) -> Iterator[Piece]:
    """List the blocks of a stage; `size` is that of its map."""
    width, depth = genes[f"{name} width"], genes[f"{name} depth"]
    kernel, expansion = genes[f"{name} kernel"], genes[f"{name} expansion"]
    stage = STAGES[name]
    for number in range(1, depth + 1):
        if stage.attention and number > 1:
            yield Piece(f"{name}_{number}", Transformer, (width, size, depth))
        else:
            widths = (before, rounded(before * expansion), width)
            how = (widths, kernel, stride, stage.excite, "swish", "always")
            yield Piece(f"{name}_{number}", Bottleneck, how)
        before, stride = width, 1


def _strided(size: Size, stride: int) -> Size:
    return strided(size[0], stride), strided(size[1], stride)


@functools.cache
def _last_kernels(pixels: int, strides: Strides) -> dict[str, int]:
    """Return the last option of each kernel that is another network than those before it."""
    found: dict[str, int] = {}
    for stride_before, (name, stage) in zip(strides, STAGES.items(), strict=False):
        pixels = strided(pixels, stride_before)
        found[f"{name} kernel"] = last_different(stage.kernels, pixels)
    return found
