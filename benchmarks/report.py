"""How long `show` and `report` take, and how large a page is, of made-up runs.

One page of 20 searches with 100 clients each, and `show` and `report` of one with 10,000 clients.
Nothing is trained: policies, accuracies and times are drawn at random. Seconds are of a process of
its own, as a user waits for it; CPU seconds beside them, for machines that do other things too.
"""

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms.perfedrlnas import Searching
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Json, Log, Metric, Spent, UsedArch
from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import prepare
from fedtailor.runs.config import make_config
from fedtailor.runs.create import create_run
from fedtailor.runs.record import RoundRecord
from fedtailor.search import genes, policy
from fedtailor.search.policy import Policies

ROUNDS, COHORT, POLICIES = 20, 10, 100


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a pool of random images."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (120_000, 1, 8, 8), dtype=np.uint8), rng.integers(0, 10, 120_000)


def table(clients: int, lr: float) -> dict[str, Any]:
    return {
        "rounds": ROUNDS,
        "cohort": COHORT,
        "eval_every": ROUNDS // 4,
        "save_models": False,
        "algorithm": {"name": "perfedrlnas", "lr": lr},
        "space": {"name": "mobilenetv3_plato", "preset": "cpu"},
        "data": {
            "path": f"{__file__}:data",
            "clients": clients,
            "partition": "iid",
            "per_client": 12,
        },
    }


def searched(
    space: SearchSpace, algorithm: Algorithm[Any, Any], clients: int
) -> tuple[list[Arch], dict[str, Json]]:
    """Return an architecture of each client, and what the server knows; a hundred policies in turn.

    To describe a policy takes longer than to read it.
    """
    rng = torch.Generator().manual_seed(0)
    width = sum(genes.option_counts(space))
    alphas = torch.randn(POLICIES, width, generator=rng, dtype=torch.float64)
    archs = [policy.likeliest(space, row) for row in alphas]
    state = Searching({}, Policies(tuple(range(POLICIES)), alphas))
    told: Any = algorithm.inspect(space, state)
    own = {str(c): told["clients"][str(c % POLICIES)] for c in range(clients)}
    return [archs[c % POLICIES] for c in range(clients)], told | {"clients": own}


def made(path: Path, clients: int, lr: float) -> None:
    """Write a run folder of a search that never took place."""
    config, rng = make_config(table(clients, lr)), np.random.default_rng(int(1e6 * lr))
    federation, space = load_federation(config.data), config.space
    run = create_run(path, config, prepare(config, federation).clients, federation)
    archs, search = searched(space, config.algorithm, clients)
    for round in range(ROUNDS + 1):
        record = RoundRecord(round, modelled_s=10.0)
        for client in rng.choice(clients, COHORT, replace=False).tolist() if round else []:
            entropy = Metric("server", "entropy", 1 - round / 40)
            used = UsedArch(archs[client], 0.5, {"parameters": 1e5})
            spent = Spent("training", 0.1, 1e7 * rng.random())
            record.log(client, Log((entropy,), (used,), (spent,)))
            for way in ("down", "up"):
                record.message(client, way, 100_000)
        if round and round % (ROUNDS // 4) == 0:
            record.search = search if round == ROUNDS else None
            for client, arch in enumerate(archs):
                cost = {"parameters": 1e5 + client, "macs": 1e6 + client, "memory_mb": 2.0}
                accuracy = Metric("test", "accuracy", float(rng.random()), "untuned")
                record.log(client, Log((accuracy,), (UsedArch(arch, 0.5, cost, "deployed"),)))
            record.event(None, "models", '["untuned"]')
        run.commit(record, Searching({}))
    run.note(ROUNDS, None, "finished", "validation chose no round")
    run.close()


def timed(*words: Any) -> dict[str, float]:
    """Return the seconds that a command takes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    command = [sys.executable, "-m", "fedtailor", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(time.monotonic() - began, 2), "cpu_s": round(cpu, 2)}


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        many = folder / "many"
        made(many, 10_000, 0.1)
        found = {"show, 10,000 clients": timed("show", many)}
        page = many / "report.html"
        found["report, 10,000 clients"] = timed("report", many)
        found["report, 10,000 clients"]["page_mb"] = round(page.stat().st_size / 1e6, 2)
        runs = [folder / f"run{number}" for number in range(20)]
        for number, path in enumerate(runs):
            made(path, 100, 0.01 * (1 + number))
        page = folder / "page.html"
        found["report, 20 runs of 100 clients"] = timed("report", *runs, "--out", page)
        found["report, 20 runs of 100 clients"]["page_mb"] = round(page.stat().st_size / 1e6, 2)
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
