"""What README and docs tell the reader to do is done: in a new folder, in order, as it is printed.

Only the starters that the commands copy are made smaller, here and nowhere else.
"""

import ast
import shutil
import tomllib
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from PIL import Image

from docs.site.stage import ROOT
from fedtailor.cli.app import main
from fedtailor.core.validation import override
from fedtailor.runs.folder import Run
from tests.helpers.doc_commands import blocks, commands

FEW = {"rounds": 1, "eval_every": 1, "engine.workers": 0, "algorithm.finetune_epochs": 0}
SMALLER: dict[str, dict[str, Any]] = {
    "quickstart": FEW | {"algorithm.epochs": 1, "space": {"name": "cnn", "width": 4, "hidden": 8}},
    "spider-digits": FEW | {"data.clients": 2, "data.per_client": 40},
    "own-images": FEW | {"data.clients": 2, "space.width": 4},
}
SHORTER = {
    "generate": ("--n", "2", "--steps", "2"),
    "gain": ("--epochs", "0", "--clients", "2"),
    "demo": None,  # three minutes; tests/cli/test_app.py does a short one
}
PYTHON = [page for page in sorted(ROOT.glob("docs/*.md")) if blocks(page, "python")]


def follow(page: str) -> None:
    """Do what the blocks of a page say, in the current folder."""
    for command in commands(ROOT / page):
        verb, *words = command.words
        more = SHORTER.get(verb, ())
        if not command.block or more is None:
            continue
        found = [sorted(map(str, Path().glob(w))) if "*" in w else [w] for w in words]
        try:
            main([verb, *(word for some in found for word in some), *more])
        except SystemExit as end:  # main says what was wrong
            assert not end.code, f"{command}: exit code {end.code}"
        if verb == "cp":
            _make_smaller(Path(words[1]), SMALLER[words[0]])


def _make_smaller(file: Path, changes: dict[str, Any]) -> None:
    table = override(tomllib.loads(file.read_text()), changes)
    file.write_text(tomli_w.dumps(table))


def _picture(file: Path, seed: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (32, 32, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with nothing in it but what a reader brings along: pictures."""
    _picture(tmp_path / "photo.png", 0)
    _picture(tmp_path / "other.png", 1)
    for number in range(60):
        _picture(tmp_path / "my_images" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    with chdir(tmp_path):
        yield tmp_path


@pytest.fixture(scope="module")
def after_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the README's commands were given, then every other."""
    place = tmp_path_factory.mktemp("commands")
    _picture(place / "photo.png", 0)
    with chdir(place):
        follow("README.md")
        follow("docs/commands.md")  # takes up where the README ends
    return place


def test_every_command_does_what_it_says(after_all: Path):
    runs = after_all / "runs"
    assert (Run(runs / "b").last_round(), len(list((runs / "my-sweep").iterdir()))) == (1, 6)
    for file in ("my.toml", "compare-a-b.html", "client3.onnx", "my_method.py",
                 "runs/a/report.html", "runs/c/onboard/report.html", "runs/b-again"):  # fmt: skip
        assert (after_all / file).exists(), file


def test_the_first_five_minutes_lead_where_they_should(
    folder: Path, capsys: pytest.CaptureFixture[str]
):
    follow("docs/first-steps.md")
    shown = capsys.readouterr().out
    assert "2 classes" in shown
    for file in ("my.toml", "compare.html", "runs/together/report.html", "runs/search/report.html",
                 "client3/model.py", "mine.toml"):  # fmt: skip
        assert (folder / file).is_file(), file


def test_the_commands_and_the_code_of_taking_a_model_out(after_all: Path):
    """They take up where the page of all commands ends."""
    shutil.copyfile(after_all / "photo.png", after_all / "other.png")
    with chdir(after_all):
        (after_all / "client3.onnx").unlink()
        follow("docs/export.md")
        found = executed("docs/export.md")
    assert {path.name for path in (after_all / "models").iterdir()}
    assert found["model"].labels == tuple("0123456789")


@pytest.mark.parametrize("page", ["docs/generator.md", "docs/spaces.md"])
def test_the_code_of_a_page_runs(page: str, folder: Path):
    found = executed(page)
    assert found["archs" if page == "docs/generator.md" else "weights"]


def executed(page: str) -> dict[str, Any]:
    """Run the Python of a page, one block after the other, and return what it defined."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(ROOT / page, "python"):
        exec(compile(block, page, "exec"), names)
    return names


@pytest.mark.parametrize("page", [*PYTHON, *ROOT.glob("results/*.md")], ids=lambda p: p.name)
def test_the_code_of_a_page_can_be_read_and_its_imports_exist(page: Path):
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                exec(compile(ast.Module([node], []), page.name, "exec"), {})
