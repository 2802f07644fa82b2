"""The twin of one of our architectures, holding the same weights."""

from typing import Any

from torch import nn

from benchmarks.twins import darts, load_by_position, mobilenetv3, mobilenetv3_plato, nasvit
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Tensors
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import GENES, LAYERS, MobileNetV3
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato
from fedtailor.spaces.nasvit import STAGES, NASViT


def twin_of(space: SearchSpace, arch: Arch, task: Task, weights: Tensors) -> nn.Module:
    """Build the twin and give it the weights, in the order of our network's parameters."""
    with_names = {c.name: c.options[k] for c, k in zip(space.choices, arch, strict=True)}
    options: list[Any] = list(with_names.values())
    if isinstance(space, DARTS) and space.form == "relaxed":  # options are bits of operations
        options = [
            [name for bit, name in enumerate(offered) if live >> bit & 1]
            for live, offered in zip(arch, space.offers, strict=True)
        ]
    twin = _build(space, options, with_names, task)
    ours = space.build(arch, task)
    load_by_position(twin, (weights[name] for name, _ in ours.named_parameters()))
    return twin


def _build(space: SearchSpace, options: list[Any], named: dict[str, Any], task: Task) -> nn.Module:
    classes, channels = task.classes, task.shape[0]
    if isinstance(space, MobileNetV3):
        stages = [options[start : start + GENES] for start in range(0, len(options), GENES)]
        depths = [stage[0] for stage in stages]
        kernels = [k for stage in stages for k in stage[1 : 1 + LAYERS]]
        expands = [e for stage in stages for e in stage[1 + LAYERS :]]
        how = (classes, channels, space.width, space.stem_stride)
        return _resized(space.resolution, mobilenetv3.build(depths, kernels, expands, *how))
    if isinstance(space, MobileNetV3Plato):
        base = [mobilenetv3.rounded(w * space.width) for w in (16, 1280)]
        widths, depths, kernels = options[:5], options[5:10], options[10:15]
        strides = (space.stem_stride, 2, 2, 2, 1, 2)
        built = mobilenetv3_plato.build(
            [base[0], *widths, base[1]], depths, kernels, [1, *options[15:]],
            classes, channels, strides,
        )  # fmt: skip
        return _resized(space.resolution, built)
    if isinstance(space, DARTS):
        how = (classes, space.channels, space.cells, channels, space.stem_stride)
        return _resized(space.resolution, darts.build(options[:14], options[14:], *how))
    assert isinstance(space, NASViT)
    return _nasvit(space, named, task)


def _nasvit(space: NASViT, named: dict[str, Any], task: Task) -> nn.Module:
    """Genes with one option are no choices, and come from the space's table."""
    resolution = named.get("resolution", next(iter(space.resolutions), None))

    def of_all(gene: str, table: str) -> list[int]:
        return [named.get(f"{n} {gene}", getattr(s, table)[0]) for n, s in STAGES.items()]

    return nasvit.build(
        named["stem width"],
        of_all("width", "widths"),
        of_all("depth", "depths"),
        of_all("kernel", "kernels"),
        of_all("expansion", "expansions"),
        named["head width"],
        resolution or task.shape[1],
        task.classes,
        task.shape[0],
        space.strides,
        resolution,
    )


def _resized(size: int | None, network: nn.Module) -> nn.Module:
    if size is None:
        return network
    resize = nn.Upsample((size, size), mode="bicubic", align_corners=False)
    return nn.Sequential(resize, network)
