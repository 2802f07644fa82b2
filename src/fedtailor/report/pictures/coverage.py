"""How often each option of a supernet was trained."""

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, looks
from fedtailor.report.option_shares import coverage
from fedtailor.report.search_facts import Search, option_name, searches
from fedtailor.report.svg import COLOURS, LOSER, Drawn, styled
from fedtailor.report.wording import clip
from fedtailor.runs.comparison import Group

MAX_PANELS = 4  # settings
MAX_OPTIONS = 12  # columns with room for numbers


@styled
def supernet_coverage(groups: Sequence[Group]) -> Drawn | None:
    """Draw the share of trained networks that took each option of each choice."""
    panels, rows = [], []
    for search in searches(groups)[:MAX_PANELS]:
        counts = coverage(search)
        if not counts:
            continue
        name = groups[search.place].name
        panels.append(_figure(search, counts, looks(groups)[search.place].title))
        rows += [
            (name, choice["name"], option_name(search, choice, gene), counts.get((place, gene), 0))
            for place, choice in enumerate(search.found["choices"])
            for gene in range(len(choice["options"]))
        ]
    return Drawn(panels, ("setting", "choice", "option", "networks"), rows) if panels else None


def _figure(search: Search, counts: dict[tuple[int, int], int], title: str) -> Figure:
    choices = search.found["choices"]
    widest = max(len(choice["options"]) for choice in choices)
    shares = np.full((len(choices), widest), np.nan)
    for place, choice in enumerate(choices):
        row = [counts.get((place, gene), 0) for gene in range(len(choice["options"]))]
        shares[place, : len(row)] = np.array(row) / max(sum(row), 1)
    figure = Figure(figsize=(HALF, 1.2 + 0.17 * len(choices)), layout="constrained")
    axes = figure.subplots()
    image = np.zeros((*shares.shape, 4))
    image[..., :3] = np.where((shares == 0)[..., None], to_rgb(LOSER), to_rgb(COLOURS[0]))
    image[..., 3] = np.where(shares == 0, 0.45, 0.85 * np.nan_to_num(shares) ** 0.5)
    axes.imshow(image, aspect="auto", interpolation="none")
    axes.grid(visible=False)
    if widest <= MAX_OPTIONS:
        for (i, j), value in np.ndenumerate(shares):
            if not np.isnan(value):
                axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=6.5)
    axes.set_yticks(range(len(choices)), [clip(c["name"], 28) for c in choices], fontsize=7.5)
    _name_options(axes, search)
    never = int((shares == 0).sum())
    told = f"{never} of {int((~np.isnan(shares)).sum())} options were never taken"
    axes.set_title(f"{title}\n{told}")
    return figure


def _name_options(axes: object, search: Search) -> None:
    """Name the columns by the options where all choices have the same, else by their places."""
    rows = [
        [option_name(search, choice, gene) for gene in range(len(choice["options"]))]
        for choice in search.found["choices"]
    ]
    same = all(row == rows[0] for row in rows)
    widest = max(len(row) for row in rows)
    names = [clip(name, 14) for name in rows[0]] if same else [str(k + 1) for k in range(widest)]
    how = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if same else {}
    axes.set_xticks(range(len(names)), names, fontsize=7.5, **how)  # pyright: ignore[reportAttributeAccessIssue]
    if not same:
        axes.set_xlabel("option, the smallest first")  # pyright: ignore[reportAttributeAccessIssue]
