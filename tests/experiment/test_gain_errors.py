"""Networks on one another's data: what goes wrong, and how it is told."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.core.files import lock_folder
from fedtailor.core.types import Message
from fedtailor.experiment import gain
from fedtailor.experiment.gain import measure_gain
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.steps import ClientFailedError
from fedtailor.runs import pair_table
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise
from tests.helpers.gain_runs import Tiny, pairs, rlnas, rows, table


def test_a_network_that_cannot_be_tuned_ends_it_with_what_is_there(
    tiny: Tiny, tmp_path: Path, misbehaving: Callable[[str], str]
):
    done = run(table(tiny, misbehaving("Untunable"), rounds=1, on_failure="skip"), tmp_path / "run")
    says = "the network of client 0 could not be tuned on the data of client 1: .*broken fan"
    with pytest.raises(ClientFailedError, match=says):
        measure_gain(done.path, epochs=2)
    assert [row[2:4] for row in rows(done.path)] == [(0, 0)]
    assert summarise(done)["failures"] == 0, "the run itself had none"
    assert "broken fan" in (done.path / "log.txt").read_text()
    assert measure_gain(done.path, epochs=1)["epochs"] == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--weights", "global"], "weights: local with "),
        (["--weights", "mine"], "weights"),
        (["--clients", "1"], "clients: must be from 2 to the run's 3, not 1"),
        (["--clients", "4"], "clients: must be from 2 to the run's 3, not 4"),
        (["--epochs", "-1"], "epochs: must be at least 0, not -1"),
    ],
)
def test_what_is_wrong_is_a_sentence(words: list[str], says: str, path: Path, capsys: Any):
    before = (path / "run.db").read_bytes()
    with pytest.raises(SystemExit) as ended:
        main(["gain", str(path), *words])
    errors = capsys.readouterr().err
    assert ended.value.code == 2 and says in errors and len(errors.splitlines()) == 1
    assert (path / "run.db").read_bytes() == before


def test_no_supernet(tiny: Tiny, tmp_path: Path):
    """A search without choices has none, nor has a server that serves no weights."""
    done = run(table(tiny, "perfedrlnas", rounds=1), tmp_path / "fixed")
    with pytest.raises(UserError, match="perfedrlnas with cnn has no global supernet to cut"):
        measure_gain(done.path, 1, "global")
    done = run(rlnas(tiny, rounds=1), tmp_path / "search")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedtailor.algorithms.perfedrlnas.PerFedRLNAS.serve", lambda *_: Message())
        with pytest.raises(UserError, match="has no global supernet to cut networks from, so take"):
            measure_gain(done.path, 1, "global")
    assert pair_table.tuned_pairs(done.db, "global", 1) == []


def test_no_models_no_end_no_others(tiny: Tiny, path: Path, tmp_path: Path):
    done = run(table(tiny, "fedavg", rounds=1, save_models=False), tmp_path / "none")
    with pytest.raises(UserError, match="saved no models, which save_models = true would have"):
        measure_gain(done.path)
    shutil.rmtree(path / "clients" / "002")
    with pytest.raises(UserError, match=r"clients/002: the client's saved model cannot be read"):
        measure_gain(path, epochs=1)
    Run(path).db.query("DELETE FROM event WHERE kind = 'finished'")
    with pytest.raises(UserError, match=r"the run is not finished; `fedtailor resume .*run` goes"):
        measure_gain(path)
    alone = table(tiny, "fedavg", rounds=1, data__clients=1)
    with pytest.raises(UserError, match="a gain needs at least 2 clients, but the run has 1"):
        measure_gain(run(alone, tmp_path / "alone").path)
    with pytest.raises(UserError, match="not a run folder"):
        measure_gain(tmp_path)


def test_a_folder_that_another_process_works_in_is_left_alone(path: Path):
    with lock_folder(path), pytest.raises(UserError, match="another process"):
        measure_gain(path, epochs=1)
    assert pairs(path, 1) == []


def test_other_data_than_the_run_s_is_refused(path: Path):
    config = path / "config.toml"
    config.write_text(config.read_text().replace("per_client = 100", "per_client = 90"))
    with pytest.raises(UserError, match="no longer what the run began with"):
        measure_gain(path, epochs=1)


def test_it_is_told_in_a_table_and_in_json(path: Path, capsys: Any):
    found = measure_gain(path, epochs=1)
    for words in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["gain", str(path), "--epochs", "1", *words])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        if words:
            rows = {str(client): one for client, one in found["per_client"].items()}
            assert json.loads(text) == found | {"per_client": rows}
            continue
        lines = text.splitlines()
        assert "local: networks of 3 clients, as they are, tuned for 1 epochs" in lines[0]
        for client, one in found["per_client"].items():
            (line,) = [line for line in lines if line.split()[0] == str(client)]
            values = [one[name] for name in ("own_untuned", "own", "others")]
            assert [float(word) for word in line.split()[1::2][:3]] == pytest.approx(
                [100 * value for value in values], abs=0.051
            )
            assert float(line.split()[-1]) == pytest.approx(100 * one["gain"], abs=0.0051)
        assert f"mean gain       {100 * found['gain']:+.2f} points" in text and "all 6 ways" in text


def test_interrupted_it_says_how_to_go_on(path: Path, monkeypatch: Any, capsys: Any):
    added = pair_table.add_pair

    def add_and_stop(*given: Any) -> None:
        added(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(gain.pair_table, "add_pair", add_and_stop)
    with pytest.raises(SystemExit) as ended:
        main(["gain", str(path), "--epochs", "1", "--clients", "2"])
    errors = capsys.readouterr().err
    assert ended.value.code == 130 and len(rows(path)) == 1
    again = f"go on with: fedtailor gain {path} --epochs 1 --weights theirs --clients 2"
    assert "stopped in network 1 of 2" in errors and again in errors
