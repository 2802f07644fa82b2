"""A few clients that stand for all: those whose networks are drawn one by one."""

from collections.abc import Mapping

import numpy as np

MAX_COMPARED = 300  # clients among whom the two farthest are looked for


def representatives(
    accuracies: Mapping[int, float], genes: Mapping[int, tuple[int, ...]]
) -> dict[int, str]:
    """Return the best, the median and the worst client, and two with the most different networks.

    A client that is several of these is told once, with all that it is.
    """
    ranked = sorted(genes.keys() & accuracies.keys(), key=lambda c: (-accuracies[c], c))
    if not ranked:
        return {}
    picked = [(ranked[0], "best"), (ranked[len(ranked) // 2], "median"), (ranked[-1], "worst")]
    picked += [(client, "farthest apart") for client in _farthest(ranked[:MAX_COMPARED], genes)]
    found: dict[int, list[str]] = {}
    for client, why in picked if len(ranked) > 1 else picked[:1]:
        found.setdefault(client, []).append(why)
    return {client: ", ".join(dict.fromkeys(whys)) for client, whys in found.items()}


def _farthest(clients: list[int], genes: Mapping[int, tuple[int, ...]]) -> list[int]:
    """Return the two clients whose networks differ in most choices; none where all are equal."""
    table = np.array([genes[client] for client in clients])
    apart = np.array([(table != row).sum(axis=1) for row in table])
    if not apart.any():
        return []
    first, second = np.unravel_index(np.argmax(apart), apart.shape)
    return [clients[int(first)], clients[int(second)]]
