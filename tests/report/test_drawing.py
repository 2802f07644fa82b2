"""How pictures find room for names."""

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from fedtailor.report.drawing import THIRD, legend, name_clients


def test_client_numbers_have_room():
    for count, shown in ((8, 8), (20, 10), (40, 10)):
        axes = Figure().subplots()
        name_clients(axes, range(count), {})
        texts = [label.get_text() for label in axes.get_xticklabels()]
        assert len(texts) == shown and texts[:2] == ["0", str(count // shown)]


def test_long_names_turn():
    axes = Figure().subplots()
    name_clients(axes, range(20), {client: f"hospital-{client}" for client in range(20)})
    assert len(axes.get_xticklabels()) == 20
    assert all(label.get_rotation() == 90 for label in axes.get_xticklabels())


def test_legends_keep_within_their_panel():
    figure = Figure(figsize=(THIRD, 2.9), layout="constrained")
    figure.subplots()
    name = "perfedsde (a setting with a name that is long)"
    legend(figure, [Line2D([], [], label=name), Line2D([], [], label="mean")])
    figure.draw_without_rendering()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0 and box.x1 <= figure.bbox.width
    first, second = (text.get_text() for text in figure.legends[0].get_texts())
    assert first.startswith("perfedsde (") and first.endswith("is long)") and second == "mean"
