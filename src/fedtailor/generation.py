"""Generators as users meet them: made by `fedtailor pretrain`, used by `fedtailor generate`."""

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from fedtailor.config import flatten, make_space, override, validate
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.data.source import load_source, source_names
from fedtailor.errors import UserError
from fedtailor.pretrain.pipeline import Progress, Subject, pretrain
from fedtailor.pretrain.settings import RECIPES, Pretraining
from fedtailor.registry import nearest
from fedtailor.rng import rng_for
from fedtailor.search.encoder import cached_features, load_encoder
from fedtailor.search.generator import Generator, Sampling, load, save, shipped
from fedtailor.search.tokens import project, raw_valid
from fedtailor.types import Arch, Examples, Json, SearchSpace, Task

CARD = """# Generator of architectures: {space}

{data}, {seconds:.0f} s of wall time with {workers} workers. Made by

    {command}
"""


@dataclass(frozen=True)
class Order:
    """What `pretrain` is asked for."""

    space: str
    data: str
    out: Path
    preset: str = "cpu"
    recipe: str = "default"
    weights: Path | None = None
    encoder: Path | None = None
    workers: int = 2


def make(order: Order, overrides: dict[str, Any], progress: Progress | None = None) -> Generator:
    """Make a generator and write its file; what the stages leave is in a folder beside it."""
    space = make_space({"name": order.space, "preset": order.preset})
    if not space.choices:
        raise UserError(f"space: {order.space} is a fixed model, there is nothing to generate")
    how, source = recipe(order.recipe, overrides), load_source(data_options(order.data))
    index = torch.arange(len(source.labels))
    images, labels = torch.from_numpy(source.images), torch.from_numpy(source.labels)
    examples = Examples(images, labels, index, source.mean, source.std)
    channels, height, width = images.shape[1:]
    task = Task((channels, height, width), len(source.classes))
    subject = Subject(space, task, examples, load_encoder(order.encoder), how)
    made = pretrain(subject, work_folder(order.out), order.weights, order.workers, progress)
    about = {"space": order.space, "preset": order.preset, "data": order.data, **made.about}
    made = dataclasses.replace(made, about=about)
    save(made, order.out)
    return made


def work_folder(out: Path) -> Path:
    """Name the folder in which stages keep what they have."""
    return out.with_name(f"{out.name}.work")


def recipe(name: str, overrides: dict[str, Any]) -> Pretraining:
    """Return the settings of a name, with some of them changed."""
    if name not in RECIPES:
        raise UserError(f"recipe: none is called {name!r}{nearest(name, list(RECIPES))}")
    table = override(dataclasses.asdict(RECIPES[name]), flatten(overrides))
    return validate(Pretraining, table, "pretrain")


def data_options(data: str, overrides: dict[str, Any] | None = None) -> DataOptions:
    """Return the options of a data set by its name, or of a user's own by its path."""
    key = "name" if data in source_names() else "path"
    if key == "path" and ":" not in data and not Path(data).expanduser().exists():
        raise UserError(f"data: no data set and no path is {data!r}{nearest(data, source_names())}")
    return validate(DataOptions, {key: data, **(overrides or {})}, "data")


@dataclass(frozen=True)
class Drawn:
    """What `generate` found."""

    archs: list[Arch]
    raw_valid: float  # share of the tables that were architectures before any projection
    unique: float
    seconds: float  # of process CPU time, for all of them
    embed_seconds: float  # likewise, for the data

    def table(self, space: SearchSpace) -> Json:
        """Return it as plain data."""
        names = [choice.name for choice in space.choices]
        return {
            "architectures": [
                {
                    "genes": list(arch),
                    "architecture": {
                        name: choice.options[gene]
                        for name, choice, gene in zip(names, space.choices, arch, strict=True)
                    },
                }
                for arch in self.archs
            ],
            "raw_valid": self.raw_valid,
            "unique": self.unique,
            "seconds": self.seconds,
            "embed_seconds": self.embed_seconds,
        }


def draw(
    generator: Generator,
    number: int,
    examples: Examples | None,
    sampling: Sampling,
    seed: int = 0,
    encoder: Path | None = None,
    cache: Path | None = None,
) -> Drawn:
    """Draw architectures for a client's training examples, or for no data in particular."""
    began = time.process_time()
    embedding = None
    if examples is not None:
        embedding = generator.embed(cached_features(load_encoder(encoder), examples, folder=cache))
    known = time.process_time()
    rng = rng_for(seed, "generate")
    tables = generator.tables(number, rng, embedding, sampling)
    archs = project(generator.space, tables)
    done = time.process_time()
    valid = float(raw_valid(generator.space, tables).float().mean())
    return Drawn(archs, valid, len(set(archs)) / number, done - known, known - began)


def client_examples(options: DataOptions, client: int) -> Examples:
    """Return the training examples of a client of a federation."""
    federation = load_federation(options)
    total = federation.clients + federation.new_clients
    if not 0 <= client < total:
        raise UserError(f"client: there are {total} clients, numbered from 0, not {client}")
    return federation.examples(client, "train")


def generator_for(space: str, preset: str, file: Path | None) -> Generator:
    """Return the generator of a file, or the one that comes with the package."""
    found = make_space({"name": space, "preset": preset})
    return shipped(space, found) if file is None else load(file, found)
