"""What `ls` says, at 80 columns."""

import textwrap
from pathlib import Path
from typing import Any

from fedtailor.report.facts import short
from fedtailor.report.wording import clip, percent

WIDTH = 80
NAME = 14  # letters of a name in a list, beside which the text begins


def listing_lines(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """List things by kind: what each is, who published it, and what leaves a client."""
    lines: list[str] = []
    for kind, entries in found.items():
        lines.append(kind)
        for entry in entries:
            lines += _entry(entry["name"], f"{entry['about']}{_more_about(entry)}")
    return lines


def described_lines(found: list[dict[str, Any]]) -> list[str]:
    """Tell about a thing: what it is, then every key with its default and meaning."""
    lines: list[str] = []
    for one in found:
        if one["kind"] == "starter":
            lines += _starter(one)
            continue
        lines += textwrap.wrap(f"{one['name']}: {one['about']}{_more_about(one)}", WIDTH)
        if one.get("paper"):
            lines += textwrap.wrap(f"Paper: {one['paper']}", WIDTH)
        lines.append(f"[{one['kind']}]")
        for field in one["fields"]:
            default = field["default"]
            shown = "" if default is None else f" = {toml(default)}"
            meaning = "; ".join(text for text in (_kind(field), field["meaning"]) if text)
            lines += _entry(f"{field['name']}{shown}", meaning, 24)
    return lines


def _starter(one: dict[str, Any]) -> list[str]:
    """Say what a starter config says of itself, and how it is had."""
    first, *rest = one["text"]
    how = f"A starter: fedtailor cp {one['name']} FILE writes it, yours to edit."
    lines: list[str] = []
    for text in (f"{one['name']}: {first}", *rest, how):
        further = " " * 4 if text.startswith(" ") else ""  # a command goes on further right
        lines += textwrap.wrap(text, WIDTH, subsequent_indent=further, break_on_hyphens=False)
    return lines


def run_lines(found: list[dict[str, Any]]) -> list[str]:
    """List run folders: method, data, accuracy and how far each came."""
    rows: list[tuple[str, ...]] = [("run", "method", "space", "data", "accuracy", "state")]
    for one in found:
        if "algorithm" not in one:
            rows.append((Path(one["run"]).name, "", "", "", "", one["state"]))
            continue
        accuracy = "-" if one["test_accuracy"] is None else percent(one["test_accuracy"])
        names = (short(str(one[key])) for key in ("algorithm", "space", "data"))
        rows.append((Path(one["run"]).name, *names, accuracy, one["state"]))
    limits = (27, 11, 11, 9, 8, 60)
    cells = [[clip(cell, most) for cell, most in zip(row, limits, strict=True)] for row in rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(limits))]
    return [
        " ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def _entry(name: str, text: str, width: int = NAME) -> list[str]:
    """Write a name and a text beside it; below it where the name is long."""
    indent = " " * (width + 3)
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )
    if lines and len(name) <= width:
        lines[0] = f"  {name:{width}} {lines[0].lstrip()}"
        return lines
    return [f"  {name}", *lines]


def _kind(field: dict[str, Any]) -> str:
    """Say what values a key takes where its default does not show it."""
    options = " | " in field["type"] or field["default"] is None
    return field["type"].replace(" | None", "") if options else ""


def toml(value: Any) -> str:
    """Write a value as it stands in a config."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(toml(one) for one in value)}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _more_about(entry: dict[str, Any]) -> str:
    """Say in short who published an algorithm, and what leaves a client; of a space its size."""
    if entry.get("choices"):
        return f" [{entry['choices']} choices; presets {', '.join(entry['presets'])}]"
    if "sends" not in entry:
        return ""
    usual = next(iter(entry["sends"].values()), [])  # the first form that a reply may have
    sent = "; ".join(one["what"] for one in usual) or "nothing"
    paper = f" [{entry['paper'].split(',')[0]}]" if "paper" in entry else ""
    return f"{paper} Leaves a client: {sent}."
