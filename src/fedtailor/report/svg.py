"""Figures as SVG: the same bytes every time, alone or several on one page.

An artist whose gid is `client:7:TEXT` becomes an element that says TEXT to a pointer, and that
the page can highlight with everything else of client 7; `column:7:TEXT` is one that is only seen
while it is highlighted.
"""

import html
import io
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

from matplotlib import rc_context
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from fedtailor.runs.comparison import Group

INK, MUTED, GRID, PAPER = "#1c1d22", "#63666f", "#d8dae0", "#fefefd"
# Okabe and Ito's colours; vermilion is kept for losers, black and yellow vanish on dark and light.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#8a8a8a")
LOSER = "#d55e00"
THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", PAPER: "var(--card)"}
THEME |= {colour: f"var(--c{place})" for place, colour in enumerate(COLOURS)}
THEME |= {LOSER: "var(--loser)"}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedtailor",  # else ids are drawn at random
    "svg.fonttype": "none",
    "text.parse_math": False,  # names may hold a $
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": MUTED,
    "axes.facecolor": PAPER,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "figure.facecolor": PAPER,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "text.color": INK,
    "xtick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.color": MUTED,
    "ytick.labelcolor": INK,
}


@dataclass(frozen=True)
class Drawn:
    """A picture: its panels, which a page may set below one another, and its numbers."""

    panels: Sequence[Figure]
    columns: tuple[str, ...]  # of the table
    rows: Sequence[tuple[Any, ...]]
    note: str = ""  # what the caption must say of these runs


Draw = Callable[[Sequence[Group]], Drawn | None]


def styled(draw: Draw) -> Draw:
    """Have figures drawn in the report's style, whatever the process uses elsewhere."""

    @wraps(draw)
    def wrapper(groups: Sequence[Group]) -> Drawn | None:
        with rc_context(STYLE):
            return draw(groups)

    return wrapper


def to_svg(figure: Figure, called: Mapping[int, str] = {}) -> str:
    """Return a figure as an SVG file; what it tells of clients names them as they are called."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(STYLE), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw it, not the one that measures it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        _lay_out(figure)
        figure.savefig(file, format="svg", metadata=nothing)
    told = r'<g id="(client|column):(\d+):([^"]*)">'

    def group(found: re.Match[str]) -> str:
        kind, client, text = found.groups()
        who = html.escape(called.get(int(client), client))
        return f'<g class="{kind}" data-client="{client}"><title>client {who}: {text}</title>'

    return re.sub(told, group, file.getvalue())


def _lay_out(figure: Figure) -> None:
    """Lay a figure out once and for all: saving would draw everything another time for that."""
    FigureCanvasSVG(figure)  # by whose letters it is measured
    if engine := figure.get_layout_engine():
        engine.execute(figure)
        figure.set_layout_engine(None)


def inline(svg: str, name: str, title: str) -> str:
    """Return an SVG file as part of a page: ids its own, colours and fonts the page's."""
    body = svg[svg.index("<svg ") :]
    # Only tags: a class may be called url(#x).
    body = re.sub(r"<[^>]*>", lambda tag: _adapt(tag[0], name), body)
    start = f'<svg role="img" aria-label="{html.escape(title)}" '
    return body.replace("<svg ", start, 1).rstrip()


def _adapt(tag: str, name: str) -> str:
    tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    # Coordinates need no millionths: they are most of a page.
    tag = re.sub(r"(?<=\d\.\d\d)\d+(?=[ \"\n,)])", "", tag)
    tag = re.sub(r"\bfont: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    for colour, variable in THEME.items():
        tag = tag.replace(colour, variable)
    return tag
