"""Generators as users meet them: made by `fedtailor pretrain`."""

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import fedtailor
from fedtailor.core.compute import Device, device_of
from fedtailor.core.errors import UserError, nearest
from fedtailor.core.files import sha256_of
from fedtailor.core.registry import find, names
from fedtailor.core.space import SearchSpace, Task
from fedtailor.core.types import Examples, Json
from fedtailor.core.validation import flatten, override, validate
from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions
from fedtailor.pretrain.pipeline import OnStage, Subject, pretrain, pretrain_supernet
from fedtailor.pretrain.settings import RECIPES, Pretraining, recipe_for
from fedtailor.runs.config import make_space
from fedtailor.search.diffusion.encoder import load_encoder
from fedtailor.search.diffusion.generator import (
    Generator,
    save,
)


@dataclass(frozen=True)
class PretrainRequest:
    """What `pretrain` is asked for."""

    space: str
    data: str
    out: Path | None = None  # the generator's file; none: the supernet alone is made
    preset: str | None = None  # none: cpu where the space has it
    recipe: str = "default"
    weights: Path | None = None
    encoder: Path | None = None
    workers: int = 2
    device: Device = "auto"
    supernet: Path | None = None  # the supernet's file, where it is wanted

    @property
    def file(self) -> Path:
        """The file that is made last, beside which the work is kept."""
        file = self.out or self.supernet
        if file is None:
            raise UserError(
                "out: name the generator's file by --out, its supernet's by --supernet, or both"
            )
        return file


def make(
    request: PretrainRequest, overrides: dict[str, Any], progress: OnStage | None = None
) -> Generator | None:
    """Make a generator, its supernet or both, and write their files; return the generator.

    What the stages leave is in a folder beside the file.
    """
    subject = _subject(request, overrides)
    device = device_of(request.device, "device")
    subject.encoder.network.to(device)
    folder, how = work_folder(request.file), (request.weights, request.workers, progress, device)
    if request.out is None:
        pretrain_supernet(subject, folder, request.file, *how)
        return None
    made = pretrain(subject, folder, *how, request.supernet)
    made = dataclasses.replace(made, about=_card(request, overrides) | made.about)
    save(made, request.out)
    return made


def _subject(request: PretrainRequest, overrides: dict[str, Any]) -> Subject:
    """Read what a generator is to be made for and from; refuse what cannot be meant."""
    space, _ = space_of(request.space, request.preset)
    _check_request(request)
    how, source = (
        recipe(request.recipe, request.space, overrides),
        load_source(data_options(request.data)),
    )
    index = torch.arange(len(source.labels))
    images, labels = torch.from_numpy(source.images), torch.from_numpy(source.labels)
    examples = Examples(images, labels, index, source.mean, source.std)
    channels, height, width = images.shape[1:]
    task = Task((channels, height, width), len(source.classes))
    return Subject(space.at(task), task, examples, load_encoder(request.encoder), how)


def _check_request(request: PretrainRequest) -> None:
    for name, file in (("out", request.out), ("supernet", request.supernet)):
        if file is not None and file.is_dir():
            raise UserError(f"{name}: {file} is a folder; give the name of a file")
    if request.out is not None and request.out == request.supernet:
        raise UserError(f"supernet: {request.supernet} is the generator's file; give another name")
    if request.out is None and request.encoder is not None:
        raise UserError("encoder: is about the generator; give --out as well")
    if request.workers < 1:
        raise UserError(f"workers: must be at least 1, not {request.workers}")


def next_lines(request: PretrainRequest) -> list[str]:
    """Say what was written, and what uses it."""
    lines = []
    if request.supernet is not None:
        preset = space_of(request.space, request.preset)[1]
        words = [f"name={request.space}", f"preset={preset}", f"init={request.supernet}"]
        start = ["fedtailor", "run", "CONFIG", *(f"space.{word}" for word in words)]
        lines.append(f"wrote {request.supernet}; next: {shlex.join(start)}")
    if request.out is not None:
        words = ["--space", request.space, "--generator", str(request.out)]
        words += ["--preset", request.preset] if request.preset else []
        if request.encoder:  # it matters only for data
            words += ["--data", request.data, "--encoder", str(request.encoder)]
        lines.append(f"wrote {request.out}; next: {shlex.join(['fedtailor', 'generate', *words])}")
    return lines


def _card(request: PretrainRequest, overrides: dict[str, Any]) -> dict[str, Json]:
    """Say what a generator was asked to be."""
    preset = space_of(request.space, request.preset)[1]
    asked = dataclasses.asdict(dataclasses.replace(request, preset=preset))
    asked |= {name: value.name for name, value in asked.items() if isinstance(value, Path)}
    for name in ("out", "supernet", "workers", "device", "encoder"):  # known by its digest
        asked.pop(name)
    return asked | {"overrides": flatten(overrides), "version": fedtailor.__version__}


def work_folder(out: Path) -> Path:
    """Name the folder in which stages keep what they have."""
    return out.with_name(f"{out.name}.work")


def recipe(name: str, space: str, overrides: dict[str, Any]) -> Pretraining:
    """Return the settings of a name for a space, with some of them changed."""
    if name not in RECIPES:
        raise UserError(f"recipe: none is called {name!r}{nearest(name, list(RECIPES))}")
    usual = dataclasses.asdict(recipe_for(name, space))
    table = override(usual, flatten(overrides))
    _refuse_unknown(table, usual, "pretrain")
    return validate(Pretraining, table, "pretrain")


def _refuse_unknown(table: dict[str, Any], usual: dict[str, Any], path: str) -> None:
    """Refuse keys that no settings have; below the first level they would be passed over."""
    for key, value in table.items():
        if key not in usual:
            raise UserError(f"{path}.{key}: unknown{nearest(key, sorted(usual))}")
        if isinstance(value, dict) and isinstance(usual[key], dict):
            _refuse_unknown(value, usual[key], f"{path}.{key}")


def space_of(name: str, preset: str | None) -> tuple[SearchSpace, str]:
    """Return a space and the preset it has."""
    if preset is None:
        preset = "cpu" if "cpu" in find("space", name).presets else "default"
    space = make_space({"name": name, "preset": preset})
    if not space.choices:
        raise UserError(f"space: {name} is a fixed model, there is nothing to generate")
    return space, preset


def data_options(data: str, overrides: dict[str, Any] | None = None) -> DataOptions:
    """Return the options of a data set by its name, or of a user's own by its path."""
    key = "name" if data in names("data") else "path"
    if key == "path" and ":" not in data and not Path(data).expanduser().exists():
        meant = nearest(data, names("data"))
        raise UserError(f"data: no data set and no path is {data!r}{meant}")
    return validate(DataOptions, {key: data, **(overrides or {})}, "data")


def card_lines(about: dict[str, Any]) -> list[str]:
    """Say in a few lines how good a generator is."""
    lines = [f"{about['space']} ({about['preset']}), made from {about['data']}"]
    stages = ("supernet", "unguided", "guided", "targets", "kendall_tau", "accuracy", "in_general")
    for stage in stages:
        parts = about.get(stage)
        if not parts:
            continue
        shown = (
            f"{name} {value:.3g}"
            if isinstance(value, int | float)
            else f"{name} {sum(value) / len(value):.3g}"
            for name, value in parts.items()
        )
        lines.append(f"{stage:12} {', '.join(shown)}")
    return lines


def supernet_card(file: Path) -> dict[str, Json]:
    """Say by what a supernet's file is known."""
    return {"supernet": str(file), "sha256": sha256_of(file), "bytes": file.stat().st_size}
