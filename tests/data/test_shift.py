"""Each shift against another way to compute it."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance
from torch.nn import functional as F

from fedtailor.data.shift import (
    Shift,
    blur,
    contrast,
    grey,
    low_resolution,
    rotation,
    shift_of,
    shifted,
)

RNG = np.random.default_rng(0)
BYTES = RNG.integers(0, 256, (6, 3, 9, 12), dtype=np.uint8)
FLOATS = RNG.random((6, 3, 9, 12), dtype=np.float32)


@pytest.mark.parametrize("block", [2, 3, 5])
def test_low_resolution_is_pooling_and_enlarging(block: int) -> None:
    small = F.avg_pool2d(torch.from_numpy(FLOATS), block, ceil_mode=True, count_include_pad=False)
    wanted = small.repeat_interleave(block, 2).repeat_interleave(block, 3)[:, :, :9, :12]
    assert low_resolution(FLOATS, block) == pytest.approx(wanted.numpy(), abs=1e-6)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.5])
def test_blur_is_a_convolution(sigma: float) -> None:
    far = int(4 * sigma + 0.5)
    line = torch.exp(-0.5 * (torch.arange(-far, far + 1) / sigma) ** 2)
    kernel = torch.outer(line, line) / line.sum() ** 2
    padded = F.pad(torch.from_numpy(FLOATS), (far,) * 4, mode="replicate")
    wanted = F.conv2d(padded.flatten(0, 1)[:, None], kernel[None, None]).view(FLOATS.shape)
    assert blur(FLOATS, sigma) == pytest.approx(wanted.numpy(), abs=1e-5)


def test_grey_is_luminance_in_all_channels() -> None:
    found = shifted(BYTES, np.arange(6), Shift("grey", 1.0), 0)
    for image, mine in zip(BYTES, found, strict=True):
        wanted = np.asarray(Image.fromarray(image.transpose(1, 2, 0)).convert("L")).astype(int)
        assert (np.abs(mine - wanted) <= 1).all() and (mine == mine[0]).all()
    half = grey(FLOATS, 0.5)
    assert half == pytest.approx((FLOATS + grey(FLOATS, 1.0)) / 2, abs=1e-6)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_right_angles_move_pixels_only(turns: int) -> None:
    square = FLOATS[:, :, :, :9]
    wanted = torch.rot90(torch.from_numpy(square), turns, (2, 3)).numpy()
    assert rotation(square, 90 * turns) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("degrees", [-30.0, 12.5, 45.0])
def test_rotation_samples_a_turned_grid(degrees: float) -> None:
    """Where a pixel comes from inside; what comes from outside is black."""
    angle, (height, width) = np.deg2rad(degrees), FLOATS.shape[2:]
    y, x = np.mgrid[:height, :width] - np.array([(height - 1) / 2, (width - 1) / 2])[:, None, None]
    from_y = np.sin(angle) * x + np.cos(angle) * y  # turned back, in pixels from the centre
    from_x = np.cos(angle) * x - np.sin(angle) * y
    grid = np.stack([from_x / ((width - 1) / 2), from_y / ((height - 1) / 2)], axis=-1)
    many = torch.from_numpy(grid).float().expand(6, -1, -1, -1)
    wanted = F.grid_sample(torch.from_numpy(FLOATS), many, align_corners=True).numpy()
    inside, outside = (np.abs(grid).max(-1) < 0.999), (np.abs(grid).max(-1) > 1.001)
    found = rotation(FLOATS, degrees)
    assert found[..., inside] == pytest.approx(wanted[..., inside], abs=1e-4)
    assert outside.any() and (found[..., outside] == 0).all()


def test_contrast_is_pillows() -> None:
    one = BYTES[:, :1]
    found = shifted(one, np.arange(6), Shift("contrast", 0.4), 0)
    for image, mine in zip(one, found, strict=True):
        wanted = np.asarray(ImageEnhance.Contrast(Image.fromarray(image[0])).enhance(0.4))
        assert np.abs(mine[0].astype(int) - wanted).max() <= 1
    assert contrast(FLOATS, 0.5).mean((1, 2, 3)) == pytest.approx(FLOATS.mean((1, 2, 3)), abs=1e-6)


def test_noise_is_an_images_own() -> None:
    plain = np.full((2000, 1, 8, 8), 0.5, dtype=np.float32)
    how = Shift("noise", 0.1, group=3)
    found = shifted(plain, np.arange(2000), how, 7) - plain
    assert found.mean() == pytest.approx(0, abs=0.002)
    assert found.std() == pytest.approx(0.1, abs=0.002)
    assert np.abs(np.corrcoef(found[:50].reshape(50, -1)) - np.eye(50)).max() < 0.6
    some = np.array([1500, 3, 700])
    assert np.array_equal(shifted(plain, some, how, 7) - plain[some], found[some])
    for other, seed in ((Shift("noise", 0.1, group=4), 7), (how, 8)):
        assert (
            not np.isclose(shifted(plain, some, other, seed) - plain[some], found[some])
            .any(0)
            .all()
        )


@pytest.mark.parametrize(
    "kind", ["low_resolution", "blur", "grey", "noise", "rotation", "contrast"]
)
def test_bytes_stay_bytes_and_floats_floats(kind: Any) -> None:
    how = shift_of(kind, 1.0, 0, 0)
    small = shifted(BYTES, np.array([4, 1]), how, 0)
    exact = shifted(BYTES.astype(np.float32) / 255, np.array([4, 1]), how, 0)
    assert small.dtype == np.uint8 and exact.dtype == np.float32
    assert not np.array_equal(small, BYTES[[4, 1]])
    assert np.abs(small / 255 - exact.clip(0, 1)).max() <= 0.5 / 255 + 1e-5


def test_strengths_and_names() -> None:
    assert str(shift_of("low_resolution", 1.5, 0, 0)) == "low_resolution 3"
    assert [str(shift_of(kind, 1.0, 0, 0)) for kind in ("none", "blur", "grey", "noise")] == [
        "none", "blur 1", "grey", "noise 0.1",
    ]  # fmt: skip
    assert str(shift_of("contrast", 1.0, 0, 0)) == "contrast 0.5"
    angles = np.array([shift_of("rotation", 0.5, 0, group).amount for group in range(200)])
    assert np.abs(angles).max() < 22.5 and angles.std() == pytest.approx(13, abs=2)
