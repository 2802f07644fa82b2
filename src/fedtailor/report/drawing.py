"""How a report draws: one colour for each group, one order of clients, in every picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedtailor.report.facts import BASELINE, algorithm
from fedtailor.report.svg import COLOURS, PAPER
from fedtailor.report.wording import clip
from fedtailor.runs.comparison import Group

HALF, THIRD = 4.75, 3.15  # inches of panels that stand two or three in a row, and one on a phone
MARKERS, LINES = "os^D", ("solid", "dashdot", "dotted", (0, (5, 1, 1, 1, 1, 1)))
WORST = (0, (4, 2))  # the line of the worst tenth
OVER = (0, (3, 3))  # a line upon an equal one, which shows between its dashes
MAX_BARS = 60  # clients drawn one by one
MAX_NAMED = 40  # clients with room for their numbers below the axis
MAX_LETTERS = 18  # of a client's name there
NAMED_AT_ONCE = 20  # clients named on an axis
LETTERS_AT_ONCE = 40  # of their names there, blanks between them included
LETTER = 5.7  # points that a letter is wide, about
MAX_TOLD = 600  # points of a picture that each say their client
MAX_PIXELS = 1000  # columns that a picture has room for
MAX_COLUMNS = 120  # clients whose columns say their client


@dataclass(frozen=True)
class Look:
    """How a group is drawn, in every picture."""

    title: str
    colour: str
    marker: str
    line: Any


def looks(groups: Sequence[Group]) -> list[Look]:
    """Give every group its colour; groups beyond the last colour differ in marker and line."""
    found = []
    for place, group in enumerate(groups):
        turn = place // len(COLOURS) % len(LINES)
        line = "dashed" if algorithm(group) == BASELINE else LINES[turn]
        title = clip(group.name, 40)
        found.append(Look(title, COLOURS[place % len(COLOURS)], MARKERS[turn], line))
    return found


def tell(artist: Artist, client: int, text: str) -> None:
    """Have an artist say its client to a pointer, and be highlighted with it."""
    artist.set_gid(f"client:{client}:{text}")


def columns(axes: Axes, order: Sequence[int], texts: Sequence[str]) -> None:
    """Have the columns of a picture say their clients."""
    if len(order) <= MAX_COLUMNS:
        for place, (client, text) in enumerate(zip(order, texts, strict=True)):
            span = axes.axvspan(place - 0.5, place + 0.5, color=PAPER, alpha=0, zorder=9)
            span.set_gid(f"column:{client}:{text}")


def dots(
    axes: Axes, points: Sequence[tuple[int, float, float, str]], look: Look, told: bool
) -> None:
    """Draw clients as points (client, x, y, text), each of which says its own if few are drawn."""
    how = {"marker": look.marker, "color": look.colour, "linestyle": "", "markeredgewidth": 0}
    if not told:
        x, y = ([point[at] for point in points] for at in (1, 2))
        many = len(points) > MAX_TOLD  # as pixels: shapes would be most of the page
        axes.plot(x, y, markersize=3.5, rasterized=many, alpha=0.5 if many else 1.0, **how)
        return
    for client, x, y, text in points:
        tell(axes.plot([x], [y], markersize=5.5, **how)[0], client, text)


def line_keys(groups: Sequence[Group]) -> list[Line2D]:
    """Explain the lines of groups, where there are several."""
    return [
        Line2D([], [], color=look.colour, linestyle=look.line, linewidth=2, label=look.title)
        for look in (looks(groups) if len(groups) > 1 else [])
    ]


def legend(figure: Figure, keys: Sequence[Line2D]) -> None:
    """Put a legend above the panel, with as many columns as there is room for."""
    if not keys:
        return
    room = 72 * figure.get_figwidth()
    longest = int((room - 40) / LETTER)
    lines = [[clip(line, longest) for line in str(key.get_label()).split("\n")] for key in keys]
    labels = ["\n".join(one) for one in lines]
    widths = [40 + LETTER * max(map(len, one)) for one in lines]
    wide = len(keys) if sum(widths) <= room else max(1, int(room / max(widths)))
    more = -(-sum(map(len, lines)) // wide) - 1  # rows must not take from the panel
    figure.set_figheight(figure.get_figheight() + 0.2 * more)
    figure.legend(
        keys, labels, loc="outside upper left", ncols=wide, fontsize=9.5, columnspacing=1.2
    )


def bars(axes: Axes, values: NDArray[Any], colour: str) -> None:
    """Draw a bar for each client; many are one shape, which is fast and small."""
    if len(values) <= MAX_BARS:
        axes.bar(np.arange(len(values)), values, width=0.8, color=colour)
    else:
        axes.stairs(*thinned(values), fill=True, color=colour, linewidth=0)
    axes.grid(visible=False, axis="x")


def rounds_axis(axes: Axes, rounds: Sequence[int]) -> None:
    """Have the axis below count rounds, which are whole, also where there is one only."""
    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
    if len(set(rounds)) == 1:
        axes.set_xlim(rounds[0] - 1, rounds[0] + 1)


def shade(
    axes: Axes, x: Sequence[int], low: Sequence[float], high: Sequence[float], colour: str
) -> None:
    """Draw what lies around a line: a band, or above a single place a bar."""
    if len(x) == 1:
        axes.vlines(x, low, high, color=colour, alpha=0.5, linewidth=2)
    else:
        axes.fill_between(x, low, high, color=colour, alpha=0.18, linewidth=0)


def thinned(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return clients' values and the edges of their columns; of many, means of neighbours."""
    count = min(len(values), MAX_PIXELS)
    edges = np.linspace(-0.5, len(values) - 0.5, count + 1)
    if count == len(values):
        return values, edges
    return np.array([part.mean() for part in np.array_split(values, count)]), edges


def name_clients(axes: Axes, order: Sequence[int], called: Mapping[int, str]) -> None:
    """Name the clients below the axis, if there is room, and say in what order they are."""
    named = len(order) <= MAX_NAMED
    names = axis_names(order, called) if named else []
    longest = max(map(len, names), default=0)
    room = NAMED_AT_ONCE if longest > 4 else LETTERS_AT_ONCE // (longest + 1)
    places = range(0, len(names), -(-len(names) // room)) if names else []
    axes.set_xticks(places, [names[place] for place in places], rotation=90 if longest > 4 else 0)
    if longest > 4:  # names must not take from the panel
        figure = cast(Figure, axes.figure)
        figure.set_figheight(figure.get_figheight() + 0.07 * longest)
    by = "by number" if list(order) == sorted(order) else "the largest gain first"
    axes.set_xlabel("client" if named else f"the {len(order):,} clients, {by}")
    axes.set_xlim(-0.6, len(order) - 0.4)


def axis_names(clients: Sequence[int], called: Mapping[int, str]) -> list[str]:
    """Return what clients are called on an axis; long names are shortened."""
    return [clip(called.get(client, str(client)), MAX_LETTERS) for client in clients]


def same_as_earlier(series: Sequence[Any]) -> list[int | None]:
    """Return of every series the place of an earlier equal one, which it would hide."""
    found: list[int | None] = []
    for place, one in enumerate(series):
        equal = (k for k in range(place) if found[k] is None and np.array_equal(series[k], one))
        found.append(next(equal, None) if len(one) else None)
    return found
