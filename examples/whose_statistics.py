"""Whose batch-norm statistics does a shared network need? One network with those of four origins.

    python examples/whose_statistics.py runs/fedavg

The global model of a FedAvg run, untuned, on every client's test images, with the statistics that
were averaged in its rounds, those of 3,000 training images of all clients, the mean of what each
client measures on its own training images, and what the client itself measures. Weights are the
same throughout; nothing is trained. Clients that were kept out of the run have rows of their own.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from variance_parts import interval

from fedtailor import Run
from fedtailor.algorithms.fedavg import FedAvg, Global
from fedtailor.core import codec
from fedtailor.core.rng import rng_for
from fedtailor.core.types import Augment, Examples, Setting, Tensors
from fedtailor.data.federation import Federation, load_federation
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.network import network_of
from fedtailor.networks.norms import is_statistic
from fedtailor.runs.config import read_config
from fedtailor.training import learn

POOLED = 3000


def measured(setting: Setting, weights: Tensors, examples: Examples) -> Tensors:
    """Return weights with the statistics of these images, taken in random order."""
    network = network_of(setting.space, setting.arch, setting.task, weights)
    order = torch.randperm(len(examples), generator=rng_for(setting.seed, "order"))
    mixed = replace(examples, index=examples.index[order], augment=Augment())
    learn.recalibrate(network, mixed)
    return network.weights()


def pooled(federation: Federation) -> Examples:
    """Return some training images of all clients that took part."""
    rows = torch.cat([federation.examples(c, "train").index for c in range(federation.clients)])
    chosen = torch.randperm(len(rows), generator=rng_for(0, "pooled"))[:POOLED]
    return replace(federation.examples(0, "train"), index=rows[chosen].sort().values)


def mean_statistics(weights: Tensors, each: Sequence[Tensors]) -> Tensors:
    """Return weights with the mean of several statistics."""
    means = {
        name: torch.stack([one[name] for one in each]).mean(0)
        for name in weights
        if is_statistic(name)
    }
    return weights | means


def main() -> None:
    """Print means over clients in percent, and differences from averaged statistics."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    run = Run(parser.parse_args().run)
    torch.set_num_threads(1)
    config = read_config(run.path / "config.toml")
    assert isinstance(config.algorithm, FedAvg), "the run must be one of fedavg"
    federation = load_federation(config.data)
    setting = setting_of(config, federation)
    averaged = codec.read(Global, run.server_path(run.last_round())).weights
    everyone = range(len(federation.bounds))
    own = [measured(setting, averaged, federation.examples(c, "train")) for c in everyone]
    origins = {
        "averaged in rounds": [averaged] * len(own),
        "3,000 pooled images": [measured(setting, averaged, pooled(federation))] * len(own),
        "mean of clients' own": [mean_statistics(averaged, own[: federation.clients])] * len(own),
        "the client's own": own,
    }
    accuracy = {
        name: 100 * np.array([_accuracy(setting, each[c], federation, c) for c in everyone])
        for name, each in origins.items()
    }
    for group, some in {
        "clients": slice(0, federation.clients),
        "new clients": slice(federation.clients, None),
    }.items():
        for name, values in accuracy.items():
            if len(values[some]):
                gained = interval(values[some] - accuracy["averaged in rounds"][some])
                print(f"{group:12} {name:21} {values[some].mean():.1f}   {gained}")


def _accuracy(setting: Setting, weights: Tensors, federation: Federation, client: int) -> float:
    network = network_of(setting.space, setting.arch, setting.task, weights)
    return learn.evaluate(network, federation.examples(client, "test"))["accuracy"]


if __name__ == "__main__":
    main()
