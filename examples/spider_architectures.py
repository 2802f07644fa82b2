"""What SPIDER's silos ended with: sizes, memory, operations; does a silo find its own again?

    python examples/spider_architectures.py accuracy=runs/a-0,runs/a-1 random=runs/r-0 ditto=runs/d
    python examples/spider_architectures.py --majority runs/a-1       # for space.arch

Each argument is a name and its runs on `darts`, relaxed, one for each seed. Memory is that of a
step of training: of the network that is deployed; then the most that a silo needs at any time, as
it is here, where it trains its networks in turn, and if both were held together, as the paper
counts. Before anything is removed the own network is as large as the supernet.

Of every two seeds the second table has how many of the edges differ between the networks that the
same silo found, and between those of different silos; p is how often silos that are dealt at random
would be as close. `--majority` prints the operations that most silos kept on each edge, of equals
the dearer, as one architecture for all.
"""

import argparse
import itertools
from collections import Counter
from pathlib import Path

import numpy as np

from fedtailor import Run
from fedtailor.algorithms.ditto import Ditto
from fedtailor.algorithms.spider import SPIDER
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, Task
from fedtailor.networks import cost
from fedtailor.runs import database
from fedtailor.runs.config import Config, read_config
from fedtailor.runs.folder import CONFIG
from fedtailor.runs.gains import Gain
from fedtailor.spaces.darts import DARTS

HEAD = (
    "method", "thousand parameters", "M multiply-adds", "skips, normal", "skips, reduction",
    "undecided", "MB deployed", "MB in turn", "MB together", "MB sent",
)  # fmt: skip
APART = ("method", "seeds", "edges", "same silo", "different silos", "p")


class Silos:
    """The networks that a run's silos deploy in the end."""

    def __init__(self, path: str) -> None:
        self.run = Run(Path(path))
        self.config: Config = read_config(self.run.path / CONFIG)
        images = self.run.partition()
        self.task = Task(tuple(images["shape"].tolist()), len(images["classes"]))
        space = self.config.space.at(self.task)
        if not (isinstance(space, DARTS) and space.form == "relaxed"):
            raise UserError(f'{path}: is not a run on darts with space.form = "relaxed"')
        self.space, last = space, self.run.last_round()
        rows = database.architectures(self.run.db, "deployed")
        self.archs: dict[int, Arch] = {row.client: row.genes for row in rows if row.round == last}
        if not self.archs:
            raise UserError(f"{path}: has no networks to look at; finish the run first")

    def numbers(self) -> list[float]:
        """Return what the first table tells, means over the silos."""
        each = [
            (
                cost.parameters(self.space, arch, self.task) / 1e3,
                cost.forward_macs(self.space, arch, self.task) / 1e6,
                *skips(self.space, arch),
                sum(live.bit_count() > 1 for live in arch),
                *self._memory(arch),
            )
            for arch in self.archs.values()
        ]
        sent = sum(database.bytes_sent(self.run.db).values()) / 1e6
        return [*np.mean(each, axis=0).tolist(), sent]

    def _memory(self, arch: Arch) -> tuple[float, float, float]:
        """Return the MB of a step: at the end, and at most, in turn and together."""
        how, whole = self.config.algorithm, self._mb(self.space.largest())
        mine = most = self._mb(arch)
        shared = mine if isinstance(how, Ditto) else 0.0
        if isinstance(how, SPIDER):
            most = mine if how.searcher == "none" else whole
            shared = whole if how.strength else 0.0
        return mine, max(most, shared), most + shared

    def _mb(self, arch: Arch) -> float:
        how = self.config.algorithm
        return (
            cost.training_memory(self.space, arch, self.task, how.batch, how.optimizer) / cost.MIB
        )


def skips(space: DARTS, arch: Arch) -> list[int]:
    """Count the edges of the normal and of the reduction cell that are skip connections."""
    return [
        sum(operations == ("skip_connect",) for *_, operations in cell)
        for cell in space.drawing(arch).values()
    ]


def majority(archs: list[Arch]) -> Arch:
    """Return what most silos have on each edge; of equals the dearer, whose bit is higher."""
    counts = [Counter(genes) for genes in zip(*archs, strict=True)]
    return tuple(max(count, key=lambda gene: (count[gene], gene)) for count in counts)


def distances(first: list[Arch], second: list[Arch]) -> np.ndarray:
    """Return how many edges differ: by the silos of one seed and those of another."""
    return (np.array(first)[:, None] != np.array(second)[None]).sum(-1)


def apart(first: list[Arch], second: list[Arch]) -> tuple[float, float, float]:
    """Return the mean distance of a silo's two networks, of different silos', and p."""
    table = distances(first, second)
    same, count = float(table.diagonal().mean()), len(table)
    others = float(table.sum() - table.diagonal().sum()) / (count * (count - 1))
    closeness = -table.astype(np.float64)
    return same, others, Gain(tuple(range(count)), closeness, closeness).chance.p


def print_table(head: tuple[str, ...], rows: list[list[str]]) -> None:
    """Print a table in Markdown."""
    for line in (list(head), ["---"] * len(head), *rows):
        print("| " + " | ".join(line) + " |")


def compare(named: dict[str, list[Silos]]) -> None:
    """Print both tables; the first has means over seeds."""
    rows, pairs = list[list[str]](), list[list[str]]()
    for name, seeds in named.items():
        values = np.mean([one.numbers() for one in seeds], axis=0)
        rows.append([name, *(f"{value:,.1f}" for value in values)])
        for first, second in itertools.combinations(seeds, 2):
            silos = sorted(first.archs.keys() & second.archs.keys())
            archs = [[one.archs[silo] for silo in silos] for one in (first, second)]
            same, others, p = apart(*archs)
            which = f"{first.config.seed}, {second.config.seed}"
            edges = str(len(archs[0][0]))
            pairs.append([name, which, edges, f"{same:.2f}", f"{others:.2f}", f"{p:.3f}"])
    print_table(HEAD, rows)
    print()
    print_table(APART, pairs)


def main(words: list[str] | None = None) -> None:
    """Print the tables, or one architecture."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--majority", metavar="RUN")
    parser.add_argument("runs", nargs="*", metavar="NAME=RUN,RUN")
    given = parser.parse_args(words)
    try:
        if given.majority:
            print(list(majority(list(Silos(given.majority).archs.values()))))
            return
        split = [word.partition("=") for word in given.runs]
        compare({name: [Silos(path) for path in paths.split(",")] for name, _, paths in split})
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
