"""Block diagrams of networks of stages, as MobileNetV3 and NASViT, of representative clients."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from fedtailor.report.drawing import HALF, looks
from fedtailor.report.facts import client_titles
from fedtailor.report.pictures.networks import SCALE, readable_on
from fedtailor.report.representatives import representatives
from fedtailor.report.search_facts import deployed, searches
from fedtailor.report.svg import MUTED, Drawn, styled
from fedtailor.report.wording import percent
from fedtailor.runs.comparison import Group, accuracies

NAMED = re.compile(r"(.*?)(?: layer (\d+))? (depth|width|kernel|expansion)")
MAX_RUNS = 3  # settings whose networks are drawn


@dataclass
class Stage:
    """A stage of a network: what holds for all its layers, and for single ones."""

    all: dict[str, Any] = field(default_factory=dict)
    layers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def layer(self, number: int) -> dict[str, Any]:
        """Return what is known of a layer."""
        return {**self.all, **self.layers.get(number, {})}


@styled
def block_diagrams(groups: Sequence[Group]) -> Drawn | None:
    """Draw the blocks of representative clients' networks, stage by stage."""
    panels, rows, runs = [], [], 0
    for search in searches(groups):
        choices, there = search.found["choices"], deployed(search.run)
        staged = any(choice["name"].endswith(" depth") for choice in choices)
        if there is None or not staged or runs == MAX_RUNS:
            continue
        runs += 1
        values, called = accuracies(search.run), client_titles(groups)
        for client, why in representatives(values, there.genes).items():
            found = stages(choices, there.genes[client])
            name = f"{looks(groups)[search.place].title}\n" if len(groups) > 1 else ""
            title = f"{name}client {called.get(client, client)} ({why}): {percent(values[client])}"
            panels.append(_figure(found, title, _span(choices)))
            rows += [
                (groups[search.place].name, client, why, stage, number, *_cells(one, number))
                for stage, one in found.items()
                for number in range(1, int(one.all.get("depth", 1)) + 1)
            ]
    columns = ("setting", "client", "why", "stage", "layer", "width", "kernel", "expansion")
    return Drawn(panels, columns, rows) if panels else None


def stages(choices: Sequence[dict[str, Any]], genes: Sequence[int]) -> dict[str, Stage]:
    """Read the stages of a network from the names of its choices, in their order."""
    found: dict[str, Stage] = {}
    for choice, gene in zip(choices, genes, strict=True):
        match, value = NAMED.fullmatch(choice["name"]), choice["options"][gene]
        if match is None:
            found.setdefault(choice["name"], Stage()).all["value"] = value
            continue
        name, layer, what = match.groups()
        stage = found.setdefault(name, Stage())
        (stage.layers.setdefault(int(layer), {}) if layer else stage.all)[what] = value
    first = list(found)  # a stem leads, a head ends
    order = sorted(first, key=lambda name: (name == "head", name not in ("stem", "resolution")))
    return {name: found[name] for name in order}


def _cells(stage: Stage, number: int) -> tuple[Any, Any, Any]:
    known = stage.layer(number)
    return known.get("width"), known.get("kernel"), known.get("expansion")


def _span(choices: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Return the smallest and the largest expansion there is."""
    offered = [choice["options"] for choice in choices if choice["name"].endswith(" expansion")]
    sizes = [float(option) for options in offered for option in options]
    return (min(sizes), max(sizes)) if sizes else (0.0, 0.0)


def _figure(found: dict[str, Stage], title: str, span: tuple[float, float]) -> Figure:
    figure = Figure(figsize=(HALF, 0.6 + 0.34 * len(found)), layout="constrained")
    axes = figure.subplots()
    most = max(int(stage.all.get("depth", 1)) for stage in found.values())
    for row, stage in enumerate(found.values()):
        _stage(axes, row, stage, span)
    axes.set_yticks(range(len(found)), [_name(name, stage) for name, stage in found.items()])
    axes.set_xticks([])
    axes.set_xlim(-0.1, max(most, 4) + 0.1)
    axes.set_ylim(len(found) - 0.4, -0.6)
    axes.grid(visible=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0, labelsize=8)
    figure.suptitle(title, x=0.01, ha="left", fontsize=9.5)
    return figure


def _stage(axes: Axes, row: int, stage: Stage, span: tuple[float, float]) -> None:
    if "depth" not in stage.all:
        return
    for number in range(1, int(stage.all["depth"]) + 1):
        known = stage.layer(number)
        shade = 0.5
        if "expansion" in known and span[0] < span[1]:
            shade = (float(known["expansion"]) - span[0]) / (span[1] - span[0])
        filled = SCALE(float(np.clip(shade, 0, 1)))
        box = FancyBboxPatch(
            (number - 0.95, row - 0.36), 0.9, 0.72, boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=filled, edgecolor=MUTED, linewidth=0.6,
        )  # fmt: skip
        axes.add_patch(box)
        words = [f"{known['kernel']}×{known['kernel']}" if "kernel" in known else ""]  # noqa: RUF001
        words += [f"e{known['expansion']}" if "expansion" in known else ""]
        text = " ".join(word for word in words if word)
        how = {"ha": "center", "va": "center", "fontsize": 6.5, "color": readable_on(filled)}
        axes.text(number - 0.5, row, text, **how)


def _name(name: str, stage: Stage) -> str:
    told = stage.all.get("width", stage.all.get("value"))
    return name if told is None else f"{name}: {told}"
