"""Where a client's proposals come from, and what the client needs and looks at for that."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.space import SearchSpace
from fedtailor.core.types import Examples
from fedtailor.search.diffusion import encoder as encoders
from fedtailor.search.diffusion import generator as generators
from fedtailor.search.diffusion.encoder import Encoder
from fedtailor.search.diffusion.generator import Generator, Guide
from fedtailor.search.propose import Proposer, proposer


@dataclass(frozen=True)
class ProposalSource:
    """A proposer by its name; for `diffusion` also what guides it, and its files.

    Attributes:
        space: what is searched.
        name: of the proposer.
        guide: of diffusion.
        generator: its file; none: the one that comes with the package for the space.
        encoder: its file; none: the package's own.
    """

    space: SearchSpace
    name: str
    guide: Guide = "data"
    generator: str | None = None
    encoder: str | None = None

    @property
    def generates(self) -> bool:
        """Whether a generator is needed: of a model without choices there is nothing to draw."""
        return self.name == "diffusion" and bool(self.space.choices)

    @property
    def sees_data(self) -> bool:
        """Whether it is guided by the client's images."""
        return self.generates and self.guide in ("data", "both")

    def files(self) -> dict[str, Path]:
        """Return the files that a client must have, by the config keys that name them."""
        found: dict[str, Path] = {}
        if self.generates:
            found["algorithm.generator"] = self._generator_file()
        if self.sees_data:
            found["algorithm.encoder"] = encoders.file_of(self.encoder)
        return found

    def check(self) -> None:
        """Raise if there is no generator for the space, or not the encoder it was made with."""
        if self.sees_data:
            self._encoder()
        elif self.generates:
            self.load_generator()

    def embedding(self, examples: Examples) -> Tensor:
        """Return what a generator knows these images by, the client's alone; empty without one."""
        if not self.sees_data:
            return torch.empty(0)
        return self.load_generator().embed(encoders.features(self._encoder(), examples))

    def proposer(self, embedding: Tensor) -> Proposer:
        """Return the proposer, for data of this embedding where data guides it."""
        if not self.generates:
            return proposer(self.name)
        return generators.guided_proposer(self.load_generator(), self.guide, embedding)

    def _generator_file(self) -> Path:
        if self.generator is not None:
            return Path(self.generator)
        name = registry.describe("space", self.space)["name"]
        path = Path(str(generators.SHIPPED / f"{Path(name).name}.safetensors"))
        if not path.is_file():
            raise UserError(
                f"algorithm.proposer: no generator comes with the package for {name}; take "
                f'"evolution", or name one by algorithm.generator, which `fedtailor pretrain '
                f"--space {name}` makes"
            )
        return path

    def load_generator(self) -> Generator:
        """Return the generator of the file, or the package's own; read once per process."""
        path = self._generator_file()
        with _naming_the_field():
            return _loaded(path, self.space, _stamp(path))

    def _encoder(self) -> Encoder:
        made = self.load_generator()
        with _naming_the_field():
            return generators.encoder_of(made, self.encoder)


def _stamp(path: Path) -> tuple[int, int]:
    """Tell a file from another of its name."""
    return (path.stat().st_mtime_ns, path.stat().st_size) if path.is_file() else (0, 0)


@functools.lru_cache(maxsize=4)
def _loaded(path: Path, space: SearchSpace, stamp: tuple[int, int]) -> Generator:
    """Read a generator, once per process."""
    return generators.load(path, space)


@contextmanager
def _naming_the_field() -> Iterator[None]:
    """Have a complaint about `generator` or `encoder` say that it is an algorithm's."""
    try:
        yield
    except UserError as error:
        raise UserError(f"algorithm.{error}") from None
