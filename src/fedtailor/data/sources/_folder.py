"""A folder of images: class/image, or client/class/image."""

from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import Source
from fedtailor.data.sources._pictures import read_pictures


def load_folder(folder: Path, options: DataOptions) -> Source:
    """Read a folder; names in sorted order number the classes and the clients."""
    files = _files(folder, 3)
    depths = {len(parts) for parts in files}
    if depths not in ({2}, {3}):
        odd = next((parts for parts in files if len(parts) not in (2, 3)), None)
        found = f"holds {Path(*odd)}" if odd else "mixes the two" if files else "holds no files"
        raise UserError(
            f"data.path: {folder} must hold class/image everywhere or client/class/image "
            f"everywhere, but {found}, so rearrange it."
        )
    images = read_pictures([folder.joinpath(*p) for p in files], options.size, options.color)
    classes, labels = np.unique([parts[-2] for parts in files], return_inverse=True)
    half = (0.5,) * images.shape[1]
    names, client = (), None
    if depths == {3}:
        found, client = np.unique([parts[0] for parts in files], return_inverse=True)
        names = tuple(found.tolist())
    return Source(
        images, labels, tuple(classes.tolist()), half, half, client=client, client_names=names
    )


def _files(folder: Path, depth: int) -> list[tuple[str, ...]]:
    """Return the names that lead to each file, sorted; hidden ones are left out."""
    found: list[tuple[str, ...]] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            found.append((path.name,))
        elif depth == 0:  # too deep already, and links may lead in circles
            found.append((path.name, "..."))
        else:
            found += [(path.name, *rest) for rest in _files(path, depth - 1)]
    return found
