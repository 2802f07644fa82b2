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
    WIDTH,
    Look,
    bars,
    legend,
    looks,
    name_clients,
    step_keys,
    write_names,
)
from fedtailor.report.facts import clients_in_order
from fedtailor.report.search_facts import (
    Deployed,
    Floats,
    Memory,
    Search,
    deployed,
    mean_entropies,
    memory,
    over_rounds,
    searches,
)
from fedtailor.report.svg import INK, MUTED, styled
from fedtailor.report.wording import clip
from fedtailor.runs.folder import Run

SCALE = LinearSegmentedColormap.from_list("options", ("#0072b2", "#bdbdbd", "#e69f00"))
# of options that are listed from small to large; all of it shows on pages light and dark
MAX_MAPS = 2  # runs side by side
KINDS = ("#8a8a8a", *COLOURS[:5], LOSER, "#f0e442")  # of options that have no order


@styled
def architecture_map(runs: Sequence[Run]) -> Figure | None:
    """Draw the option that each client's network takes at each choice."""
    found = [(one, there) for one in searches(runs) if (there := deployed(one.run)) is not None]
    same = [each for each in found if each[0].found["choices"] == found[0][0].found["choices"]]
    return _maps(same[:MAX_MAPS], runs) if same else None


@styled
def search_over_rounds(runs: Sequence[Run]) -> Figure | None:
    """Draw how undecided policies or archives are, and what rewards policies get."""
    every, bands = looks(runs), {"entropy": {}, "reward": {}}
    for name, found in bands.items():
        told = {search.place: over_rounds(search.run, name) for search in searches(runs)}
        found.update({place: band for place, band in told.items() if band.rounds})
    if not bands["entropy"]:
        return None
    shown = [name for name, found in bands.items() if found]
    figure = Figure(figsize=(WIDTH * (1 if len(shown) > 1 else 0.6), 3.0), layout="constrained")
    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for name, axes in zip(shown, panels, strict=True):
        for place, band in bands[name].items():
            colour, line = every[place].colour, every[place].line
            axes.plot(band.rounds, band.mean, color=colour, linestyle=line, linewidth=2)
            between = (band.rounds, band.low, band.high)
            axes.fill_between(*between, color=colour, alpha=0.18, linewidth=0)
        axes.set_xlabel("round")
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if name == "entropy":
            axes.set_ylim(0, 1.02)
        else:
            axes.axhline(0, color=MUTED, linewidth=0.8)
    keys = step_keys(runs)
    legend(figure, [keys[place] for place in bands["entropy"]] if keys else [])
    return figure


@styled
def memory_budgets(runs: Sequence[Run]) -> Figure | None:
    """Draw each client's memory, what its network takes of it, and what did not fit."""
    for search in searches(runs):
        if clients := memory(search.run):
            return _budgets(clients, looks(runs)[search.place], runs)
    return None


def _maps(found: list[tuple[Search, Deployed]], runs: Sequence[Run]) -> Figure:
    """Draw maps side by side: the rows are the same choices, the columns the same clients."""
    choices = found[0][0].found["choices"]
    height = 1.2 + max(0.17 * len(choices), 1.6)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    panels = figure.subplots(1, 2 * len(found), sharey=True, width_ratios=(6, 1) * len(found))
    colours, keys = _option_colours(choices)
    for (search, there), cells, undecided in zip(found, panels[::2], panels[1::2], strict=True):
        order = [client for client in clients_in_order(runs) if client in there.genes]
        cells.imshow(_cells(there, order, colours), aspect="auto", interpolation="none")
        cells.grid(visible=False)
        cells.set_title(looks(runs)[search.place].title if len(runs) > 1 else "")
        name_clients(cells, order, runs)
        if entropies := mean_entropies(search.found):
            undecided.barh(range(len(choices)), list(entropies.values()), height=0.7, color=MUTED)
        undecided.set_xlim(0, 1)
        undecided.set_xlabel("entropy")
        undecided.grid(visible=False, axis="y")
        undecided.tick_params(axis="y", labelleft=False, length=0)
    names = [clip(choice["name"], 28) for choice in choices]
    size = 8.5 if len(choices) <= 30 else 7
    panels[0].set_yticks(range(len(choices)), names, fontsize=size)
    legend(figure, keys)
    return figure


def _cells(there: Deployed, order: list[int], colours: list[Any]) -> Floats:
    """Return the colour of each choice and client, clear where a choice makes no difference."""
    genes = np.array([there.genes[client] for client in order]).T
    image = np.zeros((*genes.shape, 4))
    image[..., :3] = [[colours[row][gene] for gene in line] for row, line in enumerate(genes)]
    image[..., 3] = 1
    for column, client in enumerate(order):
        image[list(there.idle[client]), column, 3] = 0
    return image


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


def _budgets(clients: list[Memory], look: Look, runs: Sequence[Run]) -> Figure:
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
    write_names(panels[-1], [one.client for one in clients], runs)
    panels[-1].set_xlabel("client, the smallest memory first")
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
