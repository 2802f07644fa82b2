"""The models that clients ended with, as files: `clients/017/` of a run folder."""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from fedtailor.core.errors import UserError
from fedtailor.core.types import Json, Tensors
from fedtailor.runs.folder import WEIGHTS, Run, asked

ABOUT = "arch.json"


def model_folder(models: Path, client: int) -> Path:
    """Return where a client's final model is."""
    return models / f"{client:03d}"


def write_model(folder: Path, about: dict[str, Json], weights: Tensors) -> None:
    """Write a client's final model."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ABOUT).write_text(json.dumps(about, indent=1) + "\n")
    safetensors.torch.save_file(weights, folder / WEIGHTS)


def read_model(run: Run, client: int) -> tuple[dict[str, Any], Tensors]:
    """Read what a client ended with: what it is, and its weights."""
    refuse_without_models(run)
    folder = model_folder(run.path / "clients", client)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        tuple(about["arch"])
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(f"{folder}: the client's saved model cannot be read ({error})") from None
    if "space" not in about:  # runs made before it was written down there
        beside = ("arch", "init", "preset")
        about["space"] = {k: v for k, v in asked(run, "space").items() if k not in beside}
    return about, weights


def refuse_without_models(run: Run) -> None:
    """Raise if a run has no final models."""
    if not run.finished():
        raise UserError(
            f"{run.path}: the run is not finished; `fedtailor resume {run.path}` goes on with it"
        )
    if not asked(run, "save_models"):
        raise UserError(
            f"{run.path}: the run saved no models, which save_models = true would have done, so "
            "there are no networks to take out of it"
        )
