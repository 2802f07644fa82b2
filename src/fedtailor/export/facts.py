"""What there is to say of a client's model, for people who did not train it."""

from pathlib import Path
from typing import Any

from fedtailor.core import registry
from fedtailor.core.space import Task
from fedtailor.export.personal import PersonalModel, has_memory, is_own
from fedtailor.networks import cost
from fedtailor.runs import database
from fedtailor.runs.config import make_space
from fedtailor.runs.folder import PARTITION, Run, asked
from fedtailor.runs.summary import evaluated_round, headline


def facts_of(run: Run, client: int, model: PersonalModel) -> dict[str, Any]:
    """Gather what a run tells of a client's model; what is not known is None."""
    round = evaluated_round(run)
    counted = headline(run, round)
    scores = {
        split: dict(database.of_clients(run.db, round, split, counted, "accuracy")).get(client)
        for split in ("val", "test")
    }
    name = asked(run, "algorithm", "name")
    return {
        "algorithm": Path(name).name if is_own(name) else name,
        "model": counted,
        "rounds": run.last_round(),
        "sends": None if is_own(name) else _sends(name),
        "data": _data(run),
        "images": _images(run, client),
        "val_accuracy": scores["val"],
        "test_accuracy": scores["test"],
        "memory": has_memory(model),
        **_costs(model),
    }


def _costs(model: PersonalModel) -> dict[str, Any]:
    """Return parameters and multiply-adds of the network, without a memory beside it."""
    channels, height, width = model.shape
    task = Task((channels, height, width), len(model.labels))
    space = make_space(dict(model.about["space"])).at(task)
    arch = tuple(model.about["arch"])
    return {
        "parameters": cost.parameters(space, arch, task),
        "macs": cost.forward_macs(space, arch, task),
    }


def _sends(algorithm: str) -> list[str]:
    """Return what leaves a client, in words."""
    forms = registry.find("algorithm", algorithm)().sends()
    return list(dict.fromkeys(one.what for form in forms.values() for one in form))


def _data(run: Run) -> dict[str, Any]:
    """Return how the data was dealt, without paths of this machine."""
    told = asked(run, "data")
    found = {"name": Path(told["path"]).name if "path" in told else told.get("name")}
    scheme = told.get("partition")
    keys = {
        "dirichlet": ("alpha",),
        "dirichlet_equal": ("alpha",),
        "shards": ("classes_per_client",),
    }.get(scheme, ())
    found |= {key: told[key] for key in ("partition", *keys, "split") if key in told}
    return found | {"clients": len(database.devices(run.db))}


def _images(run: Run, client: int) -> dict[str, int] | None:
    """Return how many images a client has, by split."""
    if not (run.path / PARTITION).is_file():
        return None
    bounds = run.partition()["bounds"][client].tolist()
    return {name: bounds[at + 1] - bounds[at] for at, name in enumerate(("train", "val", "test"))}
