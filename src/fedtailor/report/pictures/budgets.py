"""Whether networks fit the devices."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from fedtailor.report.drawing import (
    HALF,
    MAX_NAMED,
    Look,
    axis_names,
    bars,
    columns,
    looks,
    thinned,
)
from fedtailor.report.facts import client_titles
from fedtailor.report.search_facts import Memory, memory, searches
from fedtailor.report.svg import INK, LOSER, Drawn, styled
from fedtailor.runs.comparison import Group


@styled
def memory_budgets(groups: Sequence[Group]) -> Drawn | None:
    """Draw each client's memory, what its network takes of it, and what did not fit."""
    for search in searches(groups):
        if clients := memory(search.run):
            rows = [
                (one.client, one.budget, one.deployed, len(one.drawn), sum(one.drawn))
                for one in clients
            ]
            names = ("client", "budget MB", "deployed MB", "networks drawn", "that did not fit")
            look, called = looks(groups)[search.place], client_titles(groups)
            return Drawn([_budgets(clients, look, called)], names, rows)
    return None


def _budgets(clients: list[Memory], look: Look, called: Mapping[int, str]) -> Figure:
    drawn = [one.drawn for one in clients]
    overflows = any(any(each) for each in drawn)
    rows = 2 if overflows else 1
    figure = Figure(figsize=(HALF, 2.8 + 1.2 * (rows - 1)), layout="constrained")
    panels = figure.subplots(rows, sharex=True, squeeze=False, height_ratios=(2.2, 1)[:rows])[:, 0]
    bars(panels[0], np.array([one.deployed for one in clients]), look.colour)
    budgets = np.array([one.budget for one in clients])
    panels[0].stairs(*thinned(budgets), baseline=None, color=INK, linewidth=1.5)
    panels[0].set_ylabel("MB to train")
    fit = sum(one.deployed <= one.budget for one in clients)
    panels[0].set_title(
        f"{look.title}: {fit} of {len(clients)} deployed networks fit;\n{_share(drawn)}"
    )
    if overflows:
        shares = [100 * np.mean(each) if each else np.nan for each in drawn]
        bars(panels[1], np.array(shares), LOSER)
        panels[1].set_ylabel("overflows (%)")
        panels[1].set_ylim(0, 100)
    texts = [f"{one.deployed:,.1f} of {one.budget:,.1f} MB" for one in clients]
    columns(panels[0], [one.client for one in clients], texts)
    named = [one.client for one in clients] if len(clients) <= MAX_NAMED else []
    names = axis_names(named, called)
    panels[-1].set_xticks(range(len(names)), names, fontsize=9.5 if len(names) <= 20 else 6)
    panels[-1].set_xlabel("client, the smallest memory first")
    panels[-1].set_xlim(-0.6, len(clients) - 0.4)
    return figure


def _share(drawn: list[tuple[bool, ...]]) -> str:
    """Say how many drawn networks did not fit, early and late."""
    early = [one for each in drawn for one in each[: len(each) // 2]]
    late = [one for each in drawn for one in each[len(each) // 2 :]]
    if not any(early + late):
        return "all drawn ones did"
    halves = zip((early, late), ("1st", "2nd"), strict=True)
    shares = [f"{100 * np.mean(some):.0f} % in {which} half" for some, which in halves if some]
    return f"drawn ones that did not: {', '.join(shares)}"
