"""Images that belong to the server and to no client."""

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Ints, Source

NO_ROWS: Ints = np.zeros(0, dtype=np.int64)


def draw_public(source: Source, everyone: int, options: DataOptions) -> Ints:
    """Return the server's rows, in ascending order; `everyone` counts clients, new ones included.

    Where the data says whose an image is, the server gets those of clients that take no part.
    """
    if options.public == 0:
        return NO_ROWS
    free, whose = np.arange(len(source.labels)), "images"
    if options.partition == "by_client" and source.client is not None:
        free, whose = np.flatnonzero(source.client >= everyone), "images of clients left out"
    if options.public > len(free) or options.public == len(source.labels):
        raise UserError(
            f"data.public: {options.public} images for the server are too many, since there are "
            f"{len(free)} {whose} and clients need some, so lower it."
        )
    rng = numpy_rng_for(options.seed, "public")  # its own: clients' draws do not depend on it
    return np.sort(rng.choice(free, options.public, replace=False))
