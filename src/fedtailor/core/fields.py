"""What the fields of a dataclass are for: the comments beside them say it."""

import ast
import dataclasses
import inspect
import io
import textwrap
import tokenize
from typing import Any


def described_fields(kind: type[Any]) -> list[dict[str, Any]]:
    """Return name, type, default and meaning of all fields, those of the class itself first."""
    told: dict[str, tuple[str, str]] = {}
    for one in kind.__mro__:
        if dataclasses.is_dataclass(one):
            for name, (type_, meaning) in _in_source(one).items():
                own = told.get(name, (type_, meaning))  # a default alone means what it did above
                told[name] = own[0], own[1] or meaning
    fields = {f.name: f for f in dataclasses.fields(kind) if f.init}
    order = [*(name for name in told if name in fields), *(n for n in fields if n not in told)]
    return [
        {
            "name": name,
            "type": told.get(name, ("", ""))[0],
            "default": _default(fields[name]),
            "meaning": told.get(name, ("", ""))[1],
        }
        for name in order
    ]


def _default(field: "dataclasses.Field[Any]") -> Any:
    """Return a default as JSON has it; None where there is none."""
    value = None
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    plain = value is None or isinstance(value, str | int | float | list | tuple | dict)
    return value if plain else str(value)


def _in_source(kind: type[Any]) -> dict[str, tuple[str, str]]:
    """Return type and comment of every field that a class writes down itself."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # made by a program, not written
        return {}
    body = ast.parse(source).body[0]
    assert isinstance(body, ast.ClassDef)
    comments = _comments(source)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            meaning = " ".join(comments[line] for line in lines if line in comments)
            found[node.target.id] = _plain_type(node.annotation), meaning
    return found


def _comments(source: str) -> dict[int, str]:
    """Return the comments of a text by line."""
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and "pyright:" not in token.string
    }


def _plain_type(node: ast.expr) -> str:
    """Return a type for people: without bounds, and a choice as its options."""
    if isinstance(node, ast.BinOp):
        return f"{_plain_type(node.left)} | {_plain_type(node.right)}"
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        inner = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if node.value.id == "Annotated":
            return _plain_type(inner[0])
        if node.value.id == "Literal":
            return " | ".join(ast.unparse(option) for option in inner)
    return ast.unparse(node)
