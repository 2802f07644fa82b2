"""Train a search space's supernet on CIFAR-10 and see how its subnets do.

python examples/supernet.py mobilenetv3 --epochs 10 --out supernet
python examples/supernet.py mobilenetv3 --epochs 10 --out supernet --alone 0 1 2 --alone-epochs 5

The first trains by single paths (one random architecture to a batch) and tests the smallest, the
largest and random architectures, batch norm recalibrated on 2,048 training images. The second also
trains some of those architectures alone, from scratch, for comparison. Both go on where they were
stopped; results are in supernet/NAME.json. FEDTAILOR_DATA says where CIFAR is.
"""

import argparse
import json
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import safetensors.torch
import torch

from fedtailor.core import registry
from fedtailor.core.files import whole_file
from fedtailor.core.space import Arch
from fedtailor.core.types import Client, ClientInfo, Setting
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet, initial_weights
from fedtailor.networks.store import Store
from fedtailor.search import genes, schemes
from fedtailor.training import learn
from fedtailor.training.population import population_scores
from fedtailor.training.supernet import SupernetTrainer

RANDOM, CALIBRATION = 30, 2048


def the_client(options: argparse.Namespace) -> Client:
    """Return one client that has all of CIFAR-10: the official training and test images."""
    data = DataOptions(
        name="cifar10", clients=1, partition="iid", split="official",
        fractions=(0.8, 0.1, 0.1), augment=("crop", "flip"),
    )  # fmt: skip
    federation = load_federation(data)
    train, val, test = (federation.examples(0, split) for split in ("train", "val", "test"))
    kind = registry.find("space", options.space)
    space = kind(**{"default": {}, **kind.presets}[options.preset])
    setting = Setting(federation.task, space, options.epochs, options.seed)
    return Client(setting, ClientInfo(0, len(train)), 1, train, val, test)


def archs_of(client: Client) -> list[Arch]:
    """Return the smallest, the largest and random architectures."""
    space, rng = client.setting.space, client.rng("examples")
    return [space.smallest(), space.largest(), *genes.sample_many(space, RANDOM, rng)]


def train_supernet(client: Client, recipe: learn.Recipe, file: Path) -> Store:
    """Train epoch by epoch, each one saved."""
    setting = client.setting
    weights, done = initial_supernet(setting), 0
    if file.exists():
        weights = safetensors.torch.load_file(file)
        done = int(weights.pop("epochs_done"))
    store = Store(setting.space, setting.task, weights)
    scheme = partial(schemes.single_path, setting.space)
    for epoch in range(done + 1, setting.rounds + 1):
        began = time.process_time()
        lr = recipe.rate(epoch, setting.rounds)
        trainer = SupernetTrainer(replace(client, round=epoch), store, recipe, lr=lr)
        loss = trainer.epochs(1, scheme)
        print(
            f"epoch {epoch}: loss {loss:.3f}, {time.process_time() - began:.0f} CPU s",
            flush=True,
        )
        saved = store.copy() | {"epochs_done": torch.tensor(epoch)}
        with whole_file(file) as part:
            safetensors.torch.save_file(saved, part)
    return store


def accuracies(client: Client, store: Store, archs: list[Arch]) -> list[float]:
    """Test architectures with the supernet's weights, batch norm recalibrated."""
    few = replace(client.train, index=client.train.index[:CALIBRATION])
    return population_scores(store, archs, client.test, "accuracy", calibration=few)


def alone(client: Client, arch: Arch, recipe: learn.Recipe, epochs: int) -> float:
    """Train an architecture from scratch, and test it."""
    setting = client.setting
    network = learn.network(client, initial_weights(setting, arch), arch)
    for epoch in range(1, epochs + 1):
        lr = recipe.rate(epoch, epochs)
        step = replace(client, round=epoch)
        loss = learn.fit(step, network, recipe, lr=lr, epochs=1, purpose="alone")
        print(f"alone, epoch {epoch}: loss {loss:.3f}", flush=True)
    learn.recalibrate(network, client.train)
    return learn.evaluate(network, client.test)["accuracy"]


def main() -> None:
    """Train, test, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("space")
    parser.add_argument("--preset", default="cpu")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--optimizer", choices=["sgd", "adamw"], default="sgd")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--alone", type=int, nargs="*", default=[], help="numbers of architectures")
    parser.add_argument("--alone-epochs", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    recipe = learn.Recipe(
        batch=64, optimizer=options.optimizer, lr=options.lr, schedule="cosine",
        weight_decay=options.weight_decay, clip=5.0,
    )  # fmt: skip
    client = the_client(options)
    archs = archs_of(client)
    began = time.process_time()
    store = train_supernet(client, recipe, options.out / f"{options.space}.safetensors")
    setting = client.setting
    report = options.out / f"{options.space}.json"
    if not report.exists():
        found = accuracies(client, store, archs)
        rows = [
            {
                "arch": list(arch),
                "accuracy": accuracy,
                "parameters": cost.parameters(setting.space, arch, setting.task),
                "macs": cost.forward_macs(setting.space, arch, setting.task),
            }
            for arch, accuracy in zip(archs, found, strict=True)
        ]
        table = {"options": {k: str(v) for k, v in vars(options).items()}, "rows": rows}
        report.write_text(json.dumps(table, indent=1) + "\n")
        print(f"tested {len(archs)} architectures: {time.process_time() - began:.0f} CPU s")
    for number in options.alone:
        own = options.out / f"{options.space}-alone-{number}.json"
        if not own.exists():
            accuracy = alone(client, archs[number], recipe, options.alone_epochs)
            own.write_text(json.dumps({"number": number, "accuracy": accuracy}) + "\n")
    rows = json.loads(report.read_text())["rows"]
    print(f"smallest {rows[0]['accuracy']:.3f}, largest {rows[1]['accuracy']:.3f}")


if __name__ == "__main__":
    main()
