"""What a run found, as plain data: for `show`, the report and scripts."""

import hashlib
import json
from typing import Any

import numpy as np

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.runs.folder import Run, state_file, undisturbed
from fedtailor.runs.search_state import searched


def summarise(run: Run) -> dict[str, Any]:
    """Summarise a run; values that do not exist yet are null."""
    config, last = run.config, run.last_round()
    evaluated = evaluated_round(run)
    best = run.best_round()
    bytes_ = dict(run.query("SELECT direction, sum(bytes) FROM message GROUP BY direction"))
    spent = run.query("SELECT coalesce(sum(wall_s), 0), coalesce(sum(modelled_s), 0) FROM state")[0]
    return {
        "run": str(run.path),
        "algorithm": config.algorithm_name,
        "space": config.space_name,
        "data": config.data.path or config.data.name,
        "rounds": max(last, 0),
        "planned_rounds": config.rounds,
        "finished": run.finished(),
        "evaluated_round": evaluated,
        "digest": digest(run),
        "test_accuracy": spread(run, evaluated, headline(run, evaluated)),
        "untuned": spread(run, evaluated, "untuned"),
        "trained": trained(run),
        "val_selected": _selected(run, best),
        "curve": curve(run),
        "other_scores": _other_scores(run, evaluated),
        "bytes": {"up": bytes_.get("up", 0), "down": bytes_.get("down", 0)},
        "wall_s": round(spent[0], 3),
        "modelled_s": round(spent[1], 3),
        "failures": run.query(
            "SELECT count(*) FROM (SELECT DISTINCT round, client FROM event WHERE kind = 'failure')"
        )[0][0],
        "search": searched(run),
    }


def evaluated_round(run: Run) -> int | None:
    """Return the last round after which all clients were tested."""
    return run.query("SELECT max(round) FROM event WHERE kind = 'models'")[0][0]


def labels(run: Run, round: int | None) -> list[str]:
    """Return the models that were tested after a round, in the order they were deployed."""
    rows = run.query(
        "SELECT DISTINCT name FROM metric WHERE round = ? AND split = 'test'"
        " AND name LIKE '%/accuracy'",
        round,
    )
    found = {name.removesuffix("/accuracy") for (name,) in rows}
    known = run.query("SELECT text FROM event WHERE kind = 'models' ORDER BY at DESC LIMIT 1")
    order = json.loads(known[0][0]) if known else ["untuned"]
    return [label for label in order if label in found]


def headline(run: Run, round: int | None) -> str:
    """Return the model that counts: the last that a client would deploy."""
    return (labels(run, round) or ["untuned"])[-1]


def spread(
    run: Run, round: int | None, label: str, score: str = "accuracy", split: str = "test"
) -> dict[str, Any] | None:
    """Return how a score is spread over the clients: mean, std, worst tenth, each client's."""
    rows = run.query(
        "SELECT client, value FROM metric WHERE round = ? AND split = ? AND name = ?"
        " ORDER BY client",
        round,
        split,
        f"{label}/{score}",
    )
    return _spread(rows) if rows else None


def trained(run: Run) -> dict[str, Any] | None:
    """Return the paper's way: each client's latest drawn subnet, tested after local training.

    Clients that were never drawn are missing; `of` counts all that were ever tested.
    """
    rows = run.query(
        "SELECT client, value, max(round) FROM metric"  # value is that of the round
        " WHERE split = 'test' AND name = 'trained/accuracy' GROUP BY client"
    )
    return _spread([row[:2] for row in rows]) | {"of": tested_clients(run)} if rows else None


def tested_clients(run: Run) -> int:
    """Count the clients that were ever tested."""
    return run.query("SELECT count(DISTINCT client) FROM metric WHERE split = 'test'")[0][0]


def worst_tenth(values: np.ndarray) -> float:
    """Average the worst 10 % of the clients, one at least."""
    return float(np.sort(values)[: max(1, len(values) // 10)].mean())


def curve(run: Run, score: str = "accuracy", split: str = "test") -> list[dict[str, float]]:
    """Return mean and worst tenth, untuned, after every evaluated round."""
    rounds = run.query("SELECT DISTINCT round FROM event WHERE kind = 'models' ORDER BY round")
    found = []
    for (round,) in rounds:
        if values := spread(run, round, "untuned", score, split):
            found.append({"round": round, "mean": values["mean"], "worst10": values["worst10"]})
    return found


def digest(run: Run) -> str:
    """Hash the server's state, all client states and all metrics: equal for equal runs."""
    return undisturbed(run, lambda: _digest(run))


def _digest(run: Run) -> str:
    last, kinds = run.last_round(), state_types(run.config.algorithm)
    total = hashlib.sha256()
    if last >= 0:
        total.update(codec.digest(codec.read(kinds[0], run.server_path(last))).encode())
    for client, round in sorted(run.versions(last).items()):
        own = codec.read(kinds[1], run.states / state_file(client, round))
        total.update(f"{client}|{round}|{codec.digest(own)}".encode())
    for table in ("metric", "architecture"):
        for row in run.query(f"SELECT * FROM {table} ORDER BY 1, 2, 3, 4, 5"):
            total.update(repr(row).encode())
    return total.hexdigest()


def _spread(rows: list[tuple[int, float]]) -> dict[str, Any]:
    values = np.array([value for _, value in rows])
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst10": worst_tenth(values),
        "per_client": {str(client): value for client, value in rows},
    }


def _selected(run: Run, best: int | None) -> dict[str, Any] | None:
    if best is None or not run.finished():
        return None
    found = spread(run, best, headline(run, best))
    return {"round": best, **found} if found else None


def _other_scores(run: Run, round: int | None) -> dict[str, Any]:
    label = headline(run, round)
    others = {}
    for score in ("balanced_accuracy", "macro_f1", "loss"):
        if found := spread(run, round, label, score):
            others[score] = {key: found[key] for key in ("mean", "std")}
    return others
