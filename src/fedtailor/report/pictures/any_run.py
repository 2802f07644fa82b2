"""Pictures that any run has: accuracy, its price, who gains, and what data the clients have."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedtailor.report.drawing import (
    COLOURS,
    LOSER,
    MAX_BARS,
    WIDTH,
    bars,
    curve_keys,
    curve_of,
    legend,
    looks,
    name_clients,
    step_keys,
)
from fedtailor.report.facts import (
    Gain,
    Labels,
    accuracies,
    clients_in_order,
    gains,
    label_counts,
    same_clients,
    unseen_tests,
)
from fedtailor.report.svg import MUTED, styled
from fedtailor.report.wording import clip
from fedtailor.runs import database
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import curve

MAX_BUBBLES = MAX_BARS, 30  # clients, classes


@styled
def accuracy_over_rounds(runs: Sequence[Run]) -> Figure | None:
    """Draw untuned test accuracy against rounds, bytes and time."""
    curves, costs = [curve(run) for run in runs], [database.spent_until(run.db) for run in runs]
    if not any(curves):
        return None
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = figure.subplots(1, 3, sharey=True)
    unit, scale = _time_unit(max(seconds for cost in costs for _, seconds in cost.values()))
    for look, points, cost in zip(looks(runs), curves, costs, strict=True):
        rounds = [int(point["round"]) for point in points]
        sent = [cost[round][0] / 1e6 for round in rounds]
        seconds = [cost[round][1] / scale for round in rounds]
        for axes, x in zip(panels, (rounds, sent, seconds), strict=True):
            curve_of(axes, x, points, look)
    panels[0].set_ylabel("untuned test accuracy (%)")
    names = ("round", "MB sent in all", f"{_clock(runs)} time ({unit})")
    for axes, name in zip(panels, names, strict=True):
        axes.set_xlabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=name == "round"))
        axes.set_xlim(left=-0.04 * axes.get_xlim()[1])
    legend(figure, curve_keys(runs))
    return figure


@styled
def accuracy_over_clients(runs: Sequence[Run]) -> Figure | None:
    """Draw how many clients have at most a certain test accuracy."""
    found = [(accuracies(run), look) for run, look in zip(runs, looks(runs), strict=True)]
    if not any(values for values, _ in found):
        return None
    figure = Figure(figsize=(0.54 * WIDTH, 3.2), layout="constrained")
    axes = figure.subplots()
    for values, look in found:
        if values:
            percent = 100 * np.array(list(values.values()))
            axes.ecdf(percent, color=look.colour, linestyle=look.line, linewidth=2)
    axes.set_xlabel("test accuracy of the model a client would deploy (%)")
    axes.set_ylabel("share of the clients")
    axes.set_ylim(0, 1.02)
    legend(figure, step_keys(runs))
    return figure


@styled
def gain_per_client(runs: Sequence[Run]) -> Figure | None:
    """Draw what each client gains over training alone, or over its untuned model."""
    found, every = gains(runs), looks(runs)
    if not found:
        return None
    shown = set().union(*(gain.per_client for gain in found))
    order = [client for client in clients_in_order(runs) if client in shown]
    figure = Figure(figsize=(WIDTH, 0.7 + 1.9 * len(found)), layout="constrained")
    panels = figure.subplots(len(found), sharex=True, sharey=True, squeeze=False)[:, 0]
    for axes, gain in zip(panels, found, strict=True):
        points = 100 * np.array([gain.per_client.get(client, np.nan) for client in order])
        bars(axes, np.fmax(points, 0), every[gain.run].colour)
        bars(axes, np.fmin(points, 0), LOSER)
        axes.axhline(0, color=MUTED, linewidth=0.8)
        axes.set_title(f"{every[gain.run].title}: {_outcome(gain)}")
    name_clients(panels[-1], order, runs)
    figure.supylabel(f"points over {found[0].over}", fontsize=9.5)
    return figure


@styled
def label_distribution(runs: Sequence[Run]) -> Figure | None:
    """Draw how many images of each class each client has."""
    labels = label_counts(runs[0])
    if labels is None:
        return None
    order = [c for c in clients_in_order(runs) if c < len(labels.counts)]
    counts, unseen = labels.counts[order], _unseen(runs[0], order, labels)
    clients, classes = counts.shape
    height = float(np.clip(0.26 * classes, 1.6, 5.2))
    figure = Figure(figsize=(WIDTH, height + 1.5), layout="constrained")
    sizes, axes = figure.subplots(2, sharex=True, height_ratios=(0.8, height))
    bars(sizes, counts.sum(axis=1), MUTED)
    sizes.set_ylabel("images")
    new = asked(runs[0], "data", "new_clients")
    title = f"{clients:,} clients{f' ({new} new)' if new else ''}, {classes} classes, "
    title += f"{counts.sum():,} images"
    if clients <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]:
        _bubbles(axes, counts, height, unseen > 0)
    else:
        _heat(axes, counts, unseen > 0)
        title += f"; too many for bubbles: the strongest colour is {counts.max():,} images"
    if unseen.any():
        title += f"; {unseen.sum():,} test images are of unseen classes"
    sizes.set_title(title if same_clients(runs) else f"{looks(runs)[0].title} only: {title}")
    _name_classes(axes, labels)
    name_clients(axes, order, runs)
    return figure


def _unseen(run: Run, order: list[int], labels: Labels) -> NDArray[np.int64]:
    found = unseen_tests(run)  # runs of before it was kept have none
    return np.zeros_like(labels.counts[order]) if found is None else found[order]


def _bubbles(
    axes: Axes, counts: NDArray[np.int64], height: float, unseen: NDArray[np.bool_]
) -> None:
    clients, classes = counts.shape
    cell = min(0.88 * WIDTH / clients, height / classes) * 72  # points
    client, kind = np.nonzero(counts)
    area = np.fmax(0.9 * cell**2 * counts[client, kind] / counts.max(), 1)
    axes.scatter(client, kind, s=area, color=COLOURS[0], linewidths=0)
    ring = 0.5 * cell**2
    axes.scatter(*np.nonzero(unseen), s=ring, facecolors="none", edgecolors=LOSER, linewidths=1.2)
    axes.set_ylim(classes - 0.4, -0.6)


def _heat(axes: Axes, counts: NDArray[np.int64], unseen: NDArray[np.bool_]) -> None:
    """Draw counts as opacity, so that none is the page's own colour, light or dark."""
    image = np.empty((*counts.T.shape, 4))
    image[..., :3] = np.where(unseen.T[..., None], to_rgb(LOSER), to_rgb(COLOURS[0]))
    image[..., 3] = np.sqrt(counts.T / max(counts.max(), 1))  # few images are to be seen, too
    axes.imshow(image, aspect="auto", interpolation="none")
    axes.grid(visible=False)


def _name_classes(axes: Axes, labels: Labels) -> None:
    step = -(-len(labels.classes) // MAX_BUBBLES[1])
    names = [clip(name, 16) for name in labels.classes[::step]]
    axes.set_yticks(range(0, len(labels.classes), step), names)
    axes.set_ylabel("class")


def _outcome(gain: Gain) -> str:
    values = list(gain.per_client.values())
    up, down = sum(v > 0 for v in values), sum(v < 0 for v in values)
    return f"{up} of {len(values)} clients gain, {down} lose"


def _clock(runs: Sequence[Run]) -> str:
    clocks = {asked(run, "clock") for run in runs}
    return clocks.pop() if len(clocks) == 1 else "round"


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)
