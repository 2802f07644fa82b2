"""Frozen features of images, by which a predictor knows a client's data.

PerFedSDE-NAS (Liao et al.), supplement D, after MetaD2A (Lee et al. 2021): images of 32 pixels go
through a ResNet-18 trained on ImageNet, without its last layer, 20 images of each class. Differs
from the papers: by default a small encoder of our own, trained on CIFAR-100, takes its place;
torchvision's weight file does where the user gives it. A class with fewer images gives all it has.

Features are the client's alone, as its images are: they, their embedding and the file in which
they are kept never leave it.
"""

import hashlib
from dataclasses import dataclass, replace
from importlib import resources
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.rng import seed_for
from fedtailor.core.types import Examples, Tensors
from fedtailor.networks.pieces import allocate, blueprint
from fedtailor.search.diffusion.encoder_networks import (
    SMALL_FEATURES,
    STAGES,
    ResNet18,
    Small,
    published,
)

PIXELS = 32  # height and width of what encoders see
BATCH = 100
SHIPPED = Path(str(resources.files("fedtailor") / "weights" / "encoder.safetensors"))
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # mean and std of the channels
CIFAR100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
COUNTER = ".num_batches_tracked"  # files of old have none


@dataclass(frozen=True, eq=False)
class Features:
    """Features of some of a client's images; they stay with the client."""

    values: Tensor  # (n, features), float32
    labels: Tensor  # (n,), int64


@dataclass(frozen=True, eq=False)
class Encoder:
    """A frozen network that turns images into features."""

    network: nn.Module  # of images (n, 3, 32, 32), normalised
    size: int  # features of an image
    mean: tuple[float, ...]  # per channel, on the scale where uint8 255 is 1
    std: tuple[float, ...]
    digest: str  # of its weights


@dataclass(frozen=True, eq=False)
class _Kept:
    """What a file of features holds."""

    features: Features
    digest: str  # of them, by which damage is known


def file_of(file: str | None) -> Path:
    """Return where an encoder's weights are: in a file that is named, or the package's own."""
    return SHIPPED if file is None else Path(file)


def load_encoder(file: Path | None = None) -> Encoder:
    """Return the encoder that comes with the package, or the one of a weight file.

    Args:
        file: torchvision's ImageNet weights of ResNet-18 (.pth, or .safetensors of the same names),
            or what `python -m fedtailor.pretrain.encoder_training` wrote.
    """
    if file is None and not SHIPPED.is_file():
        raise UserError(
            f"encoder: the package's own weights are missing, so give a file or make them by "
            f"`python -m fedtailor.pretrain.encoder_training --out {SHIPPED}`."
        )
    weights = _read(file or SHIPPED)
    if "stem.weight" in weights:
        network, name, size, scale = Small, str, SMALL_FEATURES, CIFAR100
    else:
        network, name, size, scale = ResNet18, published, STAGES[-1], IMAGENET
    module = allocate(blueprint(network), "cpu")
    wanted = {name(own): tensor for own, tensor in module.state_dict().items()}
    found = _checked(file or SHIPPED, weights, wanted)
    for key, tensor in wanted.items():
        if key in found:
            tensor.copy_(found[key])
    module.eval().requires_grad_(requires_grad=False)
    return Encoder(module, size, *scale, digest=codec.digest(found))


@torch.no_grad()
def encoded(encoder: Encoder, examples: Examples) -> Tensor:
    """Return features of all examples, in their order: (n, features), float32.

    Images of any size and of any number of channels are brought to 32 pixels and three channels:
    gray is repeated, and of another number than 3 the mean counts as gray.
    """
    device = next(encoder.network.parameters()).device
    found = [torch.zeros(0, encoder.size)]
    for rows in examples.index.split(BATCH) if len(examples) else ():
        images = _prepared(encoder, examples, examples.images[rows]).to(device)
        found.append(encoder.network(images).float().cpu())
    return torch.cat(found)


def features(encoder: Encoder, examples: Examples, per_class: int = 20, seed: int = 0) -> Features:
    """Return features of at most `per_class` images of each class, of a class with fewer of all.

    Which images is decided by the seed and by the images themselves, so that their order in the
    data set does not matter; they come in the order of their labels.
    """
    return _computed(encoder, examples, [row for row, _ in _chosen(examples, per_class, seed)])


def cached_features(
    encoder: Encoder,
    examples: Examples,
    per_class: int = 20,
    seed: int = 0,
    folder: Path | None = None,
) -> Features:
    """Return what `features` does, from a file below a folder where they were computed before.

    The file is named by a hash of the chosen images, their labels, the encoder and the settings; a
    damaged one is written anew. It is the client's alone: the folder must be on its own device.
    """
    chosen = _chosen(examples, per_class, seed)
    rows = [row for row, _ in chosen]
    if folder is None:
        return _computed(encoder, examples, rows)
    file = folder / f"features-{_name(encoder, examples, chosen)}.safetensors"
    kept = _kept(file)
    if kept is None:
        kept = _computed(encoder, examples, rows)
        _keep(file, kept)
    return kept


def _chosen(examples: Examples, per_class: int, seed: int) -> list[tuple[int, bytes]]:
    """Return rows of the images and their hashes: of every class those of the smallest hashes."""
    if per_class < 1:
        raise ValueError("at least one image per class is needed")
    key, images = seed_for(seed, "features").to_bytes(8, "big"), examples.images.numpy()
    rows = examples.index.tolist()
    labels = examples.labels[examples.index].tolist()
    hashes = (hashlib.blake2b(images[row].tobytes(), key=key, digest_size=16) for row in rows)
    found = sorted(
        (label, each.digest(), row) for label, each, row in zip(labels, hashes, rows, strict=True)
    )
    classes = (group for _, group in groupby(found, lambda one: one[0]))
    return [(row, digest) for group in classes for _, digest, row in islice(group, per_class)]


def _computed(encoder: Encoder, examples: Examples, rows: list[int]) -> Features:
    index = torch.tensor(rows, dtype=torch.int64)
    return Features(encoded(encoder, replace(examples, index=index)), examples.labels[index])


def _prepared(encoder: Encoder, examples: Examples, images: Tensor) -> Tensor:
    """Return images as an encoder was trained on them.

    Pixels of 8 bits are normalised as the encoder's were; the scale of floats is known by the
    data set's own mean and std alone, so these normalise them.
    """
    if images.dtype == torch.uint8:
        x = _normalised(_colour(images.float() / 255), encoder.mean, encoder.std)
    else:
        x = _colour(_normalised(images.float(), examples.mean, examples.std))
    if x.shape[2:] != (PIXELS, PIXELS):
        x = F.interpolate(x, (PIXELS, PIXELS), mode="bilinear", antialias=True)
    return x.contiguous(memory_format=torch.channels_last)


def _colour(x: Tensor) -> Tensor:
    return x if x.shape[1] == 3 else x.mean(1, keepdim=True).expand(-1, 3, -1, -1)


def _normalised(x: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    means, stds = (torch.tensor(each).view(1, -1, 1, 1) for each in (mean, std))
    return (x - means) / stds


def _name(encoder: Encoder, examples: Examples, chosen: list[tuple[int, bytes]]) -> str:
    """Hash all that features depend on."""
    images = examples.images
    about = [encoder.digest, encoder.mean, encoder.std, examples.mean, examples.std]
    found = hashlib.sha256(repr([*about, images.dtype, tuple(images.shape[1:])]).encode())
    for row, digest in chosen:
        found.update(digest + int(examples.labels[row]).to_bytes(8, "big", signed=True))
    return found.hexdigest()[:32]


def _kept(file: Path) -> Features | None:
    """Read features, unless there are none or they are damaged."""
    try:
        kept = codec.read(_Kept, file)
        return kept.features if codec.digest(kept.features) == kept.digest else None
    except (UserError, OSError, AttributeError, TypeError):
        return None


def _keep(file: Path, found: Features) -> None:
    """Write features, whole or not at all."""
    try:
        codec.write_whole(file, _Kept(found, codec.digest(found)), shared=True)
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"encoder: features cannot be kept in {file.parent} ({error}).") from None


def _read(file: Path) -> dict[str, Any]:
    """Read a weight file as data only."""
    try:
        if file.suffix == ".safetensors":
            return safetensors.torch.load_file(file)
        found = torch.load(file, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise UserError(f"encoder: there is no file {file}.") from None
    except Exception as error:  # a foreign file: whatever goes wrong, it is no weight file
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"encoder: {file} cannot be read as weights ({reason}).") from None
    return dict(found) if isinstance(found, dict) else {}


def _checked(file: Path, weights: dict[str, Any], wanted: Tensors) -> Tensors:
    """Return the weights that an encoder has, or say what is wrong with them."""
    found = {name: weight for name, weight in weights.items() if not str(name).startswith("fc.")}
    wrong = [
        f"it lacks {name}" for name in wanted if name not in found and not name.endswith(COUNTER)
    ]
    wrong += [f"it also holds {name}" for name in found if name not in wanted]
    for name in (name for name in wanted if name in found):
        weight, shape = found[name], tuple(wanted[name].shape)
        if not isinstance(weight, Tensor) or tuple(weight.shape) != shape:
            is_ = tuple(weight.shape) if isinstance(weight, Tensor) else type(weight).__name__
            wrong.append(f"{name} is {is_}, not {shape}")
        elif not weight.isfinite().all():
            wrong.append(f"{name} is not finite")
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise UserError(
            f"encoder: {file} holds neither torchvision's ResNet-18 nor a small encoder "
            f"({wrong[0]}{more})."
        )
    return {name: found[name] for name in wanted if name in found and not name.endswith(COUNTER)}
