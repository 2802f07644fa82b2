"""Encoders against torchvision's names and a forward pass by hand; which features, and kept how."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.types import Augment, Examples, Tensors
from fedtailor.pretrain import encoder_training as pretrain
from fedtailor.search.diffusion import encoder as module
from fedtailor.search.diffusion.encoder import (
    Encoder,
    cached_features,
    encoded,
    features,
    load_encoder,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def published_shapes() -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of torchvision's ResNet-18, written out by hand."""
    found: dict[str, tuple[int, ...]] = {}

    def norm(name: str, width: int) -> None:
        found.update(dict.fromkeys((f"{name}.weight", f"{name}.bias"), (width,)))
        found.update(dict.fromkeys((f"{name}.running_mean", f"{name}.running_var"), (width,)))
        found[f"{name}.num_batches_tracked"] = ()

    found["conv1.weight"] = (64, 3, 7, 7)
    norm("bn1", 64)
    for layer, before, width in ((1, 64, 64), (2, 64, 128), (3, 128, 256), (4, 256, 512)):
        for block, fan in enumerate((before, width)):
            name = f"layer{layer}.{block}"
            found[f"{name}.conv1.weight"] = (width, fan, 3, 3)
            norm(f"{name}.bn1", width)
            found[f"{name}.conv2.weight"] = (width, width, 3, 3)
            norm(f"{name}.bn2", width)
            if fan != width:
                found[f"{name}.downsample.0.weight"] = (width, fan, 1, 1)
                norm(f"{name}.downsample.1", width)
    return found | {"fc.weight": (1000, 512), "fc.bias": (1000,)}


@pytest.fixture(scope="session")
def published() -> Tensors:
    """Return weights of torchvision's names whose features are neither 0 nor huge."""
    rng, found = generator(), {}
    for name, shape in published_shapes().items():
        drawn = torch.randn(shape, generator=rng) * 0.1
        if name.endswith("num_batches_tracked"):
            drawn = torch.tensor(7)
        elif (
            name.endswith(("running_var", "bn1.weight", "bn2.weight", "1.weight"))
            and drawn.dim() == 1
        ):
            drawn = 1 + drawn.abs()
        elif drawn.dim() > 1:
            drawn = torch.randn(shape, generator=rng) * drawn[0].numel() ** -0.5
        found[name] = drawn
    return found


def by_hand(weights: Tensors, x: Tensor) -> Tensor:
    """Pass normalised images through ResNet-18, operation by operation."""

    def norm(x: Tensor, name: str) -> Tensor:
        mean, var, scale, shift = (
            weights[f"{name}.{part}"].view(1, -1, 1, 1)
            for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (var + 1e-5).sqrt() * scale + shift

    x = F.conv2d(x, weights["conv1.weight"], stride=2, padding=3)
    x = F.max_pool2d(norm(x, "bn1").relu(), 3, 2, 1)
    for layer in range(1, 5):
        for block in range(2):
            name, stride = f"layer{layer}.{block}", 2 if layer > 1 and block == 0 else 1
            y = F.conv2d(x, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
            y = F.conv2d(norm(y, f"{name}.bn1").relu(), weights[f"{name}.conv2.weight"], padding=1)
            if stride == 2:
                x = F.conv2d(x, weights[f"{name}.downsample.0.weight"], stride=2)
                x = norm(x, f"{name}.downsample.1")
            x = (norm(y, f"{name}.bn2") + x).relu()
    return x.mean((2, 3))


@pytest.fixture(scope="session")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a small encoder that was hardly trained."""
    file = tmp_path_factory.mktemp("small") / "encoder.safetensors"
    training = pretrain.EncoderTraining(steps=2, batch=20)
    pretrain.keep(pretrain.train_encoder(pictures(40, 2), 2, training), file)
    return file


@pytest.fixture
def small(small_file: Path) -> Encoder:
    return load_encoder(small_file)


def pictures(number: int, classes: int, shape: tuple[int, ...] = (3, 32, 32)) -> Examples:
    """Return random images of random labels."""
    rng = generator(1)
    images = torch.randint(256, (number, *shape), generator=rng, dtype=torch.uint8)
    labels = torch.randint(classes, (number,), generator=rng)
    each = (0.5,) * shape[0]
    return Examples(images, labels, torch.arange(number), each, each)


def counted(encoder: Encoder) -> tuple[Encoder, list[int]]:
    """Return the encoder, and a list that gets an entry for every image it looks at."""
    seen: list[int] = []
    encoder.network.register_forward_hook(lambda _, x, y: seen.extend([1] * len(y)))
    return encoder, seen


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_torchvisions_file_gives_torchvisions_features(
    suffix: str, published: Tensors, tmp_path: Path
):
    file = tmp_path / f"resnet18.{suffix}"
    if suffix == "pth":
        torch.save(published, file)
    else:
        safetensors.torch.save_file(published, file)
    encoder, examples = load_encoder(file), pictures(6, 2)
    assert encoder.size == 512
    found = features(encoder, examples)
    mean, std = (torch.tensor(each).view(1, 3, 1, 1) for each in module.IMAGENET)
    wanted = by_hand(published, (examples.images / 255 - mean) / std)
    assert float(wanted.std()) > 0.01  # they differ, so the comparison says something
    for value, label in zip(found.values, found.labels, strict=True):
        near = (wanted - value).abs().amax(1)
        assert near.min() < 1e-4 * wanted.abs().max()
        assert examples.labels[near.argmin()] == label


def without(name: str) -> Callable[[Tensors], object]:
    return lambda weights: {key: value for key, value in weights.items() if key != name}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("layer3.1.bn2.bias"), r"it lacks layer3\.1\.bn2\.bias\)"),
        (lambda w: w | {"layer1.2.conv1.weight": w["fc.bias"]}, r"also holds layer1\.2\.conv1"),
        (lambda w: w | {"conv1.weight": torch.zeros(64, 3, 3, 3)}, r"\(64, 3, 3, 3\), not \(64, 3"),
        (lambda w: w | {"bn1.bias": torch.full((64,), torch.nan)}, "bn1.bias is not finite"),
        (lambda w: w | {"bn1.bias": 3.0}, "bn1.bias is float"),
        (lambda w: {"state_dict": w}, "it lacks conv1.weight, and 100 more"),
        (lambda w: next(iter(w.values())), "it lacks conv1.weight"),
        (lambda w: {}, "it lacks"),
    ],
    ids=["missing", "unknown", "shape", "nan", "number", "nested", "tensor", "empty"],
)
def test_other_weights_are_refused_in_one_sentence(
    change: Callable[[Tensors], object], says: str, published: Tensors, tmp_path: Path
):
    file = tmp_path / "weights.pth"
    torch.save(change(published), file)
    with pytest.raises(UserError, match=says) as error:
        load_encoder(file)
    assert str(error.value).startswith(f"encoder: {file}") and "\n" not in str(error.value)


def test_a_file_without_counters_or_classifier_will_do(published: Tensors, tmp_path: Path):
    kept = {k: v for k, v in published.items() if "num_batches" not in k and "fc." not in k}
    for name, weights in (("old", kept), ("new", published)):
        torch.save(weights, tmp_path / f"{name}.pth")
    old, new = (load_encoder(tmp_path / f"{name}.pth") for name in ("old", "new"))
    assert old.digest == new.digest


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("ran"),)  # pyright: ignore[reportReturnType]


def test_files_that_are_no_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.pth", "b.safetensors"):
        Path(name).write_bytes(b"not weights")
        with pytest.raises(UserError, match="cannot be read as weights") as error:
            load_encoder(Path(name))
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match="there is no file c"):
        load_encoder(Path("c.pth"))
    torch.save({"x": Malicious()}, "d.pth")
    with pytest.raises(UserError, match="cannot be read as weights"):
        load_encoder(Path("d.pth"))
    assert not Path("ran").exists()


def test_without_the_packages_weights_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small_file: Path
):
    monkeypatch.setattr(module, "SHIPPED", tmp_path / "encoder.safetensors")
    with pytest.raises(UserError, match=r"python -m fedtailor\.pretrain\.encoder_training --out"):
        load_encoder()
    (tmp_path / "encoder.safetensors").write_bytes(small_file.read_bytes())
    assert load_encoder().size == 128


def test_features_do_not_depend_on_the_batch(small: Encoder, monkeypatch: pytest.MonkeyPatch):
    examples, found = pictures(30, 3), []
    for size in (1, 7, 100):
        monkeypatch.setattr(module, "BATCH", size)
        found.append(features(small, examples).values)
    assert found[0].shape == (30, 128) and found[0].dtype == torch.float32
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_features_do_not_depend_on_the_order_of_the_data(small: Encoder):
    examples = pictures(60, 3)
    order = torch.randperm(60, generator=generator(2))
    shuffled = replace(examples, images=examples.images[order], labels=examples.labels[order])
    views = (examples, replace(examples, index=order), shuffled)
    first, *others = (features(small, each, per_class=5) for each in views)
    for other in others:
        torch.testing.assert_close(other.values, first.values)
        assert torch.equal(other.labels, first.labels)


def test_all_examples_are_encoded_in_their_order(small: Encoder):
    examples = pictures(12, 3)
    whole = encoded(small, examples)
    rows = torch.tensor([7, 2, 2, 11])
    part = encoded(small, replace(examples, index=rows))
    torch.testing.assert_close(part, whole[rows])
    assert same_rows(whole, features(small, examples).values)


def test_some_images_of_every_class_are_chosen(small: Encoder):
    examples = pictures(60, 3)
    rare = torch.cat([torch.where(examples.labels == c)[0][:n] for c, n in ((2, 2), (0, 30))])
    examples = replace(examples, index=rare)
    found = features(small, examples, per_class=4)
    assert found.labels.tolist() == [0, 0, 0, 0, 2, 2]
    everything = features(small, examples, per_class=100)
    assert len(everything.values) == len(examples)
    distances = torch.cdist(found.values, everything.values).amin(1)
    assert distances.max() < 1e-4  # they are of images of the client
    again, other = (features(small, examples, 4, seed) for seed in (0, 1))
    assert torch.equal(again.values, found.values)
    assert not torch.equal(other.values[:4], found.values[:4])
    none = features(small, replace(examples, index=torch.zeros(0, dtype=torch.int64)))
    assert none.values.shape == (0, 128) and len(none.labels) == 0
    with pytest.raises(ValueError, match="at least one"):
        features(small, examples, per_class=0)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 64, 64), (4, 40, 56), (1, 8, 8), (2, 32, 32)])
def test_images_of_other_shapes(small: Encoder, shape: tuple[int, ...]):
    found = features(small, pictures(9, 2, shape))
    assert found.values.shape == (9, 128) and found.values.isfinite().all()
    assert found.values.std(0).max() > 0


def test_gray_is_colour_of_equal_channels_and_floats_are_normalised(small: Encoder):
    gray = pictures(8, 1, (1, 32, 32))
    one = features(small, gray).values
    colour = replace(gray, images=gray.images.expand(-1, 3, -1, -1))
    three = features(small, colour).values
    floats = replace(colour, images=colour.images / 255, mean=small.mean, std=small.std)
    scaled = replace(
        floats, images=floats.images * 9, mean=_times(9, small.mean), std=_times(9, small.std)
    )
    assert same_rows(one, three)
    assert same_rows(three, features(small, floats).values)
    assert same_rows(three, features(small, scaled).values)


def _times(factor: float, values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(factor * value for value in values)


def same_rows(first: Tensor, second: Tensor) -> bool:
    """Say whether rows are the same, in any order: other bytes are chosen in another one."""
    apart = torch.cdist(first, second)
    return bool((apart.amin(0) < 1e-3).all()) and bool((apart.amin(1) < 1e-3).all())


def test_features_are_kept_and_found_again(small: Encoder, tmp_path: Path):
    examples = pictures(30, 3)
    encoder, seen = counted(small)
    first = cached_features(encoder, examples, 5, 0, tmp_path / "a" / "b")
    assert len(seen) == 15
    again = cached_features(encoder, examples, 5, 0, tmp_path / "a" / "b")
    assert len(seen) == 15
    torch.testing.assert_close(again.values, first.values, rtol=0, atol=0)
    assert torch.equal(again.labels, first.labels)
    assert [file.suffix for file in (tmp_path / "a" / "b").iterdir()] == [".safetensors"]
    cached_features(encoder, examples, 5, 0)  # no folder, no file
    assert len(seen) == 30


def test_what_differs_is_computed_anew(small: Encoder, tmp_path: Path):
    examples = pictures(30, 3)
    encoder, seen = counted(small)
    images, labels = examples.images.clone(), examples.labels.clone()
    images[0, 0, 0, 0] ^= 1
    labels[0] = (labels[0] + 1) % 3
    changes = [
        (encoder, examples, 20, 0),
        (encoder, replace(examples, images=images), 20, 0),
        (encoder, replace(examples, labels=labels), 20, 0),
        (encoder, examples, 3, 0),
        (encoder, examples, 3, 1),
        (replace(encoder, digest="another"), examples, 20, 0),
    ]
    for number, change in enumerate(changes, 1):
        before = len(seen)
        cached_features(*change, folder=tmp_path)
        assert len(seen) > before
        assert len(list(tmp_path.iterdir())) == number


@pytest.mark.parametrize("damage", ["empty", "short", "bit", "other"])
def test_damaged_files_are_written_anew(small: Encoder, tmp_path: Path, damage: str):
    examples = pictures(30, 3)
    wanted = cached_features(small, examples, 5, 0, tmp_path)
    (file,) = tmp_path.iterdir()
    good = file.read_bytes()
    flipped = bytearray(good)
    flipped[-200] ^= 64
    bad = {"empty": b"", "short": good[:-7], "bit": bytes(flipped)}.get(damage, b"x" * 5000)
    file.write_bytes(bad)
    found = cached_features(small, examples, 5, 0, tmp_path)
    torch.testing.assert_close(found.values, wanted.values, rtol=0, atol=0)
    assert file.read_bytes() == good


def test_a_folder_that_cannot_be_written_is_named(small: Encoder, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="encoder: features cannot be kept in"):
        cached_features(small, pictures(5, 2), 5, 0, tmp_path / "file")


def test_the_small_encoder_learns_and_is_small(tmp_path: Path):
    """Two classes that differ by one channel's brightness, and nothing else, after 25 steps."""
    examples = pictures(120, 2)
    images = examples.images // 2
    images[:, 0] += (examples.labels * 60)[:, None, None].byte()
    examples = replace(examples, images=images, augment=Augment(crop=2, flip=True))
    training = pretrain.EncoderTraining(steps=25, batch=32)
    files = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    state = torch.get_rng_state()
    for file in files:
        model = pretrain.train_encoder(examples, 2, training, seed=4)
        pretrain.keep(model, file)
        assert pretrain.accuracy(model, examples) > 0.95
    assert torch.equal(state, torch.get_rng_state())
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].stat().st_size <= 600_000
    encoder = load_encoder(files[0])
    assert 100_000 <= sum(p.numel() for p in encoder.network.parameters()) <= 250_000
    assert not any(p.requires_grad for p in encoder.network.parameters())


def test_the_command_trains_and_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    both = pictures(50, 100), pictures(50, 100)
    monkeypatch.setattr(pretrain, "cifar100", lambda root: both)
    out = tmp_path / "weights" / "encoder.safetensors"
    pretrain.main(["--out", str(out), "--steps", "2"])
    about = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert about["bytes"] == out.stat().st_size and about["steps"] == 2
    assert 0 <= about["top1"] <= 1
    assert load_encoder(out).size == 128
