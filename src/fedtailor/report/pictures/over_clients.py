"""Accuracy over clients: who is served well, and who gains."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.report.drawing import (
    HALF,
    MAX_TOLD,
    OVER,
    Look,
    bars,
    columns,
    legend,
    line_keys,
    looks,
    name_clients,
    same_as_earlier,
    tell,
)
from fedtailor.report.facts import Gain, client_titles, clients_in_order, gains
from fedtailor.report.svg import LOSER, MUTED, Drawn, styled
from fedtailor.report.wording import percent, points, within
from fedtailor.runs.comparison import Group, interval

MAX_GAINS = 8  # groups whose gains are drawn
MAX_STEPS = 1000  # of a curve


@styled
def means_of_settings(groups: Sequence[Group]) -> Drawn | None:
    """Draw every setting's mean accuracy with its interval, over clients."""
    found = [
        (group, group.accuracy, look) for group, look in zip(groups, looks(groups), strict=True)
    ]
    there = [(group, over, look) for group, over, look in found if over is not None]
    if len(there) < 2:
        return None
    figure = Figure(figsize=(HALF, 0.9 + 0.3 * len(there)), layout="constrained")
    axes = figure.subplots()
    for place, (group, over, look) in enumerate(there):
        axes.barh(place, 100 * over.mean, height=0.6, color=look.colour, alpha=0.55)
        if over.low is not None and over.high is not None:
            ends = [100 * over.low, min(100 * over.high, 100.0)]
            axes.plot(ends, [place, place], color=MUTED, linewidth=2)
        seeds = group.runs
        for run_mean in _seed_means(group) if len(seeds) > 1 else []:
            axes.plot([100 * run_mean], [place], "|", color=look.colour, markersize=12)
    axes.set_yticks(range(len(there)), [look.title for *_, look in there])
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("mean test accuracy (%)")
    rows = [
        (group.name, len(group.runs), over.clients, over.mean, over.low, over.high)
        for group, over, _ in there
    ]
    return Drawn([figure], ("setting", "seeds", "clients", "mean", "low", "high"), rows)


@styled
def accuracy_over_clients(groups: Sequence[Group]) -> Drawn | None:
    """Draw how many clients have at most a certain test accuracy."""
    if not any(group.accuracies for group in groups):
        return None
    figure = Figure(figsize=(HALF, 3.2), layout="constrained")
    axes, every = figure.subplots(), looks(groups)
    hidden = same_as_earlier([sorted(group.accuracies.values()) for group in groups])
    told = sum(len(group.accuracies) for group in groups) <= MAX_TOLD
    for group, look, under in zip(groups, every, hidden, strict=True):
        if group.accuracies:
            _steps(axes, group, look, under is not None, told)
    axes.set_xlabel("test accuracy of the model a client would deploy (%)")
    axes.set_ylabel("share of the clients")
    axes.set_ylim(0, 1.02)
    keys = line_keys(groups)
    for key, under in zip(keys, hidden, strict=False):
        if under is not None:
            key.set_label(f"{key.get_label()}\nas {every[under].title}")
    legend(figure, keys)
    rows = [(group.name, c, value) for group in groups for c, value in group.accuracies.items()]
    return Drawn([figure], ("setting", "client", "accuracy"), rows)


@styled
def gain_per_client(groups: Sequence[Group]) -> Drawn | None:
    """Draw what each client gains over training alone, or over its untuned model."""
    found, every = gains(groups), looks(groups)
    if not found:
        return None
    shown = set().union(*(gain.per_client for gain in found))
    order = [client for client in clients_in_order(groups) if client in shown]
    drawn, called = found[:MAX_GAINS], client_titles(groups)
    values = [100 * v for gain in drawn for v in gain.per_client.values()]
    limits = min(0.0, *values) * 1.08, max(0.0, *values) * 1.08
    panels = [_gain(gain, order, every[gain.group], limits, called) for gain in drawn]
    rows = [
        (groups[gain.group].name, gain.over, c, v)
        for gain in found
        for c, v in gain.per_client.items()
    ]
    more = len(found) - len(drawn)
    note = f"The first {len(drawn)} settings are drawn, all are in the table." if more else ""
    return Drawn(panels, ("setting", "over", "client", "gain"), rows, note)


def _seed_means(group: Group) -> list[float]:
    found = [Group("", (run,)).accuracy for run in group.runs]
    return [one.mean for one in found if one is not None]


def _steps(axes: Axes, group: Group, look: Look, over: bool, told: bool) -> None:
    ranked = sorted(group.accuracies.items(), key=lambda each: (each[1], each[0]))
    share = np.arange(1, len(ranked) + 1) / len(ranked)
    values = np.array([100 * value for _, value in ranked])
    line = OVER if over else look.line
    axes.ecdf(_thinned(values), color=look.colour, linestyle=line, linewidth=2)
    if told:
        for (client, value), height in zip(ranked, share, strict=True):
            how = {"marker": "o", "markersize": 3.5, "color": look.colour, "markeredgewidth": 0}
            dot = axes.plot([100 * value], [height], **how)[0]
            tell(dot, client, f"{percent(value)}, {look.title}")


def _thinned(values: np.ndarray) -> np.ndarray:
    """Return as many values as can be seen: quantiles of very many."""
    if len(values) <= MAX_STEPS:
        return values
    return np.quantile(values, np.linspace(0, 1, MAX_STEPS), method="nearest")


def _gain(
    gain: Gain,
    order: list[int],
    look: Look,
    limits: tuple[float, float],
    called: Mapping[int, str],
) -> Figure:
    figure = Figure(figsize=(HALF, 2.6), layout="constrained")
    axes = figure.subplots()
    shares = [gain.per_client.get(client, np.nan) for client in order]
    heights = 100 * np.array(shares)
    bars(axes, np.fmax(heights, 0), look.colour)
    bars(axes, np.fmin(heights, 0), LOSER)
    axes.axhline(0, color=MUTED, linewidth=0.8)
    mean = interval(gain.per_client.values())
    if mean is not None and mean.low is not None and mean.high is not None:
        axes.axhspan(
            100 * mean.low, 100 * mean.high, color=MUTED, alpha=0.18, linewidth=0, zorder=0.5
        )
    if limits[0] < limits[1]:
        axes.set_ylim(*limits)
    axes.set_title(f"{look.title}\n{_outcome(gain)}")
    axes.set_ylabel(f"points over\n{gain.over}")
    texts = ["not tested" if np.isnan(v) else f"{points(v)} points" for v in shares]
    columns(axes, order, texts)
    name_clients(axes, order, called)
    return figure


def _outcome(gain: Gain) -> str:
    values = list(gain.per_client.values())
    up, down = sum(v > 0 for v in values), sum(v < 0 for v in values)
    found, told = interval(values), ""
    if found is not None:
        told = f"mean {points(found.mean)} ({within(found)}); "
    return f"{told}{up} of {len(values)} gain, {down} lose"
