"""Searched DARTS cells, of clients that stand for all."""

import re
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, looks
from fedtailor.report.facts import client_titles
from fedtailor.report.representatives import representatives
from fedtailor.report.search_facts import Deployed, Search, deployed, option_name, searches
from fedtailor.report.svg import COLOURS, GRID, INK, LOSER, MUTED, PAPER, Drawn, styled
from fedtailor.report.wording import percent
from fedtailor.runs.comparison import Group, accuracies

EDGE = re.compile(r"(normal|reduction) (\S+) to (\S+)")
MAX_RUNS = 3  # settings whose cells are drawn
PLACES = {
    "c_{k-2}": (0.0, 1.0), "c_{k-1}": (0.0, -1.0), "0": (1.5, 1.0), "1": (3.0, -1.0),
    "2": (4.5, 1.0), "3": (6.0, -1.0), "out": (7.2, 0.0),
}  # fmt: skip
# Where an edge's label stands, as a part of its length: no two stand on one another.
LABELS = {
    ("c_{k-2}", "1"): 0.25, ("c_{k-1}", "2"): 0.25, ("c_{k-2}", "2"): 0.4, ("0", "1"): 0.7,
    ("0", "3"): 0.25, ("1", "2"): 0.72,
}  # fmt: skip
SHORT = {
    "skip_connect": "skip", "max_pool_3x3": "max 3", "avg_pool_3x3": "avg 3", "noise": "noise",
    "sep_conv_3x3": "sep 3", "sep_conv_5x5": "sep 5", "dil_conv_3x3": "dil 3",
    "dil_conv_5x5": "dil 5",
}  # fmt: skip
TINTS = {"skip": COLOURS[2], "max": COLOURS[5], "avg": COLOURS[5], "noise": LOSER}
TINTS |= {"sep": COLOURS[0], "dil": COLOURS[3]}


@styled
def searched_cells(groups: Sequence[Group]) -> Drawn | None:
    """Draw both cells of representative clients' networks, every edge with its operations."""
    panels, rows = [], []
    shown = [(one, there) for one in searches(groups) if (there := _cells_of(one))][:MAX_RUNS]
    for search, there in shown:
        values, called = accuracies(search.run), client_titles(groups)
        for client, why in representatives(values, there.genes).items():
            edges = _edges(search, there, client)
            name = f"{looks(groups)[search.place].title}\n" if len(groups) > 1 else ""
            title = f"{name}client {called.get(client, client)} ({why}): {percent(values[client])}"
            panels.append(_figure(edges, title))
            rows += [(groups[search.place].name, client, why, *edge) for edge in edges]
    if not panels:
        return None
    return Drawn(panels, ("setting", "client", "why", "cell", "from", "to", "operations"), rows)


def _cells_of(search: Search) -> Deployed | None:
    choices = search.found["choices"]
    return deployed(search.run) if all(EDGE.fullmatch(c["name"]) for c in choices) else None


def _edges(search: Search, there: Deployed, client: int) -> list[tuple[str, str, str, str]]:
    """Return cell, source, target and operations of every edge."""
    found = []
    for choice, gene in zip(search.found["choices"], there.genes[client], strict=True):
        match = EDGE.fullmatch(choice["name"])
        assert match is not None  # _cells_of has seen it
        cell, source, target = match.groups()
        found.append((cell, source, target, option_name(search, choice, gene)))
    return found


def _figure(edges: list[tuple[str, str, str, str]], title: str) -> Figure:
    figure = Figure(figsize=(HALF, 4.8), layout="constrained")
    for axes, cell in zip(figure.subplots(2), ("normal", "reduction"), strict=True):
        _cell(axes, [edge[1:] for edge in edges if edge[0] == cell])
        axes.set_title(f"{title}\n{cell} cell" if cell == "normal" else "reduction cell")
    return figure


def _cell(axes: Axes, edges: list[tuple[str, str, str]]) -> None:
    import networkx as nx  # takes long to import

    graph = nx.DiGraph([(source, target) for source, target, _ in edges])
    graph.add_edges_from((node, "out") for node in "0123")
    nx.draw_networkx_nodes(
        graph, PLACES, ax=axes, node_size=330, node_color=PAPER, edgecolors=MUTED
    )
    named = {node: node.strip("c_{}") for node in graph}  # the inputs are k-2 and k-1
    nx.draw_networkx_labels(graph, PLACES, named, ax=axes, font_size=6.5, font_color=INK)
    for node in "0123":
        _arrow(axes, graph, (node, "out"), GRID, "solid", "")
    for source, target, operations in edges:
        alive = [name for name in operations.split("+") if name != "none"]
        line = "solid" if alive else "dotted"
        _arrow(axes, graph, (source, target), _tint(alive), line, _label(alive))
    axes.set_axis_off()
    axes.set_xlim(-0.5, 7.6)
    axes.set_ylim(-2.6, 2.3)


def _label(alive: list[str]) -> str:
    """Name the operations of an edge; more than two have no room."""
    return "+".join(SHORT.get(name, name) for name in alive) if len(alive) < 3 else f"{len(alive)}"


def _tint(alive: list[str]) -> str:
    """Return an edge's colour: its operation's, if there is one."""
    if len(alive) != 1:
        return INK if alive else GRID
    return TINTS.get(alive[0].split("_")[0], INK)


def _arrow(
    axes: Axes, graph: Any, edge: tuple[str, str], colour: str, line: str, label: str
) -> None:
    """Draw an edge; one along a row of nodes goes around those between."""
    import networkx as nx

    (x0, y0), (x1, y1) = (PLACES[node] for node in edge)
    bend = 0.0
    if y0 == y1:
        bend = (-1.0 if y0 > 0 else 1.0) * (0.0 if x1 - x0 < 2 else 0.34 if x1 - x0 < 4 else 0.27)
    style = f"arc3,rad={bend}"
    how: dict[str, Any] = {
        "edgelist": [edge],
        "ax": axes,
        "connectionstyle": style,
        "edge_color": colour,
    }
    nx.draw_networkx_edges(graph, PLACES, style=line, width=1.3, arrowsize=7, node_size=330, **how)
    if label:
        box = {"boxstyle": "round,pad=0.1", "facecolor": PAPER, "edgecolor": "none"}
        nx.draw_networkx_edge_labels(
            graph, PLACES, {edge: label}, label_pos=LABELS.get(edge, 0.5), font_size=6.5,
            font_color=colour, rotate=False, bbox=box, ax=axes, connectionstyle=style,
            node_size=330,
        )  # fmt: skip
