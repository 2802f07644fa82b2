"""How good is what clients ended their search with? All of their archives, on test images.

    python examples/archives_on_test.py evolution=runs/a,runs/b data=runs/c,runs/d

A client's best architecture is one, chosen on few validation images: its test accuracy has the
luck of that choice. Here every architecture of a client's archive, and of its whole population, is
tested on the client's test images with the supernet of the run's last round, and the mean is taken:
less chance, for the same question. Names are of runs of perfedsde, one run for each seed; the first
is what the others are compared with, client by client, over the seeds that both have. Batch norm's
statistics are those that the runs deploy with.

What is better may be so for everybody. So the archives of the next three clients are tested on a
client's images, too: `own minus others'` is what is personal about its archive.
"""

import argparse
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from generated_work import FromRun, Sizes, mixed
from variance_parts import Gain, interval

from fedtailor.training.population import population_scores

OTHERS = 3  # clients whose archives a client's own is compared with
PARTS = ("archive", "population", "own minus others'")
Means: TypeAlias = dict[int, tuple[float, ...]]


def means_of(path: Path) -> Means:
    """Return the parts of every client, in percent of its test images."""
    run = FromRun.of(path, Sizes(0, 0), 0, None, path, None)
    federation, store = run.federation(), run.store()
    searches = {client: run.search_of(client) for client in run.clients}
    means: Means = {}
    for place, client in enumerate(run.clients):
        search, test = searches[client], federation.examples(client, "test")
        after = run.clients[place + 1 :] + run.clients[:place]
        others = [arch for one in after[:OTHERS] for arch in searches[one].archive]
        archs = list(dict.fromkeys((*search.population.archs, *others)))
        kept = store.keeps_statistics
        calibration = None if kept else mixed(federation.examples(client, "train"))
        scores = population_scores(
            store, archs, mixed(test), "accuracy", calibration=calibration, kept=kept
        )
        tested = dict(zip(archs, scores, strict=True))
        groups = (search.archive, search.population.archs, others)
        archive, population, theirs = (
            100 * float(np.mean([tested[arch] for arch in group])) for group in groups
        )
        means[client] = (archive, population, archive - theirs)
    return means


def main() -> None:
    """Print a table of means over clients, and of differences from the first name."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN,RUN")
    torch.set_num_threads(1)
    table: dict[str, list[Means]] = {}
    for text in parser.parse_args().runs:
        name, _, paths = text.partition("=")
        table[name] = [means_of(Path(path)) for path in paths.split(",")]
    first = next(iter(table.values()))
    print(f"| runs | {' | '.join(PARTS)} | archive, minus {next(iter(table))} | population |")
    print("|---|---|---|---|---|---|")
    for name, seeds in table.items():
        values = np.mean([np.mean(list(one.values()), axis=0) for one in seeds], axis=0)
        cells = [f"{value:.2f}" for value in values[:2]] + [str(_personal(seeds))]
        cells += [] if seeds is first else [str(gain) for gain in _gains(seeds, first)]
        print("| " + " | ".join([name, *cells]) + " |")


def _gains(seeds: list[Means], first: list[Means]) -> list[Gain]:
    """Return differences of archives and of populations, over the clients that all have."""
    pairs = list(zip(seeds, first, strict=False))
    both = sorted(set.intersection(*(set(one) for pair in pairs for one in pair)))
    gained = [[np.subtract(a[client], b[client]) for client in both] for a, b in pairs]
    return [interval(np.mean(gained, axis=0)[:, part]) for part in (0, 1)]


def _personal(seeds: list[Means]) -> Gain:
    """Return by how much clients' own archives are better for them than others' are."""
    all_have = sorted(set.intersection(*(set(one) for one in seeds)))
    return interval(np.mean([[one[client][2] for client in all_have] for one in seeds], axis=0))


if __name__ == "__main__":
    main()
