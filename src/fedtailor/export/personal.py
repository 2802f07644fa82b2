"""A client's model as other programs use it: images as they are in, scores of named classes out."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fedtailor.algorithms.knnper import remembering
from fedtailor.core.errors import UserError
from fedtailor.core.space import Task
from fedtailor.core.types import Tensors
from fedtailor.networks.network import load
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.runs.clients import client_labels, client_number
from fedtailor.runs.config import make_space
from fedtailor.runs.folder import Run
from fedtailor.runs.headlines import in_short
from fedtailor.runs.saved_models import read_model
from fedtailor.search import genes

INSIDE = "network."  # how the weights of a network begin that has a memory beside it


class PersonalModel(nn.Module):
    """A client's network with its preprocessing and the names of its classes.

    Attributes:
        network: takes normalised images.
        labels: the classes' names, in the order of the outputs.
        shape: of an image: channels, height, width.
        about: what `arch.json` says of it: space, architecture, scale of the images.
        whose: whose it is, where that is known.
    """

    def __init__(self, network: nn.Module, about: Mapping[str, Any], whose: str = "") -> None:
        super().__init__()
        self.whose = whose
        self.network, self.about = network, dict(about)
        self.labels: tuple[str, ...] = tuple(about["classes"])
        self.shape: tuple[int, ...] = tuple(about["shape"])
        mean, std = (torch.tensor(about[name]).view(-1, 1, 1) for name in ("mean", "std"))
        self.register_buffer("scale", 1 / std, persistent=False)
        self.register_buffer("shift", -mean / std, persistent=False)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images (n, C, H, W) whose pixels go from 0 to 1."""
        return self.network(images * self.get_buffer("scale") + self.get_buffer("shift"))

    def __repr__(self) -> str:
        """Say whose it is and what it takes; `network` shows the layers."""
        size = "x".join(str(n) for n in self.shape)
        count = sum(weights.numel() for weights in self.network.parameters())
        whose = f"{self.whose}; " if self.whose else ""
        space = self.about["space"]["name"]
        takes = f"images {size} into {len(self.labels)} classes"
        return f"PersonalModel({whose}{space}, {takes}, {count:,} parameters)"


def load_model(run: str | Path | Run, client: int | str, own_code: bool = False) -> PersonalModel:
    """Return the model that a client of a finished run would use.

    Args:
        run: a run folder.
        client: its number, or its name where the data has names.
        own_code: whether a space that is a file of the user's own may be imported, which runs it.
    """
    folder = run if isinstance(run, Run) else Run(run)
    number = client_number(folder, client)
    who, short = client_labels(folder)[number], in_short(folder.config, folder.db, number)
    about, weights = read_model(folder, number)
    return build_model(about, weights, own_code, whose=f"client {who} of {short}")


def build_model(
    about: Mapping[str, Any], weights: Tensors, own_code: bool = False, whose: str = ""
) -> PersonalModel:
    """Put a model together from what is written of it."""
    try:
        if is_own(about["space"]["name"]) and not own_code:
            raise UserError(
                f"space.name: {about['space']['name']} is a file of a user's own, which is code; "
                "if you trust it, --own-code (in Python own_code=True) runs it"
            )
        channels, height, width = about["shape"]
        task = Task((channels, height, width), len(about["classes"]))
        space = make_space(about["space"]).at(task)
        arch = genes.check(space, tuple(about["arch"])) if space.choices else ()
        network = allocate(blueprint(lambda: space.build(arch, task)), "cpu")
        inside = {n.removeprefix(INSIDE): w for n, w in weights.items() if n.startswith(INSIDE)}
        load(network, inside or weights)
        return PersonalModel(remembering(network, weights) if inside else network, about, whose)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"the saved model is not whole ({error})") from None


def is_own(name: str) -> bool:
    """Tell what is named by a file of a user's own."""
    return ":" in name or name.endswith(".py")


def has_memory(model: PersonalModel) -> bool:
    """Tell whether a model carries what its client remembers of its own images."""
    return any(name == "features" for name, _ in model.network.named_buffers(recurse=False))
