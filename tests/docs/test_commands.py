"""The commands of README, docs and results: each fits the command line and the config it names."""

import re
import tomllib
from contextlib import chdir
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cyclopts import MissingArgumentError

from docs.site.stage import ROOT
from fedtailor.cli.app import app
from fedtailor.cli.listing import KINDS, STARTERS, described
from fedtailor.core import registry
from fedtailor.core.validation import parse_override, validate
from fedtailor.data.options import DataOptions
from fedtailor.experiment.sweeping import combinations
from fedtailor.pretrain.generators import recipe
from fedtailor.runs.config import read_config
from tests.helpers.doc_commands import Command, blocks, commands, lines_of_code

PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("results/*.md"))]
COMMANDS = [command for page in PAGES for command in commands(page)]
WRITTEN_LARGE = re.compile(r"^[A-Z_]+$")  # a place that the reader fills: NAME, RUN, FILE


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that pages write down: configs, and a method of one's own."""
    place = tmp_path_factory.mktemp("written")
    (place / "fedprox.py").write_text("\n".join(blocks(ROOT / "docs/extending.md", "python")))
    return place


def test_there_are_commands_to_check():
    verbs = {command.words[0] for command in COMMANDS if command.block}
    assert len(COMMANDS) > 120
    assert verbs >= {"cp", "plan", "run", "resume", "sweep", "compare", "export", "onboard", "gain"}


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_a_command_fits_the_command_line(command: Command, folder: Path):
    try:
        verb, bound, _ = app.parse_args(list(command.words), exit_on_error=False, print_error=False)
    except MissingArgumentError:
        assert not command.block, "a command in a block is whole"
        return  # a sentence that only names it
    assert verb.__name__.replace("_", "-") == command.words[0]
    with chdir(folder):
        check_names(command, bound.arguments)


def check_names(command: Command, given: dict[str, Any]) -> None:
    """Check that what a command names exists, and that its overrides suit their config."""
    overrides = given.get("overrides", ())
    match command.words[0]:
        case "ls" if given.get("what") and not WRITTEN_LARGE.match(given["what"]):
            assert given["what"] in (*KINDS, "runs") or described(given["what"])
        case "cp" if not WRITTEN_LARGE.match(given["name"]):
            assert (STARTERS / f"{given['name']}.toml").exists()
        case "plan" | "run":
            config = config_of(command, given["file"])
            read_config(config, dict(map(parse_override, overrides)))
        case "sweep":
            config = config_of(command, given["file"])
            assert [read_config(config, each) for each in combinations(overrides)]
        case "resume":
            assert {parse_override(text)[0] for text in overrides} <= {"rounds"}
        case "onboard":
            config = STARTERS / "perfedrlnas-fig5-new-clients-cpu.toml"
            read_config(config, dict(map(parse_override, overrides)))
        case "generate":
            assert given["space"] in registry.names("space")
            validate(DataOptions, dict(map(parse_override, overrides)), "data")
        case "pretrain" if not WRITTEN_LARGE.match(given["space"]):
            assert given["space"] in registry.names("space")
            assert given["data"] in registry.names("data")
            recipe("default", given["space"], dict(map(parse_override, overrides)))


def config_of(command: Command, file: Path) -> Path:
    """Return the config that a page means by a file: a starter, or one that it prints."""
    copied = [
        one.words[1]
        for one in commands(command.page)
        if one.words[0] == "cp" and one.words[2:] == (file.name,)
    ]
    said = re.findall(rf"{file.name}\s+the\s+starter\s+`([\w-]+)`", command.page.read_text())
    for starter in (*said, *copied):
        if not WRITTEN_LARGE.match(starter):
            return STARTERS / f"{starter}.toml"
    tables = [table for table in blocks(command.page, "toml") if "seed" in tomllib.loads(table)]
    if file.name == "base.toml" and tables:
        file.write_text(tables[0])
        return file
    assert file.name == "my.toml" or WRITTEN_LARGE.match(file.name), f"{file}: whose is it?"
    return STARTERS / "quickstart.toml"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_scripts_modules_and_targets_that_a_page_names_exist(page: Path):
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in lines_of_code(page):
        words = [*line.split(), "", ""]
        if words[0] == "make":
            assert words[1] in targets
        elif words[:2] == ["python", "-m"] and not words[2].endswith("NAME"):
            assert find_spec(words[2])
        elif words[0] == "python" and words[1].endswith(".py"):
            assert (ROOT / words[1]).is_file()
