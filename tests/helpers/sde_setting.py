"""PerFedSDE-NAS in a space of small networks, with a generator that takes no time."""

from pathlib import Path
from typing import Any

from fedtailor.algorithms.perfedsde import PerFedSDENAS
from fedtailor.core.types import Client, ClientInfo, Message, Server, Setting
from fedtailor.data.federation import Federation
from fedtailor.search.diffusion.encoder_networks import SMALL_FEATURES
from fedtailor.search.diffusion.generator import save
from tests.helpers import tiny_space
from tests.helpers.tiny_generator import generator

SPACE = f"{tiny_space.__file__}:Tiny"


def write_generator(folder: Path) -> str:
    """Write a generator of the tiny space, which knows the package's encoder."""
    file = folder / "generator.safetensors"
    save(generator(tiny_space.Tiny(), SMALL_FEATURES), file)
    return str(file)


def table(**changes: Any) -> dict[str, Any]:
    """Return a small experiment; changes are fields of the algorithm."""
    algorithm = {
        "name": "perfedsde", "iterations": 2, "population": 8, "archive": 3, "candidates": 8,
        "offspring": 3, "finetune_epochs": 1, "batch": 16, "lr": 0.1, "proposer": "evolution",
    }  # fmt: skip
    return {
        "rounds": 3,
        "cohort": 2,
        "eval_every": 2,
        "save_models": False,
        "algorithm": algorithm | changes,
        "space": {"name": SPACE},
        "data": {"clients": 4, "per_client": 60, "partition": "dirichlet_equal", "alpha": 0.5},
        "engine": {"workers": 0},
    }


def algorithm_of(**changes: Any) -> PerFedSDENAS:
    """Return the algorithm of that experiment."""
    fields = table(**changes)["algorithm"]
    return PerFedSDENAS(**{name: value for name, value in fields.items() if name != "name"})


def tiny_setting(federation: Federation) -> Setting:
    """Return a setting of the tiny space."""
    return Setting(federation.task, tiny_space.Tiny(), rounds=10, seed=3)


def client_of(
    federation: Federation, setting: Setting, number: int, round: int, **more: Any
) -> Client:
    """Return a client as an engine would."""
    train, val, test = (federation.examples(number, s) for s in ("train", "val", "test"))
    return Client(setting, ClientInfo(number, len(train)), round, train, val, test, **more)


def served(how: PerFedSDENAS, client: Client) -> Message:
    """Return what a client gets in the first round."""
    server = Server(client.setting, 1, (client.info,))
    return how.serve(server, how.server_init(server), client.info)
