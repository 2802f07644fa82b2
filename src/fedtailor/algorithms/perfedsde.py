"""PerFedSDE-NAS: every client searches on its own device, by guided diffusion.

Paper: Liao et al. 2025, "Neural Architecture Search Driven by Locally Guided Diffusion for
Personalized Federated Learning", Algorithm 1 of its supplement. Numbers in the code are its lines.

The server sends the whole supernet. A client scores its population with it; then, some times over,
it lets a generator propose architectures, of which a surrogate chooses a few, while it trains the
best of the population, one to a batch; it scores what was chosen, and the best survive. Only
supernet weights leave it.

Differs from the paper:
- scores are of validation images; the paper seems to take test images: `accuracy = "test"`, warns;
- the population is inherited from a client's last round, our reading of lines 10 and 22 and of H.1;
- Eq. 5 is lost from the paper's text. `merge = "count"`, the mean over the clients that trained an
  entry, is our reconstruction (docs/perfedsde.md has the reasons); `"fedavg"` is its "w/o Eq. 5";
- the archive's size is not in the paper: 10; 0 is its "w/o archive";
- its generator and RBF are better informed here (`search/diffusion`, `search/surrogate`), and so is
  its Baseline: in `proposer = "evolution"` parents win tournaments;
- batch norm, of which the paper says nothing: scores take the statistics of the images they are of;
  those of networks that are used travel and are merged like weights (`statistics = "merged"`), or
  are measured on the client's training images (`"own"`);
- every client gets a network, also one that was never drawn: the best of its archive with the
  supernet as it is, then tuned as with all methods. The paper's value, the best individual with
  the client's own weights at the end of its round, is `trained`, and `kept` at the end of the run.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge
from torch import Tensor

from fedtailor.algorithms._base import Algorithm, to_all
from fedtailor.algorithms._replies import Forms, Sent
from fedtailor.algorithms._search_log import offspring_scores, search_log
from fedtailor.core.beside import beside, naming
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Message,
    Reply,
    Result,
    Server,
    Setting,
    Tensors,
)
from fedtailor.core.validation import FileName
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network
from fedtailor.networks.store import Store
from fedtailor.search import schemes, surrogate
from fedtailor.search.evolution import Population, survivors
from fedtailor.search.proposal_source import ProposalSource
from fedtailor.search.propose import choose, proposer
from fedtailor.training import learn
from fedtailor.training.fitness import fitness
from fedtailor.training.merge import merge
from fedtailor.training.supernet import SupernetTrainer
from fedtailor.training.updates import MASK, is_masked, supernet_update, update_part


@dataclass(frozen=True)
class Supernet:
    """The server's state: nothing but weights."""

    weights: Tensors


@dataclass(frozen=True)
class Search:
    """A client's private state."""

    population: Population  # scores are those of its last round
    archive: tuple[Arch, ...]  # the best of it: what the client chooses from when it deploys
    best: Arch = ()
    weights: Tensors = field(default_factory=dict)  # of the best, after the client's last round
    embedding: Tensor = field(default_factory=lambda: torch.empty(0))  # of its data


@dataclass(frozen=True)
class PerFedSDENAS(Algorithm[Supernet, Search]):
    """Clients search for themselves; the server merges supernets."""

    searches: ClassVar[bool] = True

    finetune_epochs: Annotated[int, Ge(0)] = 10
    epochs: Annotated[int, Ge(0)] = 1  # of each iteration; 0: weights stand still, none are sent
    iterations: Annotated[int, Ge(1)] = 5  # n_e: searches of a round, each with its `epochs`
    population: Annotated[int, Ge(1)] | None = None  # none: 3D, three for each choice
    archive: Annotated[int, Ge(0)] = 10  # k: how many of the population train; 0: all
    candidates: Annotated[int, Ge(1)] = 100  # N_gen: proposals, of which the surrogate chooses
    offspring: Annotated[int, Ge(1)] = 10  # s: architectures that are scored in an iteration
    proposer: Literal["diffusion", "evolution", "random", "effects"] = (
        "diffusion"  # where candidates come from
    )
    guide: Literal["data", "scores", "both", "none"] = "data"  # of diffusion; data is the paper's
    surrogate: Literal["rbf", "ridge", "none"] = "rbf"  # none: the first proposals are taken
    generator: FileName | None = None  # none: the one that comes with the package for the space
    encoder: FileName | None = None  # none: the package's own
    merge: Literal["count", "count_samples", "fedavg"] = "count"  # our reconstruction of Eq. 5
    fitness: Literal["accuracy", "likelihood"] = "accuracy"  # by which networks survive
    accuracy: Literal["val", "test"] = "val"  # images of the fitness; test warns
    reevaluate: Literal["round", "iteration"] = "round"  # when survivors are scored anew
    statistics: Literal["merged", "own"] = "merged"  # batch norm's: all clients', or each its own

    def sends(self) -> Forms:
        """Declare what leaves a client: supernet weights and which of them it trained."""
        if not self.epochs:
            return {"searched": ()}
        with_them = " and batch-norm statistics" if self.statistics == "merged" else ""
        weights = Sent("*", "tensor", f"the supernet's weights{with_them} after local training")
        which = "of each of them, which entries were trained: the union of the client's archives"
        masks = Sent(f"{MASK}*", "tensor", which, shape="mask")
        return {"trained": (weights, masks) if is_masked(self.merge) else (weights,)}

    @property
    def doing(self) -> str:
        """Say what clients do in a round."""
        return super().doing if self.epochs else "searching"

    def warnings(self) -> tuple[str, ...]:
        """Say what makes results not comparable."""
        if self.accuracy == "val":
            return ()
        return (
            'algorithm.accuracy: "test" searches on the test data, as the paper seems to; '
            'test accuracies are then too high, and "val" is the honest choice',
        )

    def check(self, setting: Setting) -> None:
        """Refuse sizes that do not go together, and generators of other spaces."""
        size = self.size(setting.space)
        if self.archive > size and setting.space.choices:
            raise UserError(
                f"algorithm.archive: {self.archive} of a population of {size}; take fewer, or 0 "
                "for all of them"
            )
        if self.offspring > self.candidates:
            raise UserError(
                f"algorithm.offspring: {self.offspring} cannot be chosen of {self.candidates} "
                "candidates; raise algorithm.candidates"
            )
        self.source(setting.space).check()

    def needs(self, setting: Setting) -> dict[str, Path]:
        """Add the generator's and the encoder's files, where they are used."""
        return super().needs(setting) | self.source(setting.space).files()

    def size(self, space: SearchSpace) -> int:
        """Return the size of a population."""
        return self.population or max(1, 3 * len(space.choices))

    def source(self, space: SearchSpace) -> ProposalSource:
        """Say where proposals come from."""
        return ProposalSource(space, self.proposer, self.guide, self.generator, self.encoder)

    def server_init(self, server: Server) -> Supernet:
        """1: start from the first supernet."""
        return Supernet(initial_supernet(server.setting, self.statistics == "merged"))

    def client_init(self, client: Client) -> Search:
        """10: draw a population, which depends on the client and not on the round."""
        space, seed = client.setting.space, client.setting.seed
        rng = rng_for(seed, client.info.id, "population")
        drawn = proposer("random").propose(space, Population(), self.size(space), rng)
        archs = tuple(dict.fromkeys(drawn))  # a small space has no more
        return Search(Population(archs, (0.0,) * len(archs)), archs[: self.archive or None])

    def configure(
        self, server: Server, state: Supernet, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """5: send the supernet to all."""
        return to_all(state.weights, cohort)

    def train(self, client: Client, own: Search, msg: Message) -> tuple[Search, Reply]:
        """7 to 24: a client's round."""
        watch, size = Stopwatch(client.meter), self.size(client.setting.space)
        own, anew = self._embedded(client, own, watch), self.reevaluate == "iteration"
        with learn.store_of(client, msg.tensors) as store:
            trainer, loss = SupernetTrainer(client, store, self), 0.0
            with watch.part("preliminary evaluation"):
                population = self._scored(client, store, own.population.archs)  # 10
            known, notes = population, ()
            for j in range(self.iterations):  # 8
                proposing = partial(self._offspring, client, own, population, known, j, watch)
                with beside(proposing, "proposing architectures", client.spare > 0) as proposed:
                    archive = self._archive(population)  # 16
                    with watch.part("training"), naming("training"):
                        loss = trainer.epochs(self.epochs, schemes.among(archive))  # 17
                offspring, predicted = proposed()  # 12 to 14
                with watch.part("evaluation"):
                    population, young = self._evaluated(client, store, population, offspring)  # 19
                known = (population if anew else known) + young
                survived = survivors(population + young, size)  # 20
                alike = population if anew or not self.epochs else None  # scored as `young` are
                notes += offspring_scores((j, self.proposer), predicted, young, alike, survived)
                population = survived
            best = survivors(population, 1).archs[0]
            with watch.part("evaluation"):
                network = self._network(client, store, best)  # 22
            update = supernet_update(self.merge, store, trainer) if self.epochs else {}  # 23
        archive, weights = self._archive(population), network.weights() if self.epochs else {}
        found = search_log(client, network, population, archive, loss if self.epochs else None)
        reply = Reply(Message(update), replace(found, times=watch.times(), offspring=notes))
        return Search(population, archive, best, weights, own.embedding), reply

    def aggregate(self, server: Server, state: Supernet, results: Iterable[Result]) -> Supernet:
        """26: merge what clients trained, entry by entry."""
        parts = (
            update_part(self.merge, state.weights, one.message.tensors, one.client.examples)
            for one in results
            if one.message.tensors
        )
        return Supernet(merge(state.weights, parts))

    def deploy(self, client: Client, own: Search, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the best of the archive with the served weights; what was kept; the first, tuned."""
        with learn.store_of(client, msg.tensors) as store:
            population = self._scored(client, store, own.archive)
            network = self._network(client, store, survivors(population, 1).archs[0])
        tuning = self.tune(client, network)
        yield next(tuning)
        if own.weights:
            yield "kept", learn.network(client, own.weights, own.best)
        yield from tuning

    def for_newcomers(self) -> Self:
        """Search with the weights frozen: nothing is trained or sent."""
        return replace(self, epochs=0)

    def _embedded(self, client: Client, own: Search, watch: Stopwatch) -> Search:
        """Look at the client's data, once; what comes of it stays here."""
        source = self.source(client.setting.space)
        if own.embedding.numel() or not source.sees_data:
            return own
        with watch.part("features", counts=False):
            return replace(own, embedding=source.embedding(client.train))

    def _scored(self, client: Client, store: Store, archs: tuple[Arch, ...]) -> Population:
        images = client.test if self.accuracy == "test" else client.val
        return Population(archs, tuple(fitness(client, store, archs, self.fitness, images)))

    def _evaluated(
        self, client: Client, store: Store, population: Population, offspring: list[Arch]
    ) -> tuple[Population, Population]:
        """19: return the population and its offspring, scored; it anew only if that is asked for.

        Both are scored in one walk, since they share what is computed.
        """
        again = len(population) if self.reevaluate == "iteration" else 0
        scored = self._scored(client, store, (*population.archs[:again], *offspring))
        old, young = scored.cut(again)
        return (old if again else population), young

    def _archive(self, population: Population) -> tuple[Arch, ...]:
        return survivors(population, self.archive or len(population)).archs

    def _offspring(
        self,
        client: Client,
        own: Search,
        population: Population,
        known: Population,
        iteration: int,
        watch: Stopwatch,
    ) -> tuple[list[Arch], list[float] | None]:
        """12 to 14: it sees the client's own search alone, and draws by its own key.

        With the offspring comes what they are expected to score, if the surrogate expects anything.
        """
        space, rng = client.setting.space, client.rng(f"propose/{iteration}")
        if not space.choices:
            return [], None
        with watch.part("generation", counts=False):
            learned = known if self.surrogate == "ridge" else population  # a ridge gains by all
            guess = surrogate.fit(space, learned.archs, learned.scores, self.surrogate)  # 12
            number = self.offspring if self.surrogate == "none" else self.candidates
            source = self.source(space).proposer(own.embedding)
            candidates = source.propose(space, population, number, rng)  # 13
            chosen = choose(guess, candidates, self.offspring)  # 14
            return chosen, None if self.surrogate == "none" else guess.predict(chosen).tolist()

    def _network(self, client: Client, store: Store, arch: Arch) -> Network:
        """Return an architecture with the store's weights, ready to be used."""
        network = learn.network(client, store.cut(arch), arch)
        if self.statistics == "own":
            learn.recalibrate(network, client.train)
        return network
