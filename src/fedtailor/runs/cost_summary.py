"""What a client's part of a round costs: computing, by parts, and bytes; and the server's own."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedtailor.core.records import Spent
from fedtailor.runs import database
from fedtailor.runs.folder import Run

Row: TypeAlias = tuple[int, int | None, Spent]  # round, client (None: the server), and what


def costs(run: Run) -> dict[str, Any] | None:
    """Return means and standard deviations over all clients' rounds; None: no times are kept.

    A part that a client did not do in a round counts there as 0, so that the parts' means add up
    to that of `sum`. The `server`'s are over rounds; `once` is over the clients that got something
    once, None if there are none. Seconds are of a CPU.
    """
    rows = database.timings(run.db)
    clients = [row for row in rows if row[1] is not None]
    server = [row for row in rows if row[1] is None]
    if not clients:
        return None
    return {
        "client_rounds": _steps(clients),
        **_by_part(clients, ("seconds", "macs")),
        "server": {"rounds": _steps(server), **_by_part(server, ("seconds",))},
        "bytes": {
            "down": _spread(database.bytes_of_clients(run.db, "down").values()),
            "up": _spread(database.bytes_of_clients(run.db, "up").values()),
            "once": _spread(_sent_once(run)),
        },
    }


def _steps(rows: Sequence[Row]) -> int:
    return len({(round, client) for round, client, _ in rows})


def _by_part(rows: Sequence[Row], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Spread what was spent over the steps: of every part, in order, and of their sum."""
    places = {step: place for place, step in enumerate(dict.fromkeys(row[:2] for row in rows))}
    by_part = {spent.part: np.zeros((len(places), len(kinds))) for *_, spent in rows}
    for round, client, spent in rows:
        step = by_part[spent.part][places[round, client]]
        step += [getattr(spent, kind) for kind in kinds]

    def spreads(spent: NDArray[np.float64]) -> dict[str, Any]:
        return {kind: _spread(column) for kind, column in zip(kinds, spent.T, strict=True)}

    found = {part: spreads(spent) for part, spent in by_part.items()}
    total = sum(by_part.values(), np.zeros((len(places), len(kinds))))
    return {"parts": found, "sum": spreads(total)}


def _sent_once(run: Run) -> list[int]:
    """Return the bytes of each client that got something once."""
    found: dict[int, int] = {}
    for (_, client), nbytes in database.bytes_of_clients(run.db, "once").items():
        found[client] = found.get(client, 0) + nbytes
    return list(found.values())


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return mean and standard deviation, None of nothing."""
    known = np.array(list(values), dtype=np.float64)
    return {"mean": float(known.mean()), "std": float(known.std())} if len(known) else None
