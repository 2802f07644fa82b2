"""Pickled arrays of others, read without running what a pickle may ask for."""

import io
import pickle
from typing import Any

_ALLOWED = {"_reconstruct", "ndarray", "dtype"}  # what numpy arrays are made of


class _OnlyArrays(pickle.Unpickler):
    """An unpickler that builds numpy arrays and plain values, and calls nothing else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        numpy_core = module_name in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray")
        if not numpy_core or global_name not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}")
        # The module's old name still works, but with a warning.
        return super().find_class(module_name.replace("numpy.core", "numpy._core"), global_name)


def read_arrays(content: bytes) -> Any:
    """Return the arrays and plain values of a pickle; raise an exception at anything else."""
    return _OnlyArrays(io.BytesIO(content), encoding="latin1").load()
