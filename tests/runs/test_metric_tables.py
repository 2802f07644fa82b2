import csv
import io
from pathlib import Path

import numpy as np
import pytest

from fedtailor import Run, UserError, summarise
from fedtailor.cli.app import main
from fedtailor.experiment.lifecycle import run
from fedtailor.runs.metric_tables import metrics_csv, write_tensorboard


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    table = {
        "rounds": 2,
        "eval_every": 1,
        "space": {"name": "cnn", "width": 4, "hidden": 16},
        "data": {"clients": 3, "per_client": 60, "partition": "dirichlet_equal"},
        "engine": {"workers": 0},
        "save_models": False,
    }
    return run(table, tmp_path_factory.mktemp("runs") / "run")


def test_the_csv_has_every_number(made: Run, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit, match="0"):
        main(["show", str(made.path), "--csv"])
    text = capsys.readouterr().out
    assert text == metrics_csv(made)
    rows = list(csv.DictReader(io.StringIO(text)))
    told = [
        float(row["value"])
        for row in rows
        if (row["round"], row["split"], row["model"], row["name"])
        == ("2", "test", "untuned", "accuracy")
    ]
    assert np.mean(told) == summarise(made)["untuned"]["mean"]
    assert len(rows) == made.db.query("SELECT count(*) FROM metric")[0][0]


def test_every_table_is_a_file(made: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["show", str(made.path), "--tables", str(tmp_path / "all")]
    with pytest.raises(SystemExit, match="0"):
        main(words)
    query = "SELECT name FROM sqlite_master WHERE type = 'table'"
    names = {name for (name,) in made.db.query(query)}
    assert {path.stem for path in (tmp_path / "all").iterdir()} == names, "none is forgotten"
    for name in names:
        text = (tmp_path / "all" / f"{name}.csv").read_text()
        rows = list(csv.reader(io.StringIO(text, newline="")))
        stored = made.db.query(f"SELECT * FROM {name}")
        assert len(rows) == 1 + len(stored) and all(len(row) == len(rows[0]) for row in rows)
    sent = csv.DictReader(io.StringIO((tmp_path / "all" / "message.csv").read_text()))
    up = sum(int(row["bytes"]) for row in sent if row["direction"] == "up")
    assert up == summarise(made)["bytes"]["up"] > 0
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "is not empty; nothing was written" in capsys.readouterr().err


def test_tensorboard_has_means_over_clients_by_round(made: Run, tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with pytest.raises(SystemExit, match="0"):
        main(["show", str(made.path), "--tensorboard", str(tmp_path / "tb")])
    events = accumulator.EventAccumulator(str(tmp_path / "tb")).Reload()
    curve = [(e.step, e.value) for e in events.Scalars("test/untuned/accuracy")]
    wanted = [(point["round"], point["mean"]) for point in summarise(made)["curve"]]
    assert curve == [(step, pytest.approx(value)) for step, value in wanted]
    assert "test/untuned/accuracy over clients" in events.Tags()["histograms"]
    with pytest.raises(UserError, match="is not empty; nothing was written"):
        write_tensorboard(made, tmp_path / "tb")
