"""More rounds for a run that has come, or would come, to its end."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder, whole_file
from fedtailor.runs.config import config_text, read_config
from fedtailor.runs.folder import CONFIG, Run


def extend(path: Path, changes: Mapping[str, Any]) -> str:
    """Give a run more rounds, and nothing else; return what must be known of it.

    The event comes first: killed in between, the run is one that has to be finished as it was.
    """
    folder = Run(path)
    config, rounds = read_config(path / CONFIG), changes.get("rounds")
    for key in changes.keys() - {"rounds"}:
        raise UserError(f"{key}: a run goes on with what it began with; only rounds can be raised")
    if not isinstance(rounds, int) or rounds <= config.rounds or not config.rounds:
        raise UserError(f"rounds: must be a number above the run's {config.rounds}, not {rounds}")
    of = config.schedule_rounds or config.rounds
    text = config_text(dataclasses.replace(config, rounds=rounds, schedule_rounds=of))
    known = hashlib.sha256(text.encode()).hexdigest()
    told = (
        f"rounds: extended from {config.rounds} to {rounds} with schedules of {of} rounds, which "
        f"does not equal a run of {rounds} rounds from the start"
    )
    with lock_folder(path):
        at = folder.last_round()
        change = f"from {config.rounds} to {rounds} rounds; {CONFIG} now has sha256 {known}"
        folder.note(at, None, "extended", change)
        folder.note(at, None, "warning", told)
        with whole_file(path / CONFIG) as new:
            new.write_text(text, encoding="utf-8")
    folder.close()
    return told
