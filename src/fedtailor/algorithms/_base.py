"""The Algorithm base class: a frozen value with a few functions, state in and state out.

The same object runs in one process, in worker processes and on a real federation: it never sees an
engine, a file or a logger.
"""

import fnmatch
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from annotated_types import Ge, Gt
from torch import Tensor, nn

from fedtailor.core.space import SearchSpace
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Json,
    Message,
    Metric,
    Reply,
    Result,
    Server,
    Tensors,
)
from fedtailor.training import learn
from fedtailor.training.merge import merge, weighed

S = TypeVar("S")
C = TypeVar("C")


@dataclass(frozen=True)
class Sent:
    """One thing that leaves a client.

    Attributes:
        name: a key of the message's info, or a pattern of tensor names (`*` matches anything).
        kind: "tensor", or the JSON type of an info entry.
        shape: "received": name, shape and type of a tensor of the server's own message; or the
            sizes, -1 for any.
        what: a line for people.
    """

    name: str
    kind: Literal["tensor", "int", "float", "str", "list"]
    what: str
    shape: Literal["received"] | tuple[int, ...] = "received"


@dataclass(frozen=True)
class Algorithm(learn.Recipe, ABC, Generic[S, C]):
    """Fields are hyper-parameters, config keys and help; nothing else is ever stored on self.

    S is the server's state, C a client's private one (None: it has none). Both are dataclasses of
    tensors and JSON, and the methods' return annotations name them.
    """

    sends: ClassVar[tuple[Sent, ...]]
    searches: ClassVar[bool] = False  # whether it chooses among the space's architectures

    finetune_epochs: Annotated[int, Ge(0)] = 0  # local epochs before a deployed model is tested
    finetune_lr: Annotated[float, Gt(0)] | None = None  # None: lr, before any schedule

    @abstractmethod
    def server_init(self, server: Server) -> S:
        """Make the server's first state."""

    @abstractmethod
    def client_init(self, client: Client) -> C:
        """Make the private state of a client that has not trained yet."""

    @abstractmethod
    def configure(self, server: Server, state: S, cohort: list[ClientInfo]) -> dict[int, Message]:
        """Say what each client of the cohort gets; a client left out does not train."""

    @abstractmethod
    def train(self, client: Client, own: C, msg: Message) -> tuple[C, Reply]:
        """Do a client's part of a round."""

    @abstractmethod
    def aggregate(self, server: Server, state: S, results: Iterable[Result]) -> S:
        """Take the cohort's results in; they come in the order of client ids, as they arrive."""

    def serve(self, server: Server, state: S, info: ClientInfo) -> Message:
        """Give a client that wants its model what it needs: by default, a cohort of one."""
        return self.configure(server, state, [info])[info.id]

    @abstractmethod
    def deploy(self, client: Client, own: C, msg: Message) -> Iterator[tuple[str, nn.Module]]:
        """Yield the models this client would use, named, from the cheapest to the final one.

        The first is called "untuned": it is what `eval_every` tests and validation selects by.
        Each is used before the next is asked for, so one network may serve for all.
        """

    @property
    def doing(self) -> str:
        """Say in one word what clients do in a round, for the progress line."""
        return "training"

    def warnings(self) -> tuple[str, ...]:
        """Say in sentences what about these hyper-parameters makes results hard to compare."""
        return ()

    def observe(self, server: Server, state: S) -> dict[int, tuple[Metric, ...]]:
        """Tell what the server itself knows of clients after a round, for the run folder."""
        return {}

    def inspect(self, space: SearchSpace, state: S) -> dict[str, Json]:
        """Say what the server's state knows of the search, for `show` and the report.

        Pictures and tables are made of these keys, as far as they are there:
            choices: of each choice its `name` and `options`.
            clients: by client id (text) what is known of its policy: `genes` of the most probable
                architecture, the same as `architecture` (choice name to option), its `probability`,
                and by choice name `entropy` (0 decided, 1 undecided) and `probabilities`.
            shared: the same of a policy that all clients share.
        """
        return {}

    def welcome(self, state: S) -> S:
        """Return what of a state is meant for clients that never took part.

        Clients are known by number, and those of other data count from 0 again: nobody may take
        over what belongs to another.
        """
        return state

    def tune(
        self, client: Client, model: nn.Module, only: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, nn.Module]]:
        """Yield a model untuned and, if there are epochs for it, tuned on the client's data."""
        yield "untuned", model
        if self.finetune_epochs:
            lr = self.finetune_lr or self.lr  # a decayed rate would tune nothing
            epochs = self.finetune_epochs
            learn.train(client, model, self, lr=lr, epochs=epochs, only=only, purpose="finetune")
            yield "tuned", model


def to_all(weights: Tensors, cohort: list[ClientInfo]) -> dict[int, Message]:
    """Send the same weights to every client of the cohort, as one message."""
    return dict.fromkeys([info.id for info in cohort], Message(weights))


def mean_of(weights: Tensors, results: Iterable[Result], weighted: bool) -> Tensors:
    """Average what came back: by the clients' numbers of examples, or plainly."""
    rule = "count_samples" if weighted else "count"
    return merge(weights, (weighed(rule, r.message.tensors, r.client.examples) for r in results))


def state_types(algorithm: Algorithm[Any, Any]) -> tuple[Any, Any]:
    """Return the types of the server's and of a client's state."""
    found = []
    for method in (type(algorithm).server_init, type(algorithm).client_init):
        kind = typing.get_type_hints(method).get("return")
        if kind is None or isinstance(kind, TypeVar):
            raise TypeError(f"{method.__qualname__} must be annotated with the type it returns")
        found.append(kind)
    return found[0], found[1]


class UndeclaredError(Exception):
    """A reply holds something that its algorithm does not declare."""


def check_sends(sends: tuple[Sent, ...], received: Message, reply: Message) -> None:
    """Raise unless everything in the reply is declared, in name, kind and shape."""
    for name, tensor in reply.tensors.items():
        rules = [s for s in sends if s.kind == "tensor" and fnmatch.fnmatchcase(name, s.name)]
        if not any(_shape_fits(rule, name, tensor, received) for rule in rules):
            raise UndeclaredError(
                f"the reply holds a tensor {name!r} of shape {tuple(tensor.shape)}, "
                "which the algorithm's `sends` does not declare"
            )
    for key, value in reply.info.items():
        if not any(s.name == key and s.kind == _kind(value) for s in sends):
            raise UndeclaredError(
                f"the reply's info holds {key!r} ({_kind(value)}), "
                "which the algorithm's `sends` does not declare"
            )


def _shape_fits(rule: Sent, name: str, tensor: Tensor, received: Message) -> bool:
    if rule.shape == "received":
        sent = received.tensors.get(name)
        return sent is not None and sent.shape == tensor.shape and sent.dtype == tensor.dtype
    return len(rule.shape) == tensor.dim() and all(
        want in (-1, size) for want, size in zip(rule.shape, tensor.shape, strict=True)
    )


def _kind(value: Json) -> str:
    return type(value).__name__
