"""Pictures of points: pairs of clients of a search, and the sizes of networks."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtailor.report.drawing import HALF, MAX_TOLD, Look, dots, legend, looks
from fedtailor.report.likeness import Floats, Likeness, likeness
from fedtailor.report.search_facts import deployed, searches
from fedtailor.report.svg import INK, Drawn, styled
from fedtailor.report.wording import clip, percent
from fedtailor.runs.comparison import Group, accuracies

MAX_PANELS = 4  # settings
MAX_DOTS = 1500  # pairs drawn one by one
LARGE = 3e5  # of which numbers are told in millions
MAX_BINS, PER_BIN = 8, 20  # of the line through the pairs
COSTS = {"parameters": "parameters", "macs": "multiply-adds"}


@styled
def similarity(groups: Sequence[Group]) -> Drawn | None:
    """Draw the distance of policies against that of labels, for all pairs of clients."""
    found = ((search.place, likeness(search.run)) for search in searches(groups))
    shown = list(islice(((place, one) for place, one in found if one is not None), MAX_PANELS))
    if not shown:
        return None
    panels, rows = [], []
    for place, one in shown:
        figure = Figure(figsize=(HALF, 3.2), layout="constrained")
        axes, look = figure.subplots(), looks(groups)[place]
        cloud(axes, one.labels, one.policies, look.colour)
        name = f"{clip(look.title, 40)}\n" if len(groups) > 1 else ""
        axes.set_title(f"{name}{_verdict(one)}")
        axes.set_xlabel(f"distance of labels, {len(one.labels):,} pairs")
        axes.set_ylabel("distance of policies or archives")
        panels.append(figure)
        rows += _pair_rows(groups[place].name, one)
    return Drawn(panels, ("setting", "client", "other", "labels", "policies"), rows)


@styled
def accuracy_by_cost(groups: Sequence[Group]) -> Drawn | None:
    """Draw each client's accuracy against size and multiply-adds of its network, of a search."""
    if not searches(groups):
        return None
    there, rows = [], []
    for group, look in zip(groups, looks(groups), strict=True):
        found, values = deployed(group.runs[0]), accuracies(group.runs[0])
        costs = found.costs if found else {}
        clients = [c for c in sorted(values.keys() & costs.keys()) if set(COSTS) <= costs[c].keys()]
        rows += [(group.name, c, *(costs[c][kind] for kind in COSTS), values[c]) for c in clients]
        if clients:
            there.append((look, {c: (costs[c], values[c]) for c in clients}))
    if not there:
        return None
    panels = [_against(there, kind, len(groups) > 1) for kind in COSTS]
    return Drawn(panels, ("setting", "client", *COSTS, "accuracy"), rows)


def _against(there: list[tuple[Look, dict[int, tuple]]], kind: str, several: bool) -> Figure:
    figure = Figure(figsize=(HALF, 3.2), layout="constrained")
    axes = figure.subplots()
    most = max(cost[kind] for _, found in there for cost, _ in found.values())
    unit, scale = ("million", 1e6) if most >= LARGE else ("thousand", 1e3)
    told = sum(len(found) for _, found in there) <= MAX_TOLD
    for look, found in there:
        points = [
            (c, cost[kind] / scale, 100 * value, _told(look, value, cost))
            for c, (cost, value) in found.items()
        ]
        dots(axes, points, look, told)
    axes.set_xlabel(f"{unit} {COSTS[kind]} of the network a client would deploy")
    axes.set_ylabel("test accuracy (%)")
    legend(figure, [_dot(look) for look, _ in there] if several else [])
    return figure


def _told(look: Look, value: float, cost: dict[str, float]) -> str:
    sizes = f"{cost['parameters']:,.0f} parameters, {cost['macs'] / 1e6:,.2f} M multiply-adds"
    return f"{percent(value)}, {sizes}, {look.title}"


def _pair_rows(name: str, one: Likeness) -> list[tuple[str, int, int, float, float]]:
    first, second = np.triu_indices(len(one.clients), 1)
    return [
        (name, one.clients[a], one.clients[b], float(x), float(y))
        for a, b, x, y in zip(first, second, one.labels, one.policies, strict=True)
    ]


def cloud(axes: Axes, x: Floats, y: Floats, colour: str) -> None:
    """Draw points as dots, or many of them as how many there are in a place; and their mean."""
    if len(x) <= MAX_DOTS:
        axes.scatter(x, y, s=16, alpha=0.7, color=colour, linewidths=0)
    else:
        clear = [(*to_rgb(colour), 0.15), (*to_rgb(colour), 1.0)]  # on pages light or dark
        shades = LinearSegmentedColormap.from_list("pairs", clear)
        axes.hexbin(x, y, gridsize=36, mincnt=1, linewidths=0, cmap=shades)
    parts = np.array_split(np.argsort(x), min(max(len(x) // PER_BIN, 2), MAX_BINS))
    middle = [float(x[part].mean()) for part in parts]
    axes.plot(middle, [float(y[part].mean()) for part in parts], color=INK, linewidth=1.5)


def _verdict(one: Likeness) -> str:
    if one.correlation is None or one.p is None:
        return "distances are all the same"
    return f"rank correlation {one.correlation:+.2f}, p = {one.p:.3f}"


def _dot(look: Look) -> Line2D:
    how = {"marker": look.marker, "markersize": 5.5, "linestyle": "", "markeredgewidth": 0}
    return Line2D([], [], color=look.colour, label=look.title, **how)
