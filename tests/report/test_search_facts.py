"""What is told of a search: policies, the paper's way of testing, and time to accuracy."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.cli.terminal import search_lines
from fedtailor.core.errors import UserError
from fedtailor.core.space import SearchSpace
from fedtailor.report.page import write_report
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise
from fedtailor.runs.time_to_accuracy import reached, time_to, trained_curve, wanted
from fedtailor.search import policy
from tests.helpers.sample_runs import Reader, edit, made_up, report


@pytest.fixture
def made(tmp_path: Path) -> Run:
    return made_up(tmp_path / "made")


def space_of(run: Run) -> SearchSpace:
    return read_config(run.path / "config.toml").space


def test_policies_are_told_without_data(made: Run):
    (made.path / "partition.npz").unlink()
    found, space = database.search(made.db), space_of(made)
    assert [choice["name"] for choice in found["choices"]] == [c.name for c in space.choices]
    assert list(found["clients"]) == list(range(6))
    assert "shared" not in found
    one = found["clients"][3]
    chances = [torch.tensor(p) for p in one["probabilities"].values()]
    assert [int(p.argmax()) for p in chances] == one["genes"]
    assert [float(p.sum()) for p in chances] == pytest.approx([1.0] * 19)
    most = torch.stack([p.max() for p in chances])
    assert one["probability"] == pytest.approx(float(most.prod()))
    assert one["architecture"]["mb1 width"] == space.choices[0].options[one["genes"][0]]
    alphas = torch.cat([p.log() for p in chances])
    assert list(one["entropy"].values()) == pytest.approx(policy.entropies(space, alphas))
    assert summarise(made)["search"] == found


def test_nothing_searched_nothing_told(fedavg: Run, tmp_path: Path):
    assert database.search(fedavg.db) == {} and search_lines({}) == []
    assert summarise(fedavg)["trained"] is None
    new = made_up(tmp_path / "new", rounds=0)
    assert search_lines(database.search(new.db)) == [
        "search          no policy has learned yet, 19 choices"
    ]
    assert "no evaluation yet" in report(tmp_path, new)


def test_forty_five_choices_are_lines_of_a_terminal(tmp_path: Path):
    space = {"name": "mobilenetv3", "preset": "cpu"}
    many = made_up(tmp_path / "many", clients=50, rounds=1, space=space)
    lines = search_lines(database.search(many.db))
    assert max(len(line) for line in lines) < 115
    genes = database.search(many.db)["clients"][7]["genes"]
    assert any("".join(map(str, genes)) in line for line in lines)
    assert sum("most decided" in line or "least decided" in line for line in lines) == 2
    assert "   ... and 10 more (--json has all)" in lines
    assert len(lines) < 50


def test_genes_that_make_no_difference_do_not_count(tmp_path: Path):
    space = {"name": "mobilenetv3", "preset": "cpu"}
    run = made_up(tmp_path / "run", rounds=1, space=space)
    for one in database.search(run.db)["clients"].values():
        chances = one["probabilities"].values()
        product = math.prod(p[gene] for gene, p in zip(one["genes"], chances, strict=True))
        present = policy.acting(space_of(run), tuple(one["genes"])).all()
        if present:
            assert one["probability"] == product
        else:
            assert one["probability"] > product


def test_the_papers_way_is_the_latest_drawn_subnet(made: Run, tmp_path: Path):
    found = summarise(made)["trained"]
    latest = {c: (c + (4 if c % 2 == 0 else 3)) / 20 for c in range(6)}
    assert found["per_client"] == pytest.approx(latest)
    assert found["mean"] == pytest.approx(sum(latest.values()) / 6)
    assert found["worst10"] == min(latest.values()) and found["of"] == 6
    edit(made.path, "DELETE FROM metric WHERE model = 'trained' AND client = 5")
    page = Reader(report(tmp_path, Run(made.path)))
    assert "5 of 6 clients" in page.text
    assert page.headline()[0]["trained"] == pytest.approx(sum(list(latest.values())[:5]) / 5)


def test_time_to_accuracy(made: Run):
    assert time_to(made, 0.2) == {"round": 2, "modelled_s": 20.0, "bytes": 6000}
    assert time_to(made, 0.21) == {"round": 4, "modelled_s": 40.0, "bytes": 12000}
    assert time_to(made, 0.41) is None
    later = time_to(made, 0.2, rounds={4})  # where another run was tested in round 4 alone
    assert later is not None and later["round"] == 4
    curve = trained_curve(made)
    assert [point["clients"] for point in curve] == [3, 6, 6, 6]
    assert [point["mean"] for point in curve] == pytest.approx([0.2, 0.2, 0.25, 0.3])
    assert time_to(made, 0.24, "trained") == {"round": 3, "modelled_s": 30.0, "bytes": 9000}
    assert reached(made, 0.9) == {"accuracy": 0.9, "untuned": None, "trained": None}


def test_a_mean_over_few_clients_does_not_reach(made: Run):
    assert time_to(made, 0.19, "trained") == {"round": 1, "modelled_s": 10.0, "bytes": 3000}
    sql = "DELETE FROM metric WHERE model = 'trained' AND round = 1 AND client = 1"
    edit(made.path, sql)
    found: Any = time_to(Run(made.path), 0.19, "trained")
    assert found["round"] == 2


def test_the_accuracy_to_reach(made: Run, tmp_path: Path):
    assert wanted("0.55") == 0.55
    assert wanted(str(made.path)) == pytest.approx(0.4)
    for wrong in ("55", "0", "nan"):
        with pytest.raises(UserError, match="above 0 and at most 1"):
            wanted(wrong)
    with pytest.raises(UserError, match="nothing has been tested yet"):
        wanted(str(made_up(tmp_path / "new", rounds=1).path))


@pytest.mark.usefixtures("no_pictures")
def test_times_in_the_table(made: Run, fedavg: Run, tmp_path: Path):
    page = write_report([made, fedavg], tmp_path / "page.html", None, 0.3).read_text()
    ours, theirs = Reader(page).headline()
    assert ours["time to 30.0\xa0%"] == 40.0
    assert ours["time to 30.0\xa0%, trained"] == 40.0
    assert theirs["time to 30.0\xa0%, trained"] is None
    assert "Modelled time until" in page
    assert "time to" not in report(tmp_path, made)


@pytest.mark.usefixtures("no_pictures")
def test_warnings_are_notes(made: Run, tmp_path: Path):
    made.note(0, None, "warning", "algorithm.accuracy: not comparable")
    page = Reader(report(tmp_path, made)).text
    assert "perfedrlnas: algorithm.accuracy: not comparable." in page
