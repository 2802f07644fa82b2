"""What a client's model says of image files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.sources._pictures import read_picture
from fedtailor.export.checking import answering
from fedtailor.export.personal import PersonalModel

TOGETHER = 64  # images in a batch


def predict_files(model: PersonalModel, files: Sequence[Path]) -> list[dict[str, Any]]:
    """Return for each image file the likeliest class and the probabilities of all."""
    found = []
    for first in range(0, len(files), TOGETHER):
        some = files[first : first + TOGETHER]
        images = torch.stack([read_image(file, model.shape) for file in some])
        for file, row in zip(some, answering(model)(images).softmax(1).tolist(), strict=True):
            best = max(range(len(row)), key=row.__getitem__)
            found.append(
                {
                    "file": str(file),
                    "label": model.labels[best],
                    "probability": row[best],
                    "probabilities": dict(zip(model.labels, row, strict=True)),
                }
            )
    return found


def read_image(file: Path, shape: tuple[int, ...]) -> Tensor:
    """Read an image file as a model takes it, resized as a folder of training images is."""
    if not file.is_file():
        raise UserError(f"image: {file} is no file")
    channels, height, width = shape
    size = height if height == width else None
    pixels = read_picture(file, size, "gray" if channels == 1 else "rgb", "image")
    if pixels.shape != (channels, height, width):
        raise UserError(
            f"image: {file} is {pixels.shape[2]}x{pixels.shape[1]} pixels, but the model takes "
            f"{width}x{height}, so resize it"
        )
    return torch.from_numpy(pixels.astype(np.float32)) / 255.0
