"""What data the clients have."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedtailor.report.drawing import (
    HALF,
    MAX_BARS,
    MAX_PIXELS,
    bars,
    clip,
    columns,
    looks,
    name_clients,
)
from fedtailor.report.facts import (
    Labels,
    client_titles,
    clients_in_order,
    first_runs,
    label_counts,
    unseen_tests,
)
from fedtailor.report.svg import COLOURS, LOSER, MUTED, Drawn, styled
from fedtailor.report.wording import counted
from fedtailor.runs.comparison import Group, count_test_images, same_data
from fedtailor.runs.folder import Run, asked

MAX_BUBBLES = MAX_BARS, 30  # clients, classes


@styled
def label_distribution(groups: Sequence[Group]) -> Drawn | None:
    """Draw how many images of each class each client has."""
    run = groups[0].runs[0]
    labels = label_counts(run)
    if labels is None:
        return None
    order = [c for c in clients_in_order(groups) if c < len(labels.counts)]
    counts, unseen = labels.counts[order], _unseen(run, order, labels)
    figure = _picture(run, labels, order, counts, unseen, client_titles(groups))
    if not same_data(first_runs(groups)):
        axes = figure.axes[0]
        axes.set_title(f"{looks(groups)[0].title} only: {axes.get_title('left')}")
    rows = [
        (client, labels.classes[kind], int(counts[place, kind]), int(unseen[place, kind]))
        for place, client in enumerate(order)
        for kind in range(len(labels.classes))
        if counts[place, kind]
    ]
    return Drawn([figure], ("client", "class", "images", "unseen test images"), rows)


def _picture(
    run: Run,
    labels: Labels,
    order: list[int],
    counts: NDArray[np.int64],
    unseen: NDArray[np.int64],
    called: Mapping[int, str],
) -> Figure:
    clients, classes = counts.shape
    height = float(np.clip(0.26 * classes, 1.6, 5.2))
    figure = Figure(figsize=(HALF, height + 1.6), layout="constrained")
    sizes, axes = figure.subplots(2, sharex=True, height_ratios=(0.8, height))
    bars(sizes, counts.sum(axis=1), MUTED)
    sizes.set_ylabel("images")
    new = asked(run, "data", "new_clients")
    title = f"{clients:,} clients{f' ({new} new)' if new else ''}, {classes} classes, "
    title += f"{counts.sum():,} images"
    if clients <= MAX_BUBBLES[0] and classes <= MAX_BUBBLES[1]:
        _bubbles(axes, counts, height, unseen > 0)
    else:
        _heat(axes, counts, unseen > 0)
        title += f";\ntoo many for bubbles: the strongest colour is {counts.max():,} images"
    if unseen.any():
        images = counted(int(unseen.sum()), "test image")
        title += f";\n{images} {'is' if unseen.sum() == 1 else 'are'} of unseen classes"
    sizes.set_title(title)
    _name_classes(axes, labels)
    columns(axes, order, _texts(run, order, counts, unseen))
    name_clients(axes, order, called)
    return figure


def _texts(
    run: Run, order: list[int], counts: NDArray[np.int64], unseen: NDArray[np.int64]
) -> list[str]:
    images, found = count_test_images(run), []
    for place, client in enumerate(order):
        new = f", {unseen[place].sum()} of unseen classes" if unseen[place].any() else ""
        found.append(f"{counts[place].sum():,} images, {images.get(client, 0):,} to test{new}")
    return found


def _unseen(run: Run, order: list[int], labels: Labels) -> NDArray[np.int64]:
    found = unseen_tests(run)  # runs of before it was kept have none
    return np.zeros_like(labels.counts[order]) if found is None else found[order]


def _bubbles(
    axes: Axes, counts: NDArray[np.int64], height: float, unseen: NDArray[np.bool_]
) -> None:
    clients, classes = counts.shape
    cell = min(0.85 * HALF / clients, height / classes) * 72  # points
    client, kind = np.nonzero(counts)
    area = np.fmax(0.9 * cell**2 * counts[client, kind] / counts.max(), 1)
    axes.scatter(client, kind, s=area, color=COLOURS[0], linewidths=0)
    ring = 0.5 * cell**2
    axes.scatter(*np.nonzero(unseen), s=ring, facecolors="none", edgecolors=LOSER, linewidths=1.2)
    axes.set_ylim(classes - 0.4, -0.6)


def _heat(axes: Axes, counts: NDArray[np.int64], unseen: NDArray[np.bool_]) -> None:
    """Draw counts as opacity, so that none is the page's own colour, light or dark."""
    edges = (-0.5, len(counts) - 0.5, counts.shape[1] - 0.5, -0.5)
    if len(counts) > MAX_PIXELS:  # the page's bytes
        parts = np.array_split(np.arange(len(counts)), MAX_PIXELS)
        counts = np.stack([counts[part].max(axis=0) for part in parts])
        unseen = np.stack([unseen[part].any(axis=0) for part in parts])
    image = np.empty((*counts.T.shape, 4))
    image[..., :3] = np.where(unseen.T[..., None], to_rgb(LOSER), to_rgb(COLOURS[0]))
    image[..., 3] = np.sqrt(counts.T / max(counts.max(), 1))  # few images are to be seen, too
    axes.imshow(image, aspect="auto", interpolation="none", extent=edges)
    axes.grid(visible=False)


def _name_classes(axes: Axes, labels: Labels) -> None:
    step = -(-len(labels.classes) // MAX_BUBBLES[1])
    names = [clip(name, 16) for name in labels.classes[::step]]
    axes.set_yticks(range(0, len(labels.classes), step), names)
    axes.set_ylabel("class")
