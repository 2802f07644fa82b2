"""The Algorithm base class: a frozen value with a few functions, state in and state out.

The same object runs in one process, in worker processes and on a real federation: it never sees an
engine, a file or a logger.
"""

import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

from annotated_types import Ge, Gt

from fedtailor.algorithms._replies import Forms
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
    Setting,
    Tensors,
)
from fedtailor.networks.network import Network
from fedtailor.training import learn
from fedtailor.training.merge import merge, weighed

S = TypeVar("S")
C = TypeVar("C")


@dataclass(frozen=True)
class Algorithm(learn.Recipe, ABC, Generic[S, C]):
    """Fields are hyper-parameters, config keys and help; nothing else is ever stored on self.

    S is the server's state, C a client's private one (None: it has none). Both are dataclasses of
    tensors and JSON, and the methods' return annotations name them.
    """

    searches: ClassVar[bool] = False  # whether it chooses among the space's architectures

    finetune_epochs: Annotated[int, Ge(0)] = 0  # local epochs before a deployed model is tested
    finetune_lr: Annotated[float, Gt(0)] | None = None  # None: lr, before any schedule

    @abstractmethod
    def sends(self) -> Forms:
        """Declare all that leaves a client: the forms that a reply may have, each complete.

        Replies are checked against it where they arrive, before anything is merged.
        """

    def check(self, setting: Setting) -> None:
        """Raise a UserError where space and options do not fit, before anything is written."""
        return

    def needs_val(self, setting: Setting) -> bool:
        """Tell whether it needs validation images; then clients without any are refused."""
        return self.searches

    def needs_public(self, setting: Setting) -> int:
        """Return how many images the server needs of its own, `data.public`, at the least."""
        return 0

    def search_ends(self, space: SearchSpace, rounds: int, share: float) -> int:
        """Return the round after which a search has decided all, if it decides step by step.

        Args:
            space: what is searched.
            rounds: of the run.
            share: of these in which a client takes part, on average.
        """
        return 0

    def needs(self, setting: Setting) -> dict[str, Path]:
        """Return the files that a client must have before its first round, by their config keys.

        A run knows them by their bytes, and counts these once for every client that trains. A
        method with files of its own adds them: `super().needs(setting) | {...}`.
        """
        return {} if setting.init is None else {"space.init": Path(setting.init)}

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

    def holds_out(self, own: C) -> bool:
        """Tell whether a client's validation images are still untrained.

        Where they are not, it has no validation accuracy, and what it deploys may be tuned on them.
        """
        return True

    @abstractmethod
    def aggregate(self, server: Server, state: S, results: Iterable[Result]) -> S:
        """Take the cohort's results in; they come in the order of client ids, as they arrive."""

    def serve(self, server: Server, state: S, info: ClientInfo) -> Message:
        """Give a client that wants its model what it needs: by default, a cohort of one."""
        return self.configure(server, state, [info])[info.id]

    @abstractmethod
    def deploy(self, client: Client, own: C, msg: Message) -> Iterator[tuple[str, Network]]:
        """Yield the networks this client would use, named, from the cheapest to the final one.

        The first is called "untuned": it is what `eval_every` tests and validation selects by.
        Each is used before the next is asked for, so one network may serve for all.
        """

    def knows_val(self, label: str) -> bool:
        """Tell whether a network that `deploy` names so has learned from validation images.

        Its accuracy on them is then not measured.
        """
        return False

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
            choices: of each choice its `name` and `options`; the rest is a method's own.
            clients: by client id (text) what is known of its policy: `genes` of the most probable
                architecture, the same as `architecture` (choice name to option), its `probability`,
                and by choice name `entropy` (0 decided, 1 undecided) and `probabilities`.
            shared: the same of a policy that all clients share.
        """
        return {"choices": [{"name": c.name, "options": list(c.options)} for c in space.choices]}

    def for_newcomers(self) -> Self | None:
        """Return how to search for clients that never took part, while all weights stand still.

        None: it cannot; new clients then test and tune what they are given.
        """
        return None

    def first_like(self, server: Server, state: S) -> S:
        """Return a first state in the form of another one: what a run starts from must fit it."""
        return self.server_init(server)

    def welcome(self, state: S) -> S:
        """Return what of a state is meant for clients that never took part.

        Clients are known by number, and those of other data count from 0 again: nobody may take
        over what belongs to another.
        """
        return state

    def tune(
        self, client: Client, network: Network, only: Callable[[str], bool] | None = None
    ) -> Iterator[tuple[str, Network]]:
        """Yield a network untuned and, if there are epochs for it, tuned on the client's data."""
        yield "untuned", network
        if self.finetune_epochs:
            lr = self.finetune_lr or self.lr  # a decayed rate would tune nothing
            live = network if only is None else network.only(only)
            learn.fit(client, live, self, lr=lr, epochs=self.finetune_epochs, purpose="finetune")
            yield "tuned", network


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
