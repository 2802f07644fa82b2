"""What a run found, as plain data: for `show`, the report and scripts."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.runs import database, headlines
from fedtailor.runs.archives import archives
from fedtailor.runs.clients import client_names
from fedtailor.runs.cost_summary import costs
from fedtailor.runs.folder import Run, asked


class Summary(dict[str, Any]):
    """What a run found: a dictionary that says in short what is in it."""

    def __repr__(self) -> str:
        """Say what was run, what it reached and which keys there are."""
        found, keys = self.get("test_accuracy"), ", ".join(self)
        reached = (
            "nothing tested yet"
            if found is None
            else f"test accuracy {100 * found['mean']:.1f} ± {100 * found['std']:.1f} % over "
            f"{len(found['per_client'])} clients, worst 10 % {100 * found['worst10']:.1f} %"
        )
        told = ("algorithm", "space", "data", "rounds", "planned_rounds")
        what = headlines.in_words(*(self.get(key) for key in told))
        return f"Summary({what}, {reached}; keys: {keys})"


def summarise(run: str | Path | Run) -> Summary:
    """Summarise a run; values that do not exist yet are None, clients go by their numbers."""
    run = run if isinstance(run, Run) else Run(run)
    data, evaluated, tests = asked(run, "data"), evaluated_round(run), tested_images(run)
    wall_s, modelled_s = database.seconds_spent(run.db)
    return Summary(
        {
            "run": str(run.path),
            "algorithm": asked(run, "algorithm", "name"),
            "space": asked(run, "space", "name"),
            "data": data.get("path") or asked(run, "data", "name"),
            "client_names": client_names(run),
            "rounds": max(run.last_round(), 0),
            "planned_rounds": asked(run, "rounds"),
            "finished": run.finished(),
            "evaluated_round": evaluated,
            "digest": digest(run),
            "test_images": _counted(tests),
            "test_accuracy": _weighed(spread(run, evaluated, headline(run, evaluated)), tests),
            "untuned": _weighed(spread(run, evaluated, "untuned"), tests),
            "trained": trained(run),
            "kept": spread(run, evaluated, "kept"),
            "seen_labels": spread(run, evaluated, headline(run, evaluated), "seen_accuracy"),
            "unseen_labels": spread(run, evaluated, headline(run, evaluated), "unseen_accuracy"),
            "val_selected": _weighed(_selected(run, database.selected_round(run.db)), tests),
            "curve": curve(run),
            "other_scores": _other_scores(run, evaluated),
            "bytes": database.bytes_sent(run.db),
            "cost": costs(run),
            "wall_s": round(wall_s, 3),
            "modelled_s": round(modelled_s, 3),
            "failures": database.failures(run.db),
            "search": database.search(run.db),
            "archives": archives(run),
        }
    )


def tested_images(run: Run) -> dict[int, int]:
    """Return how many test images each client has that takes part; {} where it is not known."""
    bounds = run.partition("bounds").get("bounds")
    sizes = [] if bounds is None else (bounds[:, 3] - bounds[:, 2]).tolist()
    tested = database.of_clients(run.db, evaluated_round(run), "test", "untuned", "accuracy")
    who = {client for client, _ in tested}
    return {client: size for client, size in enumerate(sizes) if client in who}


def evaluated_round(run: Run) -> int | None:
    """Return the last round after which all clients were tested."""
    return headlines.evaluated_round(run.db)


def headline(run: Run, round: int | None) -> str:
    """Return the model that counts: the last that a client would deploy."""
    return headlines.deployed_model(run.db, round)


def spread(
    run: Run, round: int | None, model: str, score: str = "accuracy", split: str = "test"
) -> dict[str, Any] | None:
    """Return how a score is spread over the clients: mean, std, worst tenth, each client's."""
    rows = database.of_clients(run.db, round, split, model, score)
    return _spread(rows) if rows else None


def trained(run: Run) -> dict[str, Any] | None:
    """Return the paper's way: each client's latest drawn subnet, tested after local training.

    Clients that were never drawn are missing; `of` counts all that were ever tested.
    """
    latest: dict[int, float] = {}
    for _, client, value in database.over_rounds(run.db, "test", "trained", "accuracy"):
        latest[client] = value
    found = _spread(sorted(latest.items())) if latest else None
    return found and found | {"of": database.tested_clients(run.db)}


def worst_tenth(values: np.ndarray) -> float:
    """Average the worst 10 % of the clients, one at least."""
    return float(np.sort(values)[: max(1, len(values) // 10)].mean())


def curve(run: Run, score: str = "accuracy", split: str = "test") -> list[dict[str, float]]:
    """Return mean and worst tenth, untuned, after every evaluated round."""
    found = []
    for round in database.tested_rounds(run.db):
        if values := spread(run, round, "untuned", score, split):
            found.append({"round": round, "mean": values["mean"], "worst10": values["worst10"]})
    return found


def digest(run: Run) -> str:
    """Hash the digests of all states, all metrics and architectures: equal for equal runs."""
    last = run.last_round()
    total = hashlib.sha256(repr(database.server_state(run.db, last)).encode())
    for row in (*database.client_states(run.db, last), *database.results(run.db)):
        total.update(repr(row).encode())
    return total.hexdigest()


def _spread(rows: list[tuple[int, float]]) -> dict[str, Any]:
    values = np.array([value for _, value in rows])
    return {
        "mean": float(values.mean()),
        "std": float(values.std()),
        "worst10": worst_tenth(values),
        "per_client": dict(rows),
    }


def _counted(tests: dict[int, int]) -> dict[str, int] | None:
    """Return how many test images there are in all, and at the client that has the fewest."""
    return {"all": sum(tests.values()), "fewest": min(tests.values())} if tests else None


def _weighed(found: dict[str, Any] | None, tests: dict[int, int]) -> dict[str, Any] | None:
    """Add the mean over all test images, as other tools print it: large clients count more."""
    if found is None:
        return None
    known = [(value, tests.get(client, 0)) for client, value in found["per_client"].items()]
    total = sum(size for _, size in known)
    mean = sum(value * size for value, size in known) / total if total else None
    return found | {"mean_over_images": mean}


def _selected(run: Run, best: int | None) -> dict[str, Any] | None:
    if best is None or not run.finished():
        return None
    found = spread(run, best, headline(run, best))
    return {"round": best, **found} if found else None


def _other_scores(run: Run, round: int | None) -> dict[str, Any]:
    model = headline(run, round)
    others = {}
    for score in ("balanced_accuracy", "macro_f1", "loss"):
        if found := spread(run, round, model, score):
            others[score] = {key: found[key] for key in ("mean", "std")}
    return others
