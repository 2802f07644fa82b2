"""The demo: local training, FedAvg and Ditto on the digits, compared."""

import time
from pathlib import Path

from fedtailor.cli import terminal
from fedtailor.experiment import lifecycle
from fedtailor.experiment.progress import RunProgress
from fedtailor.report.page import write_report
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise

CONFIG = {
    "rounds": 15,
    "eval_every": 3,
    "algorithm": {"epochs": 2, "lr": 0.05},
    "data": {"name": "digits", "clients": 8, "partition": "dirichlet", "alpha": 0.3},
}


def show(out: Path | None) -> list[Run]:
    """Run the three methods below one folder and compare them."""
    folder = out or Path("runs") / time.strftime("demo-%Y-%m-%d-%H%M%S")
    runs = []
    for name in ("local", "fedavg", "ditto"):
        progress = RunProgress()
        with terminal.follow(progress, name):
            config = CONFIG | {"algorithm": {"name": name, **CONFIG["algorithm"]}}
            runs.append(lifecycle.run(config, folder / name, progress))
    page = write_report(runs, folder / "report.html", folder / "figures")
    print("\n".join(terminal.result_lines([summarise(run) for run in runs])))
    print(f"report:     {page}")
    print("next:       fedtailor cp quickstart my.toml, then fedtailor run my.toml")
    return runs
