"""Are generated architectures better than bred ones? PerFedSDE-NAS, section 4.5 and Fig. 3.

    python examples/generated_or_evolved.py work --figure results/generated.svg
    python examples/generated_or_evolved.py work --run runs/a --figure fig3.svg

A supernet is trained on the training images of eight CIFAR-10 clients with Dirichlet 0.3, which the
package's generator has never seen, and for every client 135 architectures are evolved on its
validation images. Or, with `--run`, as in the paper: the supernet is that of the last round of a
run of perfedsde, and a client's population the one it ended with, scored anew with this supernet on
its validation images, as at the beginning of a next round; clients that never took part are left
out. FEDTAILOR_DATA says where CIFAR is.

From that population come candidates: generated for its data and by what its scores say, for
its data alone (as in the paper), by its scores and for no data in particular, by its scores alone
(the predictor is left out), for another client's data or for none, generated unguided; drawn gene
by gene by the same scores, without any diffusion; bred by crossover and mutation, of the better
parents or of any (as in the paper); drawn at random. Of each kind the first 135 are tested on the
client's test images, and 135 of 500 that a surrogate chooses: an RBF that has learned the
population's scores (as in the paper), or a ridge regression on all that was scored. Batch norm's
statistics are each network's own, measured on 512 of all clients' training images; with `--run` the
merged ones. What is done is kept in the folder, and the same command goes on.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from generated_tables import RBF, RIDGE, figure, table
from generated_work import FromRun, Sizes, Trained, Work, mixed

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.files import whole_file
from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch
from fedtailor.data.federation import Federation
from fedtailor.search import surrogate
from fedtailor.search.diffusion.encoder import features
from fedtailor.search.diffusion.generator import DiffusionProposer, Generator, Sampling
from fedtailor.search.effects import EffectsProposer
from fedtailor.search.evolution import Population, survivors
from fedtailor.search.propose import EvolutionProposer, Proposer, RandomProposer, choose
from fedtailor.training.population import population_scores

STATISTICS = "of all clients' images"  # what is done with others is not gone on with
KINDS = (
    "generated", "by data", "scores, no data", "by scores", "effects", "another", "no data",
    "unguided", "bred", "bred of any", "random",
)  # fmt: skip


def proposers(
    work: Work, made: Generator, federation: Federation, client: int
) -> dict[str, Proposer]:
    """Return where candidates come from."""
    encoder, clients = work.encoder(made), federation.clients

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
    asked = [store.copy(), STATISTICS, *work.asked(client)]
    generator = [made.score.state_dict(), made.predictor.state_dict(), made.sampling]
    file = work.folder / f"client-{client}-{_digest(asked, generator, KINDS)}.json"
    if file.exists():
        return file.read_text()
    val, test = (mixed(federation.examples(client, split)) for split in ("val", "test"))
    statistics = work.statistics(store)
    scored = work.folder / f"scored-{client}-{_digest(asked)}.safetensors"
    if not scored.exists():
        score = partial(population_scores, store, examples=val, score="accuracy", **statistics)
        codec.write_whole(scored, work.scored(client, store.space, score))
    everything = codec.read(Population, scored)
    population = survivors(everything, work.sizes.tested)
    rbf = surrogate.fit(store.space, population.archs, population.scores)
    ridge = surrogate.fit(store.space, everything.archs, everything.scores, "ridge")
    groups: dict[str, list[Arch]] = {"population": list(population.archs)}
    sources = proposers(work, made, federation, client)
    for name in KINDS:
        rng = rng_for(work.seed, name, client)
        candidates = sources[name].propose(store.space, population, work.sizes.candidates, rng)
        groups[name] = candidates[: work.sizes.tested]
        groups[name + RBF] = choose(rbf, candidates, work.sizes.tested)
        groups[name + RIDGE] = choose(ridge, candidates, work.sizes.tested)
    archs = list(dict.fromkeys(arch for group in groups.values() for arch in group))
    scores = population_scores(store, archs, test, "accuracy", **statistics)
    tested = dict(zip(archs, scores, strict=True))
    found = {
        name: sorted((tested[a] for a in group), reverse=True) for name, group in groups.items()
    }
    with whole_file(file) as part:
        part.write_text(json.dumps({"client": client, "rbf": rbf.kind, "accuracy": found}))
    return file.read_text()


def _digest(*parts: Any) -> str:
    return codec.digest(list(parts))[:12]


def main(words: Sequence[str] | None = None) -> None:
    """Do all that is left to do, then print the table and draw the figure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--run", type=Path, help="a run of perfedsde, whose supernet is taken")
    parser.add_argument("--space", help="of a supernet that is trained here; else mobilenetv3")
    parser.add_argument("--epochs", type=float, help="of that training; else 12")
    parser.add_argument("--generator", type=Path, help="instead of the package's or the run's")
    parser.add_argument("--clients", type=int, help="else 8; of a run, all that took part")
    parser.add_argument("--tested", type=int, default=135, help="architectures of each kind")
    parser.add_argument("--candidates", type=int, default=500, help="of which these are chosen")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2, help="processes; 1: this one")
    parser.add_argument("--figure", type=Path)
    wanted = parser.parse_args(words)
    if wanted.run is not None and (wanted.space or wanted.epochs):
        parser.error("--space and --epochs: a run has its own supernet; leave them out")
    wanted.folder.mkdir(parents=True, exist_ok=True)
    try:
        work = _work(wanted)
    except UserError as error:
        parser.error(str(error))
    work.store(wanted.workers)
    found = []
    with _mapping(wanted.workers) as map_:
        for text in map_(partial(compare, work), work.clients):
            found.append(json.loads(text))
            print(f"client {found[-1]['client']} done", flush=True)
    print(table(found))
    if wanted.figure is not None:
        wanted.figure.write_text(figure(found, work.sizes))


def _work(wanted: argparse.Namespace) -> Work:
    sizes = Sizes(wanted.tested, wanted.candidates)
    common = (wanted.folder, sizes, wanted.seed, wanted.generator)
    if wanted.run is not None:
        return FromRun.of(*common, wanted.run, wanted.clients)
    space, epochs = wanted.space or "mobilenetv3", wanted.epochs or 12.0
    return Trained(*common, tuple(range(wanted.clients or 8)), space, epochs)


@contextmanager
def _mapping(workers: int) -> Iterator[Any]:
    """Give a `map` that works in processes, or for one worker in this one."""
    if workers == 1:
        yield map
        return
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        yield pool.map


if __name__ == "__main__":
    main()
