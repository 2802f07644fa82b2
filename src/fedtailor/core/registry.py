"""The file name is the registry: `fedavg` is `algorithms/fedavg.py`, and nothing else to edit.

A user's own class is named `path/to/file.py:Class`. Files whose name begins with an underscore are
helpers of the others.
"""

import hashlib
import importlib
import importlib.util
import inspect
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from fedtailor.core import codec
from fedtailor.core.errors import UserError, nearest
from fedtailor.core.types import Json


@dataclass(frozen=True)
class Kind:
    """A kind of thing that is known by name.

    Attributes:
        package: where its files are.
        marks: what its class has, and no other class of the file has all of.
        base: the public class that it must be below, where that is asked of a user's own.
        frozen: whether it is a frozen dataclass, whose fields are keys of the config.
        hyphens: whether names are written with hyphens where their files have underscores.
    """

    package: str
    marks: tuple[str, ...] = ()
    base: str = ""
    frozen: bool = True
    hyphens: bool = False


KINDS = {
    "algorithm": Kind("algorithms", ("train", "aggregate")),
    "space": Kind("spaces", ("choices", "build", "cover"), "SearchSpace"),
    "engine": Kind("engines", ("open", "submit", "collect", "close"), "Engine", frozen=False),
    "data": Kind("data.sources", hyphens=True),  # modules with a function `load`, not classes
}


def names(kind: str) -> list[str]:
    """List the built-in names of a kind, importing none of them."""
    folder = Path(__file__).parents[1].joinpath(*KINDS[kind].package.split("."))
    found = sorted(path.stem for path in folder.glob("[a-z]*.py"))
    return [name.replace("_", "-") for name in found] if KINDS[kind].hyphens else found


def module_of(kind: str, name: str) -> ModuleType:
    """Import the file of a built-in name."""
    stem = name.replace("-", "_") if KINDS[kind].hyphens else name
    return importlib.import_module(f"fedtailor.{KINDS[kind].package}.{stem}")


def find(kind: str, name: str) -> type[Any]:
    """Return the class that a name stands for."""
    if ":" in name or name.endswith(".py"):
        return _own_class(kind, name)
    if name not in names(kind):
        raise UserError(f"{kind}.name: no {kind} is called {name!r}{nearest(name, names(kind))}")
    return _only_class(kind, module_of(kind, name))


def describe(kind: str, value: Any) -> Json:
    """Return something as JSON: the name by which its class is found, and its fields."""
    found = type(value)
    package, _, name = found.__module__.rpartition(".")
    if package != f"fedtailor.{KINDS[kind].package}":  # a user's own file
        name = f"{sys.modules[found.__module__].__file__}:{found.__qualname__}"
    return {"name": name, "fields": codec.pack(value)[1]}


def rebuild(kind: str, description: Json) -> Any:
    """Build what was described."""
    return codec.unpack(find(kind, description["name"]), {}, description["fields"])


def absolute(name: str) -> str:
    """Make the path in `path/to/file.py:Class` absolute, so that it holds in any folder."""
    path, colon, member = name.rpartition(":")
    return f"{Path(path).expanduser().resolve()}:{member}" if colon else name


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
    lacks = [mark for mark in KINDS[kind].marks if not hasattr(found, mark)]
    lacks += sorted(getattr(found, "__abstractmethods__", ()))
    if lacks:
        raise UserError(f"{kind}.name: {member} is no {kind}: it has no {lacks[0]}")
    base = KINDS[kind].base
    if base and not any(c.__name__ == base for c in found.__mro__):
        raise UserError(f"{kind}.name: {member} must be a subclass of fedtailor.{base}")
    parameters = getattr(found, "__dataclass_params__", None)
    if KINDS[kind].frozen and (parameters is None or not parameters.frozen):
        raise UserError(f"{kind}.name: {member} must be a frozen dataclass")
    return found


def _only_class(kind: str, module: ModuleType) -> type[Any]:
    mine = [
        value
        for value in vars(module).values()
        if inspect.isclass(value)
        and value.__module__ == module.__name__
        and all(hasattr(value, mark) for mark in KINDS[kind].marks)
    ]
    if len(mine) != 1:
        raise TypeError(f"{module.__name__} must define exactly one {kind}, not {len(mine)}")
    return mine[0]
