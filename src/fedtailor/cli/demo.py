"""The demo: training alone and together, and three searches, on digits, compared.

All methods see the same images, spend two local epochs a round and tune their networks alike;
those that do not search train the search space's middle architecture. SPIDER alone differs: it
removes operations from networks that sum them, one edge of a cell after another, so every client
takes part in 16 rounds, of one epoch, and trains about twice as many epochs as with the others.
The quick demo is the same story of three clients with eighty images each, in fewer rounds.
"""

import time
from pathlib import Path
from typing import Any

from fedtailor.cli import terminal
from fedtailor.experiment import running
from fedtailor.experiment.following import followed
from fedtailor.report.page import write_report
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise

CONFIG: dict[str, Any] = {
    "rounds": 8,
    "cohort": 4,
    "eval_every": 2,
    "algorithm": {"lr": 0.05, "momentum": 0.9, "finetune_epochs": 5, "finetune_lr": 0.005},
    "space": {"name": "darts", "preset": "cpu", "resolution": 8},
    "data": {"name": "digits", "clients": 8, "partition": "dirichlet", "alpha": 0.3},
}
METHODS: dict[str, dict[str, Any]] = {
    "local": {"epochs": 2},
    "fedavg": {"epochs": 2},
    "perfedrlnas": {"epochs": 2},
    "perfedsde": {
        "iterations": 2,  # each with an epoch
        "epochs": 1,
        "population": 20,
        "archive": 5,
        "candidates": 20,
        "offspring": 5,
    },
    "spider": {"epochs": 1, "warmup": 1, "recovery": 1},
}
OTHERWISE: dict[str, dict[str, Any]] = {  # what cannot be the same for all
    "spider": {
        "rounds": 16,  # 14 searches, the first in the second round
        "cohort": None,
        "eval_every": 4,
        "space": CONFIG["space"] | {"operations": "s2", "form": "relaxed"},
    },
}
QUICK: dict[str, Any] = {
    "rounds": 3,
    "cohort": 2,
    "eval_every": 3,
    "data": CONFIG["data"] | {"clients": 3, "per_client": 80},
    "engine": {"workers": 0},  # most runs are over before workers would have begun
}
QUICK_OTHERWISE: dict[str, dict[str, Any]] = {  # long enough for workers
    "spider": {"eval_every": 16, "engine": {}},
}


def config_of(method: str, quick: bool = False) -> dict[str, Any]:
    """Return the table of a method's run."""
    algorithm = {"name": method, **CONFIG["algorithm"], **METHODS[method]}
    table = CONFIG | (QUICK if quick else {}) | OTHERWISE.get(method, {})
    table |= QUICK_OTHERWISE.get(method, {}) if quick else {}
    return table | {"algorithm": algorithm}


def show(out: Path | None, quick: bool = False) -> list[Run]:
    """Run the methods below one folder and compare them."""
    folder = out or Path("runs") / time.strftime("demo-%Y-%m-%d-%H%M%S")
    runs = []
    for place, name in enumerate(METHODS, 1):
        with followed(True, f"{place} of {len(METHODS)}, {name}") as progress:
            made = running.run(config_of(name, quick), folder / name, progress, report=False)
        runs.append(made)
    page = write_report(runs, folder / "report.html", folder / "figures")
    print("\n".join(terminal.result_lines([summarise(run) for run in runs])))
    print(f"report:     {page}")
    print("next:       fedtailor cp perfedsde-digits my.toml, then fedtailor run my.toml")
    return runs
