"""Figures as SVG: the same bytes every time, alone or several on one page."""

import html
import io
import re
import warnings
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from fedtailor.runs.folder import Run

INK, MUTED, GRID, PAPER = "#1c1d22", "#63666f", "#d8dae0", "#fefefd"
THEME = {INK: "var(--ink)", MUTED: "var(--muted)", GRID: "var(--line)", PAPER: "var(--card)"}
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

Draw = Callable[[Sequence[Run]], Figure | None]


def styled(draw: Draw) -> Draw:
    """Have a figure drawn in the report's style, whatever the process uses elsewhere."""

    @wraps(draw)
    def wrapper(runs: Sequence[Run]) -> Figure | None:
        with rc_context(STYLE):
            return draw(runs)

    return wrapper


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG file."""
    file = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with rc_context(STYLE), warnings.catch_warnings():
        # Text stays text: the reader's fonts draw it, not the one that measures it here.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(file, format="svg", metadata=nothing)
    return file.getvalue()


def inline(svg: str, name: str, title: str) -> str:
    """Return an SVG file as part of a page: ids its own, colours and fonts the page's."""
    body = svg[svg.index("<svg ") :]
    # Only tags: a class may be called url(#x).
    body = re.sub(r"<[^>]*>", lambda tag: _adapt(tag[0], name), body)
    width = float(re.search(r'width="([\d.]+)pt"', body)[1])  # pyright: ignore[reportOptionalSubscript]
    # Narrower than this nothing could be read; the page scrolls instead.
    least = f"min-width:{0.67 * width:.0f}pt"
    start = f'<svg role="img" aria-label="{html.escape(title)}" style="{least}" '
    return body.replace("<svg ", start, 1).rstrip()


def _adapt(tag: str, name: str) -> str:
    tag = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", tag)
    tag = re.sub(r"\bfont: ([\d.]+px)[^;\"]*", r"font-size: \1", tag)
    for colour, variable in THEME.items():
        tag = tag.replace(colour, variable)
    return tag
