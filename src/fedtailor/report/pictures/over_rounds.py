"""Accuracy over rounds, and at what price."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedtailor.report.drawing import OVER, THIRD, WORST, Look, legend, looks, same_as_earlier
from fedtailor.report.facts import Point, curve
from fedtailor.report.svg import COLOURS, INK, Drawn, styled
from fedtailor.runs.comparison import Group
from fedtailor.runs.folder import asked

MAX_BANDS = 4  # groups whose intervals can be told apart


@styled
def accuracy_over_rounds(groups: Sequence[Group]) -> Drawn | None:
    """Draw untuned test accuracy against rounds, bytes and time."""
    curves = [curve(group) for group in groups]
    if not any(curves):
        return None
    unit, scale = _time_unit(max(point.seconds for points in curves for point in points))
    axes_of = {
        "round": lambda point: point.round,
        "MB sent in all": lambda point: point.megabytes,
        f"{_clock(groups)} time ({unit})": lambda point: point.seconds / scale,
    }
    panels = [_panel(groups, curves, name, x) for name, x in axes_of.items()]
    rows = [
        (group.name, p.round, p.mean, p.low, p.high, p.worst10, p.megabytes, p.seconds)
        for group, points in zip(groups, curves, strict=True)
        for p in points
    ]
    columns = ("setting", "round", "mean", "low", "high", "worst10", "megabytes", "seconds")
    return Drawn(panels, columns, rows)


def _panel(groups: Sequence[Group], curves: list[list[Point]], name: str, x: Any) -> Figure:
    figure = Figure(figsize=(THIRD, 2.9), layout="constrained")
    axes, every = figure.subplots(), looks(groups)
    hidden = same_as_earlier([[(x(p), p.mean) for p in points] for points in curves])
    for look, points, under in zip(every, curves, hidden, strict=True):
        _curve(axes, [x(point) for point in points], points, look, under is not None)
        if len(groups) <= MAX_BANDS and len(points) > 1 and under is None:
            _band(axes, [x(point) for point in points], points, look)
    axes.set_ylabel("untuned test accuracy (%)")
    axes.set_xlabel(name)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=name == "round"))
    last = axes.get_xlim()[1]
    axes.set_xlim(-0.04 * last, 1.04 * last)
    if name == "round":  # one legend serves the panels beside it, too
        legend(figure, _keys(groups, every, hidden))
    return figure


def _curve(axes: Axes, x: list[Any], points: list[Point], look: Look, over: bool) -> None:
    """Draw a group's mean and its worst tenth; one point where x stands still."""
    if x and x[0] == x[-1]:
        x, points = x[-1:], points[-1:]
    how = _solid(look)
    if over:
        how["linestyle"] = OVER
    axes.plot(x, [100 * point.mean for point in points], **how)
    thin = {"linestyle": WORST, "linewidth": 1, "markersize": 2.5}
    axes.plot(x, [100 * point.worst10 for point in points], **_solid(look) | thin)


def _band(axes: Axes, x: list[Any], points: list[Point], look: Look) -> None:
    """Draw the interval of the mean, over clients."""
    if x[0] == x[-1] or any(point.low is None for point in points):
        return
    low = [max(100 * (point.low or 0.0), 0.0) for point in points]
    high = [min(100 * (point.high or 0.0), 100.0) for point in points]
    axes.fill_between(x, low, high, color=look.colour, alpha=0.14, linewidth=0)


def _keys(groups: Sequence[Group], every: list[Look], hidden: list[int | None]) -> list[Line2D]:
    """Explain the curves, which are solid for means and dashed for the worst."""
    several = len(groups) > 1
    colour = INK if several else COLOURS[0]
    named = [
        Line2D([], [], **_solid(look), label=look.title + _also(every, under))
        for look, under in zip(every, hidden, strict=True)
    ]
    return [
        *(named if several else []),
        Line2D([], [], color=colour, linewidth=2, label="mean"),
        Line2D([], [], color=colour, linewidth=1, linestyle=WORST, label="worst 10 %"),
    ]


def _also(every: list[Look], under: int | None) -> str:
    return "" if under is None else f"\nas {every[under].title}"


def _solid(look: Look) -> dict[str, Any]:
    return {"color": look.colour, "marker": look.marker, "markersize": 3.5, "linewidth": 2}


def _clock(groups: Sequence[Group]) -> str:
    clocks = {asked(group.runs[0], "clock") for group in groups}
    return clocks.pop() if len(clocks) == 1 else "round"


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 300:
        return "s", 1.0
    return ("min", 60.0) if seconds < 3 * 3600 else ("h", 3600.0)
