"""What there is: algorithms, spaces, data sets, engines and starter configs."""

import inspect
import itertools
from pathlib import Path
from typing import Any

from fedtailor.core import registry
from fedtailor.core.errors import UserError, nearest
from fedtailor.core.fields import described_fields
from fedtailor.data.options import DataOptions
from fedtailor.runs.config import STARTERS

KINDS = ("algorithms", "spaces", "data", "engines", "starters")


def listing(kind: str | None) -> dict[str, list[dict[str, Any]]]:
    """List one kind of thing or all, each with a line about it."""
    makers = {
        "algorithms": lambda: [_algorithm(name) for name in registry.names("algorithm")],
        "spaces": lambda: [_space(name) for name in registry.names("space")],
        "data": lambda: [_data(name) for name in registry.names("data")],
        "engines": lambda: [_engine(name) for name in registry.names("engine")],
        "starters": lambda: [_starter(path) for path in sorted(STARTERS.glob("*.toml"))],
    }
    return {key: makers[key]() for key in KINDS if kind in (None, key)}


def described(name: str) -> list[dict[str, Any]]:
    """Say all about what is called so: what it is, and its keys in the config."""
    found = []
    for kind, make in (("algorithm", _algorithm), ("space", _space), ("engine", _engine)):
        if name in registry.names(kind):
            fields = described_fields(_fields_of(kind, name))
            found.append({"kind": kind, **make(name), "fields": fields})
    if name in registry.names("data"):
        fields = described_fields(DataOptions)
        found.append({"kind": "data", **_data(name), "fields": fields})
    if (starter := STARTERS / f"{name}.toml") in STARTERS.glob("*.toml"):
        found.append({"kind": "starter", **_starter(starter), "text": _first_comment(starter)})
    if not found:
        things = [n for kind in registry.KINDS for n in registry.names(kind)]
        every = [*KINDS, "runs", *things, *(path.stem for path in STARTERS.glob("*.toml"))]
        raise UserError(f"{name}: neither a kind of thing nor a name{nearest(name, every)}")
    return found


def _fields_of(kind: str, name: str) -> type[Any]:
    found = registry.find(kind, name)
    return found.options if kind == "engine" else found


def copy_starter(name: str, target: Path) -> None:
    """Write a starter config to a file that does not exist yet."""
    names = [path.stem for path in sorted(STARTERS.glob("*.toml"))]
    if name not in names:
        raise UserError(f"{name}: no starter config is called so{nearest(name, names)}")
    try:
        with target.open("x", encoding="utf-8") as file:
            file.write((STARTERS / f"{name}.toml").read_text(encoding="utf-8"))
    except FileExistsError:
        raise UserError(f"{target}: is there already; nothing was written") from None
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror})") from None


def _algorithm(name: str) -> dict[str, Any]:
    found = registry.find("algorithm", name)
    sends = {
        form: [{"name": s.name, "kind": s.kind, "shape": s.shape, "what": s.what} for s in parts]
        for form, parts in found().sends().items()
    }
    return {"name": name, **_about(inspect.getmodule(found)), "sends": sends}


def _space(name: str) -> dict[str, Any]:
    found = registry.find("space", name)
    about = _about(inspect.getmodule(found))
    presets = ["default", *found.presets]
    return {"name": name, **about, "choices": len(found().choices), "presets": presets}


def _data(name: str) -> dict[str, Any]:
    return {"name": name, "about": registry.module_of("data", name).ABOUT}


def _engine(name: str) -> dict[str, Any]:
    return {"name": name, **_about(registry.module_of("engine", name))}


def _starter(path: Path) -> dict[str, Any]:
    first = path.read_text(encoding="utf-8").splitlines()[0]
    return {"name": path.stem, "about": first.removeprefix("# ")}


def _first_comment(path: Path) -> list[str]:
    """Return the lines that a starter begins with: what it is, what to do with it."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return [line.removeprefix("#").removeprefix(" ") for line in comment]


def _about(module: Any) -> dict[str, str]:
    """Read a module's docstring: its first line, and the paragraph that names the paper."""
    text = inspect.getdoc(module) or ""
    first = text.partition("\n")[0]
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith("Paper: ")), None)
    if start is None:
        return {"about": first}
    paper = [lines[start].removeprefix("Paper: ")]
    for line in lines[start + 1 :]:
        if not line or line.startswith("Differs"):
            break
        paper.append(line)
    return {"about": first, "paper": " ".join(paper)}
