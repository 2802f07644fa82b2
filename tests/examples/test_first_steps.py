"""The notebook of first steps, executed in a kernel as a reader would."""

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from fedtailor import Run

NOTEBOOK = Path(__file__).parents[2] / "examples" / "first_steps.ipynb"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def outputs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Execute all cells, the first that fails raising; return outputs by their cells' code."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, kernel_name="python3", timeout=120, resources=where).execute()
    return {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}


def shown(outputs: dict[str, list[dict[str, Any]]], code: str) -> list[dict[str, str]]:
    """Return what is seen below the only cell that has some code."""
    (found,) = [found for source, found in outputs.items() if code in source]
    return [output["data"] for output in found]


def test_progress_is_one_line_below_its_cell(outputs: dict[str, list[dict[str, Any]]]):
    line, said = (data["text/plain"] for data in shown(outputs, "together = run("))
    assert re.fullmatch(r"fedavg: round 8/8 · finished · [\d.]+ MB · [\d.]+ s/round", line)
    assert said.startswith("Run('runs/first/fedavg': fedavg with cnn on digits, 8 of 8 rounds, ")
    kinds = {output["output_type"] for cell in outputs.values() for output in cell}
    assert kinds == {"display_data", "execute_result"}, "nothing is printed beside"


def test_what_the_cells_show(outputs: dict[str, list[dict[str, Any]]], folder: Path):
    (planned,) = shown(outputs, "config = {")
    assert planned["text/plain"].startswith("8 clients, images 1x8x8, 10 classes\n")
    (clients,) = shown(outputs, '["per_client"]')
    assert clients["text/plain"].startswith("{0: ")
    for code in ("labels.svg", "clients.svg"):
        (picture,) = shown(outputs, code)
        assert "<svg" in picture["image/svg+xml"]
    assert (folder / "runs/first/both.html").is_file()
    (found,) = shown(outputs, "compare(together, equal)")
    assert "| minus fedavg " in found["text/plain"], "the method of the cell has run"
    assert found["text/markdown"] == found["text/plain"]
    own = Run(folder / "runs/first/equal")
    assert own.finished() and own.config["algorithm"]["name"].endswith("equal_votes.py:EqualVotes")


def test_it_is_kept_without_outputs():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
