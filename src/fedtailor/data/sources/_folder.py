"""A folder of images: class/image, client/class/image, and either in folders train and test."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions
from fedtailor.data.source import SPLITS, Source
from fedtailor.data.sources._pictures import read_pictures

Names: TypeAlias = tuple[str, ...]
_DEEPEST = 4  # client, split, class, image
_DEEPER = "...png"  # stands for images that lie too deep
_NAMED = 3  # of a kind, in a sentence


def load_folder(folder: Path, options: DataOptions) -> Source:
    """Read a folder; names in sorted order number the classes and the clients."""
    files = list(_files(folder))
    images = [names for names in files if _is_image(names[-1])]
    columns = _columns(folder, images)
    pixels = read_pictures([folder.joinpath(*p) for p in images], options.size, options.color)
    classes, labels = np.unique(columns["class"], return_inverse=True)
    half = (0.5,) * pixels.shape[1]
    names, client = (), None
    if "client" in columns:
        found, client = np.unique(columns["client"], return_inverse=True)
        names = tuple(found.tolist())
    split = None
    if "split" in columns:
        split = np.array([SPLITS.index(word) for word in columns["split"]], dtype=np.int64)
    return Source(
        pixels,
        labels,
        tuple(classes.tolist()),
        half,
        half,
        client=client,
        client_names=names,
        split=split,
        notes=tuple(_notes(folder, files)),
    )


def _columns(folder: Path, images: list[Names]) -> dict[str, list[str]]:
    """Return what the names of folders are, by their depth and by train and test."""
    depths = {len(names) for names in images}
    orders: dict[int, tuple[str, ...]] = {2: ("class",), 3: ("client", "class")}
    if depths == {3} and _are_splits(images, 0):
        orders[3] = ("split", "class")
    if depths == {4}:
        outer = _are_splits(images, 0) and not _are_splits(images, 1)
        if outer or _are_splits(images, 1):
            orders[4] = ("split", "client", "class") if outer else ("client", "split", "class")
    if len(depths) != 1 or not depths <= orders.keys():
        odd = next((names for names in images if len(names) not in (2, 3)), None)
        found = f"holds {Path(*odd)}" if odd else "mixes the two" if images else "holds no images"
        raise UserError(
            f"data.path: {folder} must hold class/image everywhere or client/class/image "
            f"everywhere, with folders train and test above the classes where the images are "
            f"split already, but {found}, so rearrange it."
        )
    order = orders[depths.pop()]
    return {what: [names[at] for names in images] for at, what in enumerate(order)}


def _are_splits(images: list[Names], at: int) -> bool:
    """Tell whether the folders at a depth are train and test, and val or not."""
    return {"train", "test"} <= {names[at] for names in images} <= set(SPLITS)


def _files(folder: Path, depth: int = _DEEPEST) -> Iterator[Names]:
    """Yield the names that lead to each file, sorted; hidden ones are left out."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if not path.is_dir():
            yield (path.name,)
        elif depth == 0:  # too deep already, and links may lead in circles
            yield path.name, _DEEPER
        else:
            for rest in _files(path, depth - 1):
                yield path.name, *rest


def _notes(folder: Path, files: list[Names]) -> Iterator[str]:
    """Say which files are no images, and which folders hold none."""
    strays = [str(Path(*names)) for names in files if not _is_image(names[-1])]
    if strays:
        yield f"{_some(strays)}: no image by its name, so skipped"
    full = {
        Path(*names[:end])
        for names in files
        if _is_image(names[-1])
        for end in range(1, len(names))
    }
    there = (path.relative_to(folder) for path in sorted(folder.rglob("*/")))
    empty = [p for p in there if p not in full and not any(x.startswith(".") for x in p.parts)]
    if empty:
        yield f"{_some([f'{path}/' for path in empty])}: no images there, so no class or client"


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"


def _is_image(name: str) -> bool:
    return Path(name).suffix.lower() in _suffixes()


@cache
def _suffixes() -> frozenset[str]:
    """Return how the names of images end that can be read."""
    from PIL import Image  # here, because only some data sets are of image files

    known = Image.registered_extensions().items()
    return frozenset(suffix for suffix, kind in known if kind in Image.OPEN)
