"""The MobileNetV3 space that PerFedRLNAS's public code searches: one choice per stage.

Yao et al. 2024, "PerFedRLNAS: One-for-All Personalized Federated Neural Architecture Search"; the
table is that of its public code (Plato), which is not the once-for-all space. 19 genes, 8,957,952
networks. Differs from that code: images keep their own 32 pixels and the stem has stride 1 (preset
`paper`: 224 pixels, stride 2); shortcut convolutions exist only where widths differ.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Ge, Gt, Interval

from fedtailor.core.space import Arch, Choice, Task, Token
from fedtailor.networks.pieces import ChainSpace, Piece
from fedtailor.spaces._kernels import last_different, own_size, strided
from fedtailor.spaces._mobile import Bottleneck, Classifier, Features, Stem, rounded, scaled
from fedtailor.spaces._tokens import by_stage

# widths, depths, expansions, stride, squeeze and excite
STAGES = (
    ((16, 24), (1, 2), (1,), 2, True),
    ((24, 40), (1, 2), (3, 4, 5), 2, False),
    ((40, 80), (2, 3, 4), (3, 4, 5), 2, True),
    ((48, 112), (2, 3, 4), (3, 4, 5), 1, True),
    ((96, 160), (2, 3, 4), (3, 4, 5), 2, True),
)
STEM, FEATURES, KERNELS = 16, 1280, (3, 5)
NUMBERS = range(1, len(STAGES) + 1)
ACTIVATION = "hardswish"


@dataclass(frozen=True)
class MobileNetV3Plato(ChainSpace):
    """PerFedRLNAS's own MobileNetV3 space."""

    width: Annotated[float, Gt(0)] = 1.0  # all channels times this, in multiples of 8
    resolution: Annotated[int, Ge(8)] | None = None  # pixels; none: as the images are
    stem_stride: Annotated[int, Interval(ge=1, le=2)] = 1  # the papers, with larger images, have 2
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0  # before the classifier

    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"resolution": 224, "stem_stride": 2},
        "cpu": {"width": 0.5},
    }

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Widths, depths and kernels of the five stages, expansions of the last four."""
        return (
            *(Choice(f"mb{n} width", self._widths(n)) for n in NUMBERS),
            *(Choice(f"mb{n} depth", STAGES[n - 1][1]) for n in NUMBERS),
            *(Choice(f"mb{n} kernel", KERNELS) for n in NUMBERS),
            *(Choice(f"mb{n} expansion", STAGES[n - 1][2]) for n in NUMBERS[1:]),
        )

    @property
    def tokens(self) -> tuple[Token, ...]:
        """One per choice, stage by stage."""
        return by_stage(self.choices, {f"mb{n}": n - 1 for n in NUMBERS})

    def at(self, task: Task) -> Self:
        """Take images as they are for ones that are resized to their own size."""
        return replace(self, resolution=self.resolution or own_size(task))

    def merged(self, arch: Arch) -> Arch:
        """Set kernels to the smallest that sees as much; a stage's first block has most to see."""
        if self.resolution is None:
            return arch
        genes, pixels = list(arch), strided(self.resolution, self.stem_stride)
        for gene, row in enumerate(STAGES, 2 * len(STAGES)):
            genes[gene] = min(genes[gene], last_different(KERNELS, pixels))
            pixels = strided(pixels, row[3])
        return tuple(genes)

    def cover(self) -> tuple[Arch, ...]:
        """Widen every second stage, then the others: so that widths differ at every block."""
        rest = tuple(len(choice.options) - 1 for choice in self.choices[5:])
        widths = ((0,) * 5, (1,) * 5, (1, 0, 1, 0, 1), (0, 1, 0, 1, 0))
        return tuple((*first, *rest) for first in widths)

    def pieces(self, arch: Arch, task: Task) -> tuple[Piece, ...]:
        """List the stem, the blocks and the head."""
        before, size = rounded(STEM * self.width), self.resolution or 0
        stem = (task.shape[0], before, self.stem_stride, ACTIVATION, size)
        found = [Piece("stem", Stem, stem)]
        expansions = (0, *arch[15:])
        for number, row in zip(NUMBERS, STAGES, strict=True):
            width, depth, kernel = (arch[number - 1 + 5 * kind] for kind in range(3))
            after, stride = self._widths(number)[width], row[3]
            expansion = row[2][expansions[number - 1]]
            for block in range(row[1][depth]):
                middle = rounded(before * expansion) if expansion > 1 else before
                how = (KERNELS[kernel], stride, row[4], ACTIVATION, "always")
                name = f"mb{number}_{block + 1}"
                found.append(Piece(name, Bottleneck, ((before, middle, after), *how)))
                before, stride = after, 1
        features = rounded(FEATURES * self.width)
        found.append(Piece("last", Features, (before, 6 * before, features, ACTIVATION)))
        found.append(Piece("head", Classifier, (features, task.classes, self.dropout)))
        return tuple(found)

    def _widths(self, number: int) -> tuple[int, ...]:
        return scaled(STAGES[number - 1][0], self.width)
