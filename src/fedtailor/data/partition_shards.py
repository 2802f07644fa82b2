"""A few classes for each client."""

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.proportions import assign_rows
from fedtailor.data.source import Ints


def shards(
    labels: Ints, clients: int, each: int, per_client: int | None, rng: np.random.Generator
) -> list[Ints]:
    """Give each client exactly `each` classes, all classes to about equally many clients."""
    totals = np.bincount(labels)
    present = int((totals > 0).sum())
    if each > min(present, per_client or present):
        raise UserError(
            f"data.classes_per_client: {each} is more than the classes of the data ({present}) or "
            f"than data.per_client ({per_client}), so lower it."
        )
    held = _assign_classes(totals, clients, each, rng)
    users = held.sum(axis=0)
    used = users > 0
    if per_client is None:
        part = int((totals[used] // users[used]).min())
        counts = held * part
    else:
        counts = held * (per_client // each)
        _add_rest(counts, held, per_client % each, totals)
    if counts.sum(axis=1).min() < each or (counts.sum(axis=0) > totals).any():
        wanted = "one image of each class" if per_client is None else f"{per_client} images"
        raise UserError(
            f"data.per_client: {clients} clients with {each} classes and {wanted} each need more "
            "images of a class than there are, so lower per_client or clients."
        )
    return assign_rows(labels, counts, rng)


def _assign_classes(totals: Ints, clients: int, each: int, rng: np.random.Generator) -> Ints:
    """Return 1 where a client holds a class: `each` per client, classes used equally often."""
    present = np.flatnonzero(totals)
    quota = np.full(len(present), clients * each // len(present))
    order = np.lexsort((rng.random(len(present)), -totals[present]))
    quota[order[: clients * each % len(present)]] += 1
    held = np.zeros((clients, len(totals)), dtype=np.int64)
    for client in range(clients):
        # The classes with the most users still to find, so that in the end none is left over.
        best = np.lexsort((rng.random(len(present)), -quota))[:each]
        quota[best] -= 1
        held[client, present[best]] = 1
    return held


def _add_rest(counts: Ints, held: Ints, rest: int, totals: Ints) -> None:
    """Give each client one more image of `rest` of its classes, those with the most to spare."""
    if rest == 0:
        return
    spare = totals - counts.sum(axis=0)
    for client, classes in enumerate(held):
        mine = np.flatnonzero(classes)
        chosen = mine[np.argsort(-spare[mine], kind="stable")[:rest]]
        counts[client, chosen] += 1
        spare[chosen] -= 1
