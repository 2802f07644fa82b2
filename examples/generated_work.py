"""Where the supernet and the populations of `generated_or_evolved.py` come from."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import torch

from fedtailor.algorithms.perfedsde import PerFedSDENAS, Search, Supernet
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Augment, Examples
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.store import Store
from fedtailor.pretrain.settings import recipe_for
from fedtailor.pretrain.supernet_training import train_supernet
from fedtailor.runs import database
from fedtailor.runs.config import Config, make_space, read_config
from fedtailor.runs.folder import CONFIG, Run, state_file
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Encoder
from fedtailor.search.diffusion.generator import Generator, encoder_of
from fedtailor.search.evolution import Population, offspring, survivors
from fedtailor.search.proposal_source import ProposalSource

GENERATIONS = 4
CALIBRATION = 512  # images
Score = Callable[[list[Arch]], list[float]]


class Statistics(TypedDict, total=False):
    """What `population_scores` is told of batch norm."""

    calibration: Examples
    kept: bool


@dataclass(frozen=True)
class Sizes:
    """How many architectures of each kind are tested, and of how many candidates."""

    tested: int
    candidates: int


@dataclass(frozen=True)
class Work(ABC):
    """What there is to do, and where."""

    folder: Path
    sizes: Sizes
    seed: int
    generator: Path | None  # none: the usual one
    clients: tuple[int, ...]

    @abstractmethod
    def federation(self) -> Federation:
        """Return the clients' data."""

    @abstractmethod
    def store(self, workers: int = 1) -> Store:
        """Return the supernet."""

    @abstractmethod
    def scored(self, client: int, space: SearchSpace, score: Score) -> Population:
        """Return all that was scored for a client; its population are the best of it."""

    @abstractmethod
    def statistics(self, store: Store) -> Statistics:
        """Return whose batch-norm statistics every network is tested with."""

    @abstractmethod
    def made(self) -> Generator:
        """Return the generator."""

    def encoder(self, made: Generator) -> Encoder:
        """Return what embeds a client's data."""
        return encoder_of(made)

    def asked(self, client: int) -> list[Any]:
        """Return what a client's candidates depend on, beside the supernet and the generator."""
        return [asdict(self.sizes), self.seed, list(self.clients)]


@dataclass(frozen=True)
class Trained(Work):
    """A supernet that is trained here, on eight clients of CIFAR-10."""

    space: str
    epochs: float

    def federation(self) -> Federation:
        """Return the clients; all images are dealt, and tests are official ones."""
        data = DataOptions(
            name="cifar10", clients=len(self.clients), partition="dirichlet", alpha=0.3,
            seed=self.seed, split="official", fractions=(0.8, 0.1, 0.1), test_per_client=500,
        )  # fmt: skip
        return load_federation(data)

    def searched(self) -> SearchSpace:
        """Return the search space."""
        return make_space({"name": self.space, "preset": "cpu"})

    def made(self) -> Generator:
        """Return the package's generator, or another."""
        return _loaded(self.searched(), self.generator)

    def store(self, workers: int = 1) -> Store:
        """Return the supernet, trained on all clients' training images."""
        federation = self.federation()
        parts = [federation.examples(client, "train") for client in self.clients]
        pooled = replace(parts[0], index=torch.cat([part.index for part in parts]))
        how = recipe_for("default", self.space).supernet
        how = replace(how, epochs=self.epochs, seed=self.seed)
        space = self.searched()
        file = self.folder / "supernet.safetensors"
        told = partial(print, "supernet: step", flush=True)

        def progress(done: int, steps: int) -> None:
            if done % 500 == 0 or done == steps:
                told(done, "of", steps)

        return train_supernet(space, federation.task, pooled, how, file, progress, workers)

    def statistics(self, store: Store) -> Statistics:
        """Return the network's own, measured on some of all clients' training images.

        It was trained on these; a client's own images are as skewed as its labels are.
        """
        federation = self.federation()
        rows = torch.cat([federation.examples(client, "train").index for client in self.clients])
        order = torch.randperm(len(rows), generator=rng_for(self.seed, "calibration"))
        some = replace(federation.examples(0, "test"), index=rows[order[:CALIBRATION]])
        return {"calibration": some}

    def scored(self, client: int, space: SearchSpace, score: Score) -> Population:
        """Return all that was scored while breeding for some generations from random ones."""
        rng, size = rng_for(self.seed, "evolution", client), self.sizes.tested
        archs = genes.sample_many(space, size, rng)
        everything = Population(tuple(archs), tuple(score(archs)))
        for _ in range(GENERATIONS):
            archs = offspring(space, survivors(everything, size), size, rng)
            everything += Population(tuple(archs), tuple(score(archs)))
        return everything


@dataclass(frozen=True)
class FromRun(Work):
    """The supernet of a run's last round, and what its clients ended with."""

    path: Path

    @staticmethod
    def of(
        folder: Path,
        sizes: Sizes,
        seed: int,
        generator: Path | None,
        path: Path,
        clients: int | None,
    ) -> "FromRun":
        """Take up a run of perfedsde; all clients that took part in it, or the first of them."""
        run = Run(path)
        if not isinstance(read_config(path / CONFIG).algorithm, PerFedSDENAS):
            raise UserError(f"--run: {path} is not a run of perfedsde, whose clients have archives")
        states = database.client_states(run.db, run.last_round())
        took_part = tuple(client for client, *_ in states)[:clients]
        if len(took_part) < 2:
            raise UserError(
                f"--run: {path} has {len(took_part)} clients that took part; 2 at least"
            )
        return FromRun(folder, sizes, seed, generator, took_part, path)

    def config(self) -> Config:
        """Return the run's config."""
        return read_config(self.path / CONFIG)

    def federation(self) -> Federation:
        """Return the run's clients."""
        return load_federation(self.config().data)

    def store(self, workers: int = 1) -> Store:
        """Return the supernet after the last round."""
        run, federation = Run(self.path), self.federation()
        weights = codec.read(Supernet, run.server_path(run.last_round())).weights
        return Store(setting_of(self.config(), federation).space, federation.task, weights)

    def statistics(self, store: Store) -> Statistics:
        """Return the merged ones; where the run has none, those of the images being tested."""
        return {"kept": True} if store.keeps_statistics else {}

    def scored(self, client: int, space: SearchSpace, score: Score) -> Population:
        """Return the population that the client ended with, scored with the supernet as it is."""
        archs = list(self.search_of(client).population.archs)
        return Population(tuple(archs), tuple(score(archs)))

    def made(self) -> Generator:
        """Return the run's generator, or another."""
        config = self.config()
        file = self.generator or getattr(config.algorithm, "generator", None)
        return _loaded(setting_of(config, self.federation()).space, file)

    def encoder(self, made: Generator) -> Encoder:
        """Return the run's encoder."""
        return encoder_of(made, getattr(self.config().algorithm, "encoder", None))

    def asked(self, client: int) -> list[Any]:
        """Add whose images they are, and the population."""
        data, archs = self.config().data, self.search_of(client).population.archs
        return [*super().asked(client), repr(data), [list(arch) for arch in archs]]

    def search_of(self, client: int) -> Search:
        """Return what a client ended with."""
        run = Run(self.path)
        made = {one: round for one, round, _ in database.client_states(run.db, run.last_round())}
        return codec.read(Search, run.states / state_file(client, made[client]))


def mixed(examples: Examples) -> Examples:
    """Return examples in random order: batches must not be of one class."""
    order = torch.randperm(len(examples), generator=rng_for(0, "order"))
    return replace(examples, index=examples.index[order], augment=Augment())


def _loaded(space: SearchSpace, file: Path | str | None) -> Generator:
    """Return the generator of a file, or the package's own."""
    named = None if file is None else str(file)
    return ProposalSource(space, "diffusion", generator=named).load_generator()
