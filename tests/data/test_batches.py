"""Batches: against a slow and obvious version, one image and one pixel at a time."""

import time
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from fedtailor.core.rng import rng_for
from fedtailor.core.types import Augment, Examples
from fedtailor.data.batches import augment, batch, chunks, epoch

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)


def examples(
    size: int = 20, shape: tuple[int, int, int] = (3, 9, 7), how: Augment | None = None
) -> Examples:
    """Return random examples, every second row of the arrays in reverse order."""
    rng = rng_for(0, "images")
    images = torch.randint(1, 256, (2 * size, *shape), dtype=torch.uint8, generator=rng)
    labels = torch.randint(10, (2 * size,), generator=rng)
    index = torch.arange(0, 2 * size, 2).flip(0)
    channels = shape[0]
    return Examples(images, labels, index, MEAN[:channels], STD[:channels], how or Augment())


def test_plain_batch_is_picked_and_normalised() -> None:
    data = examples()
    rows = torch.tensor([3, 0, 3])
    images, labels = batch(data, rows, None, "cpu")
    assert images.dtype == torch.float32 and labels.dtype == torch.int64
    assert images.is_contiguous(memory_format=torch.channels_last)
    for at, row in enumerate(rows.tolist()):
        source = int(data.index[row])
        assert labels[at] == data.labels[source]
        for channel in range(3):
            wanted = (data.images[source, channel].double() / 255 - MEAN[channel]) / STD[channel]
            torch.testing.assert_close(images[at, channel].double(), wanted, atol=1e-5, rtol=1e-5)


def test_float_images_are_not_divided_and_not_changed() -> None:
    data = examples(shape=(1, 4, 4))
    floats = data.images.float() / 100
    data = Examples(floats, data.labels, data.index, (0.5,), (0.25,), Augment())
    before = floats.clone()
    images, _ = batch(data, torch.arange(20), rng_for(0), "cpu")
    torch.testing.assert_close(images, (floats[data.index] - 0.5) / 0.25, atol=1e-5, rtol=1e-5)
    assert torch.equal(floats, before)


def slow_augment(image: Tensor, dy: int, dx: int, flip: bool, hole: list[int]) -> Tensor:
    """Crop the zero-padded image, flip it, blank a square: pixel by pixel."""
    _, height, width = image.shape
    out = torch.zeros_like(image)
    for y in range(height):
        for x in range(width):
            x_cropped = width - 1 - x if flip else x
            y_from, x_from = y + dy, x_cropped + dx
            blank = hole[0] <= y < hole[1] and hole[2] <= x < hole[3]
            if 0 <= y_from < height and 0 <= x_from < width and not blank:
                out[:, y, x] = image[:, y_from, x_from]
    return out


@pytest.mark.parametrize(
    "how",
    [
        Augment(crop=2),
        Augment(flip=True),
        Augment(cutout=4),
        Augment(cutout=5),
        Augment(crop=3, flip=True, cutout=4),
    ],
)
@pytest.mark.parametrize("kind", [torch.uint8, torch.float32])
def test_augment_is_the_slow_version(how: Augment, kind: torch.dtype) -> None:
    images = examples(size=30).images.to(kind)
    count, _, height, width = images.shape
    result = augment(images, how, rng_for(1))
    draws = rng_for(1)
    flips = torch.randint(2, (count, 1), generator=draws) if how.flip else torch.zeros(count, 1)
    shift = torch.zeros(2, count, 1, dtype=torch.int64)
    if how.crop:
        shift = torch.randint(-how.crop, how.crop + 1, (2, count, 1), generator=draws)
    assert result.dtype == kind
    top = left = torch.full((count, 1), -100)
    if how.cutout:
        top = torch.randint(height, (count, 1), generator=draws) - how.cutout // 2
        left = torch.randint(width, (count, 1), generator=draws) - how.cutout // 2
    for at in range(count):
        first_y, first_x = int(top[at]), int(left[at])
        hole = [first_y, first_y + how.cutout, first_x, first_x + how.cutout]
        dy, dx = int(shift[0, at]), int(shift[1, at])
        wanted = slow_augment(images[at], dy, dx, bool(flips[at]), hole)
        assert torch.equal(result[at], wanted)


def test_augment_does_each_thing_about_as_often_as_it_should() -> None:
    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).expand(2000, -1, -1, -1)
    flipped = augment(images, Augment(flip=True), rng_for(0))
    assert 0.45 < (flipped[:, 0, 0, 0] == 8).float().mean() < 0.55
    cropped = augment(images, Augment(crop=2), rng_for(0))
    unmoved = (cropped == images).flatten(1).all(1).float().mean()
    assert 0.02 < unmoved < 0.06  # 1 in 25
    cut = augment(images, Augment(cutout=4), rng_for(0))
    assert (cut == 0).flatten(1).sum(1).float().max() == 16
    assert set((cut == 0).flatten(1).sum(1).tolist()) > {16, 12, 8, 4}  # cut off at the edges


def test_batch_augments_only_with_a_generator_and_by_its_seed() -> None:
    data = examples(how=Augment(crop=2, flip=True, cutout=3))
    rows = torch.arange(20)
    plain, _ = batch(data, rows, None, "cpu")
    unchanged, _ = batch(examples(), rows, rng_for(5), "cpu")
    assert torch.equal(plain, unchanged)
    one, labels = batch(data, rows, rng_for(5), "cpu")
    again, _ = batch(data, rows, rng_for(5), "cpu")
    other, _ = batch(data, rows, rng_for(6), "cpu")
    assert torch.equal(one, again)
    assert not torch.equal(one, plain) and not torch.equal(one, other)
    assert torch.equal(labels, data.labels[data.index])
    black = torch.tensor([-m / s for m, s in zip(MEAN, STD, strict=True)])
    holes = torch.isclose(one, black.view(1, 3, 1, 1)).all(1).flatten(1).any(1)
    assert holes.all()  # what is blanked is black, not the mean


@pytest.mark.parametrize(
    ("count", "size", "sizes"),
    [
        (10, 4, [4, 4, 2]),
        (9, 4, [4, 5]),
        (8, 4, [4, 4]),
        (1, 4, [1]),
        (3, 1, [1, 1, 1]),
        (3, 9, [3]),
    ],
)
def test_epoch_sizes(count: int, size: int, sizes: list[int]) -> None:
    data = examples(size=count)
    parts = list(epoch(data, size, rng_for(0)))
    assert [len(part) for part in parts] == sizes
    assert sorted(torch.cat(parts).tolist()) == list(range(count))


def test_epoch_is_shuffled_by_its_seed() -> None:
    data = examples(size=50)
    one, again, other = (torch.cat(list(epoch(data, 8, rng_for(seed)))) for seed in (0, 0, 1))
    assert torch.equal(one, again)
    assert not torch.equal(one, other) and one.tolist() != list(range(50))


def test_chunks_are_in_order() -> None:
    parts = list(chunks(examples(size=9), 4))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7, 8]]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Let torch use one thread, as workers do."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(("how", "bound"), [(Augment(), 1e-3), (Augment(4, True, 16), 3e-3)])
def test_a_batch_is_cheap(how: Augment, bound: float) -> None:
    """The best of many, within several times what is measured: a machine may be busy."""
    data = examples(size=500, shape=(3, 32, 32), how=how)
    times = []
    for _ in range(100):
        begin = time.perf_counter()
        batch(data, torch.arange(32), rng_for(0), "cpu")
        times.append(time.perf_counter() - begin)
    assert min(times) < bound
