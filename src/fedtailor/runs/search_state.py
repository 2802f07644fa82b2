"""What a search knows of its clients, read from the server's last state: no data is needed."""

from typing import Any

from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.runs.folder import Run, undisturbed


def searched(run: Run) -> dict[str, Any]:
    """Return what `Algorithm.inspect` says after the last round; {} where nothing is searched."""
    config = run.config
    algorithm, space = config.algorithm, config.space
    if not algorithm.searches or run.last_round() < 0:
        return {}
    kind, _ = state_types(algorithm)
    state = undisturbed(run, lambda: codec.read(kind, run.server_path(run.last_round())))
    return algorithm.inspect(space, state)
