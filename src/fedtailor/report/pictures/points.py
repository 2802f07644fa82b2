"""Pictures of points: pairs of clients of a search, and the sizes of networks."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtailor.report.drawing import WIDTH, Look, legend, looks
from fedtailor.report.facts import accuracies
from fedtailor.report.likeness import Floats, Likeness, likeness
from fedtailor.report.search_facts import deployed, searches
from fedtailor.report.svg import INK, styled
from fedtailor.report.wording import clip
from fedtailor.runs.folder import Run

MAX_PANELS = 3  # runs side by side
MAX_DOTS = 1500  # pairs drawn one by one
LARGE = 3e5  # parameters, of which a network is told in millions
MAX_BINS, PER_BIN = 8, 20  # of the line through the pairs


@styled
def similarity(runs: Sequence[Run]) -> Figure | None:
    """Draw the distance of policies against that of labels, for all pairs of clients."""
    found = [(search.place, likeness(search.run)) for search in searches(runs)]
    shown = [(place, one) for place, one in found if one is not None][:MAX_PANELS]
    if not shown:
        return None
    figure = Figure(figsize=(WIDTH * (0.6 if len(shown) == 1 else 1), 3.4), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, (place, one) in zip(panels, shown, strict=True):
        look = looks(runs)[place]
        _pairs(axes, one.labels, one.policies, look.colour)
        name = f"{clip(look.title, 28)}\n" if len(runs) > 1 else ""
        axes.set_title(f"{name}{_verdict(one)}")
        axes.set_xlabel(f"distance of labels, {len(one.labels):,} pairs")
    panels[0].set_ylabel("distance of policies or archives")
    return figure


@styled
def accuracy_by_size(runs: Sequence[Run]) -> Figure | None:
    """Draw each client's accuracy against the size of its network, if any run searched for one."""
    if not searches(runs):
        return None
    found = []
    for run, look in zip(runs, looks(runs), strict=True):
        there, values = deployed(run), accuracies(run)
        costs = there.costs if there else {}
        if clients := sorted(values.keys() & costs.keys()):
            sizes = np.array([costs[client]["parameters"] for client in clients])
            found.append((look, sizes, [100 * values[client] for client in clients]))
    if not found:
        return None
    figure = Figure(figsize=(0.6 * WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    large = max(sizes.max() for _, sizes, _ in found) >= LARGE
    unit, scale = ("million", 1e6) if large else ("thousand", 1e3)
    for look, sizes, percent in found:
        dots = {"s": 26, "alpha": 0.75, "linewidths": 0}
        axes.scatter(sizes / scale, percent, color=look.colour, marker=look.marker, **dots)
    keys = [_dot(look) for look, *_ in found]
    axes.set_xlabel(f"{unit} parameters of the network a client would deploy")
    axes.set_ylabel("test accuracy (%)")
    legend(figure, keys if len(runs) > 1 else [])
    return figure


def _pairs(axes: Axes, x: Floats, y: Floats, colour: str) -> None:
    """Draw pairs as dots, or many of them as how many there are in a place; and their mean."""
    if len(x) <= MAX_DOTS:
        axes.scatter(x, y, s=14, alpha=0.6, color=colour, linewidths=0)
    else:
        clear = [(*to_rgb(colour), 0.08), (*to_rgb(colour), 1.0)]  # on pages light or dark
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
    how = {"marker": look.marker, "markersize": 5, "linestyle": ""}
    return Line2D([], [], color=look.colour, label=look.title, **how)
