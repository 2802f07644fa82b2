"""The config: TOML, overrides, and one clear sentence for whatever is wrong with it."""

import dataclasses
import json
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias, TypeVar

import tomli_w
from annotated_types import Ge, Gt, Len
from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedtailor.algorithms._base import Algorithm
from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.rng import numpy_rng_for
from fedtailor.core.types import Arch, Budget, SearchSpace, Task
from fedtailor.data.options import DataOptions
from fedtailor.networks import cost
from fedtailor.search import genes

T = TypeVar("T")
Above: TypeAlias = Annotated[float, Gt(0)]
Device: TypeAlias = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True)
class Uniform:
    """A value drawn for each client between two bounds."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    uniform: tuple[Above, Above]


@dataclass(frozen=True)
class Share:
    """Memory drawn for each client between shares of what the largest network takes to train."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    share: tuple[Above, Above]


Dealt: TypeAlias = Above | Annotated[tuple[Above, ...], Len(1)] | Uniform


@dataclass(frozen=True)
class BudgetOptions:
    """The clients' devices: one value for all, a list dealt in turn, or { uniform = [a, b] }."""

    memory_mb: Dealt | Share | None = None  # memory for training; none: no limit
    speed: Dealt = 1e10  # multiply-adds per second
    mbps: Dealt = 100.0  # megabits per second, up and down alike


@dataclass(frozen=True)
class EngineOptions:
    """Where clients run."""

    name: Literal["local"] = "local"
    workers: Annotated[int, Ge(0)] = 2  # processes; 0: in this one, for debugging
    device: Device = "auto"


@dataclass(frozen=True)
class Config:
    """A whole experiment."""

    seed: int = 0
    rounds: Annotated[int, Ge(0)] = 20  # 0 only with a start
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
    budget: BudgetOptions = BudgetOptions()
    engine: EngineOptions = EngineOptions()


TABLES = {"data": DataOptions, "budget": BudgetOptions, "engine": EngineOptions}
NAMED = ("algorithm", "space")
BESIDE = {"algorithm": ["name"], "space": ["name", "preset", "arch", "init"]}  # fields of no class
ARCHS = ("smallest", "middle", "largest")


def read_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read a TOML file, with dotted keys overridden."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        made = f"`fedtailor cp quickstart {path}` makes one"
        raise UserError(f"{path}: there is no such file; {made}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read ({error})") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from None
    return make_config(override(table, overrides or {}))


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
        parts[kind] = validate(found, fields, kind)
    parts |= _start(parts)
    for key, kind in TABLES.items():
        parts[key] = validate(kind, table.pop(key, {}), key)
    parts["data"] = _anywhere(parts["data"])
    top = [
        f.name
        for f in dataclasses.fields(Config)
        if f.name not in (*parts, "space_arch", "space_init")
    ]
    _refuse_unknown(table, top, "", [*NAMED, *TABLES])
    hints = typing.get_type_hints(Config, include_extras=True)
    plain = {key: _validated(hints[key], value, key) for key, value in table.items()}
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
    return validate(found, _preset(found, rest) | rest, "space")


def _preset(space: type[SearchSpace], fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that a preset sets; what the table says beside it comes first."""
    name = fields.pop("preset", "default")
    if not isinstance(name, str):
        raise UserError("space.preset: must be text")
    known = {"default": {}, **space.presets}
    if name not in known:
        raise UserError(
            f"space.preset: no preset is called {name!r}{registry.nearest(name, list(known))}"
        )
    return json.loads(json.dumps(known[name]))


def _start(parts: dict[str, Any]) -> dict[str, Any]:
    """Check what a space starts from: its architecture and its file of weights."""
    found: dict[str, Any] = {}
    arch, init = parts.get("space_arch", "middle"), parts.get("space_init")
    if arch not in ARCHS:
        if not isinstance(arch, list):
            raise UserError(f"space.arch: must be one of {', '.join(ARCHS)}, or a list of genes")
        found["space_arch"] = genes.check(parts["space"], tuple(arch))
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


def write_config(config: Config, path: Path) -> None:
    """Write a config as TOML, every default written out."""
    path.write_text(tomli_w.dumps(config_table(config)), encoding="utf-8")


def budgets_of(config: Config, clients: int, task: Task) -> list[Budget]:
    """Give every client of an experiment its device."""
    largest = 0.0
    if isinstance(config.budget.memory_mb, Share):
        space, how = config.space, config.algorithm
        memory = cost.training_memory(space, space.largest(), task, how.batch, how.optimizer)
        largest = memory / cost.MIB
    return deal_budgets(config.budget, clients, config.data.seed, largest)


def deal_budgets(
    options: BudgetOptions, clients: int, seed: int, largest_mb: float = 0.0
) -> list[Budget]:
    """Give every client its device; shares are those of `largest_mb`."""
    memory: Any = options.memory_mb
    if isinstance(memory, Share):
        low, high = (share * largest_mb for share in memory.share)
        memory = Uniform((low, high))
    memory = _deal(memory, clients, seed, "memory_mb")
    speed = _deal(options.speed, clients, seed, "speed")
    mbps = _deal(options.mbps, clients, seed, "mbps")
    return [Budget(*values) for values in zip(memory, speed, mbps, strict=True)]


def _deal(value: Any, clients: int, seed: int, name: str) -> list[Any]:
    if isinstance(value, Uniform):
        low, high = value.uniform
        if low > high:
            raise UserError(f"budget.{name}.uniform: {low} is above {high}")
        return numpy_rng_for(seed, "budget", name).uniform(low, high, clients).tolist()
    values = value if isinstance(value, tuple) else (value,)
    return [values[i % len(values)] for i in range(clients)]


def validate(kind: type[T], fields: Any, path: str) -> T:
    """Build a dataclass from a table, or say which field is wrong."""
    if not isinstance(fields, dict):
        raise UserError(f"{path}: must be a table, such as [{path}]")
    known = [f.name for f in dataclasses.fields(kind) if f.init]  # pyright: ignore[reportArgumentType]
    _refuse_unknown(fields, known, f"{path}.", BESIDE.get(path, []))
    return _validated(kind, fields, path)


def _validated(kind: Any, value: Any, path: str) -> Any:
    try:
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        if path == "budget":
            field = f"budget.{first['loc'][0]}"
            says = "must be a number above 0, a list of such numbers, or { uniform = [a, b] }"
            if first["loc"][0] == "memory_mb":
                says += ", or { share = [a, b] } of what the largest network takes"
        else:
            field = ".".join([path, *(str(step) for step in first["loc"])])
            says = _sentence(first)
        raise UserError(f"{field}: {says}") from None


def _sentence(error: Any) -> str:
    message = str(error["msg"])
    given = error.get("input")
    shown = f", not {json.dumps(given)}" if isinstance(given, str | int | float | bool) else ""
    return message[0].lower() + message[1:] + shown


def _refuse_unknown(
    table: dict[str, Any], known: list[str], prefix: str, also: list[str] | None = None
) -> None:
    for key in table:
        if key not in known:
            meant = registry.nearest(key, sorted([*known, *(also or [])]))
            raise UserError(f"{prefix}{key}: unknown{meant}")


def _named(kind: str, table: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(table, dict):
        raise UserError(f"{kind}: must be a table with a name, such as [{kind}]")
    fields = dict(table)
    name = fields.pop("name", {"algorithm": "fedavg", "space": "cnn"}[kind])
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


def _refuse(value: Any) -> Any:
    raise UserError(f"{value}: dates and times have no place in a config")
