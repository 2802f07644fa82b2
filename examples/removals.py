"""Do validation images tell which operation of SPIDER's supernet is missed most?

    fedtailor run my.toml rounds=6 --out runs/warm      # SPIDER, as long as its warm-up
    python examples/removals.py runs/warm

Every silo's own network is tested without each operation of each edge that is undecided, on two
halves of the silo's validation images. What the halves agree on is no chance: how accuracies differ
by what was removed, by silo, and by the pair of both; and how often both halves would keep the same
operation, by accuracy and by loss, beside how often two independent choices with the same habits
would. FEDTAILOR_DATA says where the images are.
"""

import argparse
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from variance_parts import parts_of

from fedtailor import Client, Run
from fedtailor.algorithms.spider import SPIDER, Private
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.rng import rng_for
from fedtailor.core.types import ClientInfo, Setting
from fedtailor.data.federation import Federation, load_federation
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.store import Store
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import CONFIG, state_file
from fedtailor.search import perturb
from fedtailor.spaces.darts import DARTS
from fedtailor.training.fitness import fitness_of_kinds


@dataclass(frozen=True)
class Removals:
    """What was removed, and how every silo's network did without it."""

    names: tuple[str, ...]  # edge/operation
    scores: np.ndarray  # kind, half, removal, silo

    def kept(self, rule: perturb.Rule) -> np.ndarray:
        """Return which operation of each edge each half keeps: (half, edge, silo)."""
        edges = sorted({name.rsplit("/", 1)[0] for name in self.names}, key=self._first)
        halves, silos = self.scores.shape[1], self.scores.shape[3]
        kept = np.empty((halves, len(edges), silos), object)
        for half, row, silo in np.ndindex(kept.shape):
            of_edge = [n for n in self.names if n.rsplit("/", 1)[0] == edges[row]]
            places = [self.names.index(name) for name in of_edge]
            pairs = [tuple(self.scores[:, half, place, silo]) for place in places]
            tested = dict(zip(of_edge, pairs, strict=True))
            first = perturb.order(rule, of_edge, tested, torch.Generator())[0]
            kept[half, row, silo] = first.rsplit("/", 1)[1]
        return kept

    def _first(self, edge: str) -> int:
        return next(place for place, name in enumerate(self.names) if name.startswith(f"{edge}/"))


def agreement(kept: np.ndarray) -> tuple[float, float]:
    """Return how often two halves keep the same, and how often chance would with their habits."""
    operations = np.unique(kept.astype(str))
    shares = [[(half == name).mean() for name in operations] for half in kept]
    return float((kept[0] == kept[1]).mean()), float(np.dot(*shares))


def removals_of(space: DARTS, own: Private) -> perturb.Removed:
    """Return the network without each operation that is in doubt."""
    edges = perturb.undecided(own.arch)
    return perturb.doubts([perturb.question(space, own.arch, edge) for edge in edges])


def tested(run: Run, setting: Setting, federation: Federation) -> Removals:
    """Test all removals of all silos that took part."""
    space, last = cast(DARTS, setting.space), run.last_round()
    columns, names = list[np.ndarray](), tuple[str, ...]()
    for number, round, _ in database.client_states(run.db, last):
        own = codec.read(Private, run.states / state_file(number, round))
        without = removals_of(space, own)
        names = names or tuple(without)
        if tuple(without) != names:
            raise UserError(f"{run.path}: silos have decided edges; stop the run at its warm-up")
        examples = [federation.examples(number, split) for split in ("train", "val", "test")]
        client = Client(setting, ClientInfo(number, len(examples[0])), last, *examples)
        store = Store(space, setting.task, own.weights)
        val = client.val.index[
            torch.randperm(len(client.val), generator=rng_for(0, "halves", number))
        ]
        halves = [replace(client.val, index=val[start::2]) for start in (0, 1)]
        archs = list(without.values())
        columns.append(
            np.array(
                [fitness_of_kinds(client, store, archs, perturb.KINDS, half) for half in halves]
            )
        )
    return Removals(names, np.stack(columns, -1).swapaxes(0, 1))


def removals_in(run: Run) -> Removals:
    """Read a run of SPIDER and the data it was of, and test all removals."""
    config = read_config(run.path / CONFIG)
    if not isinstance(config.algorithm, SPIDER):
        raise UserError(f"{run.path}: is not a run of spider")
    federation = load_federation(config.data)
    return tested(run, setting_of(config, federation), federation)


def main(words: list[str] | None = None) -> None:
    """Print the table, in points of accuracy and hundredths of a nat."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    path = parser.parse_args(words).run
    torch.set_num_threads(1)
    try:
        removals = removals_in(Run(path))
    except UserError as error:
        parser.error(str(error))
    print("| score | mean | removal | silo | removal x silo | chance | halves agree | by chance |")
    print("|---|---|---|---|---|---|---|---|")
    for place, kind in enumerate(perturb.KINDS):
        parts = parts_of(100 * removals.scores[place])
        rule: perturb.Rule = "accuracy" if kind == "accuracy" else "loss"
        same, chance = agreement(removals.kept(rule))
        both = f"{parts.both:.2f} ({parts.both_low:.2f} to {parts.both_high:.2f})"
        print(
            f"| {kind} | {100 * removals.scores[place].mean():.1f} | {parts.architecture:.2f} "
            f"| {parts.client:.2f} | {both} | {parts.chance:.2f} | {same:.2f} | {chance:.2f} |"
        )


if __name__ == "__main__":
    main()
