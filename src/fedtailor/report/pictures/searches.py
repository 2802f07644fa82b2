"""Pictures of a search: which networks clients got, how it went, and whether they fit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from fedtailor.report.drawing import (
    COLOURS,
    LOSER,
    MAX_NAMED,
    WIDTH,
    Look,
    bars,
    clip,
    legend,
    looks,
    name_clients,
    step_keys,
)
from fedtailor.report.facts import clients_in_order
from fedtailor.report.search_facts import (
    Deployed,
    Memory,
    Search,
    deployed,
    mean_entropies,
    memory,
    over_rounds,
    searches,
)
from fedtailor.report.svg import INK, MUTED, styled
from fedtailor.runs.folder import Run

SCALE = LinearSegmentedColormap.from_list("options", ("#0072b2", "#bdbdbd", "#e69f00"))
# of options that are listed from small to large; all of it shows on pages light and dark
KINDS = ("#8a8a8a", *COLOURS[:5], LOSER, "#f0e442")  # of options that have no order


@styled
def architecture_map(runs: Sequence[Run]) -> Figure | None:
    """Draw the option that each client's network takes at each choice."""
    for search in searches(runs):
        there = deployed(search.run)
        if there is not None:
            order = [client for client in clients_in_order(runs) if client in there.genes]
            title = looks(runs)[search.place].title if len(runs) > 1 else ""
            return _map(search, there, order, title)
    return None


@styled
def search_over_rounds(runs: Sequence[Run]) -> Figure | None:
    """Draw how undecided the policies are, and what rewards they get."""
    found, every = searches(runs), looks(runs)
    bands = {name: [over_rounds(one.run, name) for one in found] for name in ("entropy", "reward")}
    if not any(band.rounds for band in bands["entropy"]):
        return None
    figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
    panels = dict(zip(bands, figure.subplots(1, 2), strict=True))
    for name, axes in panels.items():
        for search, band in zip(found, bands[name], strict=True):
            colour, line = every[search.place].colour, every[search.place].line
            axes.plot(band.rounds, band.mean, color=colour, linestyle=line, linewidth=2)
            between = (band.rounds, band.low, band.high)
            axes.fill_between(*between, color=colour, alpha=0.18, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    panels["entropy"].set_ylim(0, 1.02)
    panels["reward"].axhline(0, color=MUTED, linewidth=0.8)
    places = [search.place for search in found]
    legend(figure, [key for place, key in enumerate(step_keys(runs)) if place in places])
    return figure


@styled
def memory_budgets(runs: Sequence[Run]) -> Figure | None:
    """Draw each client's memory, what its network takes of it, and what did not fit."""
    for search in searches(runs):
        if clients := memory(search.run):
            return _budgets(clients, looks(runs)[search.place])
    return None


def _map(search: Search, there: Deployed, order: list[int], title: str) -> Figure:
    choices = search.found["choices"]
    genes = np.array([there.genes[client] for client in order]).T
    height = 0.6 + max(0.17 * len(choices), 1.6)
    figure = Figure(figsize=(WIDTH, height + 0.6), layout="constrained")
    cells, undecided = figure.subplots(1, 2, sharey=True, width_ratios=(6, 1))
    colours, keys = _option_colours(choices)
    image = np.zeros((*genes.shape, 4))  # clear where a choice makes no difference
    image[..., :3] = [[colours[row][gene] for gene in line] for row, line in enumerate(genes)]
    image[..., 3] = 1
    for column, client in enumerate(order):
        image[list(there.idle[client]), column, 3] = 0
    cells.imshow(image, aspect="auto", interpolation="none")
    cells.grid(visible=False)
    size = 8.5 if len(choices) <= 30 else 7
    names = [clip(choice["name"], 28) for choice in choices]
    cells.set_yticks(range(len(choices)), names, fontsize=size)
    cells.set_title(title)
    name_clients(cells, order)
    if entropies := mean_entropies(search.found):
        undecided.barh(range(len(choices)), list(entropies.values()), height=0.7, color=MUTED)
    undecided.set_xlim(0, 1)
    undecided.set_xlabel("mean entropy")
    undecided.grid(visible=False, axis="y")
    undecided.tick_params(axis="y", labelleft=False, length=0)
    legend(figure, keys)
    return figure


def _option_colours(choices: list[dict[str, Any]]) -> tuple[list[Any], list[Line2D]]:
    """Return of every choice its options' colours, and what they mean."""
    options = choices[0]["options"]
    words = all(isinstance(o, str) for o in options) and len(options) <= len(KINDS)
    if words and all(choice["options"] == options for choice in choices):
        kinds = [to_rgb(colour) for colour in KINDS[: len(options)]]
        named = zip(options, kinds, strict=True)
        return [kinds] * len(choices), [_square(colour, name) for name, colour in named]
    scales = [SCALE(np.linspace(0, 1, max(len(c["options"]), 2)))[:, :3] for c in choices]
    ends = ((0.0, "smallest option"), (0.5, "between"), (1.0, "largest option"))
    return scales, [_square(SCALE(at), name) for at, name in ends]


def _square(colour: Any, name: str) -> Line2D:
    return Line2D([], [], linestyle="", marker="s", markersize=8, color=colour, label=str(name))


def _budgets(clients: list[Memory], look: Look) -> Figure:
    drawn = [one.drawn for one in clients]
    overflows = any(any(each) for each in drawn)
    rows = 2 if overflows else 1
    figure = Figure(figsize=(WIDTH, 2.6 + 1.2 * (rows - 1)), layout="constrained")
    panels = figure.subplots(rows, sharex=True, squeeze=False, height_ratios=(2.2, 1)[:rows])[:, 0]
    bars(panels[0], np.array([one.deployed for one in clients]), look.colour)
    edges = np.arange(len(clients) + 1) - 0.5
    budgets = [one.budget for one in clients]
    panels[0].stairs(budgets, edges, baseline=None, color=INK, linewidth=1.5)
    panels[0].set_ylabel("MB to train")
    fit = sum(one.deployed <= one.budget for one in clients)
    panels[0].set_title(
        f"{look.title}: {fit} of {len(clients)} deployed networks fit; {_share(drawn)}"
    )
    if overflows:
        shares = [100 * np.mean(each) if each else np.nan for each in drawn]
        bars(panels[1], np.array(shares), LOSER)
        panels[1].set_ylabel("overflows (%)")
        panels[1].set_ylim(0, 100)
    named = [str(one.client) for one in clients] if len(clients) <= MAX_NAMED else []
    panels[-1].set_xticks(range(len(named)), named)
    panels[-1].set_xlabel("client, the smallest memory first")
    panels[-1].set_xlim(-0.6, len(clients) - 0.4)
    return figure


def _share(drawn: list[tuple[bool, ...]]) -> str:
    """Say how many drawn networks did not fit, early and late."""
    early = [one for each in drawn for one in each[: len(each) // 2]]
    late = [one for each in drawn for one in each[len(each) // 2 :]]
    if not any(early + late):
        return "all drawn ones did"
    halves = zip((early, late), ("the first", "the second"), strict=True)
    shares = [f"{100 * np.mean(some):.0f} % in {which} half" for some, which in halves if some]
    return f"of the drawn ones did not: {', '.join(shares)}"
