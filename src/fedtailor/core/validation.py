"""Tables of plain values: overridden by dotted keys, and checked against a dataclass."""

import dataclasses
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar

from annotated_types import Len
from pydantic import AfterValidator, TypeAdapter, ValidationError

from fedtailor.core.errors import UserError, nearest

T = TypeVar("T")


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve())


# A file's name in a config: made absolute, so that a run can be resumed from any folder.
FileName: TypeAlias = Annotated[str, Len(1), AfterValidator(_absolute)]


def flatten(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data={"path": x}` as `data.path`; what is deeper is a value, as budgets' shares."""
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        if isinstance(value, Mapping) and "." not in key:
            found |= {f"{key}.{inner}": one for inner, one in value.items()}
        else:
            found[key] = value
    return found


def override(table: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a table with values set at dotted keys."""
    result = json.loads(json.dumps(table, default=_refuse))
    for key, value in overrides.items():
        *parents, last = key.split(".")
        inner = result
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise UserError(f"{key}: {parent} is not a table")
        inner[last] = value
    return json.loads(json.dumps(result, default=_refuse))


def parse_override(text: str) -> tuple[str, Any]:
    """Read `key=value`; a value that is not TOML is taken as text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise UserError(f"{text!r}: an override is written key=value, such as algorithm.lr=0.05")
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def validate(kind: type[T], fields: Any, path: str, beside: Sequence[str] = ()) -> T:
    """Build a dataclass from a table, or say which field is wrong.

    Args:
        kind: the dataclass; its `sentences`, where it has them, say of a field what it must be.
        fields: the table.
        path: where the table stands in the config.
        beside: keys that may stand beside the fields and are looked at elsewhere.
    """
    if not isinstance(fields, dict):
        raise UserError(f"{path}: must be a table, such as [{path}]")
    known = [f.name for f in dataclasses.fields(kind) if f.init]  # pyright: ignore[reportArgumentType]
    refuse_unknown(fields, known, f"{path}.", beside)
    return validated(kind, fields, path)


def validated(kind: Any, value: Any, path: str) -> Any:
    """Return a value as the type asked for, or say what is wrong with it."""
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        told = getattr(kind, "sentences", {})
        if first["loc"] and first["loc"][0] in told:
            raise UserError(f"{path}.{first['loc'][0]}: {told[first['loc'][0]]}") from None
        field = ".".join([path, *(str(step) for step in first["loc"])])
        raise UserError(f"{field}: {_sentence(first)}") from None


def _sentence(error: Any) -> str:
    message = str(error["msg"])
    given = error.get("input")
    shown = f", not {json.dumps(given)}" if isinstance(given, str | int | float | bool) else ""
    return message[0].lower() + message[1:] + shown


def refuse_unknown(
    table: dict[str, Any], known: Sequence[str], prefix: str, beside: Sequence[str] = ()
) -> None:
    """Raise at a key that nobody knows, with the one that was probably meant."""
    for key in table:
        if key not in known:
            meant = nearest(key, sorted([*known, *beside]))
            raise UserError(f"{prefix}{key}: unknown{meant}")


def _refuse(value: Any) -> Any:
    raise UserError(f"{value}: dates and times have no place in a config")
