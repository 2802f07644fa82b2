"""SPIDER: a private architecture, found by removing operations, beside a federated supernet.

Paper: Mushtaq et al. 2023, "Distributed Architecture Search Over Heterogeneous Distributions".
Numbers in the code are the lines of its Algorithms 1 and 2.

Every silo trains the supernet of all, which is averaged, and a network of its own, which begins as
the supernet and is pulled towards it by name. After a warm-up, now and then, one edge of the normal
and one of the reduction cell lose all operations but one. Nothing of the own network leaves a silo.

Differs from the paper:
- the operation stays whose removal leaves the lowest validation accuracy and, of equals, the most
  loss, as section 4.4 says; line 8 of Algorithm 2 has it the other way round: `"printed"`, warns;
- a silo counts its own rounds: nobody misses a search where only some silos take part in a round;
- the own network begins as the supernet that was received, and momentum begins anew in each round;
- the supernet's epochs come first, then the own network's on the same batches: neither looks at the
  other within a round, so this is the same as steps in turn. Only the supernet's gradient is cut;
- batch norm's statistics are never sent; tests of removals use those of each batch and change none;
- validation images join the training when all is decided, `inputs` too, and not before;
- two inputs for each node (`inputs = 2`), which the authors' code has and the paper has not;
- `searcher = "milenas"` (Appendix C) mixes the own network's operations and decides all edges at
  once; a silo that deploys before that uses the strongest operations, statistics measured anew.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, ClassVar, Literal, cast

import torch
from annotated_types import Ge, Gt

from fedtailor.algorithms._base import Algorithm, mean_of, to_all
from fedtailor.algorithms._replies import Forms, trained_tensors
from fedtailor.algorithms.fedavg import Global
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Log,
    Message,
    Metric,
    Reply,
    Result,
    Server,
    Setting,
    Tensors,
    UsedArch,
)
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network
from fedtailor.networks.store import Store, cut, pruned, shapes
from fedtailor.search import milenas, perturb
from fedtailor.spaces.darts import DARTS, check_relaxed, is_relaxed
from fedtailor.training import learn
from fedtailor.training.fitness import fitness_of_kinds


@dataclass(frozen=True)
class Private:
    """A silo's own network."""

    arch: Arch
    weights: Tensors = field(default_factory=dict)  # with statistics; none before its first round
    rounds: int = 0  # that it took part in: t
    alphas: tuple[float, ...] = ()  # of MiLeNAS


@dataclass(frozen=True)
class SPIDER(Algorithm[Global, Private]):
    """Silos train the supernet together, and each searches and trains a network of its own."""

    searches: ClassVar[bool] = True

    lr: Annotated[float, Gt(0)] = 0.01
    weight_decay: Annotated[float, Ge(0)] = 1e-3
    schedule: Literal["constant", "cosine", "step"] = "cosine"
    clip: Annotated[float, Ge(0)] = 5.0  # of the supernet's gradient, and when a network is tuned
    strength: Annotated[float, Ge(0)] = 0.01  # lambda: pull towards the supernet; 0: silos alone
    searcher: Literal["accuracy", "loss", "printed", "random", "milenas", "none"] = (
        "accuracy"  # what decides
    )
    warmup: Annotated[int, Ge(0)] = 30  # t_s: rounds of a silo before its first search
    recovery: Annotated[int, Ge(1)] = 20  # tau: a silo searches in rounds that are multiples of it
    inputs: Literal[0, 2] = 0  # edges that stay into each node, in the end; 0: all
    search_rounds: Annotated[int, Ge(0)] | None = (
        None  # milenas: rounds of a silo before it decides; none: four tenths of the run's
    )
    alpha_lr: Annotated[float, Gt(0)] = 0.01  # milenas
    alpha_weight: Annotated[float, Ge(0)] = 1.0  # milenas: lambda, of validation images

    def sends(self) -> Forms:
        """Declare what leaves a silo."""
        if not self.strength:
            return {"nothing": ()}
        return trained_tensors("the global supernet's parameters after local training")

    def check(self, setting: Setting) -> None:
        """Refuse spaces whose operations cannot be removed."""
        check_relaxed(setting.space, "spider")
        if self.inputs and self.searcher in ("none", "milenas"):
            raise UserError(
                f'algorithm.inputs: searcher = "{self.searcher}" removes no edges; set inputs = 0'
            )

    def needs_val(self, setting: Setting) -> bool:
        """Tell whether anything is searched: if not, validation images are trained on anyway."""
        return self.searcher != "none" and bool(setting.space.choices)

    def warnings(self) -> tuple[str, ...]:
        """Say what makes results hard to compare."""
        if self.searcher != "printed":
            return ()
        return (
            'algorithm.searcher: "printed" keeps the operation that is missed least, a slip of the '
            'paper\'s Algorithm 2; "accuracy" keeps the one that is missed most',
        )

    def search_ends(self, space: SearchSpace, rounds: int, share: float) -> int:
        """Return the round in which silos decide the last edge or node."""
        if not is_relaxed(space) or self.searcher == "none":
            return 0
        own = self._search_rounds(rounds)
        if self.searcher != "milenas":
            own = perturb.last_event(self.warmup, self.recovery, space, self.inputs)
        return math.ceil((own + 1) / share)

    def holds_out(self, own: Private) -> bool:
        """Tell whether the search goes on; after it validation images are trained on."""
        return self.searcher != "none" and bool(perturb.undecided(own.arch, self.inputs))

    def server_init(self, server: Server) -> Global:
        """1: start from the first supernet; where silos are alone there is none."""
        return Global(initial_supernet(server.setting) if self.strength else {})

    def client_init(self, client: Client) -> Private:
        """1: start from all operations; without a search, from `space.arch`."""
        setting = client.setting
        own = Private(setting.arch if self.searcher == "none" else setting.space.largest())
        if self.searcher != "milenas" or not setting.space.choices:
            return own
        return replace(own, alphas=(0.0,) * milenas.count(cast(DARTS, setting.space)))

    def configure(
        self, server: Server, state: Global, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """5: send the supernet to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: Private, msg: Message) -> tuple[Private, Reply]:
        """8 to 19: a silo's round."""
        watch, own = Stopwatch(client.meter), _begun(client, own, msg)
        with watch.part("search"):
            own, log = self._searched(client, own)  # 10
        if not self.holds_out(own):  # Phase 3
            client = learn.joined(client)
        with watch.part("supernet"):
            update = self._fit_supernet(client, msg)  # 17
        with watch.part("own network"):
            own, loss = self._fit_own(client, own, msg)  # 18
        metrics = (Metric("train", "loss", loss), *log.metrics)
        log = Log(metrics, log.architectures, watch.times())
        return replace(own, rounds=own.rounds + 1), Reply(Message(update), log)  # 19

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """6: average the supernets by examples."""
        return Global(mean_of(state.weights, results, weighted=True))

    def deploy(self, client: Client, own: Private, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the own network; of one that never trained, statistics are measured first."""
        measured, own = bool(own.weights), _begun(client, own, msg)
        if self._mixes(own):
            measured, own = False, _strongest(client, own)
        network = learn.network(client, own.weights, own.arch)
        if not measured:
            learn.recalibrate(network, client.train)
        return self.tune(client, network)

    def _fit_supernet(self, client: Client, msg: Message) -> Tensors:
        """17: train the supernet; its statistics stay here."""
        if not self.strength:
            return {}
        shared = learn.network(client, msg.tensors, client.setting.space.largest())
        learn.fit(client, shared, self)
        return shared.weights(statistics=False)

    def _fit_own(self, client: Client, own: Private, msg: Message) -> tuple[Private, float]:
        """11 to 18: train the own network, pulled to what was received of its operations."""
        mine, mean = learn.network(client, own.weights, own.arch), learn.EpochMean(client.device)
        shared = {name: msg.tensors[name].to(client.device) for name in mine.live if self.strength}
        steps = learn.optimizer(mine, self, learn.rate_of(self, client))
        mixed = self._mixed(client, own, mine) if self._mixes(own) else None
        for batch in learn.batches(client, self.batch, epochs=self.epochs, purpose="train"):
            if mixed:
                mixed.learn(batch)
            steps.zero_grad()
            loss = (mixed or mine).loss(batch, self.label_smoothing)
            loss.backward()
            if shared:
                learn.pull(mine, shared, self.strength)
            learn.move(mine, steps)
            mean.add(loss, batch)
        alphas = tuple(mixed.alphas.tolist()) if mixed else own.alphas
        return replace(own, weights=mine.weights(), alphas=alphas), mean.value

    def _mixes(self, own: Private) -> bool:
        """Tell whether the own network's operations count by alphas."""
        return self.searcher == "milenas" and self.holds_out(own)

    def _mixed(self, client: Client, own: Private, mine: Network) -> milenas.Mixed:
        """Return the own network with its alphas, and validation images for them."""
        alphas = torch.tensor(own.alphas)
        return milenas.Mixed.of(client, mine, alphas, self, self.alpha_lr, self.alpha_weight)

    def _searched(self, client: Client, own: Private) -> tuple[Private, Log]:
        """Algorithm 2: in the rounds that are for it, decide an edge of both cells."""
        if not self._is_due(client, own):
            return own, Log()
        space, task, tested = cast(DARTS, client.setting.space), client.setting.task, {}
        if self.searcher == "milenas":
            archs = [milenas.strongest(space, own.arch, torch.tensor(own.alphas))]
        else:
            rule, test = cast(perturb.Rule, self.searcher), partial(self._tested, client, own)
            rng = client.rng("search")
            archs, tested = perturb.decide(space, own.arch, self.inputs, rule, rng, test)  # 4 to 9
        rows = [UsedArch(a, None, cost.prices(space, a, task), "decided") for a in archs]
        return _with_arch(client, own, archs[-1]), Log(_metrics(tested), tuple(rows))

    def _is_due(self, client: Client, own: Private) -> bool:
        """3: tell whether a silo decides something before it trains."""
        if not self.holds_out(own):
            return False
        if self.searcher == "milenas":
            return own.rounds >= self._search_rounds(client.setting.rounds)
        return own.rounds >= self.warmup and own.rounds % self.recovery == 0

    def _search_rounds(self, rounds: int) -> int:
        """Appendix C: return in how many rounds of a silo alphas learn."""
        return round(0.4 * rounds) if self.search_rounds is None else self.search_rounds

    def _tested(self, client: Client, own: Private, removed: perturb.Removed) -> perturb.Tested:
        """6, 7: test the own network without each of what is in doubt, all in one walk."""
        store = Store(client.setting.space, client.setting.task, own.weights, client.device)
        scores = fitness_of_kinds(client, store, [*removed.values()], perturb.KINDS, client.val)
        return dict(zip(removed, zip(*scores, strict=True), strict=True))


def _begun(client: Client, own: Private, msg: Message) -> Private:
    """Give a silo in its first round what it received; alone, the weights that all start from."""
    if own.weights:
        return own
    setting = client.setting
    first = msg.tensors or initial_supernet(setting)
    return replace(own, weights=cut(first, shapes(setting.space, own.arch, setting.task)))


def _strongest(client: Client, own: Private) -> Private:
    """Leave the own network each edge's operation of the largest alpha."""
    space = cast(DARTS, client.setting.space)
    return _with_arch(client, own, milenas.strongest(space, own.arch, torch.tensor(own.alphas)))


def _with_arch(client: Client, own: Private, arch: Arch) -> Private:
    """Leave the own network the operations of an architecture, with their weights."""
    space, task = client.setting.space, client.setting.task
    return replace(own, arch=arch, weights=pruned(own.weights, space, arch, task))


def _metrics(tested: perturb.Tested) -> tuple[Metric, ...]:
    """Tell how the network did without each operation."""
    accuracies = [Metric("val", f"without/{name}", pair[0]) for name, pair in tested.items()]
    losses = [Metric("val", f"loss without/{name}", -pair[1]) for name, pair in tested.items()]
    return *accuracies, *losses
