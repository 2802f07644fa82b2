"""Which clients' images differ, and how; their images are copies beside those of the data set."""

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.shift import Pixels, Shift, shift_of, shifted
from fedtailor.data.source import Ints
from fedtailor.data.split import Parts


def deal_shifts(options: DataOptions, clients: int, channels: int) -> tuple[Shift, ...]:
    """Return every client's shift, or nothing where no images are to differ."""
    kinds = options.shift
    if "grey" in kinds and channels != 3:
        raise UserError(
            f"data.shift: grey needs 3 channels, but the images have {channels}, so leave it out."
        )
    groups = [k % (options.shift_groups or clients) for k in range(clients)] if kinds else []
    return tuple(
        shift_of(kinds[group % len(kinds)], options.shift_strength, options.seed, group)
        for group in groups
    )


def shift_clients(
    images: Pixels, parts: list[Parts], shifts: tuple[Shift, ...], seed: int
) -> tuple[Pixels, Ints, list[Parts]]:
    """Return images with shifted copies after them, the copies' origins, and who has which now."""
    copies, origins, moved, end = [images], [np.zeros(0, dtype=np.int64)], list(parts), len(images)
    for shift in dict.fromkeys(one for one in shifts if one.kind != "none"):
        members = [client for client, one in enumerate(shifts) if one == shift]
        rows = np.unique(np.concatenate([part for client in members for part in parts[client]]))
        for client in members:
            train, val, test = (end + np.searchsorted(rows, part) for part in parts[client])
            moved[client] = (train, val, test)
        copies.append(shifted(images, rows, shift, seed))
        origins.append(rows)
        end += len(rows)
    return np.concatenate(copies), np.concatenate(origins), moved
