"""What a run was made with, for people who wonder later."""

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

from fedtailor.core.types import Json
from fedtailor.runs.config import Config


def environment(config: Config, needs: Mapping[str, Json]) -> dict[str, Any]:
    """Describe the program, the packages, the machine and the files that clients need."""
    packages = ("fedtailor", "torch", "numpy", "scipy", "pydantic", "safetensors")
    return {
        "argv": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "seed": config.seed,
        "needs": dict(needs),
    }
