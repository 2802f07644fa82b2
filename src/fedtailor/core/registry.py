"""The file name is the registry: `fedavg` is `algorithms/fedavg.py`, and nothing else to edit.

A user's own class is named `path/to/file.py:Class`.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.space import SearchSpace
from fedtailor.core.types import Json

MARKS = {"algorithm": ("train", "aggregate"), "space": ("choices", "build", "cover")}
KINDS = {"algorithm": "algorithms", "space": "spaces"}


def names(kind: str) -> list[str]:
    """List the built-in names of a kind."""
    folder = Path(__file__).parents[1] / KINDS[kind]
    return sorted(path.stem for path in folder.glob("[a-z]*.py"))


def find(kind: str, name: str) -> type[Any]:
    """Return the class that a name stands for."""
    if ":" in name or name.endswith(".py"):
        return _own_class(kind, name)
    if name not in names(kind):
        raise UserError(f"{kind}.name: no {kind} is called {name!r}{nearest(name, names(kind))}")
    return _only_class(kind, importlib.import_module(f"fedtailor.{KINDS[kind]}.{name}"))


def absolute(name: str) -> str:
    """Make the path in `path/to/file.py:Class` absolute, so that it holds in any folder."""
    path, colon, member = name.rpartition(":")
    return f"{Path(path).expanduser().resolve()}:{member}" if colon else name


def nearest(name: str, valid: list[str]) -> str:
    """End a sentence with the valid name that was probably meant, or with all there are."""
    close = difflib.get_close_matches(name, valid, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are: {', '.join(valid)}" if valid else ""


def import_file(path: Path) -> ModuleType:
    """Import a user's file, once per path."""
    unique = "fedtailor_user_" + hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    if unique in sys.modules:
        return sys.modules[unique]
    spec = importlib.util.spec_from_file_location(unique, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # dataclasses look their module up while it is being executed
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[unique]
        raise UserError(f"{path}: {type(error).__name__} while importing it: {error}") from error
    return module


def _own_class(kind: str, name: str) -> type[Any]:
    path, _, member = name.rpartition(":")
    if not path or not Path(path).is_file():
        raise UserError(f"{kind}.name: {name!r} is not `path/to/file.py:Class` of a file there is")
    found = getattr(import_file(Path(path)), member, None)
    if not inspect.isclass(found):
        raise UserError(f"{kind}.name: {path} has no class {member}")
    lacks = [mark for mark in MARKS[kind] if not hasattr(found, mark)]
    lacks += sorted(getattr(found, "__abstractmethods__", ()))
    if lacks:
        raise UserError(f"{kind}.name: {member} is no {kind}: it has no {lacks[0]}")
    if kind == "space" and not any(c.__name__ == "SearchSpace" for c in found.__mro__):
        raise UserError(f"space.name: {member} must be a subclass of fedtailor.SearchSpace")
    parameters = getattr(found, "__dataclass_params__", None)
    if parameters is None or not parameters.frozen:
        raise UserError(f"{kind}.name: {member} must be a frozen dataclass")
    return found


def _only_class(kind: str, module: ModuleType) -> type[Any]:
    mine = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and all(hasattr(value, mark) for mark in MARKS[kind])
    ]
    if len(mine) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {kind}, not {len(mine)}")
    return mine[0]


def describe(space: SearchSpace) -> Json:
    """Return a space as JSON: the name by which it is found, and its fields."""
    kind = type(space)
    name = kind.__module__.removeprefix("fedtailor.spaces.")
    if name == kind.__module__:  # a user's own file
        name = f"{sys.modules[name].__file__}:{kind.__qualname__}"
    return {"name": name, "fields": codec.pack(space)[1]}


def space_of(description: Json) -> SearchSpace:
    """Return the space that was described."""
    return codec.unpack(find("space", description["name"]), {}, description["fields"])
