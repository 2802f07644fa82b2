"""How much can an architecture of one's own be worth, and where?

    python examples/ceiling.py work                  # all of it; the same command goes on
    python examples/ceiling.py work --only table     # what is known so far, as Markdown

A supernet is trained uniformly (one random architecture a step) on the training images of all
clients, then stands still. 200 architectures are tested on each client's held-out images, in two
halves. What the halves agree on is no chance: how accuracies differ by architecture, by client, and
by the pair of both, which is all that a personal choice can gain over one for everybody.

Batch norm has one set of statistics for all architectures, as in a federation that merges them
(`merged`), or each architecture's own, measured on everyone's training images (`measured`). With
the former a network may be wrong in favour of some classes, and a client that has these gains by a
fault; so where clients differ in labels there is a row in which every client knows how often its
classes occur and adds that to the outputs (`with its prior`), which mends such a fault for all.
A last table has statistics of two more origins: the client's own training images, as skewed as its
labels are, and the images that are being tested (`batch`).

Clients differ in their labels (Dirichlet 0.3), their images (`data.shift`, one kind each), their
devices (memory of 0.25 to 1.4 of what the largest network takes to train; labels as above) or their
amounts of data (32 to 2,048 images, else alike). The amounts matter only where clients train: some
architectures are tuned on each client's own images. FEDTAILOR_DATA says where CIFAR is.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ceiling_tables import print_tables
from ceiling_work import CLIENTS, ORIGINS, SPACES, TUNED_ARCHS, Work
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.files import whole_file
from fedtailor.core.rng import rng_for
from fedtailor.core.types import Augment, Client, ClientInfo, Examples, Setting
from fedtailor.data.batches import batch, chunks
from fedtailor.data.federation import Federation
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import network_of
from fedtailor.networks.store import Store
from fedtailor.pretrain.settings import recipe_for
from fedtailor.pretrain.supernet_training import train_supernet
from fedtailor.search import genes
from fedtailor.training import learn
from fedtailor.training.population import walk

MEASURING = 400  # batches by which merged statistics are measured
CALIBRATION = 512  # images by which an architecture's own are
TESTED = 4000  # official test images, of all clients together
TUNING = learn.Recipe(epochs=5, lr=0.003)
MOST_TUNED = 375  # images that a client tunes on, where amounts are alike


def supernet(work: Work, federation: Federation) -> Store:
    """Return the supernet, trained on all that are not test images, with measured statistics."""
    space = work.searched(federation)
    learned = [federation.examples(c, s).index for c in range(CLIENTS) for s in ("train", "val")]
    pooled = replace(federation.examples(0, "train"), index=torch.cat(learned).sort().values)
    how = replace(recipe_for("default", work.space).supernet, steps=work.steps, seed=work.seed)
    trained = train_supernet(space, federation.task, pooled, how, work.file("supernet"), workers=1)
    setting = Setting(federation.task, space, 1, work.seed)
    first = initial_supernet(setting, statistics=True)
    store = Store(space, federation.task, first | trained.copy())
    rng = rng_for(work.seed, "statistics")
    with torch.no_grad():
        for _ in range(MEASURING):
            rows = torch.randint(len(pooled), (128,), generator=rng)
            store.bind(genes.sample(space, rng))(batch(pooled, rows, None, "cpu")[0])
    return store


def frozen(work: Work) -> None:
    """Test all architectures as they are on all clients' test images, and keep every answer."""
    file = work.file(f"frozen-{work.condition}")
    if file.exists():
        return
    torch.set_num_threads(1)
    federation = work.federation()
    store = supernet(work, federation)
    rows = [_test_rows(federation, client) for client in range(CLIENTS)]
    pooled = replace(federation.examples(0, "test"), index=torch.cat(rows).unique())
    archs = work.archs(store.space)
    shape = (len(archs), len(pooled), federation.task.classes)
    outputs = {way: np.zeros(shape, np.float16) for way in ("merged", "measured")}
    for number, logits in walk(store, archs, pooled, kept=True):
        outputs["merged"][number] = logits
    for number, logits in walk(store, archs, pooled, _calibration(work, federation)):
        outputs["measured"][number] = logits
    memory = [
        cost.training_memory(store.space, arch, store.task, TUNING.batch)
        for arch in (*archs, store.space.largest())
    ]
    with whole_file(file) as part, part.open("wb") as out:
        np.savez(
            out, **outputs, labels=pooled.labels[pooled.index].numpy(), memory=memory,
            images=pooled.index.numpy(),
        )  # fmt: skip


def _test_rows(federation: Federation, client: int) -> Tensor:
    """Return the first of a client's test images, so many that all have the same number."""
    return federation.examples(client, "test").index[: TESTED // CLIENTS]


def _calibration(work: Work, federation: Federation) -> Examples:
    """Return some of everyone's training images, in random order."""
    trained = [federation.examples(client, "train").index for client in range(CLIENTS)]
    rows = torch.cat(trained).sort().values
    order = torch.randperm(len(rows), generator=rng_for(work.seed, "calibration"))[:CALIBRATION]
    return replace(federation.examples(0, "test"), index=rows[order])


def _answers(logits: Tensor, labels: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return which images are classified right, and the log-likelihood of their labels."""
    right = (logits.argmax(1) == labels).numpy()
    return right, -F.cross_entropy(logits, labels, reduction="none").numpy()


def tuned(work: Work) -> None:
    """Tune some architectures on some clients' images, and keep how good they become."""
    file = work.file(f"tuned-{work.condition}")
    if file.exists():
        return
    torch.set_num_threads(1)
    federation = work.federation()
    store = supernet(work, federation)
    archs = work.archs(store.space)[:TUNED_ARCHS]
    found = np.zeros((2, 2, len(archs), work.tuned_clients), np.float32)
    setting = Setting(federation.task, store.space, 1, work.seed)
    for number in range(work.tuned_clients):
        client = _tuning_client(work, federation, setting, number)
        for row, arch in enumerate(archs):
            network = network_of(store.space, arch, store.task, store.cut(arch))
            learn.fit(client, network, TUNING, purpose="tune")
            logits = torch.cat(list(_outputs(network.module.eval(), client.test)))
            right, likely = _answers(logits, client.test.labels[client.test.index])
            found[:, :, row, number] = (
                _in_halves(right, client.test),
                _in_halves(likely, client.test),
            )
    with whole_file(file) as part, part.open("wb") as out:
        np.savez(out, accuracy=found[0], likelihood=found[1])


def statistics(work: Work) -> None:
    """Test some architectures with batch-norm statistics of each origin, client by client."""
    file = work.file(f"statistics-{work.condition}")
    if file.exists():
        return
    torch.set_num_threads(1)
    federation = work.federation()
    store, pooled = supernet(work, federation), _calibration(work, federation)
    archs = work.archs(store.space)[: 2 * TUNED_ARCHS]
    found = np.zeros((len(ORIGINS), len(archs), CLIENTS), np.float32)
    for client in range(CLIENTS):
        rows = _test_rows(federation, client)
        test = replace(federation.examples(client, "test"), index=rows)
        train = federation.examples(client, "train")
        order = torch.randperm(len(train), generator=rng_for(work.seed, "own", client))
        own = replace(train, index=train.index[order[:256]], augment=Augment())
        how: dict[str, dict[str, Any]] = {
            "merged": {"kept": True},
            "measured": {"calibration": pooled},
            "own": {"calibration": own},
            "batch": {},
        }
        labels = test.labels[test.index]
        for place, origin in enumerate(ORIGINS):
            for number, logits in walk(store, archs, test, **how[origin]):
                found[place, number, client] = (logits.argmax(1) == labels).float().mean()
    with whole_file(file) as part, part.open("wb") as out:
        np.savez(out, accuracy=found)


def amount_of(client: int, clients: int) -> int:
    """Return how many images a client has where amounts differ: 32 to 2,048, by even ratios."""
    return round(32 * 64 ** (client / (clients - 1)))


def _tuning_client(work: Work, data: Federation, setting: Setting, number: int) -> Client:
    """Return a client with the images it tunes on, drawn from its training images."""
    train, test = data.examples(number, "train"), data.examples(number, "test")
    alike = min(MOST_TUNED, len(train))
    images = amount_of(number, work.tuned_clients) if work.condition == "amounts" else alike
    order = torch.randperm(len(train), generator=rng_for(work.seed, "tuned", number))[:images]
    train = replace(train, index=train.index[order], augment=Augment(crop=4, flip=True))
    info = ClientInfo(number, len(train))
    return Client(setting, info, 1, train, data.examples(number, "val"), test)


@torch.inference_mode()
def _outputs(module: torch.nn.Module, examples: Examples) -> Iterator[Tensor]:
    for rows in chunks(examples, 256):
        yield module(batch(examples, rows, None, "cpu")[0])


def _in_halves(values: np.ndarray, examples: Examples) -> tuple[float, float]:
    """Return means over images of even and of odd numbers."""
    odd = examples.index.numpy() % 2 == 1
    return float(values[~odd].mean()), float(values[odd].mean())


def main() -> None:
    """Do all that is left to do, then print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--spaces", default=",".join(SPACES))
    parser.add_argument("--conditions", default="labels,shift,amounts")
    parser.add_argument("--steps", type=int, default=3000, help="of a supernet's training, of 64")
    parser.add_argument("--tuned-clients", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", choices=("frozen", "statistics", "tuned", "table"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    made = partial(
        Work, asked.folder, steps=asked.steps, tuned_clients=asked.tuned_clients, seed=asked.seed
    )
    works = [
        made(space=space, condition=condition)
        for condition in asked.conditions.split(",")
        for space in asked.spaces.split(",")
    ]
    with ProcessPoolExecutor(asked.workers, get_context("spawn")) as pool:
        if asked.only in (None, "frozen"):
            for work in pool.map(_do_frozen, [w for w in works if w.condition != "amounts"]):
                print(f"{work.space}, {work.condition}: frozen done", flush=True)
        if asked.only in (None, "statistics"):
            for work in pool.map(_do_statistics, [w for w in works if w.condition == "labels"]):
                print(f"{work.space}, {work.condition}: statistics done", flush=True)
        if asked.only in (None, "tuned"):
            for work in pool.map(_do_tuned, works):
                print(f"{work.space}, {work.condition}: tuned done", flush=True)
    print_tables(works)


def _do_frozen(work: Work) -> Work:
    frozen(work)
    return work


def _do_statistics(work: Work) -> Work:
    statistics(work)
    return work


def _do_tuned(work: Work) -> Work:
    tuned(work)
    return work


if __name__ == "__main__":
    main()
