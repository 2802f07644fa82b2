"""What a run and its summary say of themselves."""

import json
import re
from pathlib import Path

from fedtailor import Run, summarise
from fedtailor.core.types import Log, Metric
from fedtailor.runs.record import RoundRecord
from tests.helpers.sample_runs import made_up


def test_a_run_says_what_it_is_and_what_it_reached(tmp_path: Path):
    """Made-up clients have accuracy 0.4 after round 4, all of them."""
    made = made_up(tmp_path / "run")
    what = "perfedrlnas with mobilenetv3_plato on digits, 4 of 4 rounds, test accuracy 40.0 %"
    assert repr(made) == f"Run({str(made.path)!r}: {what})"
    said = repr(summarise(tmp_path / "run"))
    assert said.startswith(f"Summary({what[:-1]}± 0.0 % over 6 clients, worst 10 % 40.0 %; keys: ")
    assert said.endswith("search, archives)") and "test_accuracy, untuned, " in said
    config = tmp_path / "run" / "config.toml"
    config.write_text(re.sub("perfedrlnas", "/far/away/mine.py:Mine", config.read_text()))
    assert ": mine.py:Mine with " in repr(Run(tmp_path / "run")), "not where its code is"
    config.unlink()
    assert "config is missing" in repr(Run(tmp_path / "run")), "no error"


def test_what_counts_is_the_last_model_that_a_client_would_deploy(tmp_path: Path):
    made, record = made_up(tmp_path / "run"), RoundRecord(4)
    for client in range(6):
        record.log(client, Log((Metric("test", "accuracy", 0.9, "tuned"),)))
    record.event(None, "models", '["untuned", "tuned"]')
    made.append(record)
    assert repr(made).endswith("test accuracy 90.0 %)")


def test_before_the_first_test_there_is_no_accuracy(tmp_path: Path):
    made = made_up(tmp_path / "run", rounds=0)
    assert repr(made).endswith("on digits, 0 of 1 rounds)")
    assert "0 of 1 rounds, nothing tested yet; keys: " in repr(summarise(made))


def test_a_summary_goes_by_numbers_and_is_json_as_before(tmp_path: Path):
    found = summarise(made_up(tmp_path / "run"))
    assert list(found["test_accuracy"]["per_client"]) == list(range(6))
    assert list(found["search"]["clients"]) == list(range(6))
    told = json.loads(json.dumps(found))
    assert list(told["search"]["clients"]) == ["0", "1", "2", "3", "4", "5"]
