"""Which networks clients got."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtailor.report.drawing import HALF, MAX_PIXELS, columns, legend, looks, name_clients
from fedtailor.report.facts import client_titles, clients_in_order
from fedtailor.report.search_facts import (
    Deployed,
    Floats,
    Search,
    deployed,
    mean_entropies,
    option_name,
    searches,
)
from fedtailor.report.svg import MUTED, Drawn, styled
from fedtailor.report.wording import clip
from fedtailor.runs.comparison import Group

SCALE = LinearSegmentedColormap.from_list("options", ("#0072b2", "#bdbdbd", "#e69f00"))
# of options that are listed from small to large; all of it shows on pages light and dark
MAX_MAPS = 4  # settings
MAX_WRITTEN = 12  # clients whose options are written into the cells
BLACK, WHITE = "#111111", "#ffffff"  # on coloured cells, on pages light and dark
MIDDLE = 0.19  # the luminance from which black is read better than white
# Of options that have no order; not the page's own colours, which are others on a dark page.
KINDS = ("#8b8b8b", "#0073b3", "#e6a000", "#009f73", "#cc7aa7", "#57b4e9", "#d65e00", "#f0e442")


@styled
def architecture_map(groups: Sequence[Group]) -> Drawn | None:
    """Draw the option that each client's network takes at each choice."""
    found = [(one, there) for one in searches(groups) if (there := deployed(one.run)) is not None]
    if not found:
        return None
    shown = found[:MAX_MAPS]
    rows = [row for one, there in shown for row in _rows(groups[one.place].name, one, there)]
    panels = [_map(one, there, groups) for one, there in shown]
    return Drawn(panels, ("setting", "client", "choice", "option", "makes no difference"), rows)


def _rows(name: str, search: Search, there: Deployed) -> list[tuple[str, int, str, str, int]]:
    """Return client, choice, option, and whether it makes no difference; options are named once."""
    choices = search.found["choices"]
    taken = set(chain.from_iterable(enumerate(genes) for genes in there.genes.values()))
    called = {(at, gene): option_name(search, choices[at], gene) for at, gene in taken}
    return [
        (name, client, choice["name"], called[at, gene], int(at in there.idle[client]))
        for client, genes in there.genes.items()
        for at, (choice, gene) in enumerate(zip(choices, genes, strict=True))
    ]


def _map(search: Search, there: Deployed, groups: Sequence[Group]) -> Figure:
    choices = search.found["choices"]
    height = 1.3 + max(0.17 * len(choices), 1.6)
    figure = Figure(figsize=(HALF, height), layout="constrained")
    entropies = mean_entropies(search.found)
    panels = 2 if entropies else 1
    how = {"sharey": True, "squeeze": False, "width_ratios": (5, 1)[:panels]}
    cells, *beside = figure.subplots(1, panels, **how)[0]
    colours, keys = _option_colours(search)
    order = [client for client in clients_in_order(groups) if client in there.genes]
    some = order[:: -(-len(order) // MAX_PIXELS)] if order else []  # as many as can be seen
    edges = (-0.5, len(order) - 0.5, len(choices) - 0.5, -0.5)
    image = _cells(there, some, colours)
    cells.imshow(image, aspect="auto", interpolation="none", extent=edges)
    cells.grid(visible=False)
    cells.set_title(looks(groups)[search.place].title if len(groups) > 1 else "")
    written = not keys and len(order) <= MAX_WRITTEN
    if written:
        _write_options(cells, search, there, order, colours)
    columns(cells, order, [f"{len(set(there.genes[c]))} different options" for c in order])
    name_clients(cells, order, client_titles(groups))
    for undecided in beside:
        undecided.barh(range(len(choices)), list(entropies.values()), height=0.7, color=MUTED)
        undecided.set_xlim(0, 1)
        undecided.set_xlabel("entropy")
        undecided.grid(visible=False, axis="y")
        undecided.tick_params(axis="y", labelleft=False, length=0)
    size = 8 if len(choices) <= 30 else 6.5
    names = [_row_name(search, choice, told=not keys and not written) for choice in choices]
    cells.set_yticks(range(len(choices)), names, fontsize=size)
    legend(figure, keys or _ends())
    return figure


def _row_name(search: Search, choice: dict[str, Any], told: bool) -> str:
    """Name a choice and, where neither cells nor colours say it, its options."""
    options = "/".join(option_name(search, choice, k) for k in range(len(choice["options"])))
    return clip(choice["name"], 28) + (f": {clip(options, 14)}" if told else "")


def _write_options(
    axes: Axes, search: Search, there: Deployed, order: list[int], colours: list[Any]
) -> None:
    """Write the options into their cells, where they make a difference."""
    size = 7.0 if len(order) <= 8 else 5.5
    for column, client in enumerate(order):
        for row, (choice, gene) in enumerate(
            zip(search.found["choices"], there.genes[client], strict=True)
        ):
            if row not in there.idle[client]:
                text = clip(option_name(search, choice, gene), 6)
                ink = readable_on(colours[row][gene])
                how = {"ha": "center", "va": "center", "fontsize": size, "color": ink}
                axes.text(column, row, text, **how)


def _cells(there: Deployed, order: list[int], colours: list[Any]) -> Floats:
    """Return the colour of each choice and client, clear where a choice makes no difference."""
    genes = np.array([there.genes[client] for client in order]).T
    image = np.zeros((*genes.shape, 4))
    image[..., :3] = [[colours[row][gene] for gene in line] for row, line in enumerate(genes)]
    image[..., 3] = 1
    for column, client in enumerate(order):
        image[list(there.idle[client]), column, 3] = 0
    return image


def _option_colours(search: Search) -> tuple[list[Any], list[Line2D]]:
    """Return of every choice its options' colours, and what they mean if that is one thing."""
    choices = search.found["choices"]
    options = [option_name(search, choices[0], k) for k in range(len(choices[0]["options"]))]
    same = all(
        [option_name(search, c, k) for k in range(len(c["options"]))] == options for c in choices
    )
    if same and len(options) <= len(KINDS):
        kinds = [to_rgb(colour) for colour in KINDS[: len(options)]]
        named = zip(options, kinds, strict=True)
        return [kinds] * len(choices), [square(colour, name) for name, colour in named]
    scales = [SCALE(np.linspace(0, 1, max(len(c["options"]), 2)))[:, :3] for c in choices]
    return scales, []


def _ends() -> list[Line2D]:
    ends = ((0.0, "smallest option"), (0.5, "between"), (1.0, "largest option"))
    return [square(SCALE(at), name) for at, name in ends]


def readable_on(colour: Any) -> str:
    """Return the ink that stands out most from a colour, by the contrast of WCAG 2."""
    light = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    return WHITE if np.dot(light, (0.2126, 0.7152, 0.0722)) < MIDDLE else BLACK


def square(colour: Any, name: str) -> Line2D:
    """Explain a colour."""
    how = {"linestyle": "", "marker": "s", "markersize": 8, "markeredgewidth": 0}
    return Line2D([], [], color=to_hex(colour), label=str(name), **how)
