"""What is personal about a searched network? Tests every client's network on the others' data.

    python examples/whose_network.py runs/perfedrlnas [--clients 10]

Networks are cut from the last supernet of a PerFedRLNAS run: each client's most probable one, and
beside them for every client one that its policy draws, a random one, the middle and the largest.
Batch norm has the supernet's statistics where the run merged them, else those of the training data
of the client that tests. Nothing is trained. If architectures suited the data, another client's
network would do nearly as well on like data; if they are the address of weights that one client
trained, it does not.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch

from fedtailor import Run
from fedtailor.algorithms.perfedrlnas import PerFedRLNAS, Searching
from fedtailor.core import codec
from fedtailor.core.space import Arch
from fedtailor.core.types import Setting
from fedtailor.data.federation import Federation, load_federation
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.network import network_of
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import cut, shapes
from fedtailor.runs.config import read_config
from fedtailor.search import genes, policy
from fedtailor.training import learn

Accuracy = Callable[[Arch, int], float]  # of an architecture on a client's test images


def tester(setting: Setting, federation: Federation, state: Searching) -> Accuracy:
    """Return how to test an architecture for a client."""
    merged = any(is_statistic(name) for name in state.weights)

    def accuracy(arch: Arch, client: int) -> float:
        weights = cut(state.weights, shapes(setting.space, arch, setting.task, merged))
        network = network_of(setting.space, arch, setting.task, weights)
        if not merged:
            learn.recalibrate(network, federation.examples(client, "train"))
        test = federation.examples(client, "test")
        return learn.evaluate(network, test)["accuracy"]

    return accuracy


def main() -> None:
    """Print the means, in percent."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--clients", type=int, default=10, help="of the first ones")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    run = Run(wanted.run)
    config = read_config(run.path / "config.toml")
    how, federation = config.algorithm, load_federation(config.data)
    assert isinstance(how, PerFedRLNAS), "the run must be one of perfedrlnas"
    setting, space = setting_of(config, federation), config.space
    state = codec.read(Searching, run.server_path(run.last_round()))
    accuracy = tester(setting, federation, state)
    clients = range(min(wanted.clients, federation.clients))
    alphas = [how.alphas(space, state, client) for client in clients]
    own = [policy.likeliest(space, row) for row in alphas]
    table = np.array([[accuracy(arch, client) for client in clients] for arch in own])
    others = ~np.eye(len(own), dtype=bool)
    rng = torch.Generator().manual_seed(0)
    drawn = [space.repair(policy.draw(space, row, rng)) for row in alphas]
    random = genes.sample_many(space, len(own), rng)
    fixed = {"middle": space.middle(), "largest": space.largest()}
    print(f"its own               {100 * table.diagonal().mean():.1f}")
    print(f"another client's      {100 * table[others].mean():.1f}")
    for name, archs in {"drawn by its policy": drawn, "drawn at random": random}.items():
        found = [accuracy(arch, client) for client, arch in enumerate(archs)]
        print(f"{name:21} {100 * np.mean(found):.1f}")
    for name, arch in fixed.items():
        print(f"{name:21} {100 * np.mean([accuracy(arch, client) for client in clients]):.1f}")


if __name__ == "__main__":
    main()
