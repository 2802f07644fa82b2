"""Every client's network on every client's data: how personal networks are."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from fedtailor.report.drawing import HALF, axis_names, columns, looks
from fedtailor.report.facts import client_titles
from fedtailor.report.svg import COLOURS, INK, Drawn, styled
from fedtailor.report.wording import counted, percent
from fedtailor.runs import pair_table
from fedtailor.runs.comparison import Group
from fedtailor.runs.folder import Run
from fedtailor.runs.gains import Gain, gain_of

MAX_PANELS = 4  # settings
WHOSE = {"theirs": "their own weights", "global": "weights of the last supernet"}
MAX_WRITTEN = 12  # clients whose values are written into the cells


@styled
def personalisation(groups: Sequence[Group]) -> Drawn | None:
    """Draw the test accuracy of each client's network (column), tuned on each client's data."""
    panels, rows = [], []
    for group, look in zip(groups, looks(groups), strict=True):
        for run in group.runs:
            for weights, epochs, clients in measured(run):
                found = gain_of(run, weights, epochs, clients)
                name = f"{look.title}, " if len(groups) > 1 else ""
                whose, tuned = WHOSE.get(weights, weights), counted(epochs, "epoch")
                panels.append(
                    _figure(found, f"{name}{whose}, {tuned} of tuning", client_titles(groups))
                )
                rows += [
                    (
                        group.name,
                        weights,
                        epochs,
                        data,
                        network,
                        found.untuned[i, j],
                        found.tuned[i, j],
                    )
                    for i, data in enumerate(clients)
                    for j, network in enumerate(clients)
                ]
    names = ("setting", "weights", "epochs", "data of", "network of", "untuned", "tuned")
    return Drawn(panels[:MAX_PANELS], names, rows) if panels else None


def measured(run: Run) -> list[tuple[str, int, tuple[int, ...]]]:
    """Return weights, epochs and clients of matrices that are whole, of two clients or more."""
    found = []
    for weights, epochs in pair_table.gain_settings(run.db):
        pairs = {(p.client, p.network) for p in pair_table.tuned_pairs(run.db, weights, epochs)}
        clients = sorted(client for client, network in pairs if client == network)
        while clients and any((a, b) not in pairs for a in clients for b in clients):
            clients.pop()  # networks are tuned in order: the last ones may be missing
        if len(clients) > 1:
            found.append((weights, epochs, tuple(clients)))
    return found


def _figure(found: Gain, title: str, called: Mapping[int, str]) -> Figure:
    from scipy.cluster.hierarchy import leaves_list, linkage  # takes long to import

    order = leaves_list(linkage(found.tuned, "average")).tolist()
    table = found.tuned[np.ix_(order, order)]
    clients = [found.clients[place] for place in order]
    figure = Figure(figsize=(HALF, HALF), layout="constrained")
    axes = figure.subplots()
    image = np.empty((*table.shape, 4))
    image[..., :3] = to_rgb(COLOURS[0])
    span = max(float(np.ptp(table)), 1e-9)
    image[..., 3] = 0.08 + 0.72 * (table - table.min()) / span
    axes.imshow(image, interpolation="none")
    axes.grid(visible=False)
    if len(order) <= MAX_WRITTEN:
        for (i, j), value in np.ndenumerate(table):
            text, weight = f"{100 * value:.0f}", "bold" if i == j else "normal"
            axes.text(j, i, text, fontsize=8, ha="center", va="center", weight=weight)
    else:
        axes.plot(range(len(order)), range(len(order)), "s", color=INK, markersize=3, alpha=0.6)
    columns(axes, clients, [f"own {percent(table[i, i])}" for i in range(len(clients))])
    step = -(-len(clients) // 20)
    places = range(0, len(clients), step)
    names = axis_names([clients[place] for place in places], called)
    axes.set_xticks(places, names, rotation=90 if max(map(len, names)) > 4 else 0)
    axes.set_yticks(places, names)
    axes.set_xlabel("network of client")
    axes.set_ylabel("data of client")
    gain, chance = float(found.of_clients.mean()), found.chance
    told = f"{100 * abs(gain):.1f} points {'worse' if gain < 0 else 'better'}"
    axes.set_title(f"{title}\nown networks are {told}, p = {chance.p:.3f}")
    return figure
