"""The pictures show what the run holds."""

from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from matplotlib.colors import to_rgba

from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import prepare
from fedtailor.report import facts
from fedtailor.report.drawing import COLOURS, LOSER
from fedtailor.report.pictures import any_run
from fedtailor.report.svg import to_svg
from fedtailor.runs.config import make_config, read_config
from fedtailor.runs.create import create_run
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import curve, summarise
from tests.helpers.sample_runs import CLIENTS, edit, report, table


def test_curves_over_rounds(fedavg: Run, local: Run):
    figure = any_run.accuracy_over_rounds([fedavg, local])
    assert figure
    rounds, sent, time = figure.axes
    points = curve(fedavg)
    mean, worst = rounds.lines[:2]
    assert np.array_equal(mean.get_xdata(), [2, 4])
    assert np.allclose(mean.get_ydata(), [100 * p["mean"] for p in points])
    assert np.allclose(worst.get_ydata(), [100 * p["worst10"] for p in points])
    summary = summarise(fedavg)
    assert np.asarray(sent.lines[0].get_xdata())[-1] == sum(summary["bytes"].values()) / 1e6
    last = np.asarray(time.lines[0].get_xdata())[-1]
    assert last == pytest.approx(summary["modelled_s"], abs=1e-3)
    assert np.array_equal(sent.lines[2].get_xdata(), [0])  # nothing is sent: a dot
    assert mean.get_color() == COLOURS[0] and rounds.lines[2].get_color() == COLOURS[1]


def test_steps_over_clients(fedavg: Run, local: Run):
    figure = any_run.accuracy_over_clients([fedavg, local])
    assert figure
    ours, alone = figure.axes[0].lines
    accuracy = sorted(facts.accuracies(fedavg).values())
    assert sorted(np.asarray(ours.get_xdata())[1:] / 100) == pytest.approx(accuracy)
    assert (ours.get_linestyle(), alone.get_linestyle()) == ("-", "--")


def test_gains_are_sorted_and_losers_stand_out(changed: Path):
    loser = facts.clients_in_order([Run(changed)])[0]
    accuracy = "UPDATE metric SET value = ? WHERE name = 'accuracy' AND round = 4 AND"
    edit(changed, f"{accuracy} model = 'untuned'", 0.5)
    for client in range(CLIENTS):
        value = 0.25 if client == loser else 0.6 + 0.05 * client
        edit(changed, f"{accuracy} model = 'tuned' AND client = ?", value, client)
    figure = any_run.gain_per_client([Run(changed)])
    assert figure
    axes: Any = figure.axes[0]
    heights = np.array([bar.get_height() for bar in axes.patches]).reshape(2, CLIENTS)
    winners = [10 + 5 * c for c in reversed(range(CLIENTS)) if c != loser]
    assert heights[0] == pytest.approx([*winners, 0])
    assert heights[1] == pytest.approx([0] * (CLIENTS - 1) + [-25])
    assert axes.patches[-1].get_facecolor() == to_rgba(LOSER)
    assert [tick.get_text() for tick in axes.get_xticklabels()][-1] == str(loser)
    assert axes.get_title("left") == f"fedavg: {CLIENTS - 1} of {CLIENTS} clients gain, 1 lose"


def test_gains_over_training_alone(fedavg: Run, local: Run):
    (gain,) = facts.gains([fedavg, local])
    ours, alone = facts.accuracies(fedavg), facts.accuracies(local)
    assert (gain.run, gain.over) == (0, "training alone")
    assert gain.per_client == {c: ours[c] - alone[c] for c in range(CLIENTS)}


def test_label_bubbles(fedavg: Run):
    counts = load_federation(read_config(fedavg.path / "config.toml").data).label_counts()
    figure = any_run.label_distribution([fedavg])
    assert figure
    sizes: Any = figure.axes[0]
    marks: Any = figure.axes[1].collections[0]
    order = facts.clients_in_order([fedavg])
    assert [bar.get_height() for bar in sizes.patches] == counts[order].sum(axis=1).tolist()
    assert len(marks.get_offsets()) == np.count_nonzero(counts)
    largest = np.asarray(marks.get_offsets())[np.argmax(marks.get_sizes())]
    assert counts[order][tuple(largest.astype(int))] == counts.max()


def test_many_clients_are_a_heat_map(tmp_path: Path):
    config = make_config(table("fedavg", data={"clients": 70, "partition": "iid"}))
    prepared = prepare(config, load_federation(config.data))
    many = create_run(tmp_path / "many", config, prepared.clients, prepared.federation)
    figure = any_run.label_distribution([many])
    assert figure
    sizes, heat = figure.axes
    assert "70 clients, 10 classes, 1,797 images; too many for bubbles" in sizes.get_title("left")
    assert heat.images[0].get_size() == (10, 70)
    assert heat.get_xlabel() == "the 70 clients, by number"


def test_no_partition_no_label_picture(changed: Path, tmp_path: Path):
    (changed / "partition.npz").unlink()
    assert any_run.label_distribution([Run(changed)]) is None
    assert "Every client" in report(tmp_path, Run(changed))


def test_style_stays_inside(fedavg: Run):
    before = dict(matplotlib.rcParams)
    figure = any_run.accuracy_over_clients([fedavg])
    assert figure and "<svg" in to_svg(figure)
    assert dict(matplotlib.rcParams) == before
