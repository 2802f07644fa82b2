"""The pictures of a search show what the run holds."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba

from fedtailor.cli.terminal import search_lines
from fedtailor.core.space import Task
from fedtailor.experiment.lifecycle import run as run_experiment
from fedtailor.networks import cost
from fedtailor.report import facts, search_facts
from fedtailor.report.likeness import likeness
from fedtailor.report.pictures import budgets, networks, points, searches
from fedtailor.report.search_facts import mean_entropies, what_is_known
from fedtailor.report.svg import COLOURS, LOSER
from fedtailor.runs import database
from fedtailor.runs.archives import archives
from fedtailor.runs.comparison import groups
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run
from tests.helpers import sde_setting
from tests.helpers.sample_runs import made_up, report

BUDGET = {"memory_mb": {"uniform": [1.0, 8.0]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "run"
    made_up(path, budget=BUDGET).close()
    return path


@pytest.fixture
def made(place: Path) -> Run:
    return Run(place)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run whose clients search for themselves."""
    table = sde_setting.table() | {"cohort": 4, "rounds": 2}
    return run_experiment(table, tmp_path_factory.mktemp("alone") / "run")


def test_archives_stand_for_policies(alone: Run):
    found, known = archives(alone), what_is_known(alone)
    assert set(known["clients"]) == set(found) == {0, 1, 2, 3}
    for client, one in found.items():
        for place, choice in enumerate(known["choices"]):
            genes = [arch[place] for arch in one["archive"]]
            shares = [genes.count(option) / 3 for option in range(len(choice["options"]))]
            told = known["clients"][client]
            assert told["probabilities"][choice["name"]] == pytest.approx(shares)
            bits = -sum(share * np.log(share) for share in shares if share)
            entropy = told["entropy"][choice["name"]]
            assert entropy == pytest.approx(bits / np.log(len(shares)))
    pairs = likeness(alone)
    assert pairs is not None and len(pairs.policies) == 6
    assert database.search(alone.db).keys() == {"choices"}, "the server knows nothing of it"
    assert search_lines(database.search(alone.db)) == []


def test_pictures_of_a_search_on_clients(alone: Run):
    drawn = networks.architecture_map(groups([alone]))
    there = search_facts.deployed(alone)
    assert drawn and there
    cells, undecided = drawn.panels[0].axes
    assert np.asarray(cells.images[0].get_array()).shape == (6, 4, 4)
    bars: Any = undecided.patches
    assert [bar.get_width() for bar in bars] == list(mean_entropies(what_is_known(alone)).values())
    drawn = searches.search_over_rounds(groups([alone]))
    assert drawn
    (entropy,) = (figure.axes[0] for figure in drawn.panels)
    last = [
        np.mean(list(one["entropy"].values())) for one in what_is_known(alone)["clients"].values()
    ]
    line = entropy.lines[0]
    assert np.array_equal(line.get_xdata(), [1, 2])
    assert np.asarray(line.get_ydata())[1] == pytest.approx(np.mean(last))
    assert points.similarity(groups([alone])) and points.accuracy_by_cost(groups([alone]))


LOOKED_AT = """
import sys
from fedtailor.cli.app import main
for words in (["show", sys.argv[1]], ["report", sys.argv[1], "--out", sys.argv[2]]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code
sys.exit("torch" in sys.modules or "scipy.stats" in sys.modules)
"""


def test_looking_at_a_search_waits_for_no_torch(alone: Run, tmp_path: Path):
    """It takes longer to import than a run takes to be shown, and so does scipy.stats."""
    words = [sys.executable, "-c", LOOKED_AT, str(alone.path), str(tmp_path / "page.html")]
    assert subprocess.run(words, check=False, stdout=subprocess.DEVNULL).returncode == 0
    assert (tmp_path / "page-figures" / "surrogate.csv").is_file()


def test_searches_stand_side_by_side(alone: Run, made: Run):
    drawn = networks.architecture_map(groups([made, alone]))
    assert drawn and len(drawn.panels) == 2
    titles = [figure.axes[0].get_title("left") for figure in drawn.panels]
    assert titles == ["perfedrlnas", "perfedsde"]
    drawn = searches.search_over_rounds(groups([alone, made]))
    assert drawn
    entropy, reward = (figure.axes[0] for figure in drawn.panels)
    assert (len(entropy.lines), len(reward.lines)) == (2, 2), "of one run, and the zero"


def test_map_of_architectures(made: Run):
    drawn = networks.architecture_map(groups([made]))
    assert drawn
    cells, undecided = drawn.panels[0].axes
    image = np.asarray(cells.images[0].get_array())
    order, there = facts.clients_in_order(groups([made])), search_facts.deployed(made)
    assert there and image.shape == (19, 6, 4)
    genes = np.array([there.genes[client] for client in order]).T
    known = what_is_known(made)["choices"]
    told = {client: [row[3] for row in drawn.rows if row[1] == client] for client in order}
    for client, taken in there.genes.items():
        options = [str(c["options"][g]) for c, g in zip(known, taken, strict=True)]
        assert told[client] == options
    narrow = image[0][genes[0] == 0]
    assert np.allclose(narrow, to_rgba(COLOURS[0])), "the smallest option"
    assert cells.get_yticklabels()[0].get_text() == "mb1 width"
    written = {(round(text.get_position()[0]), round(text.get_position()[1])): text.get_text()
               for text in cells.texts}  # fmt: skip
    options = database.search(made.db)["choices"][0]["options"]
    assert [written[column, 0] for column in range(6)] == [str(options[g]) for g in genes[0]]
    bars: Any = undecided.patches
    assert [bar.get_width() for bar in bars] == list(
        mean_entropies(database.search(made.db)).values()
    )


@pytest.mark.parametrize(("space", "choices"), [("mobilenetv3", 45), ("nasvit", 23), ("darts", 28)])
def test_maps_of_other_spaces(space: str, choices: int, tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2, space={"name": space, "preset": "cpu"})
    drawn = networks.architecture_map(groups([run]))
    assert drawn
    (figure,) = drawn.panels
    image = np.asarray(figure.axes[0].images[0].get_array())
    assert image.shape == (choices, 6, 4)
    assert (image[..., 3] == 0).any() == (space == "mobilenetv3"), "absent layers are clear"
    assert sum(row[4] for row in drawn.rows) == (image[..., 3] == 0).sum()
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("skip_connect" in names) == (space == "darts")


def test_search_over_rounds(made: Run, fedavg: Run):
    drawn = searches.search_over_rounds(groups([fedavg, made]))
    assert drawn
    figure = drawn.panels[0]
    entropy, reward = (panel.axes[0] for panel in drawn.panels)
    line = entropy.lines[0]
    assert np.array_equal(line.get_xdata(), [1, 2, 3, 4])
    assert np.asarray(line.get_ydata()) == pytest.approx([0.9, 0.85, 0.75, 0.65])
    assert line.get_color() == COLOURS[1]
    assert np.asarray(reward.lines[0].get_ydata())[0] == pytest.approx(0.2)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["perfedrlnas"]


def test_one_round_is_seen(tmp_path: Path):
    drawn = searches.search_over_rounds(groups([made_up(tmp_path / "run", rounds=1)]))
    assert drawn
    axes = drawn.panels[0].axes[0]
    assert axes.lines[0].get_marker() == "o"
    low, high = axes.get_xlim()
    assert [tick for tick in axes.get_xticks() if low <= tick <= high] == [0, 1, 2]
    band = axes.collections[0]
    assert isinstance(band, LineCollection)
    ends = np.asarray(band.get_segments()[0])[:, 1]
    assert list(ends) == [drawn.rows[0][-2], drawn.rows[0][-1]], "the band, as a bar"


def test_memory_budgets(made: Run):
    clients = search_facts.memory(made)
    limits = [one.budget for one in clients]
    assert limits == sorted(limits) and len(set(limits)) == 6
    assert all(one.deployed == 2 + one.client for one in clients)
    (first,) = (one for one in clients if one.client == 0)
    assert first.drawn == (True, False)
    drawn = budgets.memory_budgets(groups([made]))
    assert drawn
    taken, overflows = drawn.panels[0].axes
    bars: Any = taken.patches[:6]
    assert [bar.get_height() for bar in bars] == [one.deployed for one in clients]
    lost: Any = overflows.patches
    assert [bar.get_height() for bar in lost] == [50 * (one.client == 0) for one in clients]
    assert lost[0].get_facecolor() == to_rgba(LOSER)
    fit = sum(one.deployed <= one.budget for one in clients)
    assert f"{fit} of 6 deployed networks fit" in taken.get_title("left")
    assert "17 % in 1st half, 0 % in 2nd half" in taken.get_title("left")


def test_shares_of_memory(tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2, budget={"memory_mb": {"share": [0.5, 0.5]}})
    config, images = read_config(run.path / "config.toml"), run.partition()
    task = Task(tuple(images["shape"].tolist()), len(images["classes"]))
    space = config.space.at(task)
    half = cost.training_memory(space, space.largest(), task, config.algorithm.batch) / cost.MIB / 2
    found = [one.budget for one in search_facts.memory(run)]
    assert found == pytest.approx([half] * 6)


def test_pairs_of_clients(made: Run, tmp_path: Path):
    drawn = points.similarity(groups([made]))
    assert drawn and len(drawn.rows) == 15
    (figure,) = drawn.panels
    marks: Any = figure.axes[0].collections[0]
    assert len(marks.get_offsets()) == 15
    assert figure.axes[0].get_title("left").startswith("rank correlation +")
    many = made_up(tmp_path / "many", clients=60, rounds=1)
    drawn = points.similarity(groups([many, made]))
    assert drawn and len(drawn.panels) == 2


def test_size_and_accuracy(made: Run, fedavg: Run):
    drawn = points.accuracy_by_cost(groups([fedavg, made]))
    assert drawn
    sizes, macs = (figure.axes[0] for figure in drawn.panels)
    marks = np.array([[line.get_xdata(), line.get_ydata()] for line in sizes.lines])[..., 0]
    assert np.allclose(marks, [[1 + c / 1e6, 40.0] for c in range(6)], rtol=1e-9)
    assert [str(line.get_gid()).split(":")[1] for line in macs.lines] == [str(c) for c in range(6)]


def test_small_networks_are_told_in_thousands(made: Run, alone: Run):
    drawn = points.accuracy_by_cost(groups([alone]))
    there = search_facts.deployed(alone)
    assert drawn and there
    (axes,) = drawn.panels[0].axes
    assert axes.get_xlabel().startswith("thousand parameters")
    sizes = [there.costs[client]["parameters"] / 1e3 for client in range(4)]
    assert [np.asarray(line.get_xdata())[0] for line in axes.lines] == pytest.approx(sizes)
    drawn = points.accuracy_by_cost(groups([alone, made]))
    assert drawn and drawn.panels[0].axes[0].get_xlabel().startswith("million parameters")


def test_runs_that_do_not_search_have_none_of_it(fedavg: Run, local: Run):
    for draw in (
        networks.architecture_map,
        searches.search_over_rounds,
        searches.options_over_rounds,
        budgets.memory_budgets,
        points.similarity,
        points.accuracy_by_cost,
    ):
        assert draw(groups([fedavg, local])) is None


def test_the_page_has_them_all(made: Run, fedavg: Run, tmp_path: Path):
    page = report(tmp_path, fedavg, made)
    for title in ("Who got which network?", "Has the search decided?", "fit the devices?",
                  "like networks?", "What do small networks cost?"):  # fmt: skip
        assert title in page


def test_an_option_has_one_colour_on_the_page():
    """As in the map of networks, whose first colour is that of no operation."""
    assert searches._colours(["none", "skip_connect"]) == list(networks.KINDS[:2])
    ranks = searches._colours(["smallest", "between", "largest"])
    assert ranks == [networks.SCALE(at) for at in (0.0, 0.5, 1.0)]


def test_what_is_written_on_a_colour_is_read():
    assert networks.readable_on("#0072b2") == networks.WHITE
    assert networks.readable_on("#bdbdbd") == networks.readable_on("#e69f00") == networks.BLACK
