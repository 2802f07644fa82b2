"""The public names: all there, listed, lazy, and enough for a method of a user's own."""

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fedtailor
from fedtailor import summarise
from fedtailor.experiment.lifecycle import run

DOCS = Path(__file__).parents[1] / "docs"
ROOMS = {path.name for path in Path(fedtailor.__file__).parent.iterdir() if path.is_dir()}


@pytest.mark.parametrize("name", fedtailor.__all__)
def test_a_public_name_is_there(name: str):
    found = getattr(fedtailor, name)
    home = getattr(found, "__module__", getattr(found, "__name__", "fedtailor"))
    assert home.startswith(("fedtailor", "builtins", "types")), home
    assert name in dir(fedtailor)
    assert name not in ROOMS, "a room of that name would take its place"


def test_what_type_checkers_see_is_what_there_is():
    tree = ast.parse(Path(fedtailor.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    homes = {
        (name, f"fedtailor.{home.removesuffix('.learn') if name == 'learn' else home}")
        for name, home in fedtailor._HOME_OF.items()
    }
    assert seen == homes


def test_the_docs_list_them_all_and_nothing_else():
    lines = (DOCS / "python.md").read_text().splitlines()
    rows = [line.split("|")[1] for line in lines if line.startswith("|")]
    listed = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(listed) == sorted(fedtailor.__all__)


def test_the_docs_list_what_learn_has():
    text = (DOCS / "python.md").read_text()
    (row,) = [line for line in text.splitlines() if line.startswith("| `learn`")]
    listed = set(re.findall(r"`(\w+)`", row.split("|")[2]))
    assert listed == set(fedtailor.learn.__all__) - {"Batch", "DivergedError", "Network"}


def test_a_wrong_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"fedtailor.*'Algoritm'"):
        fedtailor.Algoritm  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]


def test_nothing_is_imported_before_it_is_used():
    code = "import sys, fedtailor; dir(fedtailor); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.fixture
def worked_example(tmp_path: Path) -> Path:
    """The method that docs/extending.md writes down, in a file."""
    (code,) = re.findall(r"```python\n(.*?)```", (DOCS / "extending.md").read_text(), re.DOTALL)
    file = tmp_path / "fedprox.py"
    file.write_text(code)
    return file


def test_the_worked_example_runs_and_its_tie_holds(
    worked_example: Path, tiny: Callable[..., dict[str, Any]], tmp_path: Path
):
    name = f"{worked_example}:FedProx"
    found = {}
    for mu in (0.0, 5.0):
        table = tiny(algorithm__name=name, algorithm__mu=mu, algorithm__epochs=3)
        found[mu] = run(table, tmp_path / str(mu))
    plain = run(tiny(algorithm__name="fedavg", algorithm__epochs=3), tmp_path / "fedavg")
    accuracies = [
        summarise(one)["test_accuracy"]["mean"] for one in (found[0.0], plain, found[5.0])
    ]
    assert accuracies[0] == accuracies[1], "without a tie it is FedAvg"
    assert accuracies[0] != accuracies[2]
