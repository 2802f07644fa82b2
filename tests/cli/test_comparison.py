"""`fedtailor compare`, by numbers that can be computed by hand."""

import csv
import io
import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fedtailor import Run, UserError
from fedtailor import compare as compare_runs
from fedtailor.cli.app import main
from fedtailor.runs.schema import SCHEMA


def folder(path: Path, values: list[float], seed: int = 0, name: str = "fedavg") -> Path:
    """Write a run folder of clients' accuracies after one round; tuned ones are 0.1 higher."""
    path.mkdir()
    config = {"seed": seed, "rounds": 1, "algorithm": {"name": name}, "space": {"name": "cnn"}}
    (path / "config.toml").write_text(tomli_w.dumps(config | {"data": {"name": "digits"}}))
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.executescript(SCHEMA)
        for model, more in (("untuned", 0.0), ("tuned", 0.1)):
            rows = [(1, c, "test", model, "accuracy", v + more) for c, v in enumerate(values)]
            db.executemany("INSERT INTO metric VALUES (?, ?, ?, ?, ?, ?)", rows)
        told = json.dumps(["untuned", "tuned"])
        db.execute("INSERT INTO event VALUES (1, NULL, 'models', ?, 0)", (told,))
        db.execute("INSERT INTO state VALUES (1, NULL, 'x', NULL, 60.0, 120.0)")
        db.execute("INSERT INTO message VALUES (1, 0, 'up', 2000000)")
    return path


@pytest.fixture
def three(tmp_path: Path) -> list[str]:
    made = [
        folder(tmp_path / "a", [0.1, 0.2, 0.3]),
        folder(tmp_path / "b", [0.3, 0.4, 0.5], seed=1),
        folder(tmp_path / "c", [0.3, 0.4, 0.8], name="local"),
    ]
    return [str(path) for path in made]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as left:
        main(["compare", *words])
    out = capsys.readouterr()
    assert left.value.code == 0, out.err
    return re.sub(" +", " ", out.out)


def test_differences_are_paired_over_clients_and_seeds(
    three: list[str], capsys: pytest.CaptureFixture[str]
):
    table = json.loads(said(capsys, *three, "--json"))
    assert table["base"] == "fedavg"
    base, other = table["rows"]
    assert (base["seeds"], other["seeds"]) == (2, 1)
    assert base["tuned_mean"] == pytest.approx(40)
    assert base["tuned_worst10"] == pytest.approx(30)
    assert base["tuned_minus_base"] is None
    differences = np.array([10.0, 10.0, 40.0])
    half = 4.302653 * differences.std(ddof=1) / np.sqrt(3)  # Student's t, two degrees of freedom
    assert other["tuned_minus_base"] == pytest.approx(20)
    assert other["tuned_minus_base_low"] == pytest.approx(20 - half, abs=1e-3)
    assert other["tuned_minus_base_high"] == pytest.approx(20 + half, abs=1e-3)
    assert other["tuned_minus_base_seen_from"] > half
    assert (base["mb_in_all"], base["wall_min"], base["modelled_min"]) == (2.0, 1.0, 2.0)


def test_another_base_turns_the_sign(three: list[str], capsys: pytest.CaptureFixture[str]):
    for base in ("local", three[2]):
        table = json.loads(said(capsys, *three, "--to", base, "--json"))
        assert table["rows"][0]["tuned_minus_base"] == pytest.approx(-20)


def test_methods_named_by_hand_and_an_effect(three: list[str], capsys: pytest.CaptureFixture[str]):
    words = [
        f"one={three[0]}",
        f"two={three[1]}",
        f"three={three[2]}",
        "--effect",
        "e=three/one,two",
    ]
    rows = list(csv.DictReader(io.StringIO(said(capsys, *words, "--csv"))))
    assert [row["method"] for row in rows] == ["one", "two", "three", "e"]
    assert float(rows[3]["untuned_minus_base"]) == pytest.approx(20)


def test_runs_on_other_data_have_no_difference(
    three: list[str], capsys: pytest.CaptureFixture[str]
):
    for path, first in ((three[0], 0), (three[2], 7)):
        np.savez(Path(path) / "partition.npz", rows=np.arange(first, first + 4))
    text = said(capsys, three[0], three[2])
    assert "| local | other data | other data |" in text


def test_tables_for_people_and_papers(three: list[str], capsys: pytest.CaptureFixture[str]):
    text = said(capsys, *three)
    assert "| fedavg | 2 | 3 | 40.0 ± 8.2 (30.0) | 30.0 ± 8.2 (20.0) |" in text
    assert "+20.0 (-23.0 to +63.0; " in text
    words = [f"a_b={three[0]}", f"c={three[2]}", "--latex"]
    assert "a\\_b & $30.0 \\pm 8.2$ & 20.0" in said(capsys, *words)


def test_what_took_seconds_is_not_told_as_no_minutes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = folder(tmp_path / "a", [0.5, 0.6])
    with closing(sqlite3.connect(path / "run.db")) as db, db:
        db.execute("UPDATE state SET wall_s = 3.0, modelled_s = 0")
    with pytest.raises(SystemExit):
        main(["compare", str(path), str(path)])
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")]
    assert cells[-3:-1] == ["0.05", "0.0"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "name run folders"),
        (["x=nowhere"], "not a run folder"),
        (["--csv", "--json", "nowhere"], "choose one of"),
        (["FIRST", "--to", "fedprox"], "no method is called 'fedprox'"),
        (["FIRST", "x=FIRST"], "name all methods by hand (NAME=RUN,RUN), or none"),
        (["x=FIRST", "--effect", "e=x"], "must be METHODS/OTHERS"),
    ],
)
def test_what_cannot_be_compared_is_said(
    words: list[str], sentence: str, three: list[str], capsys: pytest.CaptureFixture[Any]
):
    with pytest.raises(SystemExit) as left:
        main(["compare", *(word.replace("FIRST", three[0]) for word in words)])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_from_python_it_is_the_same(three: list[str], capsys: pytest.CaptureFixture[str]):
    found = compare_runs(Run(three[0]), *map(Path, three[1:]), to="local")
    assert re.sub(" +", " ", f"{found!r}\n") == said(capsys, *three, "--to", "local")
    assert found.base == "local" and found.rows[0]["tuned_mean"] == pytest.approx(40)
    with pytest.raises(UserError, match="give at least one run"):
        compare_runs()
