"""What a run was made with, for people who wonder later."""

import importlib.metadata
import os
import platform
import sys
import time
from typing import Any

from fedtailor.runs.config import Config


def environment(config: Config) -> dict[str, Any]:
    """Describe the program, the packages and the machine."""
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
    }
