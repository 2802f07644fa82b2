"""Accuracy on labels that a client trains on and on others: told apart wherever it is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.cli.terminal import summary_lines
from fedtailor.data.federation import Federation, load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.report.facts import clients_in_order
from fedtailor.report.pictures import labels
from fedtailor.report.tables import Row, client_table, result_tables
from fedtailor.runs.comparison import groups
from fedtailor.runs.config import make_config
from fedtailor.runs.create import create_run
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from tests.helpers.sample_runs import table

Tiny = Callable[..., dict[str, Any]]
TABLE = table("fedavg") | {
    "data": {"clients": 6, "partition": "shards", "classes_per_client": 3, "per_client": 60,
             "test_unseen": 0.5},
    "rounds": 2,
    "algorithm": {"name": "fedavg", "lr": 0.1, "finetune_epochs": 2},
}  # fmt: skip


def rows_of(*runs: Run) -> list[Row]:
    return [Row(group, [summarise(one) for one in group.runs]) for group in groups(runs)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(TABLE, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture(scope="module")
def data() -> Federation:
    return load_federation(make_config(TABLE).data)


def test_both_add_up_to_all(whole: Run, data: Federation):
    """Of every client, model and split: weighed by their numbers of images."""
    unseen, tests = data.unseen_tests().sum(axis=1), data.label_counts("test").sum(axis=1)
    assert unseen.tolist() == [6] * 6 and tests.tolist() == [12] * 6
    rows = whole.db.query("SELECT round, client, model, name, value FROM metric"
                          " WHERE split = 'test'")  # fmt: skip
    found = {row[:-1]: row[-1] for row in rows}
    keys = {key[:-1] for key in found}
    assert len(keys) == 6 * 2
    for key in keys:
        apart = [found[(*key, f"{name}_accuracy")] for name in ("seen", "unseen")]
        assert sum(apart) / 2 == pytest.approx(found[(*key, "accuracy")])


def test_a_client_that_trains_alone_knows_no_unseen_label(tmp_path: Path):
    alone = TABLE | {"algorithm": {"name": "local", "lr": 0.1, "epochs": 10}}
    found = summarise(run(alone, tmp_path / "run"))
    assert found["unseen_labels"]["mean"] == 0
    assert found["seen_labels"]["mean"] == pytest.approx(2 * found["test_accuracy"]["mean"])


def test_workers_give_the_same_bytes(whole: Run, tmp_path: Path):
    assert digest(run(TABLE | {"engine": {"workers": 2}}, tmp_path / "run")) == digest(whole)


def test_show_and_report_tell_them_apart(whole: Run):
    summary = summarise(whole)
    for name in ("seen", "unseen"):
        rows = whole.db.query("SELECT client, value FROM metric WHERE round = 2 AND split = 'test'"
                              " AND model = 'tuned' AND name = ?", f"{name}_accuracy")  # fmt: skip
        wanted = dict(rows)
        assert summary[f"{name}_labels"]["per_client"] == wanted and len(wanted) == 6
    mean, std = (100 * summary["unseen_labels"][key] for key in ("mean", "std"))
    (line,) = [one for one in summary_lines(summary) if one.startswith("unseen labels")]
    assert f"{mean:.1f} % ± {std:.1f}" in line and "(6 clients)" in line
    _, more = result_tables(rows_of(whole))
    cells = dict(zip(more.columns, more.rows[0][1], strict=True))
    assert cells["seen labels"].value == summary["seen_labels"]["mean"]
    assert cells["unseen labels"].value == summary["unseen_labels"]["mean"]
    clients = client_table(groups([whole]))
    assert clients is not None and clients["columns"][-2:] == ["seen labels", "unseen labels"]
    for client, _, cells in clients["rows"]:
        assert cells[-1].value == summary["unseen_labels"]["per_client"][client]


def test_nothing_is_told_apart_unless_asked_for(tiny: Tiny, tmp_path: Path):
    found = run(tiny(rounds=1), tmp_path / "run")
    summary = summarise(found)
    assert summary["seen_labels"] is summary["unseen_labels"] is None
    assert not found.db.query("SELECT 1 FROM metric WHERE name LIKE '%seen_accuracy'")
    assert not any("unseen" in line for line in summary_lines(summary))
    assert "unseen labels" not in result_tables(rows_of(found))[1].columns
    clients = client_table(groups([found]))
    assert clients is not None and "unseen labels" not in clients["columns"]


def test_a_run_beside_others_has_an_empty_cell(whole: Run, tiny: Tiny, tmp_path: Path):
    other = run(tiny(rounds=1), tmp_path / "run")
    _, more = result_tables(rows_of(whole, other))
    at = more.columns.index("unseen labels")
    assert more.rows[0][1][at].value is not None and more.rows[1][1][at].value is None


def test_the_plan_tells_how_many(data: Federation):
    found = plan(make_config(TABLE))
    assert found["unseen_tests"] == [6] * 6
    assert [line.endswith("|  6 tests unseen") for line in plan_lines(found) if "|" in line] == [
        True
    ] * 6


def test_the_picture_marks_them(whole: Run, data: Federation):
    drawn = labels.label_distribution(groups([whole]))
    assert drawn
    (figure,) = drawn.panels
    marks: Any = figure.axes[1].collections
    order = clients_in_order(groups([whole]))
    wanted = {(x, y) for x, y in zip(*np.nonzero(data.unseen_tests()[order]), strict=True)}
    assert {tuple(place) for place in np.asarray(marks[1].get_offsets()).astype(int)} == wanted
    assert "36 test images are of unseen classes" in figure.axes[0].get_title("left")
    assert whole.partition()["unseen"].tolist() == data.unseen_tests().tolist()


def test_many_clients_have_them_marked_by_colour(tmp_path: Path):
    config = make_config(
        TABLE | {"data": TABLE["data"] | {"clients": 70, "per_client": 20, "test_unseen": 0.25}}
    )
    data = load_federation(config.data)
    many = create_run(tmp_path / "many", config, (), data)
    drawn = labels.label_distribution(groups([many]))
    assert drawn
    image = np.asarray(drawn.panels[0].axes[1].images[0].get_array())
    vermilion = np.abs(image[..., :3] - np.array([0xD5, 0x5E, 0x00]) / 255).sum(axis=2) < 1e-6
    assert np.array_equal(vermilion, data.unseen_tests().T > 0) and vermilion.any()


def test_runs_made_before_they_were_kept_are_drawn_without(whole: Run, tmp_path: Path):
    old = create_run(
        tmp_path / "old", make_config(TABLE), (), load_federation(make_config(TABLE).data)
    )
    kept = {name: value for name, value in old.partition().items() if name != "unseen"}
    np.savez_compressed(old.path / "partition.npz", allow_pickle=False, **kept)
    drawn = labels.label_distribution(groups([Run(old.path)]))
    assert drawn and "unseen" not in drawn.panels[0].axes[0].get_title("left")
