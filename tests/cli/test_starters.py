"""Starter configs: each is valid, and so is every command that its first lines name."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms.perfedsde import PerFedSDENAS
from fedtailor.cli.listing import STARTERS
from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.core.validation import parse_override
from fedtailor.networks import cost
from fedtailor.runs.config import Config, read_config


def changed(path: Path, overrides: list[str]) -> Config:
    return read_config(path, dict(parse_override(text) for text in overrides))


@pytest.mark.parametrize("path", sorted(STARTERS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_starter_is_a_valid_config(path: Path):
    assert read_config(path).rounds > 0


def commands(path: Path) -> list[list[str]]:
    """Return the overrides of all commands in a starter's first lines: a|b is two commands."""
    found = []
    for line in path.read_text().splitlines():
        if line.startswith("#") and " fedtailor run FILE " in line:
            words = line.partition(" fedtailor run FILE ")[2].replace("(", "").replace(")", "")
            each = [[f"{w.partition('=')[0]}={one}" for one in w.partition("=")[2].split("|")]
                    for w in words.split() if "=" in w]  # fmt: skip
            found += [list(some) for some in itertools.product(*each)]
    return found


@pytest.mark.parametrize("path", sorted(STARTERS.glob("*.toml")), ids=lambda p: p.stem)
def test_the_commands_in_a_starter_are_valid(path: Path):
    there = commands(path)
    assert there or "budgets" in path.stem or "own" in path.stem
    for overrides in there:
        config = changed(path, overrides)
        assert config.algorithm_name and config.space.largest() is not None


def check_fits(config: Config, task: Task) -> None:
    """Check what is checked before a run, but for the data."""
    space = config.space.at(task)
    config.algorithm.check(Setting(task, space, config.rounds, config.seed, space.middle()))
    assert any("head." in name for name in cost.parameter_names(space, space.middle(), task))


@pytest.mark.parametrize("path", sorted(STARTERS.glob("*.toml")), ids=lambda p: p.stem)
def test_every_search_ends_before_its_run_does(path: Path):
    """Those that decide step by step; a run that is too short tests undecided networks."""
    for overrides in ([], *commands(path)):
        config = changed(path, overrides)
        assert config.search_ends() <= config.rounds, overrides
        if config.algorithm_name == "spider" and config.algorithm.needs_val(
            Setting(Task((3, 32, 32), 10), config.space, config.rounds, 0)
        ):
            assert config.search_ends() > 0


SEARCHES_ON_CLIENTS = sorted(STARTERS.glob("perfedsde-table*.toml"))
DIGITS = STARTERS / "perfedsde-digits.toml"
SWITCHES = ("proposer", "surrogate", "archive", "merge")


def switches(algorithm: Algorithm[Any, Any]) -> tuple[Any, ...]:
    return tuple(getattr(algorithm, name) for name in SWITCHES)


def searches_beside(path: Path) -> set[str]:
    """Return the rivals of the PerFedRLNAS paper's Table 3, which the paper has its rows from."""
    if "table3" not in path.stem:
        return set()
    return {"fednas", "fedrlnas"} | (set() if path.stem.endswith("-cpu") else {"spider"})


@pytest.mark.parametrize("path", SEARCHES_ON_CLIENTS, ids=lambda p: p.stem)
def test_heads_have_all_ablations_and_rivals_of_as_many_epochs(path: Path):
    config = read_config(path)
    whole = config.algorithm
    assert isinstance(whole, PerFedSDENAS)
    assert switches(whole) == ("diffusion", "rbf", 10, "count")
    seen, rivals, data = {switches(whole)}, set(), set()
    for overrides in commands(path):
        other = changed(path, overrides)
        if other.algorithm_name != "perfedsde":
            rivals.add(other.algorithm_name)
            assert other.algorithm.epochs == whole.iterations * whole.epochs, overrides
        elif other.data == config.data:
            seen.add(switches(other.algorithm))
            back = {name: getattr(whole, name) for name in SWITCHES}
            assert replace(other, algorithm=replace(other.algorithm, **back)) == config, overrides
        else:
            data.add((other.data.name, other.data.alpha))
    without = itertools.product(
        (("diffusion", "rbf"), ("evolution", "none")), (10, 0), ("count", "fedavg")
    )
    assert seen == {(*how, archive, merge) for how, archive, merge in without}
    assert rivals == {"perfedrlnas", "fedavg", "fedrep", "fedbabu", "local"} | searches_beside(path)
    assert data == {("cifar100", 0.1)}


@pytest.mark.parametrize("path", SEARCHES_ON_CLIENTS, ids=lambda p: p.stem)
def test_starters_of_a_search_on_clients_fit_their_space(path: Path):
    config = read_config(path)
    assert isinstance(config.algorithm, PerFedSDENAS)
    assert (config.data.name, config.data.alpha) == ("cifar10", 0.3)
    if not path.stem.endswith("-cpu"):
        assert (config.data.clients, config.cohort, config.rounds) == (100, 5, 1500)
        assert config.algorithm.iterations == 5
    for overrides in ([], *commands(path)):
        found = changed(path, overrides)
        check_fits(found, Task((3, 32, 32), 100 if found.data.name == "cifar100" else 10))


def test_the_starter_on_digits_fits_its_space_and_has_fair_rivals():
    whole = read_config(DIGITS).algorithm
    assert isinstance(whole, PerFedSDENAS)
    for overrides in ([], *commands(DIGITS)):
        found = changed(DIGITS, overrides)
        check_fits(found, Task((1, 8, 8), 10))
        epochs = found.algorithm.epochs * getattr(found.algorithm, "iterations", 1)
        assert epochs == whole.iterations * whole.epochs, overrides


ONE_FOR_ALL = sorted(STARTERS.glob("spider-fednas*.toml"))
TABLE_3 = sorted(STARTERS.glob("perfedrlnas-table3*.toml"))


@pytest.mark.parametrize("path", [*ONE_FOR_ALL, *TABLE_3], ids=lambda p: p.stem)
def test_rivals_that_search_fit_space_and_data(path: Path):
    """What a head names can begin: its space, its rounds, the server's and validation images."""
    seen = set()
    for overrides in ([], *commands(path)):
        found = changed(path, overrides)
        task = Task((3, 32, 32), 100 if found.data.name == "cifar100" else 10)
        check_fits(found, task)
        space = found.space.at(task)
        setting = Setting(task, space, found.rounds, found.seed, space.middle())
        assert found.algorithm.needs_public(setting) <= found.data.public, overrides
        assert not (found.data.join_val and found.algorithm.needs_val(setting)), overrides
        seen.add((found.algorithm_name, getattr(found.algorithm, "searcher", "")))
    if path in TABLE_3:
        assert {"perfedrlnas", "fedrlnas", "fednas", "spider"} < {name for name, _ in seen}
    else:
        searchers = {("fednas", "perturbation"), ("fednas", "milenas"), ("fedrlnas", "")}
        assert searchers | {("spider", "accuracy"), ("spider", "milenas"), ("knnper", "")} < seen
