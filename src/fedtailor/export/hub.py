"""A folder as model hubs expect it: a card, a config and weights; no pickle and no code."""

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.core.types import Tensors
from fedtailor.export.personal import PersonalModel, build_model, is_own

CARD, CONFIG, WEIGHTS = "README.md", "config.json", "model.safetensors"


def write_hub(folder: Path, about: dict[str, Any], weights: Tensors, card: str) -> None:
    """Write a model into a folder, unless it takes code to build it."""
    if is_own(about["space"]["name"]):
        raise UserError(
            "hub: the network is built by a space file of your own, which is code, and such a "
            "folder holds none; --onnx and --torch carry the network without it"
        )
    told = {"model_type": "fedtailor", "fedtailor_version": fedtailor.__version__, **about}
    text = json.dumps(told, indent=1, ensure_ascii=False) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")
    safetensors.torch.save_file(weights, folder / WEIGHTS, {"format": "pt"})
    (folder / CARD).write_text(card, encoding="utf-8")


def from_pretrained(path: str | Path) -> PersonalModel:
    """Return the model of a folder that `fedtailor export --hub` wrote."""
    folder = Path(path)
    try:
        about = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        if about["model_type"] != "fedtailor":
            raise ValueError("model_type is not fedtailor")
        name = about["space"]["name"]
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as error:
        raise UserError(
            f"{folder}: not a folder that `fedtailor export --hub` wrote ({error})"
        ) from None
    if is_own(str(name)):
        raise UserError(
            f"{folder}: its space is a file of somebody's own ({name}): code, which is not run"
        )
    return build_model(about, weights)


def is_hub(path: Path) -> bool:
    """Tell a folder that was written for a hub."""
    return (path / CONFIG).is_file() and (path / WEIGHTS).is_file()
