"""How good proposed candidates are: generated against bred, where runs of both are compared.

Offspring are mostly scored with weights that were trained since the population was scored, and
then pass it whatever they are. So they are set beside a population only where both were scored
with the same weights; otherwise runs are compared, offspring with offspring.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, legend, line_keys, looks, rounds_axis, shade
from fedtailor.report.offspring_facts import (
    ByRoundAndClient,
    Scale,
    advantage,
    by_round,
    offspring_of,
    over_all,
    paired_difference,
    scale,
    scores,
    survival,
)
from fedtailor.report.svg import MUTED, Drawn, styled
from fedtailor.report.wording import signed
from fedtailor.runs.comparison import Group, Interval, same_data
from fedtailor.runs.folder import Run

COLUMNS = ("setting", "source", "what", "unit", "round", "mean", "low", "high", "clients")
TRAINING = ("name", "iterations", "epochs", "batch", "lr", "momentum")  # keys of the algorithm
MOST_TOLD = 4  # settings in sentences; all are in the table
AGES = (
    "Where a population is scored once a round, its candidates are scored later, with weights "
    "trained since, and pass it for that alone: such settings are not set beside their populations."
)


@dataclass(frozen=True)
class Proposed:
    """What a setting's search proposed; nothing is known of `beside` where ages differ."""

    place: int
    source: str
    scale: Scale
    scores: ByRoundAndClient
    beside: ByRoundAndClient  # how far above the population, with the same weights
    survival: ByRoundAndClient


@dataclass(frozen=True)
class Panel:
    """What is followed over rounds, of settings by their places."""

    what: str
    unit: str
    values: dict[int, ByRoundAndClient]

    @property
    def limits(self) -> tuple[float, float]:
        """Where means can lie; intervals may go beyond."""
        return (0.0, 100.0) if self.unit == "%" else (-math.inf, math.inf)

    def lines(self) -> dict[int, dict[int, Interval]]:
        """Return the means over clients by setting and round, in the panel's unit."""
        times = 1.0 if self.unit == "nats" else 100.0
        return {
            place: {round: _scaled(one, times) for round, one in by_round(some).items()}
            for place, some in self.values.items()
        }


@styled
def candidates(groups: Sequence[Group]) -> Drawn | None:
    """Draw how offspring do beside populations and, of several runs, beside one another."""
    found = _proposed(groups)
    rivals = _rivals(groups, found)
    panels, rows, known = [], [], {one.place: one for one in found}
    for panel in _panels([one for one in found if one.beside], rivals):
        lines, what = panel.lines(), panel.what.replace("\n", " ")
        panels.append(
            lines_over_rounds(groups, lines, f"{panel.what} ({panel.unit})", panel.limits)
        )
        for place, line in lines.items():
            told = (groups[place].name, known[place].source, what, panel.unit)
            rows += [(*told, round, m.mean, m.low, m.high, m.clients) for round, m in line.items()]
    return Drawn(panels, COLUMNS, rows, _note(groups, found, rivals)) if panels else None


def _panels(level: Sequence[Proposed], rivals: Sequence[Proposed]) -> list[Panel]:
    found = []
    for kind in dict.fromkeys(one.scale for one in level):
        values = {one.place: one.beside for one in level if one.scale == kind}
        found.append(Panel(f"candidates less population\n{kind.name}", kind.unit, values))
    if level:
        found.append(
            Panel("candidates that survive", "%", {one.place: one.survival for one in level})
        )
    if len(rivals) > 1:
        kind, values = rivals[0].scale, {one.place: one.scores for one in rivals}
        unit = "%" if kind.unit == "points" else kind.unit
        found.append(Panel(f"{kind.name}\nof candidates", unit, values))
    return found


def lines_over_rounds(
    groups: Sequence[Group],
    told: Mapping[int, Mapping[int, Interval]],
    name: str,
    limits: tuple[float, float],
) -> Figure:
    """Draw means over a round's clients, by setting, with their intervals."""
    figure = Figure(figsize=(HALF, 3.2), layout="constrained")
    axes, every = figure.subplots(), looks(groups)
    for place, line in told.items():
        rounds, look = list(line), every[place]
        means = [one.mean for one in line.values()]
        marker = look.marker if len(rounds) == 1 else "None"
        axes.plot(rounds, means, color=look.colour, linestyle=look.line, linewidth=2, marker=marker)
        low, high = (
            [one.mean if (end := getattr(one, side)) is None else end for one in line.values()]
            for side in ("low", "high")
        )
        shade(axes, rounds, low, high, look.colour)
    rounds_axis(axes, [round for line in told.values() for round in line])
    axes.set_ylabel(name)
    lowest, highest = axes.get_ylim()
    axes.set_ylim(max(limits[0], lowest), min(limits[1], highest))
    if lowest < 0 < highest:
        axes.axhline(0, color=MUTED, linewidth=0.8)
    keys = line_keys(groups)
    legend(figure, [keys[place] for place in told] if keys else [])
    return figure


def _proposed(groups: Sequence[Group]) -> list[Proposed]:
    found = []
    for place, group in enumerate(groups):
        table = offspring_of(group.runs[0])
        if table is not None:
            source = ", ".join(dict.fromkeys(table.source))
            values = scores(table), advantage(table), survival(table)
            found.append(Proposed(place, source, scale(group.runs[0]), *values))
    return found


def _rivals(groups: Sequence[Group], found: Sequence[Proposed]) -> list[Proposed]:
    """Return the settings whose scores can be set beside the first one's: trained as it is."""
    runs = {one.place: groups[one.place].runs[0] for one in found}
    return [
        one
        for one in found
        if one.scale == found[0].scale
        and _training(runs[one.place]) == _training(runs[found[0].place])
        and same_data([runs[found[0].place], runs[one.place]])
    ]


def _training(run: Run) -> list[Any]:
    """Return what the age of weights depends on."""
    asked = run.config.get("algorithm", {})
    return [run.config.get("space"), *(asked.get(key) for key in TRAINING)]


def _scaled(one: Interval, factor: float) -> Interval:
    low, high = (None if end is None else factor * end for end in (one.low, one.high))
    return Interval(factor * one.mean, low, high, one.clients)


def _note(groups: Sequence[Group], found: Sequence[Proposed], rivals: Sequence[Proposed]) -> str:
    told = []
    for one in found[:MOST_TOLD]:
        mean, stay = over_all(one.beside), over_all(one.survival)
        if mean is not None and stay is not None:
            told.append(
                f"{_named(groups, one)}: {signed(_scaled(mean, one.scale.times))} "
                f"{one.scale.unit} against the population, {100 * stay.mean:.0f} % survive."
            )
    for one in rivals[1 : 1 + MOST_TOLD]:
        more = paired_difference(one.scores, rivals[0].scores)
        if more is not None:
            told.append(
                f"Scores of {_named(groups, one)} against those of {_named(groups, rivals[0])}, "
                "each with its own run's weights, client by client: "
                f"{signed(_scaled(more, one.scale.times))} {one.scale.unit}."
            )
    return " ".join([*told, *([AGES] if any(not one.beside for one in found) else [])])


def _named(groups: Sequence[Group], one: Proposed) -> str:
    """Name a setting, and what proposes in it where the name does not say it."""
    name = groups[one.place].name
    return name if one.source in name else f"{name} (by {one.source})"
