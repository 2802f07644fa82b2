"""`fedtailor watch`: a run that somebody else does, by its folder."""

import json
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from fedtailor.cli import watch_verb
from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.runs.schema import SCHEMA
from fedtailor.runs.watching import look, sights
from tests.helpers.foreground import hear_ctrl_c

Say = Callable[..., tuple[int, str, str]]


def sql(path: Path, text: str, *values: Any) -> None:
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.execute(text, values)


def add(path: Path, round: int, seconds: float, nbytes: int, *tested: float) -> None:
    """Commit a round of a run, by hand."""
    sql(path, "INSERT INTO state VALUES (?, NULL, 'x', NULL, ?, 0)", round, seconds)
    sql(path, "INSERT INTO message VALUES (?, 0, 'up', ?)", round, nbytes)
    for client, value in enumerate(tested):
        row = (round, client, "test", "untuned", "accuracy", value)
        sql(path, "INSERT INTO metric VALUES (?, ?, ?, ?, ?, ?)", *row)


def end(path: Path) -> None:
    sql(path, "INSERT INTO event VALUES (4, NULL, 'models', '[\"untuned\"]', 1)")
    sql(path, "INSERT INTO event VALUES (4, NULL, 'finished', '', 1)")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the folder of a run of four rounds, of which two are done."""
    path = tmp_path / "run"
    path.mkdir()
    config = {"seed": 0, "rounds": 4, "algorithm": {"name": "fedavg"}, "space": {"name": "cnn"}}
    (path / "config.toml").write_text(tomli_w.dumps(config | {"data": {"name": "digits"}}))
    with closing(sqlite3.connect(path / "run.db")) as db:
        db.executescript(SCHEMA)
    add(path, 0, 50.0, 0)
    add(path, 1, 1.0, 1_000_000)
    add(path, 2, 3.0, 2_000_000, 0.2, 0.4, 0.9)
    return path


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    def words(*words: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, err = capsys.readouterr()
        return int(str(ended.value.code)), out, err

    return words


def content(path: Path) -> dict[str, tuple[bytes, int]]:
    return {p.name: (p.read_bytes(), p.stat().st_mtime_ns) for p in path.iterdir()}


def test_a_run_is_followed_while_it_is_done(path: Path):
    with lock_folder(path):
        looks = sights(path, every_s=0.0)
        first = next(looks)
        assert first.working and not first.finished and first.planned == 4
        assert [seen.round for seen in first.rounds] == [1, 2], "the first state is no round"
        assert next(looks).rounds == first.rounds
        add(path, 3, 5.0, 4_000_000)
        third = next(looks).rounds
        assert third[:2] == first.rounds and len(third) == 3
        tested = third[1]
        assert (tested.mean, tested.worst10) == (pytest.approx(0.5), 0.2)
        assert (third[2].mean, third[2].bytes, third[2].seconds) == (None, 7_000_000, 5.0)
        add(path, 4, 7.0, 0, 1.0)
        assert not next(looks).finished, "tests may still follow"
        end(path)
        assert next(looks).finished
        assert next(looks, None) is None


def test_a_process_that_is_just_starting_is_waited_for(path: Path):
    looks = sights(path, every_s=0.0)
    assert not next(looks).working
    with lock_folder(path):
        assert next(looks).working
    assert not next(looks).working
    assert not next(looks).working
    assert next(looks, None) is None, "it stands still"


def test_a_finished_run_is_summed_up(path: Path, say: Say):
    add(path, 3, 5.0, 0)
    add(path, 4, 7.0, 0, 0.5, 0.7)
    end(path)
    before = content(path)
    code, out, err = say("watch", path)
    assert code == 0 and "4 of 4 rounds, finished" in out and "60.0 % ± 10.0" in out and not err
    code, out, _ = say("watch", path, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[1] == {
        "round": 2, "rounds": 4, "mean": 0.5, "worst10": 0.2, "bytes": 3_000_000, "seconds": 3.0,
        "left_s": 4.0,
    }  # fmt: skip
    assert content(path) == before, "looking writes nothing"


def test_a_run_that_stopped_says_since_when_and_how_to_go_on(path: Path, say: Say):
    before = content(path)
    code, out, err = say("watch", path, "--json")
    since = time.localtime((path / "run.db").stat().st_mtime)
    assert code == 1 and len(out.splitlines()) == 2
    assert f"still since {time.strftime('%Y-%m-%d %H:%M:%S', since)}, after 2 of 4 rounds" in err
    assert err.endswith(f"fedtailor resume {path}\n") and len(err.splitlines()) == 1
    assert content(path) == before


def test_what_is_no_run_is_a_sentence(tmp_path: Path, say: Say):
    (tmp_path / "run.db").mkdir()
    for folder in (tmp_path, tmp_path / "nowhere"):
        code, _, err = say("watch", folder)
        assert code == 2 and "not a run folder" in err and len(err.splitlines()) == 1
    shutil.rmtree(tmp_path / "run.db")
    (tmp_path / "run.db").write_text("what is this?")
    code, _, err = say("watch", tmp_path)
    assert code == 2 and "cannot be read" in err and len(err.splitlines()) == 1


def test_a_torn_database_is_not_mended_by_looking(path: Path, tmp_path: Path):
    with closing(sqlite3.connect(path / "run.db", isolation_level=None)) as db:
        db.execute("PRAGMA cache_size = 1")  # so that half of it is written before it is committed
        db.execute("BEGIN")
        row = (1, None, "x", "y" * 900, 0.0)
        db.executemany("INSERT INTO event VALUES (?, ?, ?, ?, ?)", [row] * 400)
        db.execute("UPDATE metric SET value = 0")
        shutil.copytree(path, tmp_path / "killed")
    before = content(tmp_path / "killed")
    with pytest.raises(UserError, match="`fedtailor resume` mends that"):
        look(tmp_path / "killed")
    assert content(tmp_path / "killed") == before


def test_the_latest_rounds_and_one_line(path: Path):
    with lock_folder(path):
        sight = look(path)
    lines = watch_verb.table_lines(sight, 12)
    assert [line.split() for line in lines[1:]] == [
        ["1", "1.0", "1.0"],
        ["2", "50.0", "%", "20.0", "%", "3.0", "3.0"],
    ]
    assert watch_verb.table_lines(sight, 1)[1:] == lines[2:], "as many as there is room for"
    from fedtailor.experiment.following import line

    told = re.sub(r"for \d+ s", "for", line(watch_verb.progress_of(sight), "run"))
    assert told == (
        "run: round 3/4 · for · accuracy 50.0 % · worst 10 % 20.0 % · 3.0 MB · 2 s/round · "
        "4.00 s left"
    )


def test_ctrl_c_ends_the_looking_and_not_the_run(path: Path):
    with lock_folder(path):
        process = subprocess.Popen(
            [sys.executable, "-m", "fedtailor", "watch", str(path), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=hear_ctrl_c,
        )
        assert process.stdout
        seen = [json.loads(process.stdout.readline())["round"] for _ in range(2)]
        add(path, 3, 5.0, 4_000_000)
        seen.append(json.loads(process.stdout.readline())["round"])
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert seen == [1, 2, 3] and process.returncode == 0, errors
        assert errors == f"fedtailor: {path}: no longer watched; a run goes on untouched\n"
        assert look(path).working
