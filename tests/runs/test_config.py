"""Whatever is wrong with a config is one sentence with the field's path."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.core.errors import UserError
from fedtailor.core.types import Budget
from fedtailor.core.validation import parse_override
from fedtailor.runs.budgets import BudgetOptions, Share, Uniform, deal_budgets
from fedtailor.runs.config import as_config, config_table, make_config, read_config, write_config

Tiny = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("algorithm__lrr", 1, "algorithm.lrr: unknown; did you mean lr?"),
        ("algorithm__nam", "x", "algorithm.nam: unknown; did you mean name?"),
        ("algorithm__lr", -1, "algorithm.lr: input should be greater than 0, not -1"),
        ("algorithm__lr", "fast", 'algorithm.lr: input should be a valid number, not "fast"'),
        ("algorithm__epochs", 1.5, "algorithm.epochs: input should be a valid integer"),
        ("algorithm__optimizer", "adam", "algorithm.optimizer: input should be 'sgd' or 'adamw'"),
        ("algorithm__name", "fedavgg", "algorithm.name: no algorithm is called 'fedavgg'; did you"),
        ("algorithm__name", "no.py:Thing", "algorithm.name:"),
        ("algorithm", 3, "algorithm: must be a table"),
        ("space__name", "cnnn", "space.name: no space is called 'cnnn'; did you mean cnn?"),
        ("space__zzz", 3, "space.zzz: unknown; there are: arch, hidden, init, name, preset"),
        ("round", 3, "round: unknown; did you mean rounds?"),
        ("rounds", 0, "rounds: input should be greater than or equal to 1, not 0"),
        ("rounds", True, "rounds: input should be a valid integer"),
        ("data__alfa", 1, "data.alfa: unknown; did you mean alpha?"),
        ("data__alpha", 0, "data.alpha: input should be"),
        ("data__augment", ["crop", "flop"], "data.augment.1: input should be 'crop', 'flip'"),
        ("budget__speed", "fast", "budget.speed: must be a number above 0, a list"),
        ("budget__mbps", [], "budget.mbps: must be a number above 0, a list"),
        ("budget__memory_mb", {"uniform": [1]}, "budget.memory_mb: must be a number above 0"),
        ("engine__workers", -1, "engine.workers: input should be greater than or equal to 0"),
        ("engine__name", "ray", "engine.name: no engine is called 'ray'; there are: local"),
        ("engine__name", "locl", "engine.name: no engine is called 'locl'; did you mean local?"),
        ("engine__name", 3, "engine.name: must be text"),
        ("engine__worker", 3, "engine.worker: unknown; did you mean workers?"),
        ("budget__speed", {"uniform": [1, 2], "foo": 3}, "budget.speed: must be a number above 0"),
        ("on_failure", "ignore", "on_failure: input should be 'stop' or 'skip'"),
    ],
)
def test_what_is_wrong_is_one_sentence(tiny: Tiny, key: str, value: Any, says: str):
    with pytest.raises(UserError) as caught:
        make_config(tiny(**{key: value}))
    assert str(caught.value).startswith(says)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["local", "fedavg", "ditto", "fedrep", "fedbabu"])
def test_a_written_config_reads_back_as_itself(tiny: Tiny, tmp_path: Path, name: str):
    config = make_config(tiny(algorithm__name=name, budget__speed={"uniform": [1e9, 2e9]}))
    write_config(config, tmp_path / "config.toml")
    assert read_config(tmp_path / "config.toml") == config
    table = config_table(config)
    assert table["algorithm"]["weight_decay"] == 0, "every default is written out"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("algorithm.lr=0.05", ("algorithm.lr", 0.05)),
        ("data.name=cifar10", ("data.name", "cifar10")),
        ('data.name="cifar10"', ("data.name", "cifar10")),
        ('data.augment=["crop"]', ("data.augment", ["crop"])),
        ("data.path=a=b", ("data.path", "a=b")),
        ("cohort = 3", ("cohort", 3)),
    ],
)
def test_overrides_are_toml_or_text(text: str, found: tuple[str, Any]):
    assert parse_override(text) == found


def test_overrides_reach_into_tables(tiny: Tiny):
    config = as_config(tiny(), {"seed": 5, "data": {"alpha": 2.0}, "algorithm": {"name": "ditto"}})
    assert (config.seed, config.data.alpha, config.algorithm_name) == (5, 2.0, "ditto")
    with pytest.raises(UserError, match="seed is not a table"):
        as_config(tiny(seed=1), {"seed": {"x": 1}})


@pytest.mark.parametrize("text", ["", "rounds = ", "rounds = 1\nrounds = 2"])
def test_a_file_that_is_not_toml_is_one_sentence(tmp_path: Path, text: str):
    path = tmp_path / "c.toml"
    if text:
        path.write_text(text)
    with pytest.raises(UserError, match=r"c\.toml: "):
        read_config(path)


def test_dates_are_refused(tiny: Tiny):
    with pytest.raises(UserError, match="2024-01-01: dates"):
        as_config(tiny(), dict([parse_override("seed=2024-01-01")]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("class Mine: pass", "is no algorithm: it has no train"),
        ("class Mine:\n    def train(self): ...\n    def aggregate(self): ...", "frozen dataclass"),
        ("class Mine(", "SyntaxError while importing it"),
        ("Mine = 3", "has no class Mine"),
        (
            "from dataclasses import dataclass\n"
            "from fedtailor.algorithms._base import Algorithm\n"
            "@dataclass(frozen=True)\n"
            "class Mine(Algorithm[None, None]): ...",
            "is no algorithm: it has no aggregate",
        ),
    ],
)
def test_an_own_class_that_is_none_is_one_sentence(
    tiny: Tiny, tmp_path: Path, text: str, says: str
):
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(UserError, match=says):
        make_config(tiny(algorithm__name=f"{file}:Mine"))


def test_paths_hold_in_any_folder(tiny: Tiny, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    data = make_config(tiny(data__path="d.npz", data__root="~/data")).data
    assert data.path == str(tmp_path / "d.npz")
    assert data.root == str(tmp_path / "home" / "data")
    data = make_config(tiny(data__path="~/own.py:load")).data
    assert data.path == f"{tmp_path / 'home' / 'own.py'}:load"


def test_budgets_are_dealt():
    same = deal_budgets(BudgetOptions(), 2, 0)
    assert same == [Budget(None, 1e10, 100.0)] * 2
    turns = deal_budgets(BudgetOptions(memory_mb=(256.0, 512.0)), 3, 0)
    assert [b.memory_mb for b in turns] == [256, 512, 256]
    drawn = deal_budgets(BudgetOptions(speed=Uniform((1e9, 2e9))), 200, 0)
    speeds = [b.speed for b in drawn]
    assert 1e9 <= min(speeds) < 1.1e9 and 1.9e9 < max(speeds) <= 2e9
    assert deal_budgets(BudgetOptions(speed=Uniform((1e9, 2e9))), 200, 0) == drawn
    shares = deal_budgets(BudgetOptions(memory_mb=Share((0.5, 2.0))), 200, 0, largest_mb=100.0)
    memory = [b.memory_mb or 0.0 for b in shares]
    assert 50 <= min(memory) < 60 and 190 < max(memory) <= 200
    with pytest.raises(UserError, match=r"budget\.speed"):
        deal_budgets(BudgetOptions(speed=Uniform((2.0, 1.0))), 2, 0)


def test_another_space_takes_over_nothing_of_the_files(tmp_path: Path):
    file = tmp_path / "my.toml"
    file.write_text('[space]\nname = "resnet18"\nnorm = "group"\nwidth = 16\n')
    other = read_config(file, {"space.name": "mobilenetv3", "space.preset": "cpu"})
    assert other.space == make_config({"space": {"name": "mobilenetv3", "preset": "cpu"}}).space
    same = read_config(file, {"space.name": "resnet18", "space.width": 8})
    assert config_table(same)["space"]["norm"] == "group"
