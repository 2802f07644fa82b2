"""The once-for-all space over MobileNetV3: 5 stages, depth, and kernel and expansion per layer.

Cai et al. 2020, "Once-for-All: Train One Network and Specialize it for Efficient Deployment"; the
MobileNetV3 space of PerFedSDE-NAS. 45 genes, about 2e19 networks.
Differs from the paper: images keep their own 32 pixels and the stem has stride 1 (preset `paper`:
224 pixels, stride 2); smaller kernels are plain centre crops unless `transforms` is on.
"""

import functools
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Interval

from fedtailor.core.space import Arch, Choice, Task, Token
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces._kernels import last_different, own_size, strided
from fedtailor.spaces._mobile import Bottleneck, Classifier, Features, Stem, rounded

# channels, stride, activation, squeeze and excite
STAGES = (
    (24, 2, "relu", False),
    (40, 2, "relu", True),
    (80, 2, "hardswish", False),
    (112, 1, "hardswish", True),
    (160, 2, "hardswish", True),
)
STEM, LAST, FEATURES = 16, 960, 1280
DEPTHS, KERNELS, EXPANSIONS = (2, 3, 4), (3, 5, 7), (3, 4, 6)
LAYERS = max(DEPTHS)
GENES = 1 + 2 * LAYERS  # of a stage: its depth, the layers' kernels, the layers' expansions


@dataclass(frozen=True)
class MobileNetV3(ChainSpace):
    """The once-for-all MobileNetV3 space."""

    width: Annotated[float, Gt(0)] = 1.0  # all channels times this, in multiples of 8
    resolution: Annotated[int, Ge(8)] | None = None  # pixels; none: as the images are
    stem_stride: Annotated[int, Interval(ge=1, le=2)] = 1  # the papers, with larger images, have 2
    transforms: bool = False  # learned kernel transforms in place of centre crops
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.1  # before the classifier

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"resolution": 224, "stem_stride": 2, "transforms": True},
        "cpu": {"width": 0.25, "resolution": 24},
    }

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Per stage its depth, four kernels and four expansions."""
        return tuple(choice for stage in range(1, 6) for choice in _choices(stage))

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The 20 layers in a row, each a kernel and an expansion, or absent."""
        return tuple(
            _token(stage, layer) for stage in range(len(STAGES)) for layer in range(LAYERS)
        )

    def at(self, task: Task) -> Self:
        """Take images as they are for ones that are resized to their own size."""
        return replace(self, resolution=self.resolution or own_size(task))

    def repair(self, arch: Arch) -> Arch:
        """Set the genes of absent layers to 0, and kernels to the smallest that sees as much."""
        genes = list(arch)
        for start in range(0, len(genes), GENES):
            for layer in range(DEPTHS[genes[start]], LAYERS):
                genes[start + 1 + layer] = genes[start + 1 + LAYERS + layer] = 0
        return self.merged(tuple(genes))

    def merged(self, arch: Arch) -> Arch:
        """Set kernels to the smallest that sees as much; transformed ones all differ."""
        if self.resolution is None or self.transforms:
            return arch
        return tuple(map(min, arch, _last_options(strided(self.resolution, self.stem_stride))))

    def cover(self) -> tuple[Arch, ...]:
        """Return all layers at their widest, once with every kernel."""
        stages = [(2, *[kernel] * LAYERS, *[2] * LAYERS) for kernel in range(len(KERNELS))]
        return tuple(stage * len(STAGES) for stage in stages)

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List the stem, the fixed first block, the layers and the head."""
        stem = rounded(STEM * self.width)
        size = self.resolution or 0
        found = [
            Piece("stem", Stem, (task.shape[0], stem, self.stem_stride, "hardswish", size)),
            Piece("first", Bottleneck, ((stem, stem, stem), 3, 1, False, "relu")),
        ]
        before = stem
        for stage, row in enumerate(STAGES):
            genes = arch[stage * GENES : (stage + 1) * GENES]
            found += self._stage(stage + 1, before, genes, row)
            before = rounded(row[0] * self.width)
        last, features = rounded(LAST * self.width), rounded(FEATURES * self.width)
        found.append(Piece("last", Features, (before, last, features, "hardswish")))
        found.append(Piece("head", Classifier, (features, task.classes, self.dropout)))
        return tuple(found)

    def _stage(
        self, number: int, before: int, genes: Arch, row: tuple[int, int, str, bool]
    ) -> list[Piece]:
        after, stride, activation, excite = rounded(row[0] * self.width), *row[1:]
        found = []
        for layer in range(DEPTHS[genes[0]]):
            kernel, expansion = KERNELS[genes[1 + layer]], EXPANSIONS[genes[1 + LAYERS + layer]]
            widths = (before, rounded(before * expansion), after)
            how = (widths, kernel, stride, excite, activation, "same", self.transforms)
            found.append(Piece(f"stage{number}_layer{layer + 1}", Bottleneck, how))
            before, stride = after, 1
        return found


@functools.cache
def _last_options(pixels: int) -> tuple[int, ...]:
    """Return the last option of each gene that is another network than those before it."""
    found: list[int] = []
    for _, stride, *_ in STAGES:
        sizes = (pixels, *[strided(pixels, stride)] * (LAYERS - 1))  # of what the layers read
        kernels = [last_different(KERNELS, size) for size in sizes]
        found += [len(DEPTHS) - 1, *kernels, *[len(EXPANSIONS) - 1] * LAYERS]
        pixels = sizes[-1]
    return tuple(found)


def _choices(stage: int) -> list[Choice]:
    layers = range(1, LAYERS + 1)
    return [
        Choice(f"stage {stage} depth", DEPTHS),
        *(Choice(f"stage {stage} layer {layer} kernel", KERNELS) for layer in layers),
        *(Choice(f"stage {stage} layer {layer} expansion", EXPANSIONS) for layer in layers),
    ]


def _token(stage: int, layer: int) -> Token:
    depth, number = GENES * stage, LAYERS * stage + layer
    genes = (depth + 1 + layer, depth + 1 + LAYERS + layer)
    needed = layer + 1 - min(DEPTHS)  # the first depth that has this layer, as an option
    return Token(
        f"stage {stage + 1} layer {layer + 1}",
        genes,
        stage,
        layer,
        after=(number - 1,) if number else (),
        depth=(depth, needed) if needed > 0 else None,
    )
