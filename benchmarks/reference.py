"""The reference job, for fedtailor and, written to a file, for the plain loop.

FedAvg, 20 clients of 100 colour images of 32x32, 5 per round, one epoch of batches of 32, SGD 0.01,
a CNN of about half a million parameters. The images are random: only time counts.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.core.rng import rng_for
from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import clients_of, setting_of
from fedtailor.experiment.rounds import draw_cohort
from fedtailor.networks.initial import initial_weights
from fedtailor.runs.config import make_config

CLIENTS, IMAGES = 20, 100


def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return images, labels and clients; two images more than a client trains on, to test it."""
    rng = np.random.default_rng(0)
    count = CLIENTS * (IMAGES + 2)
    images = rng.integers(0, 256, (count, 3, 32, 32), dtype=np.uint8)
    return images, rng.integers(0, 10, count), np.repeat(np.arange(CLIENTS), IMAGES + 2)


def table(rounds: int, workers: int) -> dict[str, Any]:
    """Return the job as a config."""
    return {
        "rounds": rounds,
        "cohort": 5,
        "eval_every": rounds,
        "save_models": False,
        "algorithm": {"name": "fedavg", "lr": 0.01, "momentum": 0.0, "finetune_epochs": 0},
        "space": {"name": "cnn"},
        "data": {
            "path": f"{__file__}:data",
            "partition": "by_client",
            "fractions": [0.98, 0.01, 0.01],
            "min_size": 1,
        },
        "engine": {"workers": workers, "device": "cpu"},
    }


def write_job(path: Path, rounds: int) -> None:
    """Write what fedtailor will do, so that the plain loop can do the same and be compared."""
    config = make_config(table(rounds, 0))
    federation = load_federation(config.data)
    rows = torch.stack([federation.examples(c, "train").index for c in range(CLIENTS)])
    clients = clients_of(federation, config)
    cohorts = [
        [info.id for info in draw_cohort(clients, config.cohort, config.seed, round)]
        for round in range(1, rounds + 1)
    ]
    orders = [
        [
            torch.randperm(IMAGES, generator=rng_for(config.seed, round, client, "train")).tolist()
            for client in range(CLIENTS)
        ]
        for round in range(1, rounds + 1)
    ]
    weights = initial_weights(setting_of(config, federation))
    arrays = {
        "images": federation.images[rows].numpy(),
        "labels": federation.labels[rows].numpy(),
        "cohorts": np.array(cohorts),
        "orders": np.array(orders),
    }
    arrays |= {f"w/{name}": weight.numpy() for name, weight in weights.items()}
    np.savez(path, allow_pickle=False, **arrays)
