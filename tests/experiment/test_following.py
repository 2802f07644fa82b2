"""How far work is: a line that lives where it can, and nothing where nobody looks."""

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from fedtailor.experiment import following
from fedtailor.experiment.following import followed, line
from fedtailor.experiment.progress import RunProgress


@pytest.mark.parametrize(("seconds", "shown"), [(0.5, "0.25 s"), (13.0, "6.5 s"), (280.0, "140 s")])
def test_the_pace_is_told_in_plain_numbers(seconds: float, shown: str):
    progress = RunProgress(10, round=3, seconds=seconds, rounds_done=2)
    assert f"{shown}/round" in line(progress)


def test_progress_is_one_line_that_says_what_is_known():
    begun = RunProgress(20, doing="reading and dealing the data")
    assert line(begun, "run", 80) == "run: reading and dealing the data"
    first = RunProgress(20, round=2, doing="training", done=3, total=8, rounds_done=1, seconds=9.0)
    assert " left" not in line(first), "the first round alone tells nothing"
    later = replace(first, round=3, rounds_done=2, mean=0.5, worst=0.25, bytes=10**9)
    whole = line(later, "2026-11-18-perfedrlnas-1a2b")
    assert whole.endswith(
        "accuracy 50.0 % · worst 10 % 25.0 % · 1000.0 MB · 4.5 s/round · 1 min 21 s left"
    )
    for width in (120, 100, 80, 60, 40):
        text = line(later, "2026-11-18-perfedrlnas-1a2b", width)
        assert len(text) <= width and "round 3/20" in text
    assert " left" in line(later, "2026-11-18-perfedrlnas-1a2b", 80)
    assert " left" not in line(replace(later, rounds_done=20)), "only tests are left"


def watched(progress: bool | None) -> None:
    with followed(progress, "run") as state:
        state.rounds, state.round = 7, 3
        time.sleep(0.3)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Hold what a terminal gets."""
    held = io.StringIO()
    console = Console(file=held, force_terminal=True, width=80, highlight=False)
    monkeypatch.setattr(following, "_console", lambda: console)
    return held


def test_a_terminal_shows_a_line_unless_told_not_to(terminal: io.StringIO):
    watched(False)
    assert terminal.getvalue() == ""
    watched(None)
    assert "run: round 3/7 · starting" in terminal.getvalue()
    assert "run: round 3/7 · finished" in terminal.getvalue()
    assert terminal.getvalue().endswith("\x1b[2K"), "and takes it away"


def test_elsewhere_nothing_is_shown_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(following, "LINE_EVERY_S", 0.05)
    for progress in (None, False):
        watched(progress)
        assert capsys.readouterr() == ("", "")
    watched(True)
    out, errors = capsys.readouterr()
    assert out == "" and "run: round 3/7 · starting · 0.0 MB\n" in errors


def test_whoever_gives_an_object_shows_it_himself(terminal: io.StringIO):
    mine = RunProgress()
    with followed(mine, "run") as state:
        assert state is mine
    assert terminal.getvalue() == ""
