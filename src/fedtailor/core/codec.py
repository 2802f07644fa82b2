"""dataclass <-> (tensors, JSON): the one serialisation, for wire, client state and checkpoint.

`pack` refuses what it cannot give back, so what cannot be resumed cannot be written. `unpack` is
told the type to build and takes no type from the data, so foreign bytes cannot run code. Tensors
come back as fresh, contiguous ones: nothing is shared with what was packed.
"""

import dataclasses
import hashlib
import json
import math
import types as pytypes
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.files import whole_file
from fedtailor.core.types import Json, Tensors

T = TypeVar("T")
TREE = "tree"  # the metadata key that holds the JSON of a file


class CodecError(TypeError):
    """A value that cannot be packed, or data that does not fit the type asked for."""


def pack(value: Any, copy: bool = True) -> tuple[Tensors, Json]:
    """Take a dataclass (or any nest of what one may hold) apart into tensors and JSON."""
    found: Tensors = {}
    tree = _encode(value, "", found)
    return {name: _plain(tensor, name, copy) for name, tensor in found.items()}, tree


def unpack(kind: type[T], tensors: Mapping[str, Tensor], tree: Json, copy: bool = True) -> T:
    """Build a `kind` from what `pack` gave."""
    fresh = {name: tensor.clone() for name, tensor in tensors.items()} if copy else tensors
    return _decode(kind, tree, fresh, "")


def write(path: Path, value: Any) -> None:
    """Pack into a file."""
    tensors, tree = pack(value)
    safetensors.torch.save_file(tensors, path, {TREE: dumps(tree)})


def write_whole(path: Path, value: Any, shared: bool = False) -> None:
    """Pack into a file that is there whole or not at all: see `files.whole_file`."""
    with whole_file(path, shared) as part:
        write(part, value)


def read(kind: type[T], path: Path) -> T:
    """Unpack a file that `write` made."""
    try:
        with safetensors.safe_open(path, "pt") as file:
            tree = loads(file.metadata()[TREE])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return unpack(kind, tensors, tree, copy=False)
    except FileNotFoundError:
        raise UserError(f"{path}: the file is missing") from None
    except (safetensors.SafetensorError, CodecError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: not a readable {kind.__name__} file ({error})") from None


def dumps(tree: Json) -> str:
    """Write JSON in its one canonical form."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), allow_nan=False)


def loads(text: str) -> Json:
    """Read JSON."""
    return json.loads(text)


def digest(value: Any) -> str:
    """Hash content: equal for equal tensors (name, type, shape, bits) and equal JSON."""
    tensors, tree = pack(value, copy=False)
    found = hashlib.sha256(dumps(tree).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        found.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _encode(value: Any, path: str, tensors: Tensors) -> Json:
    match value:
        case None | bool() | str():
            return value
        case float() if not math.isfinite(value):
            return {"float": repr(value)}
        case int() | float():
            if type(value) not in (
                int,
                float,
            ):  # an IntEnum or a numpy scalar would come back as less
                raise CodecError(f"{path or 'value'}: cannot pack a {type(value).__name__}")
            return value
        case Tensor():
            tensors[path] = value
            return {"tensor": path}
        case list():
            return [_encode(v, _join(path, i), tensors) for i, v in enumerate(value)]
        case tuple():
            return {"tuple": [_encode(v, _join(path, i), tensors) for i, v in enumerate(value)]}
        case dict():
            return {"dict": [_pair(k, v, path, tensors) for k, v in value.items()]}
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return {"is": {k: _encode(v, _join(path, k), tensors) for k, v in fields.items()}}
        case _:
            raise CodecError(f"{path or 'value'}: cannot pack a {type(value).__name__}")


def _pair(key: Any, value: Any, path: str, tensors: Tensors) -> Json:
    if type(key) not in (str, int):
        raise CodecError(f"{path}: dictionary keys must be str or int, not {type(key).__name__}")
    # An int key and its text may stand in one dictionary, so their paths must differ.
    step = f"#{key}" if isinstance(key, int) else key
    return [key, _encode(value, _join(path, step), tensors)]


def _plain(tensor: Tensor, path: str, copy: bool) -> Tensor:
    if tensor.layout != torch.strided or tensor.is_complex() or tensor.is_quantized:
        raise CodecError(f"{path}: only plain dense real tensors can be packed")
    plain = tensor.detach().to("cpu").contiguous()
    return plain.clone() if copy and plain.data_ptr() == tensor.data_ptr() else plain


def _join(path: str, step: str | int) -> str:
    return f"{path}/{str(step).replace('~', '~0').replace('/', '~1')}"


def _decode(kind: Any, tree: Json, tensors: Mapping[str, Tensor], path: str) -> Any:
    """Build a value; `kind` says which dataclass to build, and checks what else it can."""
    kind = _resolve(kind, tree)
    if isinstance(tree, list):
        inner = _inner(kind, list)
        return [_decode(inner, t, tensors, _join(path, i)) for i, t in enumerate(tree)]
    if not isinstance(tree, dict):
        return _primitive(kind, tree, path)
    ((tag, body),) = tree.items()
    match tag:
        case "float":
            return float(body)
        case "tensor":
            return tensors[body]
        case "tuple":
            return tuple(_decode_items(kind, body, tensors, path))
        case "dict":
            inner = _inner(kind, dict)
            return {k: _decode(inner, t, tensors, _join(path, k)) for k, t in body}
        case "is":
            return _decode_dataclass(kind, body, tensors, path)
        case _:
            raise CodecError(f"{path}: unknown tag {tag!r}")


def _decode_items(kind: Any, body: list[Json], tensors: Mapping[str, Tensor], path: str) -> Any:
    args = typing.get_args(kind)
    fixed = bool(args) and args[-1] is not Ellipsis
    for i, tree in enumerate(body):
        inner = args[i] if fixed and i < len(args) else (args[0] if args else Any)
        yield _decode(inner, tree, tensors, _join(path, i))


def _decode_dataclass(kind: Any, body: Json, tensors: Mapping[str, Tensor], path: str) -> Any:
    if not dataclasses.is_dataclass(kind) or not isinstance(kind, type):
        raise CodecError(f"{path or 'value'}: data of a dataclass where {kind} is expected")
    hints = typing.get_type_hints(kind)
    names = {f.name for f in dataclasses.fields(kind) if f.init}
    if unknown := set(body) - names:
        raise CodecError(f"{path}: {kind.__name__} has no field {sorted(unknown)[0]!r}")
    return kind(**{k: _decode(hints[k], t, tensors, _join(path, k)) for k, t in body.items()})


def _resolve(kind: Any, tree: Json) -> Any:
    """Strip Annotated and pick the member of a union that the data is."""
    if typing.get_origin(kind) is typing.Annotated:
        return _resolve(typing.get_args(kind)[0], tree)
    if typing.get_origin(kind) in (typing.Union, pytypes.UnionType):
        members = [_resolve(k, tree) for k in typing.get_args(kind)]
        return next((k for k in members if _fits(k, tree)), Any)
    return kind


def _fits(kind: Any, tree: Json) -> bool:
    origin = typing.get_origin(kind) or kind
    tag = next(iter(tree)) if isinstance(tree, dict) else None
    if dataclasses.is_dataclass(origin):
        return tag == "is" and set(tree["is"]) == {f.name for f in dataclasses.fields(origin)}
    if isinstance(tree, list):
        return origin is list
    return (tag, origin) in (
        (None, type(tree)),
        ("tuple", tuple),
        ("dict", dict),
        ("tensor", Tensor),
    )


def _inner(kind: Any, container: type) -> Any:
    args = typing.get_args(kind)
    return args[-1] if args and typing.get_origin(kind) is container else Any


def _primitive(kind: Any, tree: Json, path: str) -> Any:
    if kind in (int, str, bool) and type(tree) is not kind:
        raise CodecError(f"{path}: {tree!r} where {kind.__name__} is expected")
    return tree
