"""The verb that begins a file of a user's own."""

import keyword
from pathlib import Path
from typing import Literal

from fedtailor.core.errors import UserError

TEMPLATES = Path(__file__).parents[1] / "starters" / "new"
USE = {
    "algorithm": "algorithm.name={name}.py:{title}",
    "space": "space.name={name}.py:{title}",
    "data": "data.path={name}.py:load data.partition=by_client",
}


def new(kind: Literal["algorithm", "space", "data"], name: str, /) -> None:
    """Begin a method, a search space or data of your own: one file and its test, both working.

    For example:

    fedtailor new algorithm my_method

    Args:
        kind: algorithm, space or data.
        name: the file's name, such as my_method, without .py; it goes into this folder.
    """
    written = write_new(kind, name, Path())
    title, stem = _title(name), written[0].stem
    print(f"wrote {written[0]} and {written[1]}; python -m pytest {written[1]} tests it")
    print(f"next: fedtailor run my.toml {USE[kind].format(name=stem, title=title)}")


def write_new(kind: str, name: str, folder: Path) -> tuple[Path, Path]:
    """Write a file and its test, unless one of them is there."""
    stem = name.removesuffix(".py").replace("-", "_")
    if not stem.isidentifier() or keyword.iskeyword(stem):
        raise UserError(f"new: {name!r} cannot be a Python file's name; take letters, digits and _")
    files = folder / f"{stem}.py", folder / f"test_{stem}.py"
    for path in files:
        if path.exists():
            raise UserError(f"{path}: is there already; nothing was written")
    for path, template in zip(files, (f"{kind}.py.txt", f"{kind}_test.py.txt"), strict=True):
        text = (TEMPLATES / template).read_text(encoding="utf-8")
        text = text.replace("MyClass", _title(name)).replace("my_name", stem)
        path.write_text(text, encoding="utf-8")
    return files


def _title(name: str) -> str:
    """Return the class's name: my_method is MyMethod."""
    words = name.removesuffix(".py").replace("-", "_").split("_")
    return "".join(word[:1].upper() + word[1:] for word in words)
