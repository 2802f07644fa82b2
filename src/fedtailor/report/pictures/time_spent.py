"""Where time went: round by round, and within a client's part of a round."""

from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtailor.report.client_rounds import Failed, Work, client_rounds, failed_clients
from fedtailor.report.drawing import HALF, Look, axis_names, legend, looks
from fedtailor.report.facts import client_titles
from fedtailor.report.pictures.networks import square
from fedtailor.report.svg import COLOURS, INK, LOSER, Drawn, styled
from fedtailor.report.wording import clip
from fedtailor.runs.comparison import Group
from fedtailor.runs.cost_summary import costs

MAX_PANELS = 6  # settings
MAX_ROUNDS = 30  # the last ones
MAX_CLIENTS = 30  # those that rounds waited for longest
MORE = ("#f0e442", "#7b5ea7", "#a65628")  # parts beyond the page's colours


@styled
def timeline(groups: Sequence[Group]) -> Drawn | None:
    """Draw when each client was at work, whom a round waited for, and who failed."""
    panels, rows = [], []
    for group, look in zip(groups, looks(groups), strict=True):
        run = group.runs[0]
        works, failed = client_rounds(run), failed_clients(run)
        if works:
            rows += [
                (group.name, w.round, w.client, w.start, w.seconds, int(w.slowest), 0)
                for w in works
            ]
            rows += [(group.name, f.round, f.client, f.start, None, 0, 1) for f in failed]
            panels.append((works, failed, look))
    if not panels:
        return None
    called, several = client_titles(groups), len(groups) > 1
    drawn = [_gantt(*panel, called=called, several=several) for panel in panels[:MAX_PANELS]]
    names = ("setting", "round", "client", "start", "seconds", "waited for", "failed")
    return Drawn(drawn, names, rows)


@styled
def parts_of_a_round(groups: Sequence[Group]) -> Drawn | None:
    """Draw the CPU seconds of the parts of a client's round, where a method tells them apart."""
    found = [(group.name, costs(group.runs[0])) for group in groups]
    there = [(name, cost["parts"]) for name, cost in found if cost]
    if not any(len(parts) > 1 for _, parts in there):
        return None
    names = list(dict.fromkeys(part for _, parts in there for part in parts))
    tints = dict(zip(names, (*COLOURS, LOSER, *MORE), strict=False))
    figure = Figure(figsize=(HALF, 1.1 + 0.32 * len(there)), layout="constrained")
    axes = figure.subplots()
    for row, (_, parts) in enumerate(there):
        left = 0.0
        for part, spent in parts.items():
            seconds = spent["seconds"]["mean"]
            axes.barh(row, seconds, left=left, height=0.62, color=tints.get(part, INK))
            left += seconds
    axes.set_yticks(range(len(there)), [clip(name, 30) for name, _ in there])
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("CPU seconds of a client's round, mean")
    legend(figure, [square(tints.get(name, INK), name) for name in names])
    rows = [
        (name, part, spent["seconds"]["mean"], spent["seconds"]["std"], spent["macs"]["mean"])
        for name, parts in there
        for part, spent in parts.items()
    ]
    columns = ("setting", "part", "CPU seconds", "standard deviation", "multiply-adds")
    return Drawn([figure], columns, rows)


def _gantt(
    works: list[Work], failed: list[Failed], look: Look, called: Mapping[int, str], several: bool
) -> Figure:
    last = max(work.round for work in works) - MAX_ROUNDS
    works = [work for work in works if work.round > last]
    failed = [one for one in failed if one.round > last]
    waits: dict[int, float] = {one.client: 0.0 for one in failed}
    for work in works:
        waits[work.client] = waits.get(work.client, 0.0) + work.seconds * work.slowest
    shown = sorted(sorted(waits, key=lambda c: (-waits[c], c))[:MAX_CLIENTS])
    rows = {client: row for row, client in enumerate(shown)}
    figure = Figure(figsize=(HALF, 1.3 + 0.16 * len(shown)), layout="constrained")
    axes = figure.subplots()
    for client, row in rows.items():
        own = [work for work in works if work.client == client]
        slowest = sum(work.slowest for work in own)
        bars = axes.broken_barh(
            [(work.start, work.seconds) for work in own],
            (row - 0.38, 0.76),
            facecolors=[LOSER if work.slowest else look.colour for work in own],
        )
        bars.set_gid(f"client:{client}:slowest in {slowest} of {len(own)} rounds")
    crosses = [one for one in failed if one.client in rows]
    axes.plot([f.start for f in crosses], [rows[f.client] for f in crosses], "x", color=INK)
    axes.set_yticks(range(len(shown)), axis_names(shown, called), fontsize=7.5)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_xlabel("seconds, by the run's clock")
    axes.set_ylabel("client")
    told = f"rounds {max(last + 1, 1)} to {last + MAX_ROUNDS}"
    more = f", {len(shown)} of {len(waits)} clients" if len(waits) > len(shown) else ""
    axes.set_title((f"{look.title}: " if several else "") + told + more)
    cross = Line2D([], [], linestyle="", marker="x", color=INK, label="failed")
    keys = [square(look.colour, "at work"), square(LOSER, "waited for")]
    legend(figure, [*keys, cross] if crosses else keys)
    return figure
