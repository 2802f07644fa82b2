"""Architectures drawn from a generator, as users meet them: `fedtailor generate`."""

import dataclasses
import math
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Examples, Json
from fedtailor.core.validation import validate
from fedtailor.data.client_names import find_client
from fedtailor.data.federation import load_federation
from fedtailor.networks import cost
from fedtailor.pretrain.generators import data_options, space_of
from fedtailor.search.arch_text import write_arch
from fedtailor.search.diffusion.encoder import cached_features
from fedtailor.search.diffusion.generator import Sampling, encoder_of, load, shipped
from fedtailor.search.diffusion.tokens import project, raw_valid

ANY_TASK = Task((3, 32, 32), 10)  # what costs are told for where there is no data


@dataclass(frozen=True)
class GenerateRequest:
    """What `generate` is asked for."""

    space: str
    number: int = 10
    data: str | None = None  # none: no data in particular
    client: str | None = None  # a name or a number; none: the first
    preset: str | None = None  # none: cpu where the space has it
    generator: Path | None = None  # none: the package's own, as the encoder
    encoder: Path | None = None
    cache: Path | None = None  # a folder in which features of the images are kept
    seed: int = 0


@dataclass(frozen=True)
class Generated:
    """What `generate` found."""

    space: SearchSpace
    archs: list[Arch]
    raw_valid: float  # share of the tables that were architectures before any projection
    seconds: float  # of process CPU time, for all of them
    embed_seconds: float  # likewise, for the data
    task: Task = ANY_TASK
    card: dict[str, Any] = field(default_factory=dict)  # of the generator

    @property
    def unique(self) -> float:
        """The share of architectures that are not repeats."""
        return len(set(self.archs)) / len(self.archs)

    def prices(self, arch: Arch) -> tuple[int, int]:
        """Return the parameters of a network, and its multiply-adds for an image."""
        space = self.space.at(self.task)
        found = space.repair(arch)
        return (
            cost.parameters(space, found, self.task),
            cost.forward_macs(space, found, self.task),
        )

    def lines(self) -> list[str]:
        """Return a line for each architecture, as space.arch takes it, and what it costs."""
        lines = ["parameters  M multiply-adds  architecture"]
        for arch in self.archs:
            parameters, macs = self.prices(arch)
            text = write_arch(self.space, arch)
            lines.append(f"{parameters:>10,}  {macs / 1e6:>15,.2f}  {text}")
        return lines

    def told(self) -> list[str]:
        """Return how they were found, and what the data is worth, a sentence each."""
        size = "x".join(str(side) for side in self.task.shape)
        return [
            f"{len(self.archs)} architectures in {self.seconds:.2f} CPU seconds, "
            f"{self.embed_seconds:.2f} for the data; {self.raw_valid:.0%} needed no projection, "
            f"{self.unique:.0%} unique",
            f"costs are for {size} images of {self.task.classes} classes; "
            'space.arch = "..." takes an architecture as it stands here',
            *([] if self.worth is None else [_worth_sentence(self.worth)]),
        ]

    @property
    def worth(self) -> dict[str, float] | None:
        """What a task's own data brought when the generator was made, in points of accuracy.

        Tasks that it never saw, each with networks that were drawn for its data, and with those
        that were drawn for the other tasks; None where its card does not tell.
        """
        known = self.card.get("accuracy", {})
        if not {"guided", "for others"} <= known.keys() or len(known["guided"]) < 2:
            return None
        gains = [100 * (a - b) for a, b in zip(known["guided"], known["for others"], strict=True)]
        error = statistics.stdev(gains) / math.sqrt(len(gains))
        return {"points": statistics.mean(gains), "error": error, "tasks": len(gains)}

    def table(self) -> Json:
        """Return it as plain data."""
        return {
            "architectures": [self._row(arch) for arch in self.archs],
            "image_shape": list(self.task.shape),
            "classes": self.task.classes,
            "worth": self.worth,
            "raw_valid": self.raw_valid,
            "unique": self.unique,
            "seconds": self.seconds,
            "embed_seconds": self.embed_seconds,
        }

    def _row(self, arch: Arch) -> dict[str, Json]:
        parameters, macs = self.prices(arch)
        options = zip(self.space.choices, arch, strict=True)
        return {
            "genes": list(arch),
            "text": write_arch(self.space, arch),
            "architecture": {choice.name: choice.options[gene] for choice, gene in options},
            "parameters": parameters,
            "macs": macs,
        }


def _worth_sentence(worth: dict[str, float]) -> str:
    points = f"{worth['points']:+.1f} ± {worth['error']:.1f} points"
    others = "than those drawn for other tasks"
    better = worth["points"] > 2 * worth["error"]
    return (
        f"what a client's data is worth here: on {worth['tasks']:.0f} tasks that the generator "
        "never saw, networks drawn for a task's own data did "
        + (f"better {others} by {points}" if better else f"no better {others} ({points})")
    )


def draw(request: GenerateRequest, sampling: dict[str, Any], data: dict[str, Any]) -> Generated:
    """Draw architectures for a client's training images, or for no data in particular.

    Args:
        request: which, and how many.
        sampling: fields of `Sampling`; where none or None, the generator's own.
        data: fields of `DataOptions`.
    """
    if request.number < 1:
        raise UserError(f"n: must be at least 1, not {request.number}")
    if request.data is None:
        _refuse_idle(request, data)
    space, _ = space_of(request.space, request.preset)
    generator = (
        shipped(request.space, space)
        if request.generator is None
        else load(request.generator, space)
    )
    given = {name: value for name, value in sampling.items() if value is not None}
    how = validate(Sampling, dataclasses.asdict(generator.sampling) | given, "generate")
    examples, task = None, ANY_TASK
    if request.data is not None:
        examples, task = _examples(request.data, request.client, data)
        space = space.at(task)
    encoder = None if examples is None else encoder_of(generator, request.encoder)
    began = time.process_time()
    embedding = None
    if examples is not None and encoder is not None:
        embedding = generator.embed(cached_features(encoder, examples, folder=request.cache))
    known = time.process_time()
    tables = generator.tables(request.number, rng_for(request.seed, "generate"), embedding, how)
    archs = project(space, tables)
    done = time.process_time()
    valid = float(raw_valid(space, tables).float().mean())
    took = done - known, known - began
    return Generated(space, archs, valid, *took, task, generator.about)


def _refuse_idle(request: GenerateRequest, data: dict[str, Any]) -> None:
    """Refuse options that would do nothing without data."""
    options = {"client": request.client, "encoder": request.encoder, "cache": request.cache}
    named = [*data, *(name for name, value in options.items() if value)]
    if named:
        raise UserError(f"{named[0]}: is about data; give --data as well")


def _examples(data: str, client: str | None, overrides: dict[str, Any]) -> tuple[Examples, Task]:
    """Return a client's training images, and what they are classified for."""
    federation = load_federation(data_options(data, overrides))
    number = 0 if client is None else find_client(federation.names, client)
    return federation.examples(number, "train"), federation.task
