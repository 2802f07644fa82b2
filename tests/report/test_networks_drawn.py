"""Networks drawn one by one, the personalisation matrix, coverage, and where time went."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG

from fedtailor.report import option_shares
from fedtailor.report.client_rounds import client_rounds, failed_clients
from fedtailor.report.pictures import blocks, cells, coverage, matrix, searches, time_spent
from fedtailor.report.representatives import representatives
from fedtailor.report.search_facts import alive_operations, deployed
from fedtailor.report.search_facts import searches as searching
from fedtailor.runs import database, pair_table
from fedtailor.runs.comparison import groups
from fedtailor.runs.folder import Run
from fedtailor.runs.pair_table import TunedPair
from tests.helpers.sample_runs import edit, made_up


def test_representatives_are_told_once():
    accuracies = {0: 0.9, 1: 0.5, 2: 0.7, 3: 0.6, 4: 0.8}
    genes = {0: (0, 0), 1: (1, 1), 2: (0, 0), 3: (0, 0), 4: (0, 1)}
    found = representatives(accuracies, genes)
    assert found == {0: "best, farthest apart", 2: "median", 1: "worst, farthest apart"}
    assert representatives({0: 0.5}, {0: (1,)}) == {0: "best"}
    assert representatives({}, {}) == {}
    assert representatives({0: 0.5, 1: 0.4}, {0: (1,), 1: (1,)}) == {0: "best", 1: "median, worst"}


def test_cells_have_all_edges(tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2, space={"name": "darts", "preset": "cpu"})
    drawn, there = cells.searched_cells(groups([run])), deployed(run)
    assert drawn and there
    choices = database.search(run.db)["choices"]
    clients = {row[1] for row in drawn.rows}
    assert len(drawn.rows) == 28 * len(clients) and len(drawn.panels) == len(clients)
    for client in clients:
        told = [row[-1] for row in drawn.rows if row[1] == client]
        assert told == [c["options"][g] for c, g in zip(choices, there.genes[client], strict=True)]
    normal = drawn.panels[0].axes[0]
    assert len(normal.patches) == 14 + 4, "the edges, and four to the output"
    assert blocks.block_diagrams(groups([run])) is None


def test_labels_of_edges_do_not_stand_on_one_another(tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2, space={"name": "darts", "preset": "cpu"})
    drawn = cells.searched_cells(groups([run]))
    assert drawn
    for figure in drawn.panels:
        FigureCanvasSVG(figure)
        figure.draw_without_rendering()
        for axes in figure.axes:
            boxes = [t.get_window_extent() for t in axes.texts if len(t.get_text()) > 3]
            assert len(boxes) > 5
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_a_mask_is_told_by_its_operations():
    edge = "normal c_{k-2} to 0"
    assert alive_operations("s2", edge, 0) == "none"
    assert alive_operations("s2", edge, 1) == "skip_connect"
    assert alive_operations("s2", edge, 3) == "skip_connect+sep_conv_3x3"
    assert alive_operations("s1", "reduction 2 to 3", 2) == "dil_conv_5x5"


def test_edges_say_what_is_left_of_them():
    skip, conv, pool = "skip_connect", "sep_conv_3x3", "max_pool_3x3"
    assert cells._label([skip, conv]) == "skip+sep 3" and cells._label([]) == ""
    assert cells._label([pool, skip, conv]) == "3", "there is no room for their names"
    assert cells._tint([conv]) == cells.TINTS["sep"]
    assert cells._tint([skip, conv]) not in cells.TINTS.values()


@pytest.mark.parametrize("space", ["mobilenetv3", "mobilenetv3_plato", "nasvit"])
def test_blocks_are_as_deep_as_the_network(space: str, tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2, space={"name": space, "preset": "cpu"})
    drawn, there = blocks.block_diagrams(groups([run])), deployed(run)
    assert drawn and there
    choices = database.search(run.db)["choices"]
    for client in {row[1] for row in drawn.rows}:
        genes = zip(choices, there.genes[client], strict=True)
        depths = [c["options"][g] for c, g in genes if c["name"].endswith(" depth")]
        boxes = [
            row
            for row in drawn.rows
            if row[1] == client and row[3] not in ("stem", "head", "resolution")
        ]
        assert len(boxes) == sum(depths)
    assert cells.searched_cells(groups([run])) is None


def test_personalisation_matrix(tmp_path: Path):
    run = made_up(tmp_path / "run", rounds=2)
    assert matrix.personalisation(groups([run])) is None
    for network in range(4):
        for client in range(4 if network < 3 else 2):  # the last one was interrupted
            tuned = 0.9 if network == client else 0.5
            pair = TunedPair(client, network, 0.1, tuned, "")
            pair_table.add_pair(run.db, "theirs", 5, pair)
    assert matrix.measured(run) == [("theirs", 5, (0, 1, 2))]
    drawn = matrix.personalisation(groups([run]))
    assert drawn and len(drawn.rows) == 9
    title = drawn.panels[0].axes[0].get_title("left")
    assert "their own weights, 5 epochs" in title and "are 40.0 points better, p = 0.167" in title
    written = drawn.panels[0].axes[0].texts
    own = [text.get_text() for text in written if text.get_fontweight() == "bold"]
    assert own == ["90"] * 3 and len(written) == 9


def test_shares_and_coverage_count_what_was_trained(tmp_path: Path):
    run = made_up(tmp_path / "run", space={"name": "darts", "preset": "cpu"})
    every = groups([run])
    (search,) = searching(every)
    rows = database.architectures(run.db, "trained")
    counts = option_shares.coverage(search)
    for place in range(28):
        for gene in range(8):
            number = sum(row.genes[place] == gene for row in rows)
            assert counts.get((place, gene), 0) == number
    shares = option_shares.option_shares(search)
    assert shares and shares.rounds == [1, 2, 3, 4]
    first = [gene for row in rows if row.round == 1 for gene in row.genes]
    expected = [first.count(gene) / len(first) for gene in range(8)]
    assert shares.shares[0] == pytest.approx(expected)
    skips = option_shares.skip_share(shares)
    assert skips and skips[0] == pytest.approx(expected[3])
    drawn = searches.options_over_rounds(every)
    assert drawn and "skip connections are" in drawn.note
    covered = coverage.supernet_coverage(every)
    assert covered and sum(row[-1] for row in covered.rows) == 28 * len(rows)


def test_sizes_are_told_from_small_to_large(tmp_path: Path):
    (search,) = searching(groups([made_up(tmp_path / "run", rounds=2)]))
    shares = option_shares.option_shares(search)
    assert shares and shares.options == ["smallest", "largest", "between"]
    assert shares.shares.sum(axis=1) == pytest.approx(np.ones(2))
    assert option_shares.skip_share(shares) is None


def test_rounds_wait_for_the_slowest(changed: Path):
    edit(changed, "UPDATE timing SET macs = 2e10 * (client + 1) WHERE client NOT NULL")
    edit(changed, "INSERT INTO event VALUES (3, 1, 'failure', 'it was cold', 0)")
    run = Run(changed)
    works = client_rounds(run)
    ends = database.spent_until(run.db)
    for round in range(1, 5):
        own = [work for work in works if work.round == round]
        assert [work.client for work in own if work.slowest] == [max(w.client for w in own)]
        assert {work.start for work in own} == {ends[round - 1][1]}
        assert all(work.seconds > 2 * (work.client + 1) for work in own), "and the line"
    (failed,) = failed_clients(run)
    assert (failed.round, failed.client, failed.start) == (3, 1, ends[2][1])
    drawn = time_spent.timeline(groups([run]))
    assert drawn and len(drawn.rows) == len(works) + 1
    assert "failed" in [text.get_text() for text in drawn.panels[0].legends[0].get_texts()]


def test_parts_are_drawn_where_they_are_told_apart(changed: Path):
    assert time_spent.parts_of_a_round(groups([Run(changed)])) is None
    each = "SELECT round, client, 'search', 1.0, 0.0 FROM timing WHERE client NOT NULL"
    edit(changed, f"INSERT INTO timing {each}")
    drawn = time_spent.parts_of_a_round(groups([Run(changed)]))
    assert drawn and [row[1] for row in drawn.rows] == ["step", "search"]
    assert drawn.rows[1][2] == pytest.approx(1.0)
