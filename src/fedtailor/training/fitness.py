"""How good architectures are for a client, by its own images."""

from collections.abc import Sequence
from dataclasses import replace

from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Examples
from fedtailor.networks.store import Store
from fedtailor.training.population import Score, scores_of_kinds

FEWEST = 8  # images whose own batch-norm statistics are worth anything
CALIBRATION = 256  # training images that stand in for them


def fitness(
    client: Client, store: Store, archs: Sequence[Arch], score: Score, examples: Examples
) -> list[float]:
    """Score architectures on a client's images, mostly its validation images; charge its meter.

    Batch norm takes the statistics of these images themselves, if there are at least 8; else those
    of up to 256 training images. Of a single training image no statistics can be taken: then those
    that the store keeps are used, and where it keeps none mean 0 and variance 1.
    """
    return fitness_of_kinds(client, store, archs, (score,), examples)[0]


def fitness_of_kinds(
    client: Client, store: Store, archs: Sequence[Arch], kinds: Sequence[Score], examples: Examples
) -> list[list[float]]:
    """Return the scores of each kind, by one walk; as `fitness`."""
    calibration, kept = None, False
    if len(examples) < FEWEST:
        few = client.train.index[:CALIBRATION]
        kept = len(few) < 2 and store.keeps_statistics
        if not kept:
            calibration = replace(client.train, index=few if len(few) > 1 else few[:0])
    return scores_of_kinds(
        store, archs, examples, kinds, calibration=calibration, kept=kept, meter=client.meter
    )
