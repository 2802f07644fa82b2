"""Personalized federated learning: every client its own network.

from fedtailor import run, Run

All names of `__all__` are imported on first use: `fedtailor --help` must not wait for torch. They
are all that a method or a model of your own needs; docs/python.md says what they are.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

# Same bits on every run: MKL's results otherwise depend on memory alignment. It must be set before
# torch is imported. Passive waiting keeps torch's threads from spinning beside other processes.
os.environ.setdefault("MKL_CBWR", "AVX2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from fedtailor.algorithms._base import Algorithm, mean_of, to_all
    from fedtailor.algorithms._replies import Forms, Sent, trained_tensors
    from fedtailor.core.errors import UserError
    from fedtailor.core.space import Arch, Choice, SearchSpace, Task, Token
    from fedtailor.core.stopwatch import Stopwatch
    from fedtailor.core.types import (
        Batch,
        Budget,
        Client,
        ClientInfo,
        Examples,
        Log,
        Message,
        Metric,
        Offspring,
        Reply,
        Result,
        Server,
        Setting,
        Spent,
        Tensors,
        UsedArch,
    )
    from fedtailor.engines._base import Engine
    from fedtailor.experiment.gain import measure_gain
    from fedtailor.experiment.planning import plan
    from fedtailor.experiment.rerunning import rerun
    from fedtailor.experiment.running import onboard, resume, run
    from fedtailor.export.hub import from_pretrained
    from fedtailor.export.personal import PersonalModel, load_model
    from fedtailor.networks.initial import initial_supernet, initial_weights
    from fedtailor.networks.network import Network
    from fedtailor.networks.pieces import ChainSpace, Piece
    from fedtailor.networks.store import Store
    from fedtailor.report.comparing import compare, report_on
    from fedtailor.runs.folder import Run
    from fedtailor.runs.summary import summarise
    from fedtailor.training import learn
    from fedtailor.training.fitness import fitness
    from fedtailor.training.merge import Part, merge, weighed
    from fedtailor.training.population import population_scores
    from fedtailor.training.supernet import SupernetTrainer
    from fedtailor.training.updates import supernet_update, update_part

__version__ = "0.1.0"
_HOMES = {
    "algorithms._base": "Algorithm mean_of to_all",
    "algorithms._replies": "Forms Sent trained_tensors",
    "core.errors": "UserError",
    "core.space": "Arch Choice SearchSpace Task Token",
    "core.stopwatch": "Stopwatch",
    "core.types": "Batch Budget Client ClientInfo Examples Log Message Metric Offspring Reply"
    " Result Server Setting Spent Tensors UsedArch",
    "engines._base": "Engine",
    "experiment.gain": "measure_gain",
    "experiment.planning": "plan",
    "experiment.rerunning": "rerun",
    "experiment.running": "onboard resume run",
    "export.hub": "from_pretrained",
    "export.personal": "PersonalModel load_model",
    "networks.initial": "initial_supernet initial_weights",
    "networks.network": "Network",
    "networks.pieces": "ChainSpace Piece",
    "networks.store": "Store",
    "report.comparing": "compare report_on",
    "runs.folder": "Run",
    "runs.summary": "summarise",
    "training.fitness": "fitness",
    "training.learn": "learn",
    "training.merge": "Part merge weighed",
    "training.population": "population_scores",
    "training.supernet": "SupernetTrainer",
    "training.updates": "supernet_update update_part",
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}
__all__ = [*sorted(_HOME_OF)]


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'fedtailor' has no attribute {name!r}")
    home = importlib.import_module(f"fedtailor.{_HOME_OF[name]}")
    found = home if _HOME_OF[name].endswith(f".{name}") else getattr(home, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *_HOME_OF})
