"""Personalized federated learning: every client its own network.

from fedtailor import run, Run
"""

import os
from typing import TYPE_CHECKING, Any

# Same bits on every run: MKL's results otherwise depend on memory alignment. It must be set before
# torch is imported. Passive waiting keeps torch's threads from spinning beside other processes.
os.environ.setdefault("MKL_CBWR", "AVX2")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

if TYPE_CHECKING:
    from fedtailor.engines._base import Engine
    from fedtailor.experiment.lifecycle import resume, run
    from fedtailor.experiment.onboarding import onboard
    from fedtailor.runs.folder import Run
    from fedtailor.runs.summary import summarise

__version__ = "0.1.0"
__all__ = ["Engine", "Run", "onboard", "resume", "run", "summarise"]


def __getattr__(name: str) -> Any:
    """Import on first use: `fedtailor --help` must not wait for torch."""
    if name in ("run", "resume"):
        from fedtailor.experiment import lifecycle

        return getattr(lifecycle, name)
    if name == "onboard":
        from fedtailor.experiment.onboarding import onboard

        return onboard
    if name == "Run":
        from fedtailor.runs.folder import Run

        return Run
    if name == "summarise":
        from fedtailor.runs.summary import summarise

        return summarise
    if name == "Engine":
        from fedtailor.engines._base import Engine

        return Engine
    raise AttributeError(f"module 'fedtailor' has no attribute {name!r}")
