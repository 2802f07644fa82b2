"""FedNAS: one architecture for all clients, which they search together, then train.

Paper: He et al. 2020, "Towards Non-I.I.D. and Invisible Data with FedNAS: Federated Deep Learning
via Neural Architecture Search"; Appendix D.1 of SPIDER has it with another searcher.

All clients train the same relaxed supernet, which is averaged. With `searcher = "milenas"` they mix
its operations by alphas, which learn beside the weights and are averaged as these are; after
`search_rounds` each edge keeps its strongest operation, and what was found is trained from its
first weights. With `"perturbation"` the server removes operations, on images of its own, by
SPIDER's schedule (`warmup`, `recovery`), and weights are kept. In the end clients fine-tune.

Differs from the papers:
- alphas begin at 0 and take plain steps; the authors' code has Adam, drops the share of validation
  images that can be set, and cuts the gradient of alphas instead of that of weights;
- clients of a cohort may take part in turn, where the authors' all do in every round;
- what was found is trained in the supernet's own form, and all edges stay;
- validation images of clients join their training images once all is decided, as with SPIDER;
- what is decided after a round is used from the next one on: tested is what was trained.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, cast

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedtailor.algorithms._base import Algorithm, mean_of
from fedtailor.algorithms._replies import Forms, Sent
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Json,
    Log,
    Message,
    Reply,
    Result,
    Server,
    Setting,
    Tensors,
)
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network, Wanted
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import Store, pruned
from fedtailor.search import genes, milenas, perturb
from fedtailor.spaces.darts import DARTS, check_relaxed, is_relaxed
from fedtailor.training import learn
from fedtailor.training.fitness import FEWEST
from fedtailor.training.population import scores_of_kinds

ALPHAS = "alphas"  # their name in messages, which no parameter has


@dataclass(frozen=True)
class Found:
    """The server's state: a network that all train, and what of it they will train."""

    arch: Arch  # of the weights: what was trained last
    next: Arch  # what is trained from the next round on
    weights: Tensors
    alphas: Tensor = field(default_factory=lambda: torch.empty(0))  # of MiLeNAS, else none
    tested: dict[str, tuple[float, float]] = field(default_factory=dict)  # perturbation: without it


@dataclass(frozen=True)
class Seen:
    """What a client remembers of itself."""

    val: bool = False  # whether it has trained on its validation images


@dataclass(frozen=True)
class FedNAS(Algorithm[Found, Seen]):
    """Clients train one supernet, of which one architecture for all is left."""

    searches: ClassVar[bool] = True

    finetune_epochs: Annotated[int, Ge(0)] = 10
    lr: Annotated[float, Gt(0)] = 0.01
    weight_decay: Annotated[float, Ge(0)] = 1e-3
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    clip: Annotated[float, Ge(0)] = 5.0
    searcher: Literal["milenas", "perturbation"] = "milenas"  # what decides
    search_rounds: Annotated[int, Ge(1)] | None = None  # milenas; none: four tenths of the rounds
    alpha_lr: Annotated[float, Gt(0)] = 0.01  # milenas
    alpha_weight: Annotated[float, Ge(0)] = 1.0  # milenas: lambda, of validation images
    warmup: Annotated[int, Ge(0)] = 30  # perturbation: rounds before the first decision
    recovery: Annotated[int, Ge(1)] = 20  # perturbation: it decides after multiples of it
    statistics: Literal["merged", "own"] = "merged"  # batch norm's: all clients', or each its own

    def sends(self) -> Forms:
        """Declare what leaves a client: what it trained and, while they learn, the alphas."""
        beside = " and batch-norm statistics" if self.statistics == "merged" else ""
        weights = Sent("*", "tensor", f"the shared network's parameters{beside}, trained")
        told = "while all search: alphas, how much each operation of each edge counts, trained"
        alphas = Sent(ALPHAS, "tensor", told, optional=True)
        return {"trained": (weights, alphas) if self.searcher == "milenas" else (weights,)}

    def check(self, setting: Setting) -> None:
        """Refuse spaces whose operations cannot be removed, and searches that never end."""
        check_relaxed(setting.space, "fednas")
        last = self._last_search(setting)
        if setting.rounds and last >= setting.rounds:
            raise UserError(
                f"algorithm.search_rounds: the search takes {last} rounds and leaves none of "
                f"{setting.rounds} to train what is found; raise rounds"
            )

    def needs_val(self, setting: Setting) -> bool:
        """Tell whether alphas learn from validation images."""
        return self.searcher == "milenas" and bool(setting.space.choices)

    def needs_public(self, setting: Setting) -> int:
        """Tell how many images the server decides by at the least, where it is to decide."""
        decides = self.searcher == "perturbation" and setting.space.choices and setting.rounds
        return FEWEST if decides else 0

    def search_ends(self, space: SearchSpace, rounds: int, share: float) -> int:
        """Return the round after which the server decides the last edge; it needs one more."""
        if not is_relaxed(space) or self.searcher == "milenas":
            return 0  # `check` refuses those that are too long
        return perturb.last_event(self.warmup, self.recovery, space) + 1

    def holds_out(self, own: Seen) -> bool:
        """Tell whether a client has never trained on its validation images."""
        return not own.val

    def server_init(self, server: Server) -> Found:
        """Start from all operations; a fixed model is as it is."""
        space = server.setting.space
        arch = space.largest() if space.choices else server.setting.arch
        state = Found(arch, arch, self._first(server.setting, arch))
        if space.choices and self.searcher == "milenas":
            state = replace(state, alphas=torch.zeros(milenas.count(cast(DARTS, space))))
        return self._decided(server, state, 0)

    def client_init(self, client: Client) -> Seen:
        """Clients begin without having seen anything."""
        return Seen()

    def configure(
        self, server: Server, state: Found, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send everyone the same network, and the alphas while it is mixed."""
        message = Message(self._shared(server.setting, state), {"genes": list(state.next)})
        return dict.fromkeys([info.id for info in cohort], message)

    def train(self, client: Client, own: Seen, msg: Message) -> tuple[Seen, Reply]:
        """Train what was sent; once all is decided, on validation images too."""
        arch = tuple(msg.info["genes"])
        searching = bool(perturb.undecided(arch))
        lr = self._rate(client, searching)
        if not searching:
            client, own = learn.joined(client), Seen(val=True)
        network = learn.network(client, _without(msg.tensors, ALPHAS.__eq__), arch)
        alphas: Tensors = {}
        if ALPHAS in msg.tensors:
            learned, loss = self._fit_mixed(client, network, msg.tensors[ALPHAS], lr)
            alphas = {ALPHAS: learned.cpu()}
        else:
            loss = learn.fit(client, network, self, lr=lr)
        weights = network.weights(statistics=self.statistics == "merged")
        return own, Reply(Message(weights | alphas), Log.of(loss=loss))

    def aggregate(self, server: Server, state: Found, results: Iterable[Result]) -> Found:
        """Average weights and alphas by examples, and decide what it is time to decide."""
        merged = mean_of(self._shared(server.setting, state), results, weighted=True)
        alphas = merged.pop(ALPHAS, state.alphas)
        state = replace(state, arch=state.next, weights=merged, alphas=alphas)
        return self._decided(server, state, server.round)

    def serve(self, server: Server, state: Found, info: ClientInfo) -> Message:
        """Give a client the network; while it is mixed, what is strongest in it."""
        setting, arch, weights = server.setting, state.arch, state.weights
        if self._mixes(state.arch):  # a mixture's statistics are not those of its strongest part
            arch = milenas.strongest(cast(DARTS, setting.space), arch, state.alphas)
            weights = pruned(_without(weights, is_statistic), setting.space, arch, setting.task)
        return Message(weights, {"genes": list(arch)})

    def deploy(self, client: Client, own: Seen, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use that network, statistics measured where none are sent; then fine-tuned."""
        network = learn.network(client, msg.tensors, tuple(msg.info["genes"]))
        if not any(map(is_statistic, msg.tensors)):
            learn.recalibrate(network, client.train)
        return self.tune(client, network)

    def first_like(self, server: Server, state: Found) -> Found:
        """Return first weights of the architecture that another state has."""
        if not genes.is_legal(server.setting.space, state.arch):
            return self.server_init(server)
        return replace(state, weights=self._first(server.setting, state.arch))

    def inspect(self, space: SearchSpace, state: Found) -> dict[str, Json]:
        """Tell what each edge will have and its alphas, and how the network did without it."""
        found = super().inspect(space, state)
        if not space.choices:
            return found
        edges = zip(space.choices, cast(DARTS, space).offers, state.next, strict=True)
        alive = {
            edge.name: [name for bit, name in enumerate(offered) if live >> bit & 1]
            for edge, offered, live in edges
        }
        without = {
            name: {"accuracy": accuracy, "loss": -likelihood}
            for name, (accuracy, likelihood) in state.tested.items()
        }
        if self.searcher == "perturbation":
            return found | {"alive": alive, "without": without}
        return found | {"alive": alive, "alphas": milenas.named(cast(DARTS, space), state.alphas)}

    def _mixes(self, arch: Arch) -> bool:
        """Tell whether an architecture's operations count by alphas."""
        return self.searcher == "milenas" and bool(perturb.undecided(arch))

    def _last_search(self, setting: Setting) -> int:
        """Return the last round of a search after which all begins anew; 0: there is none."""
        if self.searcher != "milenas" or not setting.space.choices:
            return 0
        return self.search_rounds or round(0.4 * setting.rounds)

    def _rate(self, client: Client, searching: bool) -> float:
        """Return the learning rate, whose schedule begins anew where weights do."""
        last = self._last_search(client.setting)
        if searching and last:
            return self.rate(client.round, last)
        return self.rate(client.round - last, client.setting.rounds - last)

    def _first(self, setting: Setting, arch: Arch) -> Tensors:
        first = initial_weights(setting, arch)
        return first if self.statistics == "merged" else _without(first, is_statistic)

    def _shared(self, setting: Setting, state: Found) -> Tensors:
        """Return what clients begin their next round with."""
        if state.next == state.arch:
            return state.weights | ({ALPHAS: state.alphas} if self._mixes(state.arch) else {})
        if self.searcher == "milenas":
            return self._first(setting, state.next)
        return pruned(state.weights, setting.space, state.next, setting.task)

    def _fit_mixed(
        self, client: Client, network: Network, alphas: Tensor, lr: float
    ) -> tuple[Tensor, float]:
        """Let alphas take a step before the weights do, batch by batch."""
        mixed = milenas.Mixed.of(client, network, alphas, self, self.alpha_lr, self.alpha_weight)
        steps, mean = learn.optimizer(network, self, lr), learn.EpochMean(client.device)
        for batch in learn.batches(client, self.batch, epochs=self.epochs, purpose="train"):
            mixed.learn(batch)
            steps.zero_grad()
            loss = mixed.loss(batch, self.label_smoothing)
            loss.backward()
            learn.move(network, steps, self.clip)
            mean.add(loss, batch)
        return mixed.alphas, mean.value

    def _decided(self, server: Server, state: Found, done: int) -> Found:
        """Decide after so many rounds, if it is time to and there is still a round to come."""
        if not perturb.undecided(state.arch) or done >= server.setting.rounds:
            return state
        space = cast(DARTS, server.setting.space)
        if self.searcher == "milenas":
            if done < self._last_search(server.setting):
                return state
            return replace(state, next=milenas.strongest(space, state.arch, state.alphas))
        if done < self.warmup or done % self.recovery:
            return state
        return self._perturbed(server, space, state)

    def _perturbed(self, server: Server, space: DARTS, state: Found) -> Found:
        """Decide an edge of each cell, by how the network does without each operation."""
        test = partial(self._tested, server, state)
        archs, tested = perturb.decide(space, state.arch, 0, "accuracy", server.rng("search"), test)
        return replace(state, next=archs[-1], tested={**state.tested, **tested})

    def _tested(self, server: Server, state: Found, removed: perturb.Removed) -> perturb.Tested:
        """Test the network without each of what is in doubt, by images of the server."""
        if server.public is None:
            raise UserError("data.public: fednas decides by images of the server; set it")
        store = Store(server.setting.space, server.setting.task, state.weights, server.device)
        scores = scores_of_kinds(
            store, [*removed.values()], server.public, perturb.KINDS, meter=server.meter
        )
        return dict(zip(removed, zip(*scores, strict=True), strict=True))


def _without(weights: Tensors, unwanted: Wanted) -> Tensors:
    return learn.pick(weights, lambda name: not unwanted(name))
