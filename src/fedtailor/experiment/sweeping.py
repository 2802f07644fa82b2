"""Many runs of one config, some values of it changed: one folder each, gone on with as a whole."""

import itertools
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from fedtailor.core.errors import UserError
from fedtailor.core.validation import parse_override
from fedtailor.experiment import running
from fedtailor.experiment.progress import RunProgress
from fedtailor.runs.config import Config, config_table, read_config
from fedtailor.runs.folder import Run


def combinations(words: Sequence[str]) -> list[dict[str, Any]]:
    """Return every combination of `key=value,value,...`; commas within brackets or quotes stay."""
    keys: dict[str, list[Any]] = {}
    for word in words:
        key, _, text = word.partition("=")
        found = [parse_override(f"{key}={part}") for part in _split(text)]
        if not found or not key:
            parse_override(word)  # says what an override is
        keys.setdefault(found[0][0], []).extend(value for _, value in found)
    return [dict(zip(keys, each, strict=True)) for each in itertools.product(*keys.values())]


def plan_sweep(file: Path, words: Sequence[str], out: Path) -> dict[Path, Config]:
    """Return the config of every run by its folder, or say what is wrong with any of them."""
    every = combinations(words)
    varied = [key for key in every[0] if len({json.dumps(one[key]) for one in every}) > 1]
    found: dict[Path, Config] = {}
    for one in every:
        path = out / (_name({key: one[key] for key in varied}) or "run")
        found[path] = read_config(file, one)
        if (path / "run.db").exists():
            _refuse_other(path, found[path])
    if len(found) < len(every):
        raise UserError("sweep: two of the runs are the same, so name each value once")
    return found


def go_on(path: Path, config: Config, progress: bool | RunProgress | None = None) -> Run:
    """Begin a run, go on with it, or leave it if it is finished; write its report."""
    if (path / "run.db").exists():
        return running.resume(path, progress)
    return running.run(config, path, progress)


def _refuse_other(path: Path, config: Config) -> None:
    """Raise if the run of a folder was asked for otherwise than the sweep does now."""
    wanted = tomllib.loads(tomli_w.dumps(config_table(config)))
    if Run(path).config != wanted:
        raise UserError(
            f"{path}: is a run of another config than this sweep's; --out takes another folder"
        )


def _name(values: Mapping[str, Any]) -> str:
    """Name a run by what is its own."""
    text = ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())
    text = text.replace("name=", "")
    return "".join(c if c.isalnum() or c in "=,.-_" else "-" for c in text)


def _split(text: str) -> list[str]:
    """Split at commas that stand in no bracket and no quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{") - (letter in "]}")
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]
