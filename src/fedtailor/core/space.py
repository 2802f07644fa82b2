"""What a search space is: choices, architectures, and networks built from them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from torch import nn

from fedtailor.core.records import Arch


@dataclass(frozen=True)
class Choice:
    """One decision of a search space."""

    name: str
    options: tuple[int | str, ...]


@dataclass(frozen=True)
class Token:
    """One of the sequence as which generators see an architecture: some genes, taken together.

    With a `depth` the token is there only where that gene is at least that option, else it is
    absent. No token writes such a gene: which of its tokens are absent says what it is.
    """

    name: str
    genes: tuple[int, ...]  # indices of choices
    stage: int = 0
    place: int = 0  # within its stage or cell
    after: tuple[int, ...] = ()  # indices of the tokens whose output it reads
    depth: tuple[int, int] | None = None  # gene and option


@dataclass(frozen=True)
class Task:
    """What a network must do: images of `shape` (channels, height, width) into `classes`."""

    shape: tuple[int, int, int]
    classes: int


class SearchSpace(ABC):
    """A family of networks; a fixed model is a space without choices.

    Parameter names are stable over architectures; the classifier's begin with "head.". Of a name
    that two architectures share, the smaller tensor is a window of the larger one: leading in the
    first two dimensions, centred in the others.
    """

    presets: ClassVar[dict[str, dict[str, Any]]] = {}  # name -> fields, beside "default"

    @property
    def choices(self) -> tuple[Choice, ...]:
        """The decisions, in the order of an Arch."""
        return ()

    @property
    def tokens(self) -> tuple[Token, ...]:
        """The sequence as which generators see an architecture; by default a token per choice."""
        return tuple(
            Token(choice.name, (gene,), 0, gene, (gene - 1,) if gene else ())
            for gene, choice in enumerate(self.choices)
        )

    def at(self, task: Task) -> Self:
        """Return the space with what only a task can tell filled in, such as the images' size."""
        return self

    @abstractmethod
    def build(self, arch: Arch, task: Task) -> nn.Module:
        """Build the network of an architecture, its weights not yet of any meaning."""

    def smallest(self) -> Arch:
        """Return the cheapest architecture; options are listed from small to large."""
        return self.repair(tuple(0 for _ in self.choices))

    def middle(self) -> Arch:
        """Return an architecture of middling cost."""
        return self.repair(tuple((len(c.options) - 1) // 2 for c in self.choices))

    def largest(self) -> Arch:
        """Return the dearest architecture."""
        return self.repair(tuple(len(c.options) - 1 for c in self.choices))

    def cover(self) -> tuple[Arch, ...]:
        """Return architectures whose union is the supernet: option k everywhere, for every k."""
        most = max((len(c.options) for c in self.choices), default=1)
        every = (tuple(min(k, len(c.options) - 1) for c in self.choices) for k in range(most))
        return tuple(dict.fromkeys(self.repair(arch) for arch in every))

    def repair(self, arch: Arch) -> Arch:
        """Return the nearest legal architecture, in the one form that equal networks share.

        A legal architecture in that form is returned as it is.
        """
        return self.merged(arch)

    def merged(self, arch: Arch) -> Arch:
        """Return genes with the first of all options that are the same network, legal or not.

        That is: which compute the same for images of this size, whatever the weights are. What
        `cover` returns need not be of this form, so that weights fit images of any size.
        """
        return arch
