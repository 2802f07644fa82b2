"""Files of arrays (.npz), read as data only: nothing in them is run."""

from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


def read_npz(path: Path, *only: str) -> Arrays:
    """Return the arrays of a file, all or some of them, or raise a UserError that says why not."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            return {name: file[name] for name in file.files if not only or name in only}
    except Exception as error:  # damaged in any place, each breaks at its own part of zip or numpy
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"{path}: cannot be read as an .npz file of plain arrays ({said})"
        ) from None
