"""The rooms of the architecture: a file knows its own room and those before it, never a later one.

A new file needs no entry here: where it lies says what it may import.
"""

import ast
import graphlib
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import fedtailor

ROOT = Path(fedtailor.__file__).parent
ROOMS = [
    "core", "data", "networks", "training", "spaces", "search", "algorithms", "runs", "report",
    "engines", "experiment", "export", "pretrain", "cli",
]  # fmt: skip
FILES = {
    ".".join(("fedtailor", *path.relative_to(ROOT).with_suffix("").parts)): path
    for path in sorted(ROOT.rglob("*.py"))
    if path.name not in ("__init__.py", "__main__.py")
}
LOOKING = (
    "summary", "cost_summary", "folder", "database", "gains", "time_to_accuracy", "search_state",
    "comparison", "comparison_table", "metric_tables", "watching", "headlines",
)  # of runs  # fmt: skip


def room(module: str) -> str:
    return module.split(".")[1]


@cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules of fedtailor that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(node.module or "")
    return frozenset(found & FILES.keys())


def reached(module: str) -> set[str]:
    """Return all modules that importing one imports."""
    found, left = set(), [module]
    while left:
        for name in imported(FILES[left.pop()]) - found:
            found.add(name)
            left.append(name)
    return found


@pytest.mark.parametrize("module", FILES)
def test_a_module_imports_only_from_its_room_or_an_earlier_one(module: str):
    order = ROOMS.index(room(module))
    assert not {name for name in imported(FILES[module]) if ROOMS.index(room(name)) > order}


@pytest.mark.parametrize("name", ROOMS)
def test_no_cycle_within_a_room(name: str):
    inside = {module for module in FILES if room(module) == name}
    assert inside, "the room is empty"
    graph = {module: imported(FILES[module]) & inside for module in inside}
    list(graphlib.TopologicalSorter(graph).static_order())  # raises at a cycle


def test_nothing_lies_at_the_root():
    assert {path.name for path in ROOT.glob("*.py")} == {"__init__.py", "__main__.py"}
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name[0] != "_"}
    assert folders == {*ROOMS, "starters", "weights"}


@pytest.mark.parametrize(
    "module",
    [
        m
        for m in FILES
        if room(m) == "report" or (room(m) == "runs" and m.split(".")[-1] in LOOKING)
    ],
)
def test_looking_at_a_run_can_run_no_code_that_it_names(module: str):
    """Neither the registry, which imports what a config names, nor any algorithm is at hand."""
    reach = reached(module)
    assert "fedtailor.core.registry" not in reach
    assert not any(room(name) == "algorithms" for name in reach)


def test_the_command_line_says_help_without_torch():
    """`--help` must not wait for a second or two of imports."""
    code = "import sys, fedtailor.cli.app; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
