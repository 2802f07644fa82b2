"""Whether a surrogate can be trusted: what it predicted against what was measured."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, looks
from fedtailor.report.offspring_facts import (
    Ranking,
    Scale,
    by_round,
    centred,
    offspring_of,
    over_all,
    ranking,
    scale,
)
from fedtailor.report.pictures.offspring import lines_over_rounds
from fedtailor.report.pictures.points import cloud
from fedtailor.report.svg import MUTED, Drawn, styled
from fedtailor.report.wording import clip, counted, signed
from fedtailor.runs.comparison import Group
from fedtailor.runs.offspring_table import Floats, OffspringTable

MAX_PANELS = 4  # settings drawn point by point
COLUMNS = (
    "setting", "round", "client", "iteration", "source", "predicted", "measured", "survived",
    "population", "tau_of_round", "low", "high", "pairs_of_round",
)  # fmt: skip


@dataclass(frozen=True)
class Predicted:
    """A setting whose search predicted scores: its place among the settings, and how it did."""

    place: int
    table: OffspringTable
    ranked: Ranking
    scale: Scale


@styled
def predicted_and_measured(groups: Sequence[Group]) -> Drawn | None:
    """Draw predictions against scores, and how well they rank over rounds."""
    found = []
    for place, group in enumerate(groups):
        table = offspring_of(group.runs[0])
        if table is not None and len(centred(table)[0]):
            found.append(Predicted(place, table, ranking(table), scale(group.runs[0])))
    if not found:
        return None
    panels = [_points(groups, one) for one in found[:MAX_PANELS]]
    taus = {one.place: by_round(one.ranked.tau) for one in found if one.ranked.tau}
    if taus:
        panels.append(lines_over_rounds(groups, taus, "Kendall's tau", (-1.0, 1.0)))
    rows = [row for one in found for row in _rows(groups[one.place].name, one)]
    return Drawn(panels, COLUMNS, rows, _note(groups, found))


def _points(groups: Sequence[Group], one: Predicted) -> Figure:
    figure = Figure(figsize=(HALF, 3.2), layout="constrained")
    axes, look = figure.subplots(), looks(groups)[one.place]
    predicted, measured = (one.scale.times * each for each in centred(one.table))
    cloud(axes, predicted, measured, look.colour)
    axes.axline((0, 0), slope=1, color=MUTED, linewidth=1, linestyle="dashed", zorder=0.9)
    axes.set_xlim(*_limits(predicted))
    axes.set_ylim(*_limits(measured))
    name = f"{clip(look.title, 40)}\n" if len(groups) > 1 else ""
    axes.set_title(f"{name}{len(predicted):,} candidates")
    axes.set_xlabel(f"predicted, {one.scale.unit} above those scored with it")
    axes.set_ylabel(f"measured ({one.scale.unit}, likewise)")
    return figure


def _limits(values: Floats) -> tuple[float, float]:
    """Leave out what lies far outside: a wild guess must not hide all others."""
    reach = float(sorted(abs(values))[int(0.99 * (len(values) - 1))]) or 1.0
    return -1.15 * reach, 1.15 * reach


def _rows(name: str, one: Predicted) -> list[tuple]:
    """Return all that is known of offspring, with their round's tau beside them."""
    taus = by_round(one.ranked.tau)
    told = {
        round: (tau.mean, tau.low, tau.high, one.ranked.pairs[round]) for round, tau in taus.items()
    }
    return [(name, *row, *told.get(row[0], (None,) * 4)) for row in one.table.rows()]


def _note(groups: Sequence[Group], found: Sequence[Predicted]) -> str:
    """Say how well scores were ranked, and how far off they were."""
    told = []
    for one in found[:MAX_PANELS]:  # all are in the table
        name = f"{groups[one.place].name}: " if len(groups) > 1 else ""
        off = one.scale.times * float(np.nanmean(one.table.measured - one.table.predicted))
        where = "above" if off >= 0 else "below"
        told.append(
            f"{name}{_tau(one)}; scores are {abs(off):.1f} {one.scale.unit} {where} what was "
            "predicted, on average."
        )
    return " ".join(told)


def _tau(one: Predicted) -> str:
    mean, pairs = over_all(one.ranked.tau), sum(one.ranked.pairs.values())
    if mean is None:
        return "Predictions or scores are all equal, so that there is no tau"
    number = f"{counted(mean.clients, 'client')}, {counted(pairs, 'pair')}"
    return f"Kendall's tau is {signed(mean, 2)} over {number}"
