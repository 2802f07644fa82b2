"""Training of the small image encoder that comes with the package, on CIFAR-100.

python -m fedtailor.pretrain.encoder_training --out FILE

It learns to tell the 100 classes apart (cross-entropy, SGD, crops and flips, cosine); what is kept
is the network up to its features, in 16 bits. The last line printed is JSON: the share of the
official test images it tells right, with the weights as they are kept.
"""

import argparse
import itertools
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import safetensors.torch
import torch
from annotated_types import Ge, Gt
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.files import whole_file
from fedtailor.core.rng import rng_for
from fedtailor.core.types import Augment, Examples
from fedtailor.data.batches import batch, chunks, epoch
from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions
from fedtailor.networks.initial import initialise
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.pretrain.resumable import OnProgress, remaining_steps
from fedtailor.search.diffusion.encoder import CIFAR100, COUNTER
from fedtailor.search.diffusion.encoder_networks import SMALL_FEATURES, Small
from fedtailor.training.schedule import cosine


@dataclass(frozen=True)
class EncoderTraining:
    """How long and how fast."""

    steps: Annotated[int, Ge(1)] = 6000  # 15 epochs of CIFAR-100
    batch: Annotated[int, Ge(2)] = 128
    lr: Annotated[float, Gt(0)] = 0.2
    warmup: float = 0.1  # share of the steps in which the learning rate rises
    momentum: float = 0.9
    weight_decay: float = 5e-4

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        done = (step + 0.5) / self.steps
        return self.lr * min(1.0, done / self.warmup) * cosine(done)


USUAL = EncoderTraining()


class Classifier(nn.Module):
    """The small encoder and a linear layer over its features."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = Small()
        self.head = nn.Linear(SMALL_FEATURES, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.body(images))


def train_encoder(
    examples: Examples,
    classes: int,
    training: EncoderTraining = USUAL,
    seed: int = 0,
    progress: OnProgress | None = None,
) -> Classifier:
    """Train from the beginning; same seed, same bytes.

    Args:
        examples: to train on, with the changes that they say.
        classes: that there are.
        training: how.
        seed: of the first weights, of the order of images and of their changes.
        progress: told the number of steps done and of all.
    """
    model = blueprint(lambda: Classifier(classes))
    allocate(model, "cpu").to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
    initialise(model, rng_for(seed, "encoder"))
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=training.lr,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        nesterov=True,
    )
    epochs = (epoch(examples, training.batch, rng_for(seed, "epoch", n)) for n in itertools.count())
    rows = itertools.chain.from_iterable(epochs)
    for step in remaining_steps(0, training.steps, progress):
        chosen = next(rows)
        for group in optimizer.param_groups:
            group["lr"] = training.rate(step)
        images, labels = batch(examples, chosen, rng_for(seed, "augment", step), "cpu")
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
    return model.eval()


def keep(model: Classifier, file: Path) -> None:
    """Write the encoder, rounded to 16 bits, whole or not at all; the model is rounded too."""
    kept = {
        name: tensor.half().contiguous()
        for name, tensor in model.body.state_dict().items()
        if not name.endswith(COUNTER)
    }
    model.body.load_state_dict({n: t.float() for n, t in kept.items()}, strict=False)
    try:
        with whole_file(file) as part:
            safetensors.torch.save_file(kept, part)
    except OSError as error:
        raise UserError(f"--out: {file} cannot be written ({error}).") from None


@torch.no_grad()
def accuracy(model: nn.Module, examples: Examples) -> float:
    """Return the share of examples that a classifier tells right."""
    right = 0
    for rows in chunks(examples, 250):
        images, labels = batch(examples, rows, None, "cpu")
        right += int((model(images).argmax(1) == labels).sum())
    return right / len(examples)


def cifar100(root: str | None = None) -> tuple[Examples, Examples]:
    """Return CIFAR-100's training images, to be cropped and flipped, and its test images."""
    source = load_source(DataOptions(name="cifar100", split="official", root=root))
    assert source.test_images is not None and source.test_labels is not None

    def examples(images: Tensor, labels: Tensor, augment: Augment) -> Examples:
        return Examples(images, labels, torch.arange(len(labels)), *CIFAR100, augment)

    pairs = ((source.images, source.labels), (source.test_images, source.test_labels))
    train, test = ((torch.from_numpy(x), torch.from_numpy(y)) for x, y in pairs)
    return examples(*train, Augment(crop=4, flip=True)), examples(*test, Augment())


def main(arguments: list[str] | None = None) -> None:
    """Train, write and report."""
    parser = argparse.ArgumentParser(prog="python -m fedtailor.pretrain.encoder_training")
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    parser.add_argument("--steps", type=int, default=USUAL.steps)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", help="the data root; else $FEDTAILOR_DATA, else ./data")
    told = parser.parse_args(arguments)
    torch.set_num_threads(1)  # another number of threads gives other bytes
    try:
        train, test = cifar100(told.data)
        start = time.process_time()
        model = train_encoder(train, 100, EncoderTraining(told.steps), told.seed, _show)
        seconds = time.process_time() - start
        keep(model, told.out)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    about = {
        "top1": accuracy(model, test),
        "steps": told.steps,
        "seed": told.seed,
        "cpu_seconds": round(seconds, 1),
        "parameters": sum(p.numel() for p in model.body.parameters()),
        "bytes": told.out.stat().st_size,
    }
    print(json.dumps(about))


def _show(done: int, steps: int) -> None:
    if done % max(1, steps // 20) == 0:
        print(f"step {done} of {steps}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
