"""What is it worth to know one's own label shares? The least that personalisation must beat.

    python examples/label_shares.py runs/fedavg runs/perfedrlnas

Every client's untuned network, as it is and with the logarithms of the shares that the classes have
among the client's training images added to its outputs: no training, no search, ten numbers that
every client has. Of methods whose clients keep no state of their own. Percent of test images.
"""

import sys

import torch
from torch import Tensor
from variance_parts import interval

from fedtailor import Run
from fedtailor.algorithms._base import state_types
from fedtailor.core import codec
from fedtailor.core.types import Client, Server
from fedtailor.data.batches import batch, chunks
from fedtailor.data.federation import load_federation
from fedtailor.engines._base import ClientHost, Ticket
from fedtailor.experiment.prepare import prepare
from fedtailor.runs.config import read_config

SMALLEST = 1e-3  # share of a class that a client has no image of


def log_shares(client: Client) -> Tensor:
    """Return the logarithms of the shares of a client's labels."""
    labels = client.train.labels[client.train.index]
    counts = torch.bincount(labels, minlength=client.setting.task.classes)
    return (counts / counts.sum()).clamp(min=SMALLEST).log()


@torch.inference_mode()
def accuracies(client: Client, module: torch.nn.Module) -> tuple[float, float]:
    """Return a network's accuracy as it is and with the shares of the labels, in percent."""
    shares, right = log_shares(client), torch.zeros(2)
    for rows in chunks(client.test, 256):
        images, labels = batch(client.test, rows, None, "cpu")
        logits = module.eval()(images)
        for at, answers in enumerate((logits, logits + shares)):
            right[at] += (answers.argmax(1) == labels).sum()
    alone, known = (100 * right / len(client.test)).tolist()
    return alone, known


def of_run(run: Run) -> list[tuple[float, float]]:
    """Return both accuracies of all clients that took part."""
    config = read_config(run.path / "config.toml")
    prepared = prepare(config, load_federation(config.data))
    how, setting, clients = config.algorithm, prepared.setting, prepared.clients
    kind, private = state_types(how)
    assert private is type(None), "clients of this method keep a state of their own"
    state = codec.read(kind, run.server_path(run.last_round()))
    server = Server(setting, run.last_round(), clients)
    host = ClientHost(how, setting, prepared.federation, clients, run.path / "state", None)
    found = []
    for info in clients[: prepared.federation.clients]:
        client = host.client(Ticket("evaluate", info.id, run.last_round()))
        _, network = next(how.deploy(client, None, how.serve(server, state, info)))
        found.append(accuracies(client, network.module))
    return found


def main(paths: list[str]) -> None:
    """Print a line for each run."""
    torch.set_num_threads(1)
    for path in paths:
        alone, known = torch.tensor(of_run(Run(path)), dtype=torch.float64).T
        gained = interval((known - alone).numpy())
        print(f"{path}: untuned {alone.mean():.1f}, knowing its labels {known.mean():.1f} {gained}")


if __name__ == "__main__":
    main(sys.argv[1:])
