"""What surrogates predicted and what candidates scored: like is compared with like."""

import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import kendalltau

from fedtailor.experiment.lifecycle import run
from fedtailor.report import offspring_facts as facts
from fedtailor.report.page import write_report
from fedtailor.report.pictures.offspring import candidates
from fedtailor.report.pictures.surrogate import predicted_and_measured
from fedtailor.runs.comparison import groups
from fedtailor.runs.folder import Run
from fedtailor.runs.offspring_table import OffspringTable, offspring_table
from fedtailor.runs.summary import digest, summarise
from tests.helpers.sample_runs import edit
from tests.helpers.sde_setting import table

Row = tuple[int, int, int, str, float | None, float, int, float | None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold runs that no test may change: by evolution and at random."""
    path = tmp_path_factory.mktemp("offspring")
    for name in ("evolution", "random"):
        experiment = table(proposer=name, iterations=1, finetune_epochs=0) | {"rounds": 1}
        run(experiment, path / name).close()
    return path


def filed(folder: Path, tmp_path: Path, rows: Iterable[Row], name: str = "evolution") -> Run:
    """Return a copy of a run that noted other offspring."""
    path = Path(shutil.copytree(folder / name, tmp_path / name))
    edit(path, "DELETE FROM offspring")
    for row in rows:
        edit(path, "INSERT INTO offspring VALUES (?, ?, ?, ?, ?, ?, ?, ?)", *row)
    return Run(path)


def noted(run: Run) -> OffspringTable:
    found = offspring_table(run.db)
    assert found is not None
    return found


def test_tau_is_that_of_scipy():
    rng = np.random.default_rng(0)
    for size in (2, 3, 10, 30):
        for _ in range(20):
            first, second = rng.integers(0, 4, size).astype(float), rng.random(size).round(1)
            known: Any = kendalltau(first, second)[0]
            expected = None if np.isnan(known) else pytest.approx(known)
            assert facts.kendall(first, second) == expected
    nothing = np.full(3, np.nan)
    assert facts.kendall(nothing, np.arange(3.0)) is None, "nothing was predicted"


def test_only_what_was_scored_together_is_ranked(folder: Path, tmp_path: Path):
    """Two clients whose offspring are ranked the wrong way, though better clients score more."""
    rows: list[Row] = [
        (1, client, iteration, "evolution", client + guess, 10 * client - guess, 1, None)
        for client in (0, 1)
        for iteration in (0, 1)
        for guess in (0.0, 0.1, 0.2)
    ]
    rows.append((2, 1, 0, "evolution", 0.5, 0.5, 1, None))  # alone: no pair
    found = noted(filed(folder, tmp_path, rows))
    assert np.corrcoef(found.predicted, found.measured)[0, 1] > 0.9, "a trap"
    ranked = facts.ranking(found)
    assert ranked.tau == {(1, 0): -1, (1, 1): -1} and ranked.pairs == {1: 12}
    predicted, measured = facts.centred(found)
    assert predicted == pytest.approx(np.array([-0.1, 0, 0.1] * 4 + [0]))
    assert measured == pytest.approx(-predicted)


def test_predictions_and_their_tau_are_drawn(folder: Path, tmp_path: Path):
    rows: list[Row] = [
        (round, client, 0, "evolution", 0.1 * guess, 0.05 + 0.1 * order[guess], 1, None)
        for round, order in ((1, (0, 1, 2)), (2, (0, 2, 1)))
        for client in (0, 1, 2)
        for guess in range(3)
    ]
    drawn = predicted_and_measured(groups([filed(folder, tmp_path, rows)]))
    assert drawn and len(drawn.panels) == 2 and len(drawn.rows) == 18
    assert np.asarray(drawn.panels[1].axes[0].lines[0].get_ydata()) == pytest.approx([1, 1 / 3])
    assert "Kendall's tau is +0.67 (+0.67 to +0.67) over 3 clients, 18 pairs" in drawn.note
    assert "5.0 points above" in drawn.note
    assert dict(zip(drawn.columns, drawn.rows[-1], strict=True))["pairs_of_round"] == 9


def test_candidates_beside_their_population(folder: Path, tmp_path: Path):
    """Client 0 has three that are 10 points above; client 1 one of two that survives, 10 below."""
    rows: list[Row] = [(1, 0, 0, "evolution", None, score, 1, 0.4) for score in (0.4, 0.5, 0.6)]
    rows += [(1, 1, 0, "evolution", None, 0.2, survives, 0.3) for survives in (0, 1)]
    run = filed(folder, tmp_path, rows)
    assert facts.advantage(noted(run)) == pytest.approx({(1, 0): 0.1, (1, 1): -0.1})
    assert facts.survival(noted(run)) == {(1, 0): 1, (1, 1): 0.5}
    drawn = candidates(groups([run]))
    assert drawn and len(drawn.panels) == 2, "of one run no scores"
    told = {(row[2], row[3]): row[5] for row in drawn.rows}
    assert list(told.values()) == pytest.approx([0, 75])
    assert "+0.0 (" in drawn.note and "75 % survive" in drawn.note
    assert predicted_and_measured(groups([run])) is None, "nothing was predicted"


def test_scores_of_other_weights_are_only_compared_between_runs(folder: Path, tmp_path: Path):
    rows = {
        name: [(1, c, 0, name, 0.5, score + c / 10, 1, None) for c in range(3)]
        for name, score in (("evolution", 0.5), ("random", 0.3))
    }
    bred, drawn_ones = (filed(folder, tmp_path, some, name) for name, some in rows.items())
    assert candidates(groups([bred])) is None
    assert facts.survival(noted(bred)) == facts.advantage(noted(bred)) == {}
    drawn = candidates(groups([bred, drawn_ones]))
    assert drawn and len(drawn.panels) == 1, "neither survivors nor populations"
    assert [row[5] for row in drawn.rows] == pytest.approx([60, 40])
    assert f"{chr(0x2212)}20.0 ({chr(0x2212)}20.0 to {chr(0x2212)}20.0) points" in drawn.note
    assert "pass it for that alone" in drawn.note


def test_settings_that_train_differently_are_not_compared(folder: Path, tmp_path: Path):
    other = Path(shutil.copytree(folder / "random", tmp_path / "other"))
    config = other / "config.toml"
    config.write_text(config.read_text().replace("iterations = 1", "iterations = 2"))
    assert candidates(groups([Run(folder / "evolution"), Run(folder / "random")]))
    assert candidates(groups([Run(folder / "evolution"), Run(other)])) is None


def test_a_run_that_kept_none_is_shown_and_has_the_same_digest(folder: Path, tmp_path: Path):
    whole = Run(folder / "evolution")
    old = Path(shutil.copytree(folder / "evolution", tmp_path / "old"))
    edit(old, "DROP TABLE offspring")
    assert offspring_table(Run(old).db) is None and len(noted(whole)) == 6
    assert digest(Run(old)) == digest(whole)
    assert summarise(Run(old))["archives"] == summarise(whole)["archives"]
    write_report([Run(old)], old / "report.html", old / "figures")
    figures = {path.name for path in (old / "figures").iterdir()}
    assert "options.csv" in figures and not {"surrogate.csv", "candidates.csv"} & figures
