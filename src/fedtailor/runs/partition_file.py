"""What partition.npz holds: which images are whose, and what images must look like."""

import hashlib

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation
from fedtailor.runs.folder import Run

NOT_ALWAYS = ("shifts", "public")  # arrays that only some options write


def check_partition(run: Run, federation: Federation) -> None:
    """Raise if the clients' data is not what it was when the run began."""
    before, now = run.partition(), ownership(federation)
    for name in {*now, *(name for name in NOT_ALWAYS if name in before)}:
        if name not in before or name not in now or not np.array_equal(before[name], now[name]):
            raise UserError(
                f"{run.path}: the data or its partition is no longer what the run began with"
            )


def ownership(federation: Federation) -> dict[str, np.ndarray]:
    """Return which images are whose, and a hash by which to know the images again."""
    content = hashlib.blake2b(digest_size=16)
    images, labels, rows = federation.originals()
    for tensor in (images, labels):
        content.update(tensor.numpy().data)
    found = {
        "rows": rows.numpy(),
        "bounds": federation.bounds.numpy(),
        "counts": federation.label_counts(),
        "classes": np.array(federation.classes),
        "content": np.array(content.hexdigest()),
    }
    if federation.shifts:
        found["shifts"] = np.array([str(shift) for shift in federation.shifts])
    if federation.public is not None:
        found["public"] = federation.public.numpy()
    return found


def image_format(federation: Federation) -> dict[str, np.ndarray]:
    """Return what images must look like for the run's networks."""
    return {
        "shape": np.array(federation.task.shape),
        "mean": np.array(federation.mean),
        "std": np.array(federation.std),
    }
