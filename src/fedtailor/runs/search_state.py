"""What a search knows of its clients, read from the server's last state: no data is needed."""

from collections.abc import Callable
from typing import Any, TypeVar

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.runs.folder import Run

T = TypeVar("T")
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"  # options of a choice, in their order
MAX_ROWS = 40  # clients in a table for people
NAMED = 3  # choices that are called the most and the least decided


def searched(run: Run) -> dict[str, Any]:
    """Return what `Algorithm.inspect` says after the last round; {} where nothing is searched."""
    config = run.config
    algorithm, space = config.algorithm, config.space
    if not algorithm.searches or run.last_round() < 0:
        return {}
    kind, _ = state_types(algorithm)
    state = undisturbed(run, lambda: codec.read(kind, run.server_path(run.last_round())))
    return algorithm.inspect(space, state)


def undisturbed(run: Run, read: Callable[[], T]) -> T:
    """Read states once more where a run in progress deleted a file under us."""
    while True:
        last = run.last_round()
        try:
            return read()
        except UserError:
            if run.last_round() == last:
                raise


def mean_entropies(found: dict[str, Any]) -> dict[str, float]:
    """Return how undecided each choice is, on average over the clients' policies."""
    own, shared = found.get("clients", {}), found.get("shared")
    rows = [one["entropy"] for one in (own.values() if own or not shared else [shared])]
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in (choice["name"] for choice in found.get("choices", []))
        if rows
    }


def search_lines(found: dict[str, Any]) -> list[str]:
    """Tell every policy in a line, and which choices are decided."""
    rows = _policies(found)
    if not found.get("choices"):
        return []
    width = max(len(found["choices"]), len("most probable"))
    lines = [f"search          {_who(found)}, {len(found['choices'])} choices"]
    if rows:
        lines.append(f"client  {'most probable':{width}}  probability  mean entropy")
    for client, one in list(rows.items())[:MAX_ROWS]:
        entropy = sum(one["entropy"].values()) / len(one["entropy"])
        genes = "".join(DIGITS[gene] if gene < len(DIGITS) else "+" for gene in one["genes"])
        lines.append(f"{client:>6}  {genes:{width}}  {one['probability']:11.2g}  {entropy:12.3f}")
    if len(rows) > MAX_ROWS:
        lines.append(f"   ... and {len(rows) - MAX_ROWS} more (--json has all)")
    order = sorted(mean_entropies(found).items(), key=lambda item: item[1])
    if order:
        lines.append(f"most decided    {_named(order[:NAMED])}")
        lines.append(f"least decided   {_named(order[: -NAMED - 1 : -1])}")
        lines.append("                (a digit for each choice: its option, counted from 0;")
        lines.append("                entropy 0 is decided, 1 undecided; names are in --json)")
    return lines


def _policies(found: dict[str, Any]) -> dict[str, Any]:
    shared = {"shared": found["shared"]} if "shared" in found else {}
    return {**shared, **found.get("clients", {})}


def _who(found: dict[str, Any]) -> str:
    own = len(found.get("clients", {}))
    if not own:
        return "one policy for all clients" if "shared" in found else "no policy has learned yet"
    beside = " beside the one they share" if "shared" in found else ""
    return f"{own} clients have a policy of their own{beside}"


def _named(items: list[tuple[str, float]]) -> str:
    return ", ".join(f"{name} {entropy:.2f}" for name, entropy in items)
