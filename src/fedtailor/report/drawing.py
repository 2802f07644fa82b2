"""How a report draws: one colour for each run, one order of clients, the same in every picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from fedtailor.report.facts import BASELINE, algorithm, client_titles, titles
from fedtailor.report.svg import INK
from fedtailor.report.wording import clip
from fedtailor.runs.folder import Run

# Okabe and Ito's colours; vermilion is kept for losers, black and yellow vanish on dark and light.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a8a8a")
LOSER = "#d55e00"
WIDTH = 9.0  # inches of a picture
MARKERS, LINES = "os^D", ("solid", "dashdot", "dotted", (0, (5, 1, 1, 1, 1, 1)))
WORST = (0, (4, 2))  # the line of the worst tenth
MAX_BARS = 60  # clients drawn one by one
MAX_NAMED = 40  # clients with room for their names below the axis
MAX_LETTERS = 18  # of a client's name there
LETTERS_PER_WIDTH = 150  # of a whole picture


@dataclass(frozen=True)
class Look:
    """How a run is drawn, in every picture."""

    title: str
    colour: str
    marker: str
    line: Any


def looks(runs: Sequence[Run]) -> list[Look]:
    """Give every run its colour; runs beyond the last colour differ in marker and line."""
    found = []
    for place, (run, title) in enumerate(zip(runs, titles(runs), strict=True)):
        turn = place // len(COLOURS) % len(LINES)
        line = "dashed" if algorithm(run) == BASELINE else LINES[turn]
        found.append(Look(clip(title, 40), COLOURS[place % len(COLOURS)], MARKERS[turn], line))
    return found


def curve_keys(runs: Sequence[Run]) -> list[Line2D]:
    """Explain curves over rounds, which are solid for means and dashed for the worst."""
    several = looks(runs) if len(runs) > 1 else []
    colour = INK if several else COLOURS[0]
    return [
        *(Line2D([], [], **_solid(look), label=look.title) for look in several),
        Line2D([], [], color=colour, linewidth=2, label="mean"),
        Line2D([], [], color=colour, linewidth=1, linestyle=WORST, label="worst 10 %"),
    ]


def step_keys(runs: Sequence[Run]) -> list[Line2D]:
    """Explain the steps over clients, where there are several runs."""
    return [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=2, label=look.title)
        for look in (looks(runs) if len(runs) > 1 else [])
    ]


def curve_of(axes: Axes, x: list[Any], points: list[dict[str, float]], look: Look) -> None:
    """Draw a run's mean and its worst tenth; one point where x stands still."""
    if x and x[0] == x[-1]:
        x, points = x[-1:], points[-1:]
    mean, worst = ([100 * point[key] for point in points] for key in ("mean", "worst10"))
    axes.plot(x, mean, **_solid(look))
    axes.plot(x, worst, **_solid(look) | {"linestyle": WORST, "linewidth": 1, "markersize": 2.5})


def legend(figure: Figure, keys: list[Line2D]) -> None:
    """Put a legend above the panels, with as many columns as there is room for."""
    if keys:
        labels = [str(key.get_label()) for key in keys]
        widths = [40 + 5.7 * len(label) for label in labels]  # points, about
        room = 72 * figure.get_figwidth()
        columns = len(keys) if sum(widths) <= room else max(1, int(room / max(widths)))
        more = -(-len(labels) // columns) - 1  # rows must not take from the panels
        figure.set_figheight(figure.get_figheight() + 0.2 * more)
        figure.legend(
            keys, labels, loc="outside upper left", ncols=columns, fontsize=9.5, columnspacing=1.2
        )


def bars(axes: Axes, values: NDArray[Any], colour: str) -> None:
    """Draw a bar for each client; many are one shape, which is fast and small."""
    if len(values) <= MAX_BARS:
        axes.bar(np.arange(len(values)), values, width=0.8, color=colour)
    else:
        axes.stairs(values, np.arange(len(values) + 1) - 0.5, fill=True, color=colour, linewidth=0)
    axes.grid(visible=False, axis="x")


def name_clients(axes: Axes, order: list[int], runs: Sequence[Run]) -> None:
    """Name the clients below the axis, if there is room, and say in what order they are."""
    by = "by number" if order == sorted(order) else "the largest gain first"
    named = write_names(axes, order, runs)
    axes.set_xlabel("client" if named else f"the {len(order)} clients, {by}")


def write_names(axes: Axes, order: list[int], runs: Sequence[Run]) -> bool:
    """Write clients' names below the axis, long ones upright; return whether there is room."""
    named, called = len(order) <= MAX_NAMED, client_titles(runs)
    names = [clip(called.get(c, str(c)), MAX_LETTERS) for c in order] if named else []
    room = LETTERS_PER_WIDTH * axes.get_position().width
    upright = max((len(name) + 1 for name in names), default=0) * len(names) > room
    axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0)
    axes.set_xlim(-0.6, len(order) - 0.4)
    return named


def _solid(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "marker": look.marker, "markersize": 3.5, "linewidth": 2}
