"""How a search went: has it decided, and for what."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, legend, line_keys, looks, rounds_axis, shade
from fedtailor.report.option_shares import SMALLEST, Shares, option_shares, skip_share
from fedtailor.report.pictures.networks import KINDS, SCALE, square
from fedtailor.report.search_facts import Band, Search, over_rounds, searches
from fedtailor.report.svg import COLOURS, GRID, LOSER, MUTED, Drawn, styled
from fedtailor.report.wording import clip
from fedtailor.runs.comparison import Group

MORE = ("#f0e442", "#7b5ea7", "#a65628", "#4dac26", "#000080")  # options beyond the page's colours
MAX_PANELS = 4  # settings


@styled
def search_over_rounds(groups: Sequence[Group]) -> Drawn | None:
    """Draw how undecided policies or archives are, and what rewards policies get."""
    found, rows = searches(groups), []
    bands: dict[str, dict[int, Band]] = {}
    for name in ("entropy", "reward"):
        told = {search.place: over_rounds(search.run, name) for search in found}
        bands[name] = {place: band for place, band in told.items() if band.rounds}
        rows += [
            (groups[place].name, name, *row)
            for place, band in bands[name].items()
            for row in zip(band.rounds, band.mean, band.low, band.high, strict=True)
        ]
    if not bands["entropy"]:
        return None
    panels = [_bands(groups, name, told) for name, told in bands.items() if told]
    return Drawn(panels, ("setting", "what", "round", "mean", "low", "high"), rows)


@styled
def options_over_rounds(groups: Sequence[Group]) -> Drawn | None:
    """Draw the shares of the options among the networks that were trained or kept in a round."""
    shown = []
    for search in searches(groups):
        if shares := option_shares(search):
            shown.append((search, shares))
    if not shown:
        return None
    panels, rows = [], []
    for search, shares in shown[:MAX_PANELS]:
        name = groups[search.place].name
        panels.append(_stack(shares, name if len(groups) > 1 else ""))
        rows += [
            (name, round, option, float(share))
            for round, row in zip(shares.rounds, shares.shares, strict=True)
            for option, share in zip(shares.options, row, strict=True)
        ]
    return Drawn(panels, ("setting", "round", "option", "share"), rows, _skips(groups, shown))


def _bands(groups: Sequence[Group], name: str, told: dict[int, Band]) -> Figure:
    figure = Figure(figsize=(HALF, 2.9), layout="constrained")
    axes, every = figure.subplots(), looks(groups)
    for place, band in told.items():
        colour, line = every[place].colour, every[place].line
        mark = "o" if len(band.rounds) == 1 else ""
        axes.plot(band.rounds, band.mean, marker=mark, color=colour, linestyle=line, linewidth=2)
        shade(axes, band.rounds, band.low, band.high, colour)
    rounds_axis(axes, [round for band in told.values() for round in band.rounds])
    axes.set_ylabel(name)
    if name == "entropy":
        axes.set_ylim(0, 1.02)
    else:
        axes.axhline(0, color=MUTED, linewidth=0.8)
    keys = line_keys(groups)
    legend(figure, [keys[place] for place in told] if keys else [])
    return figure


def _stack(shares: Shares, title: str) -> Figure:
    figure = Figure(figsize=(HALF, 3.0), layout="constrained")
    axes = figure.subplots()
    colours = _colours(shares.options)
    steps = np.repeat(shares.shares, 2, axis=0)  # a round's bar reaches to the next
    edges = np.array([[r - 0.5, r + 0.5] for r in shares.rounds]).ravel()
    drawn = axes.stackplot(edges, *(100 * steps.T), colors=colours, linewidth=0.4, edgecolor=GRID)
    axes.set_ylim(0, 100)
    rounds_axis(axes, shares.rounds)
    axes.set_xlim(edges[0], edges[-1])
    axes.set_ylabel(f"share of {shares.of} (%)")
    axes.set_title(clip(title, 44))
    keys = [
        square(area.get_facecolor()[0], name)
        for area, name in zip(drawn, shares.options, strict=True)
    ]
    legend(figure, keys)
    return figure


def _colours(options: Sequence[str]) -> list[Any]:
    """Return the options' colours: where there are few, those of the map of networks."""
    if options[0] == SMALLEST:
        return [SCALE(at) for at in np.linspace(0, 1, len(options))]
    kinds = KINDS if len(options) <= len(KINDS) else (*COLOURS, LOSER, *MORE)
    return [kinds[k % len(kinds)] for k in range(len(options))]


def _skips(groups: Sequence[Group], shown: list[tuple[Search, Shares]]) -> str:
    """Say how the share of skip connections changed, where there are any."""
    found = []
    for search, shares in shown:
        if skips := skip_share(shares):
            first, last = (100 * share for share in skips)
            name = f"{groups[search.place].name}: " if len(groups) > 1 else ""
            found.append(f"{name}skip connections are {first:.0f} % at first, {last:.0f} % at last")
    return f"{'; '.join(found)}." if found else ""
