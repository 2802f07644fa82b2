from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedtailor import UserError
from fedtailor.cli.app import main
from fedtailor.experiment.sweeping import combinations, plan_sweep
from fedtailor.runs.folder import Run


def test_combinations_split_at_outer_commas_only():
    found = combinations(["seed=0,1", "budget.memory_mb=[1, 2],[3]", "data.name=digits"])
    assert len(found) == 4
    assert found[1] == {"seed": 0, "budget.memory_mb": [3], "data.name": "digits"}
    assert combinations([]) == [{}]
    with pytest.raises(UserError, match="an override is written key=value"):
        combinations(["seed"])


@pytest.fixture
def file(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> Path:
    path = tmp_path / "my.toml"
    path.write_text(tomli_w.dumps(tiny(rounds=1)))
    return path


def test_a_sweep_goes_on_as_a_whole_and_ends_with_a_comparison(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["sweep", str(file), "seed=0,1", "algorithm.name=fedavg,local"]
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--out", str(tmp_path / "all")])
    out = capsys.readouterr().out
    folders = {p.name for p in (tmp_path / "all").iterdir()}
    assert folders == {"seed=0,fedavg", "seed=1,fedavg", "seed=0,local", "seed=1,local"}
    assert "| minus fedavg | " in out
    assert all((tmp_path / "all" / name / "report.html").is_file() for name in folders)
    before = {p: (p / "run.db").stat().st_mtime_ns for p in (tmp_path / "all").iterdir()}
    with pytest.raises(SystemExit, match="0"):
        main([*words, "--out", str(tmp_path / "all")])
    assert before == {p: (p / "run.db").stat().st_mtime_ns for p in (tmp_path / "all").iterdir()}
    assert Run(tmp_path / "all/seed=1,local").config["seed"] == 1


def test_nothing_begins_if_a_value_is_wrong_or_a_folder_is_another_s(file: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"algorithm\.name: no algorithm is called 'fedavgg'"):
        plan_sweep(file, ["algorithm.name=fedavg,fedavgg"], tmp_path / "s")
    with pytest.raises(UserError, match="two of the runs are the same"):
        plan_sweep(file, ["seed=0,0"], tmp_path / "s")
    assert not (tmp_path / "s").exists()
