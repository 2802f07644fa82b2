"""The config: TOML, overrides, and one clear sentence for whatever is wrong with it."""

import dataclasses
import json
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from annotated_types import Ge, Len

from fedtailor.algorithms._base import Algorithm
from fedtailor.core import registry
from fedtailor.core.compute import Device
from fedtailor.core.errors import UserError, nearest
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Budget
from fedtailor.core.validation import flatten, override, refuse_unknown, validate, validated
from fedtailor.data.options import CLIENTS, DataOptions
from fedtailor.networks import cost
from fedtailor.runs.budgets import BudgetOptions, Share, deal_budgets
from fedtailor.search import genes
from fedtailor.search.arch_text import read_arch


@dataclass(frozen=True)
class EngineOptions:
    """Where clients run."""

    name: str = "local"  # or path/to/file.py:Class
    workers: Annotated[int, Ge(0)] = 2  # processes; 0: in this one, for debugging
    device: Device = "auto"  # or cpu, cuda; auto: cuda where there is one


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    seed: int = 0
    rounds: Annotated[int, Ge(0)] = 20  # 0 only with a start
    schedule_rounds: Annotated[int, Ge(1)] | None = (
        None  # of a run that was extended by `resume`: how many its schedules are of
    )
    cohort: Annotated[int, Ge(1)] | None = None  # clients per round; none: all
    eval_every: Annotated[int, Ge(1)] = 5  # rounds; the last is always evaluated
    on_failure: Literal["stop", "skip"] = "stop"  # when a client fails
    clock: Literal["modelled", "measured"] = "modelled"  # of a client's round time
    save_models: bool = True  # write every client's final model to clients/
    population: Literal["training", "new", "all"] = (
        "training"  # who takes part: not those that data.new_clients keeps out; only they; both
    )
    start: Annotated[str, Len(1)] | None = None  # a file of a server's state to begin with
    algorithm_name: str = "fedavg"
    algorithm: Algorithm[Any, Any] = field(default_factory=lambda: _default("algorithm", "fedavg"))
    space_name: str = "cnn"
    space: SearchSpace = field(default_factory=lambda: _default("space", "cnn"))
    space_arch: Arch | Literal["smallest", "middle", "largest"] = "middle"
    space_init: str | None = None  # a file of weights to start from
    data: DataOptions = field(default_factory=DataOptions)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    engine: EngineOptions = EngineOptions()

    def warnings(self) -> tuple[str, ...]:
        """Say in sentences what about this experiment makes results hard to compare."""
        idle = ()
        if self.algorithm.searches and not self.space.choices:
            idle = (
                f"space.name: {self.space_name} has no choices, so {self.algorithm_name} searches "
                "nothing and all clients get the same network; mobilenetv3, darts and nasvit are "
                "search spaces",
            )
        late, ends = (), self.search_ends()
        if ends > self.rounds > 0:
            late = (
                f"rounds: {self.algorithm_name} decides its last choices in round {ends} or so, "
                f"and {self.rounds} leave some undecided; raise rounds or cohort, or let the "
                "search begin earlier and decide more often",
            )
        return (*idle, *late, *self.data.warnings(), *self.algorithm.warnings())

    def search_ends(self) -> int:
        """Return the round in which a search that decides step by step has decided all, about."""
        all_there_are = self.data.clients is None and self.data.partition == "by_client"
        share = 1.0  # of as many clients as the data has, nobody knows how many take part
        if self.cohort and not all_there_are:
            share = min(1.0, self.cohort / (self.data.clients or CLIENTS))
        return self.algorithm.search_ends(self.space, self.rounds, share)


TABLES = {"data": DataOptions, "budget": BudgetOptions, "engine": EngineOptions}
NAMED = ("algorithm", "space")
BESIDE = {"algorithm": ["name"], "space": ["name", "preset", "arch", "init"]}  # fields of no class
STARTERS = Path(__file__).parents[1] / "starters"
ARCHS = ("smallest", "middle", "largest")


def read_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file, with dotted keys overridden."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        starter = path.stem if (STARTERS / f"{path.stem}.toml").is_file() else "quickstart"
        made = f"`fedtailor cp {starter} {path.with_suffix('.toml')}` makes one"
        raise UserError(f"{path}: there is no such file; {made}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    return make_config(_overridden(table, overrides or {}))


def _overridden(table: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values of a table by dotted keys.

    An algorithm that replaces the table's takes over the fields that it has too: those of the other
    alone mean nothing to it, as in `fedtailor run FILE algorithm.name=fedavg`. Another space takes
    over nothing: a width or an architecture of one is no wish for the other.
    """
    _refuse_bare(table, overrides)
    other, fields = overrides.get("algorithm.name"), table.get("algorithm")
    if isinstance(other, str) and isinstance(fields, dict):
        before = fields.get("name", "fedavg")
        old, new = (_field_names("algorithm", name) for name in (before, other))
        kept = {key: value for key, value in fields.items() if key in new or key not in old}
        table = table | {"algorithm": kept}
    space, given = overrides.get("space.name"), table.get("space", {})
    if isinstance(space, str) and isinstance(given, dict) and space != given.get("name", "cnn"):
        table = table | {"space": {}}
    return override(table, overrides)


def _refuse_bare(table: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raise at a key that lacks the name of its table, such as lr for algorithm.lr."""
    top = {f.name for f in dataclasses.fields(Config)} | set(table)
    for key in overrides:
        if "." not in key and key not in top:
            places = [kind for kind in (*NAMED, *TABLES) if key in _keys_of(kind, table, overrides)]
            if places:
                raise UserError(f"{key}: unknown; did you mean {places[0]}.{key}?")


def _keys_of(kind: str, table: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
    """Return the keys that a table of the config may have."""
    if kind not in NAMED:
        return {f.name for f in dataclasses.fields(TABLES[kind])}
    inner = table.get(kind, {})
    named = inner.get("name") if isinstance(inner, dict) else None
    usual = {"algorithm": "fedavg", "space": "cnn"}[kind]
    known = _field_names(kind, overrides.get(f"{kind}.name", named or usual))
    return known | set(BESIDE[kind])


def _field_names(kind: str, name: Any) -> set[str]:
    """Return the fields of what is known by a name; of what is not text, none."""
    if not isinstance(name, str):
        return set()
    return {f.name for f in dataclasses.fields(registry.find(kind, registry.absolute(name)))}


def make_config(table: dict[str, Any]) -> Config:
    """Turn a plain table into a config, or say what is wrong."""
    table = dict(table)
    parts: dict[str, Any] = {}
    for kind in NAMED:
        name, fields = _named(kind, table.pop(kind, {}))
        found = registry.find(kind, name)
        parts[f"{kind}_name"] = name
        if kind == "space":
            parts |= {f"space_{key}": fields.pop(key) for key in ("arch", "init") if key in fields}
            fields = _preset(found, fields) | fields
        parts[kind] = validate(found, fields, kind, BESIDE[kind])
    parts |= _start(parts)
    name, fields = _named("engine", table.pop("engine", {}))
    table["engine"] = {"name": name, **fields}
    for key, kind in (TABLES | {"engine": registry.find("engine", name).options}).items():
        parts[key] = validate(kind, table.pop(key, {}), key)
    parts["data"] = _anywhere(parts["data"])
    top = [
        f.name
        for f in dataclasses.fields(Config)
        if f.name not in (*parts, "space_arch", "space_init")
    ]
    refuse_unknown(table, top, "", [*NAMED, *TABLES])
    hints = typing.get_type_hints(Config, include_extras=True)
    plain = {key: validated(hints[key], value, key) for key, value in table.items()}
    if plain.get("start"):
        plain["start"] = str(Path(plain["start"]).expanduser().resolve())
    elif plain.get("rounds") == 0:
        raise UserError(
            "rounds: input should be greater than or equal to 1, not 0; "
            "only a run with a start may have none"
        )
    return Config(**plain, **parts)


def make_space(fields: dict[str, Any]) -> SearchSpace:
    """Turn a [space] table of name, preset and fields into a search space."""
    name, rest = _named("space", fields)
    found = registry.find("space", name)
    return validate(found, _preset(found, rest) | rest, "space", BESIDE["space"])


def _preset(space: type[SearchSpace], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a preset sets; what the table says beside it comes first."""
    name = fields.pop("preset", "default")
    if not isinstance(name, str):
        raise UserError("space.preset: must be text")
    known = {"default": {}, **space.presets}
    if name not in known:
        raise UserError(f"space.preset: no preset is called {name!r}{nearest(name, list(known))}")
    return json.loads(json.dumps(known[name]))


def _start(parts: dict[str, Any]) -> dict[str, Any]:
    """Check what a space starts from: its architecture and its file of weights."""
    found: dict[str, Any] = {}
    arch, init = parts.get("space_arch", "middle"), parts.get("space_init")
    if arch not in ARCHS:
        space = parts["space"]
        word = isinstance(arch, str) and " " not in arch and len(arch) != len(space.choices)
        if not isinstance(arch, list | str) or word:
            raise UserError(
                f"space.arch: must be one of {', '.join(ARCHS)}, or of a search space the text of "
                f"an architecture or a list of genes, not {arch!r}"
            )
        text = isinstance(arch, str)
        found["space_arch"] = read_arch(space, arch) if text else genes.check(space, tuple(arch))
    if init is not None:
        if not isinstance(init, str) or not init:
            raise UserError("space.init: must be the path of a safetensors file")
        found["space_init"] = str(Path(init).expanduser().resolve())
    return found


def config_table(config: Config) -> dict[str, Any]:
    """Return the plain table of a config, every default written out."""
    table = {
        f.name: getattr(config, f.name)
        for f in dataclasses.fields(config)
        if f.name not in (*NAMED, *TABLES) and not f.name.startswith(("algorithm_", "space_"))
    }
    for kind in NAMED:
        fields = dataclasses.asdict(getattr(config, kind))
        table[kind] = {"name": getattr(config, f"{kind}_name"), **fields}
    if config.space.choices:
        table["space"]["arch"] = config.space_arch
    table["space"]["init"] = config.space_init
    for key in TABLES:
        table[key] = dataclasses.asdict(getattr(config, key))
    return _without_none(table)


def config_text(config: Config) -> str:
    """Return a config as TOML, every default written out."""
    return tomli_w.dumps(config_table(config))


def write_config(config: Config, path: Path) -> None:
    """Write a config as TOML, every default written out."""
    path.write_text(config_text(config), encoding="utf-8")


def budgets_of(config: Config, clients: int, task: Task) -> list[Budget]:
    """Give every client of an experiment its device."""
    largest = 0.0
    if isinstance(config.budget.memory_mb, Share):
        space, how = config.space.at(task), config.algorithm
        memory = cost.training_memory(space, space.largest(), task, how.batch, how.optimizer)
        largest = memory / cost.MIB
    return deal_budgets(config.budget, clients, config.data.seed, largest)


def _named(kind: str, table: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{kind}: must be a table with a name, such as [{kind}]")
    fields = dict(table)
    name = fields.pop("name", {"algorithm": "fedavg", "space": "cnn", "engine": "local"}[kind])
    if not isinstance(name, str):
        raise UserError(f"{kind}.name: must be text")
    return registry.absolute(name), fields


def _anywhere(data: DataOptions) -> DataOptions:
    """Make paths absolute, so that a run can be resumed from any folder."""
    path, root = data.path, data.root
    if path is not None:
        path = registry.absolute(path) if ":" in path else str(Path(path).expanduser().resolve())
    root = root and str(Path(root).expanduser().resolve())
    return dataclasses.replace(data, path=path, root=root)


def _default(kind: str, name: str) -> Any:
    return registry.find(kind, name)()


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def as_config(
    config: str | Path | Mapping[str, Any] | Config, overrides: Mapping[str, Any]
) -> Config:
    """Make a Config of whatever describes one."""
    flat = flatten(overrides)
    if isinstance(config, str | Path):
        return read_config(Path(config), flat)
    if isinstance(config, Config):
        if flat:
            raise UserError("overrides: give them with a file or a table, not with a Config")
        return config
    return make_config(_overridden(dict(config), flat))
