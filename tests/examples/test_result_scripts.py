"""Commands of the scripts in results/, which run for hours: each is valid, its search has time."""

import re
from pathlib import Path

import pytest

from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.core.validation import parse_override
from fedtailor.runs.config import read_config

ROOT = Path(__file__).parents[2]
SCRIPT = (ROOT / "results/spider.sh").read_text()
CHOSEN = {  # what the scripts choose by what they find
    "$SEARCHER": "loss",
    "$S": "algorithm.searcher=loss",
    "$L": "algorithm.strength=0.1",
    "$strength": "0.1",
    "$COMMON": "space.arch=middle",
    "$SHARES": "algorithm.normal_share=0.7 algorithm.reduction_share=0.4",
    "$TUNED": " ".join(re.findall(r'^TUNED="(.*)"$', SCRIPT, re.MULTILINE)),
    "$E": str(ROOT / "examples"),
}
BASE = re.search(r"<<'TOML'\n(.*?)\nTOML\n", SCRIPT, re.DOTALL)


def commands(script: str, verb: str) -> list[tuple[str, list[str]]]:
    """Return the name and the overrides of every run that a script begins."""
    found = []
    for line in (ROOT / "results" / script).read_text().splitlines():
        told = re.search(rf"(?:^|then |do |&& )\s*{verb} ([a-z$][^;]*)", line.strip())
        if told and "() {" not in line:
            text = told[1]
            for name in sorted(CHOSEN, key=len, reverse=True):
                text = text.replace(name, CHOSEN[name])
            name, *overrides = text.split()
            found.append((name, overrides))
    return found


SPIDER, RIVALS = commands("spider.sh", "go"), commands("rivals.sh", "one")
LATER = ["algorithm.finetune_lr=0.01"]  # of all rivals


def test_all_of_them_are_found():
    """By their names; a seed of its own is no other name."""
    assert {name.partition("-")[0] for name, _ in SPIDER} == {
        "warm", "lambda", "search", "random", "common", "alone", "fedavg", "ditto", "matched",
        "whole", "printed", "early", "tuned",
    }  # fmt: skip
    assert [name for name, _ in RIVALS] == [
        "fedavg", "fednas-milenas", "fednas-perturbation", "fedrlnas", "knnper", "spider-milenas",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "overrides"), [*SPIDER, *((name, LATER + more) for name, more in RIVALS)]
)
def test_a_command_is_valid_and_its_search_ends(name: str, overrides: list[str], tmp_path: Path):
    assert BASE is not None and not any("$" in text for text in overrides), overrides
    (tmp_path / "base.toml").write_text(BASE[1])
    config = read_config(tmp_path / "base.toml", dict(parse_override(text) for text in overrides))
    task = Task((3, 32, 32), 10)
    space = config.space.at(task)
    setting = Setting(task, space, config.rounds, config.seed, space.middle())
    config.algorithm.check(setting)
    assert config.algorithm.needs_public(setting) <= config.data.public
    assert not (config.data.join_val and config.algorithm.needs_val(setting))
    if name == "warm" or name.startswith("lambda"):  # before edges are decided, or all are
        assert config.search_ends() > config.rounds
    else:
        assert config.search_ends() <= config.rounds
