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
from fedtailor.report.pictures import labels, over_clients, over_rounds
from fedtailor.report.svg import COLOURS, LOSER, to_svg
from fedtailor.report.wording import MINUS
from fedtailor.runs.comparison import accuracies, groups
from fedtailor.runs.config import make_config, read_config
from fedtailor.runs.create import create_run
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import curve, summarise
from tests.helpers.sample_runs import CLIENTS, edit, report, table


def test_curves_over_rounds(fedavg: Run, local: Run):
    drawn = over_rounds.accuracy_over_rounds(groups([fedavg, local]))
    assert drawn
    rounds, sent, time = (figure.axes[0] for figure in drawn.panels)
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
    drawn = over_clients.accuracy_over_clients(groups([fedavg, local]))
    assert drawn
    ours, alone = (line for line in drawn.panels[0].axes[0].lines if line.get_gid() is None)
    accuracy = sorted(accuracies(fedavg).values())
    assert sorted(np.asarray(ours.get_xdata())[1:] / 100) == pytest.approx(accuracy)
    assert (ours.get_linestyle(), alone.get_linestyle()) == ("-", "--")


def test_gains_are_sorted_and_losers_stand_out(changed: Path):
    loser = facts.clients_in_order(groups([Run(changed)]))[0]
    accuracy = "UPDATE metric SET value = ? WHERE name = 'accuracy' AND round = 4 AND"
    edit(changed, f"{accuracy} model = 'untuned'", 0.5)
    for client in range(CLIENTS):
        value = 0.25 if client == loser else 0.6 + 0.05 * client
        edit(changed, f"{accuracy} model = 'tuned' AND client = ?", value, client)
    drawn = over_clients.gain_per_client(groups([Run(changed)]))
    assert drawn
    axes: Any = drawn.panels[0].axes[0]
    bars = axes.patches[: 2 * CLIENTS]
    heights = np.array([bar.get_height() for bar in bars]).reshape(2, CLIENTS)
    winners = [10 + 5 * c for c in reversed(range(CLIENTS)) if c != loser]
    assert heights[0] == pytest.approx([*winners, 0])
    assert heights[1] == pytest.approx([0] * (CLIENTS - 1) + [-25])
    assert bars[-1].get_facecolor() == to_rgba(LOSER)
    assert [tick.get_text() for tick in axes.get_xticklabels()][-1] == str(loser)
    assert axes.get_title("left").endswith(f"; {CLIENTS - 1} of {CLIENTS} gain, 1 lose")
    told = [patch.get_gid() for patch in axes.patches if patch.get_gid()]
    assert f"column:{loser}:{MINUS}25.0 points" in told


def test_gains_over_training_alone(fedavg: Run, local: Run):
    (gain,) = facts.gains(groups([fedavg, local]))
    ours, alone = accuracies(fedavg), accuracies(local)
    assert (gain.group, gain.over) == (0, "training alone")
    assert gain.per_client == {c: ours[c] - alone[c] for c in range(CLIENTS)}


def test_label_bubbles(fedavg: Run):
    counts = load_federation(read_config(fedavg.path / "config.toml").data).label_counts()
    drawn = labels.label_distribution(groups([fedavg]))
    assert drawn
    (figure,) = drawn.panels
    sizes: Any = figure.axes[0]
    marks: Any = figure.axes[1].collections[0]
    order = facts.clients_in_order(groups([fedavg]))
    assert [bar.get_height() for bar in sizes.patches] == counts[order].sum(axis=1).tolist()
    assert len(marks.get_offsets()) == np.count_nonzero(counts)
    largest = np.asarray(marks.get_offsets())[np.argmax(marks.get_sizes())]
    assert counts[order][tuple(largest.astype(int))] == counts.max()


def test_many_clients_are_a_heat_map(tmp_path: Path):
    config = make_config(table("fedavg", data={"clients": 70, "partition": "iid"}))
    prepared = prepare(config, load_federation(config.data))
    many = create_run(tmp_path / "many", config, prepared.clients, prepared.federation)
    drawn = labels.label_distribution(groups([many]))
    assert drawn
    sizes, heat = drawn.panels[0].axes
    assert "70 clients, 10 classes, 1,797 images;\ntoo many for bubbles" in sizes.get_title("left")
    assert heat.images[0].get_size() == (10, 70)
    assert heat.get_xlabel() == "the 70 clients, by number"


def test_no_partition_no_label_picture(changed: Path, tmp_path: Path):
    (changed / "partition.npz").unlink()
    assert labels.label_distribution(groups([Run(changed)])) is None
    assert "Every client" in report(tmp_path, Run(changed))


def test_style_stays_inside(fedavg: Run):
    before = dict(matplotlib.rcParams)
    drawn = over_clients.accuracy_over_clients(groups([fedavg]))
    assert drawn and "<svg" in to_svg(drawn.panels[0])
    assert dict(matplotlib.rcParams) == before


def test_equal_curves_are_both_seen(fedavg: Run, changed: Path):
    """Of two runs that did the same, the second is dashes upon the first, and its key says so."""
    drawn = over_rounds.accuracy_over_rounds(groups([fedavg, Run(changed)]))
    assert drawn
    first, _, second, _ = drawn.panels[0].axes[0].lines
    assert (first.get_linestyle(), second.get_linestyle()) == ("-", "--")
    texts = [text.get_text() for text in drawn.panels[0].legends[0].get_texts()]
    assert texts[1] == "fedavg (changed)\nas fedavg (fedavg)"


def test_means_have_intervals(fedavg: Run, local: Run):
    both = groups([fedavg, local])
    drawn = over_clients.means_of_settings(both)
    assert drawn and over_clients.means_of_settings(both[:1]) is None
    for group, row, line in zip(both, drawn.rows, drawn.panels[0].axes[0].lines, strict=True):
        found = group.accuracy
        assert found and row == (group.name, 1, CLIENTS, found.mean, found.low, found.high)
        low, high = np.asarray(line.get_xdata())
        assert low == pytest.approx(100 * (found.low or 0))
        assert high == pytest.approx(min(100 * (found.high or 0), 100))


def test_marks_say_their_clients(fedavg: Run, tmp_path: Path):
    page = report(tmp_path, fedavg)
    value = 100 * accuracies(fedavg)[3]
    assert f'data-client="3"><title>client 3: {value:.1f} %, fedavg</title>' in page
    assert '<tr data-client="3">' in page
