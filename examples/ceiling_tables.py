"""The tables of `ceiling.py`: what of accuracies is due to architecture, client and both."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from ceiling_work import CLIENTS, Work
from torch import Tensor
from variance_parts import (
    budget_gain,
    interval,
    parts_of,
    perfect_gain,
    personal_gain,
    shrunk_gain,
)

from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.federation import Federation


def print_tables(works: Sequence[Work]) -> None:
    """Print all tables of which there is something, as Markdown."""
    print(HEAD + "\n|" + "---|" * 12)
    for work in works:
        for line in lines_of(work):
            print(line)
    print("\n" + STATISTICS_HEAD + "\n|" + "---|" * 9)
    for work in works:
        if work.file(f"statistics-{work.condition}").exists():
            print(_statistics_line(work))


STATISTICS_HEAD = (
    "| space | clients differ in | merged | measured | own | batch "
    "| measured - merged | own - merged | batch - merged |"
)


def frozen_table(work: Work, way: str, likely: bool = False, prior: bool = False) -> np.ndarray:
    """Return the means of clients' images by halves, in percent: (2, architectures, clients).

    Where clients differ in labels alone, all test images are used, weighted by the client's labels:
    what a client would have on very many images of its own kind.

    Args:
        work: which.
        way: of statistics.
        likely: log-likelihoods instead of accuracies.
        prior: whether the shares of a client's labels are added to the outputs.
    """
    kept, federation = np.load(work.file(f"frozen-{work.condition}")), work.federation()
    logits, labels = torch.from_numpy(kept[way]).float(), torch.from_numpy(kept["labels"])
    table = np.zeros((2, len(logits), CLIENTS))
    for client in range(CLIENTS):
        share, weights = _shares(work, federation, client, kept)
        known = logits + (share.clamp(min=1e-3).log() if prior else 0.0)
        if likely:
            values = known.log_softmax(2).gather(2, labels.expand(len(logits), -1)[..., None])[
                ..., 0
            ]
        else:
            values = (known.argmax(2) == labels).float()
        for half in (0, 1):
            table[half, :, client] = (values.double() @ weights[half]).numpy()
    return 100 * table


def _shares(
    work: Work, federation: Federation, client: int, kept: dict[str, np.ndarray]
) -> tuple[Tensor, list[Tensor]]:
    """Return the shares of a client's labels, and how much each test image of a half counts."""
    train, classes = federation.examples(client, "train"), federation.task.classes
    share = torch.bincount(train.labels[train.index], minlength=classes).double()
    share, labels = share / share.sum(), torch.from_numpy(kept["labels"])
    own = torch.from_numpy(np.isin(kept["images"], federation.examples(client, "test").index))
    weights = []
    for half in (0, 1):
        inside = torch.from_numpy(kept["images"] % 2 == half).double()
        if work.condition == "labels":  # classes count by their share, however many there are
            there = torch.bincount(labels, inside, classes)
            inside = inside * (share / there)[labels]
        else:
            inside = inside * own
        weights.append(inside / inside.sum())
    return share.float(), weights


def lines_of(work: Work) -> Iterator[str]:
    """Yield a line for each table of a space and condition that is there."""
    name = f"{work.space} | {work.condition}"
    if work.file(f"frozen-{work.condition}").exists():
        for way in ("merged", "measured"):
            yield _line(f"{name} | frozen, {way}", frozen_table(work, way))
            yield _line(f"{name} | frozen, {way}, likelihood", frozen_table(work, way, likely=True))
            if work.condition == "labels":
                with_prior = frozen_table(work, way, prior=True)
                yield _line(f"{name} | frozen, {way}, with its prior", with_prior)
                yield from _budget_lines(work, f"{way}, with its prior", with_prior)
    if work.file(f"tuned-{work.condition}").exists():
        kept = np.load(work.file(f"tuned-{work.condition}"))
        yield _line(f"{name} | tuned", 100 * kept["accuracy"].astype(np.float64))
        yield _line(f"{name} | tuned, likelihood", 100 * kept["likelihood"].astype(np.float64))


HEAD = (
    "| space | clients differ in | | mean | architecture | client | both | could be seen | chance "
    "| own minus common best | ... chosen with care | ... without error |"
)


def _line(name: str, halves: np.ndarray) -> str:
    parts = parts_of(halves)
    both = f"{parts.both:.2f} ({parts.both_low:.2f} to {parts.both_high:.2f})"
    numbers = [f"{v:.2f}" for v in (halves.mean(), parts.architecture, parts.client)]
    gains = [str(personal_gain(halves)), str(shrunk_gain(halves)), f"{perfect_gain(halves):+.2f}"]
    seen = [f"{parts.smallest:.2f}", f"{parts.chance:.2f}"]
    return "| " + " | ".join([name, *numbers, both, *seen, *gains]) + " |"


def _budget_lines(work: Work, way: str, right: np.ndarray) -> Iterator[str]:
    memory = np.load(work.file("frozen-labels"))["memory"]
    shares = numpy_rng_for(work.seed, "budgets").uniform(0.25, 1.4, CLIENTS)
    smallest = memory[:-1].min() / memory[-1]
    allowed = memory[:-1, None] <= np.maximum(shares, smallest) * memory[-1]
    yield (
        f"| {work.space} | budgets | frozen, {way} | one network that fits all, to the best on "
        f"average within each budget: {budget_gain(right, allowed)}; from there to one's own best: "
        f"{personal_gain(right, allowed)} |"
    )


def _statistics_line(work: Work) -> str:
    """Return the mean accuracy with statistics of each origin, and differences from merged ones."""
    means = 100 * np.load(work.file(f"statistics-{work.condition}"))["accuracy"].mean(1)
    cells = [f"{row.mean():.1f}" for row in means]
    gains = [str(interval(row - means[0])) for row in means[1:]]
    return " | ".join([f"| {work.space} | {work.condition}", *cells, *gains]) + " |"
