"""Runs as people ask for them: reported on at the end, and told how to go on with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor import Run, onboard, resume, run
from fedtailor.experiment import lifecycle
from fedtailor.experiment.progress import RunProgress
from fedtailor.runs.summary import digest


def test_a_report_is_written_unless_told_not_to(path: Path):
    before = digest(Run(path))
    resume(path, report=False)
    assert not (path / "report.html").exists() and not (path / "figures").exists()
    progress = RunProgress()
    assert digest(resume(path, progress)) == before and progress.doing == "writing the report"
    assert "local" in (path / "report.html").read_text(encoding="utf-8")
    assert (path / "figures" / "clients.svg").is_file()


def test_an_interrupted_run_says_how_to_go_on(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    target = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "do_rounds", interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run(tiny(rounds=1), target)
    assert stopped.value.__notes__ == [f"fedtailor.resume({str(target)!r}) goes on with the run"]
    assert resume(target, report=False).finished()
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "load_federation", interrupt)
        with pytest.raises(KeyboardInterrupt) as stopped:
            run(tiny(rounds=1), tmp_path / "other")
    assert not hasattr(stopped.value, "__notes__"), "there is nothing to go on with"


def test_new_clients_get_a_report_too(tiny: Callable[..., dict[str, Any]], tmp_path: Path):
    made = run(tiny(rounds=1, data__new_clients=2), tmp_path / "run", report=False)
    found = onboard(made.path)
    assert found.path == made.path / "onboard" and (found.path / "report.html").is_file()
    assert not (made.path / "report.html").exists(), "the run is only read"
