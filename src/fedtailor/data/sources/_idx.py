"""The idx format of MNIST and its kin."""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError

_UINT8 = 8  # the type code of unsigned bytes, the only one these data sets use


def read_idx(file: Path, dimensions: int) -> npt.NDArray[np.uint8]:
    """Read an idx file of bytes, packed with gzip or not; refuse one that is not whole."""
    try:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"data.root: {file} cannot be read ({error}), so replace it.") from error
    start = 4 + 4 * dimensions
    if content[:4] != bytes([0, 0, _UINT8, dimensions]) or len(content) < start:
        raise UserError(
            f"data.root: {file} is no idx file of bytes in {dimensions} dimensions, so replace it."
        )
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) != start + math.prod(shape):
        raise UserError(
            f"data.root: {file} should hold {math.prod(shape)} values, but holds "
            f"{len(content) - start}, so replace it."
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)
