"""Are generated architectures better than bred ones? PerFedSDE-NAS, section 4.5 and Fig. 3.

    python examples/generated_or_evolved.py work --figure results/generated.svg

A supernet is trained on the training images of eight CIFAR-10 clients with Dirichlet 0.3, which the
package's generator has never seen. For every client 135 architectures are evolved on its validation
images. From that population come candidates: generated for its data and by what its scores say, for
its data alone (as in the paper), by its scores and for no data in particular, by its scores alone
(the predictor is left out), for another client's data or for none, generated unguided; drawn gene
by gene by the same scores, without any diffusion; bred by crossover and mutation, of the better
parents or of any (as in the paper); drawn at random. Of each kind the first 135 are tested on the
client's test images, and 135 of 500 that a surrogate chooses: an RBF that has learned the
population's scores (as in the paper), or a ridge regression on all that was scored. Batch norm is
calibrated on 256 of the client's training images. What is done is kept in the folder, and the same
command goes on. FEDTAILOR_DATA says where CIFAR is.
"""

import argparse
import json
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from scipy import stats

from fedtailor.core import codec
from fedtailor.core.files import whole_file
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.types import Augment, Examples
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.networks.store import Store
from fedtailor.pretrain.generators import encoder_of
from fedtailor.pretrain.settings import recipe_for
from fedtailor.pretrain.supernet_training import train_supernet
from fedtailor.report.drawing import COLOURS
from fedtailor.report.svg import STYLE, to_svg
from fedtailor.runs.config import make_space
from fedtailor.search import genes, surrogate
from fedtailor.search.diffusion.encoder import features
from fedtailor.search.diffusion.generator import (
    DiffusionProposer,
    Generator,
    Sampling,
    load,
    shipped,
)
from fedtailor.search.effects import EffectsProposer
from fedtailor.search.evolution import Population, offspring, survivors
from fedtailor.search.propose import EvolutionProposer, Proposer, RandomProposer, choose
from fedtailor.training.population import population_accuracies

SIZE, CANDIDATES, GENERATIONS, CALIBRATION = 135, 500, 4, 256
KINDS = (
    "generated", "by data", "scores, no data", "by scores", "effects", "another", "no data",
    "unguided", "bred", "bred of any", "random",
)  # fmt: skip
SHOWN = {  # in the figure, with a label and a colour
    "generated": ("generated for data and population", COLOURS[0]),
    "by data": ("generated for data, as in the paper", COLOURS[4]),
    "unguided": ("generated unguided", "black"),
    "effects": ("drawn by effects, no diffusion", COLOURS[2]),
    "bred": ("crossover and mutation", COLOURS[1]),
    "random": ("drawn at random", COLOURS[5]),
}
RBF, RIDGE = ", chosen by the RBF", ", chosen by the ridge"


@dataclass(frozen=True)
class Work:
    """What there is to do, and where."""

    folder: Path
    space: str
    generator: Path | None
    clients: int
    epochs: float
    seed: int

    def federation(self) -> Federation:
        """Return the clients; all images are dealt, and tests are official ones."""
        data = DataOptions(
            name="cifar10", clients=self.clients, partition="dirichlet", alpha=0.3, seed=self.seed,
            split="official", fractions=(0.8, 0.1, 0.1), test_per_client=500,
        )  # fmt: skip
        return load_federation(data)

    def searched(self) -> SearchSpace:
        """Return the search space."""
        return make_space({"name": self.space, "preset": "cpu"})

    def made(self) -> Generator:
        """Return the generator."""
        if self.generator is None:
            return shipped(self.space, self.searched())
        return load(self.generator, self.searched())

    def store(self, workers: int = 1) -> Store:
        """Return the supernet, trained on all clients' training images."""
        federation = self.federation()
        parts = [federation.examples(client, "train") for client in range(self.clients)]
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


def evolved(
    store: Store, score: Callable[[list[Arch]], list[float]], rng: torch.Generator
) -> Population:
    """Return all that was scored while breeding for some generations from random architectures."""
    archs = genes.sample_many(store.space, SIZE, rng)
    everything = Population(tuple(archs), tuple(score(archs)))
    for _ in range(GENERATIONS):
        archs = offspring(store.space, survivors(everything, SIZE), SIZE, rng)
        everything += Population(tuple(archs), tuple(score(archs)))
    return everything


def proposers(made: Generator, federation: Federation, client: int) -> dict[str, Proposer]:
    """Return where candidates come from."""
    encoder, clients = encoder_of(made), federation.clients

    def embedding(of: int) -> torch.Tensor:
        return made.embed(features(encoder, federation.examples(of, "train")))

    return {
        "generated": DiffusionProposer(made, embedding(client)),
        "by data": DiffusionProposer(made, embedding(client), learn=False),
        "scores, no data": DiffusionProposer(made),
        "by scores": DiffusionProposer(made, trust=0.0),
        "effects": EffectsProposer(),
        "another": DiffusionProposer(made, embedding((client + 1) % clients), learn=False),
        "no data": DiffusionProposer(made, learn=False),
        "unguided": DiffusionProposer(made, None, Sampling(strength=0.0), learn=False),
        "bred": EvolutionProposer(),
        "bred of any": EvolutionProposer(tournament=1, pairs=True),
        "random": RandomProposer(),
    }


def compare(work: Work, client: int) -> str:
    """Test all kinds of candidates for a client and write what they achieve."""
    torch.set_num_threads(1)
    federation, store, made = work.federation(), work.store(), work.made()
    asked = [store.copy(), SIZE, GENERATIONS, CALIBRATION, work.seed, work.clients]
    with_generator = [
        *asked,
        made.score.state_dict(),
        made.predictor.state_dict(),
        KINDS,
        made.sampling,
    ]
    file = work.folder / f"client-{client}-{codec.digest(with_generator)[:12]}.json"
    if file.exists():
        return file.read_text()
    train, val, test = (_mixed(federation.examples(client, s)) for s in ("train", "val", "test"))
    few = replace(train, index=train.index[:CALIBRATION])
    bred = work.folder / f"scored-{client}-{codec.digest(asked)[:12]}.safetensors"
    if not bred.exists():
        rng = rng_for(work.seed, "evolution", client)
        score = partial(population_accuracies, store, examples=val, calibration=few)
        codec.write_whole(bred, evolved(store, score, rng))
    everything = codec.read(Population, bred)
    population = survivors(everything, SIZE)
    rbf = surrogate.fit(store.space, population.archs, population.scores)
    ridge = surrogate.fit(store.space, everything.archs, everything.scores, "ridge")
    groups: dict[str, list[Arch]] = {"population": list(population.archs)}
    for name, proposer in proposers(made, federation, client).items():
        rng = rng_for(work.seed, name, client)
        candidates = proposer.propose(store.space, population, CANDIDATES, rng)
        groups[name] = candidates[:SIZE]
        groups[name + RBF] = choose(rbf, candidates, SIZE)
        groups[name + RIDGE] = choose(ridge, candidates, SIZE)
    archs = list(dict.fromkeys(arch for group in groups.values() for arch in group))
    tested = dict(zip(archs, population_accuracies(store, archs, test, few), strict=True))
    found = {
        name: sorted((tested[a] for a in group), reverse=True) for name, group in groups.items()
    }
    with whole_file(file) as part:
        part.write_text(json.dumps({"client": client, "rbf": rbf.kind, "accuracy": found}))
    return file.read_text()


def _mixed(examples: Examples) -> Examples:
    """Return examples in random order: batches must not be of one class."""
    order = torch.randperm(len(examples), generator=rng_for(0, "order"))
    return replace(examples, index=examples.index[order], augment=Augment())


def table(found: list[dict]) -> str:
    """Return the differences from bred candidates, with Student's intervals over clients."""
    lines = [
        "| candidates | mean | top 10 | mean, minus bred | top 10, minus bred |",
        "|" + "---|" * 5,
    ]
    values = {
        name: np.array(
            [[np.mean(one["accuracy"][name]), np.mean(one["accuracy"][name][:10])] for one in found]
        )
        for name in found[0]["accuracy"]
    }
    for name, rows in values.items():
        how = next((suffix for suffix in (RBF, RIDGE) if name.endswith(suffix)), "")
        base = values["bred" + how]
        cells = [f"{100 * value:.2f}" for value in rows.mean(0)]
        cells += [_interval(100 * (rows - base)[:, column]) for column in (0, 1)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines.append("\nChosen by the RBF, minus bred of any as they come, the paper's comparison:")
    for name, way in (("by data", "the paper's way"), ("generated", "ours")):
        gained = 100 * (values[name + RBF] - values["bred of any"])
        shown = [_interval(gained[:, column]) for column in (0, 1)]
        lines.append(f"- {name} ({way}): mean {shown[0]}, top 10 {shown[1]}")
    return "\n".join(lines)


def _interval(values: np.ndarray) -> str:
    mean, half = values.mean(), stats.sem(values) * stats.t.ppf(0.975, len(values) - 1)
    return f"{mean:+.2f} ({mean - half:+.2f} to {mean + half:+.2f})"


def figure(found: list[dict]) -> str:
    """Draw the sorted accuracies, averaged over clients rank by rank."""
    with rc_context(STYLE):
        shown = Figure(figsize=(9, 3.6), layout="constrained")
        axes = shown.subplots(1, 2, sharey=True)
        for axis, suffix, title in zip(
            axes, ("", RBF), ("as they come", "135 of 500, chosen by the RBF"), strict=True
        ):
            for name, (label, colour) in SHOWN.items():
                curve = np.mean([one["accuracy"][name + suffix] for one in found], 0)
                axis.plot(100 * curve, color=colour, label=label)
            axis.set(title=title, xlabel="rank")
        axes[0].set_ylabel("accuracy on test images, %")
        axes[0].legend(fontsize=8)
    return to_svg(shown)


def main() -> None:
    """Do all that is left to do, then print the table and draw the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--space", default="mobilenetv3")
    parser.add_argument("--generator", type=Path, help="instead of the package's own")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--epochs", type=float, default=12, help="of the supernet's training")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--figure", type=Path)
    wanted = parser.parse_args()
    work = Work(
        wanted.folder, wanted.space, wanted.generator, wanted.clients, wanted.epochs, wanted.seed
    )
    work.folder.mkdir(parents=True, exist_ok=True)
    work.store(wanted.workers)
    found = []
    with ProcessPoolExecutor(wanted.workers, get_context("spawn")) as pool:
        for text in pool.map(partial(compare, work), range(wanted.clients)):
            found.append(json.loads(text))
            print(f"client {found[-1]['client']} done", flush=True)
    print(table(found))
    if wanted.figure is not None:
        wanted.figure.write_text(figure(found))


if __name__ == "__main__":
    main()
