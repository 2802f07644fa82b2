"""The page: its numbers are the run's, and it copes with whatever there is."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.progress import RunProgress
from fedtailor.report import facts
from fedtailor.report.page import default_page, figures_of, write_report
from fedtailor.report.wording import duration
from fedtailor.runs.comparison import accuracies, count_test_images, groups, paired
from fedtailor.runs.config import make_config
from fedtailor.runs.create import create_run
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise
from tests.helpers.sample_runs import CLIENTS, DATA, Reader, edit, made_up, report, table


@pytest.mark.usefixtures("no_pictures")
def test_headline_is_the_summary(fedavg: Run, tmp_path: Path):
    page, summary = Reader(report(tmp_path, fedavg)), summarise(fedavg)
    assert page.headline() == [
        {
            "accuracy": summary["test_accuracy"]["mean"],
            "worst 10 %": summary["test_accuracy"]["worst10"],
            "untuned": summary["untuned"]["mean"],
            "space": None,
            "mean over images": weighted(fedavg),
            "val-selected": summary["val_selected"]["mean"],
            "balanced accuracy": summary["other_scores"]["balanced_accuracy"]["mean"],
            "macro-F1": summary["other_scores"]["macro_f1"]["mean"],
            "MB up, down": summary["bytes"]["up"],
            "modelled time": summary["modelled_s"],
            "wall time": summary["wall_s"],
            "rounds": 4,
            "failures": 0,
        }
    ]
    (group,) = groups([fedavg])
    found = group.accuracy
    assert found and found.low is not None and found.high is not None
    low, high = 100 * max(found.low, 0), 100 * min(found.high, 1)
    assert (
        f"fedavg: {100 * found.mean:.1f} % test accuracy on average over {CLIENTS} clients (95 % "
        f"interval {low:.1f} to {high:.1f} %)" in page.text
    )
    assert f"±\u00a0{100 * (found.high - found.mean):.1f}" in page.text
    assert f"{summary['bytes']['down'] / 1e6:.2f} down" in page.text
    assert summary["digest"] in page.text
    assert (fedavg.path / "config.toml").read_text() in page.text
    assert "validation chose round" in page.text
    assert "not finished" not in page.text
    assert f"Written by fedtailor {fedtailor.__version__}." in page.text
    about = json.loads((fedavg.path / "environment.json").read_text())
    assert f"torch {about['packages']['torch']}" in page.text and about["platform"] in page.text


def weighted(run: Run) -> Any:
    images, values = count_test_images(run), accuracies(run)
    share = sum(images[client] * value for client, value in values.items())
    return pytest.approx(share / sum(images[client] for client in values))


@pytest.mark.usefixtures("no_pictures")
def test_of_several_runs_columns_that_say_nothing_are_left_out(
    fedavg: Run, local: Run, changed: Path, tmp_path: Path
):
    text = report(tmp_path, fedavg, local)
    assert not {"space", "failures"} & set(Reader(text).headline()[0])
    assert "<h1>fedavg, local on digits with cnn</h1>" in text
    edit(changed, "INSERT INTO event VALUES (1, 0, 'failure', 'it was cold', '')")
    config = (changed / "config.toml").read_text()
    (changed / "config.toml").write_text(config.replace('"cnn"', '"resnet18"'))
    page = Reader(report(tmp_path, local, Run(changed)))
    assert [row["failures"] for row in page.headline()] == [0, 1]
    more = page.texts("results")[-2:]
    assert [row[1] for row in more] == ["cnn", "resnet18"]


@pytest.mark.usefixtures("no_pictures")
def test_costs_are_the_summary_s(fedavg: Run, local: Run, tmp_path: Path):
    text = report(tmp_path, fedavg, local)
    assert "What a client's round costs" in text
    for row, made in zip(Reader(text).table("costs"), (fedavg, local), strict=True):
        cost = summarise(made)["cost"]
        assert row == {
            "CPU seconds": cost["sum"]["seconds"]["mean"],
            "multiply-adds (M)": cost["sum"]["macs"]["mean"] / 1e6,
            "server's CPU seconds": cost["server"]["sum"]["seconds"]["mean"],
            "MB down": cost["bytes"]["down"]["mean"] / 1e6,
            "MB up": cost["bytes"]["up"]["mean"] / 1e6,
        }


@pytest.mark.usefixtures("no_pictures")
def test_what_is_sent_once_stands_beside_the_rest(changed: Path, fedavg: Run, tmp_path: Path):
    edit(changed, "INSERT INTO message VALUES (1, 0, 'once', 7000000)")
    page = Reader(report(tmp_path, Run(changed), fedavg))
    assert [row["MB up, down"] for row in page.headline()] == [summarise(fedavg)["bytes"]["up"]] * 2
    down = summarise(fedavg)["bytes"]["down"] / 1e6
    assert f"{down:.2f} down\n7.00 once" in page.text
    assert [row["MB once"] for row in page.table("costs")] == [7.0, None]


@pytest.mark.usefixtures("no_pictures")
def test_one_run_lists_untuned_tuned_and_gain(fedavg: Run, tmp_path: Path):
    found, summary = Reader(report(tmp_path, fedavg)).clients(), summarise(fedavg)
    tuned, untuned = (summary[key]["per_client"] for key in ("test_accuracy", "untuned"))
    assert found == {c: [untuned[c], tuned[c], pytest.approx(tuned[c] - untuned[c])] for c in tuned}
    gain = [row[2] for row in found.values()]
    assert gain == sorted(gain, key=lambda value: -(value or 0.0))


@pytest.mark.usefixtures("no_pictures")
def test_several_runs_have_a_row_and_a_column_each(fedavg: Run, local: Run, tmp_path: Path):
    page = Reader(report(tmp_path, local, fedavg))
    summaries = [summarise(local), summarise(fedavg)]
    accuracy = [summary["test_accuracy"] for summary in summaries]
    assert [row["accuracy"] for row in page.headline()] == [a["mean"] for a in accuracy]
    for client, values in page.clients().items():
        assert values == [a["per_client"][client] for a in accuracy]
    assert all(summary["digest"] in page.text for summary in summaries)
    assert "did not deal the same images" not in page.text


@pytest.mark.usefixtures("no_pictures")
def test_a_tie_is_called_one(changed: Path, fedavg: Run, tmp_path: Path):
    page = report(tmp_path, fedavg, Run(changed))
    says = "No difference beyond chance between fedavg (fedavg) and fedavg (changed): "
    assert says in page
    assert 'class="best"' not in page


def set_accuracies(path: Path, values: list[float]) -> Run:
    for client, value in enumerate(values):
        accuracy = "UPDATE metric SET value = ? WHERE name = 'accuracy' AND split = 'test'"
        edit(path, f"{accuracy} AND client = ?", value, client)
    return Run(path)


@pytest.mark.usefixtures("no_pictures")
def test_a_winner_is_named_only_beyond_chance(changed: Path, folder: Path, tmp_path: Path):
    base = Path(shutil.copytree(folder / "local", tmp_path / "base"))
    alone = set_accuracies(base, [0.5, 0.6, 0.5, 0.6, 0.5, 0.6])
    lucky = set_accuracies(changed, [0.9, 0.4, 0.9, 0.4, 0.9, 0.4])  # 10 points on average
    page = report(tmp_path, alone, lucky)
    assert "No difference beyond chance between fedavg and local: means of 55.0 to 65.0 %" in page
    assert 'class="best"' not in page and "fedavg is ahead" not in page
    better = set_accuracies(changed, [0.6, 0.7, 0.6, 0.7, 0.6, 0.8])
    page = report(tmp_path, alone, better)
    assert "fedavg is ahead: 66.7 % on average over 6 clients, 11.7 points ahead of local" in page
    found = paired(*reversed(groups([alone, better])))
    assert found and found.beyond_chance
    assert f"+{100 * (found.low or 0):.1f} to +{100 * (found.high or 0):.1f}" in page
    assert page.count('class="best"') == 1


@pytest.mark.usefixtures("no_pictures")
def test_seeds_of_a_setting_are_one_row(changed: Path, fedavg: Run, local: Run, tmp_path: Path):
    config = (changed / "config.toml").read_text()
    (changed / "config.toml").write_text(config.replace("seed = 0", "seed = 7", 1))
    again = set_accuracies(changed, [0.0] * CLIENTS)
    page = Reader(report(tmp_path, fedavg, local, again))
    mean = summarise(fedavg)["test_accuracy"]["mean"] / 2
    assert [row["accuracy"] for row in page.headline()] == [
        pytest.approx(mean), summarise(local)["test_accuracy"]["mean"],
    ]  # fmt: skip
    assert ["seed", "0, 7", "0"] in page.texts("differences")
    assert "1 to 2 seeds" in page.text and "Seed 7" in page.text


@pytest.mark.usefixtures("no_pictures")
def test_what_differs_stands_above_the_results(fedavg: Run, local: Run, tmp_path: Path):
    text = report(tmp_path, fedavg, local)
    page = Reader(text)
    assert ["algorithm.name", "fedavg", "local"] in page.texts("differences")
    assert text.index('id="differences"') < text.index('id="results"')
    assert 'id="differences"' not in report(tmp_path, fedavg), "alone"


@pytest.mark.usefixtures("no_pictures")
def test_the_number_of_test_images_is_told(fedavg: Run, tmp_path: Path):
    sizes = [count_test_images(fedavg)[client] for client in accuracies(fedavg)]
    page = report(tmp_path, fedavg)
    assert f"{sum(sizes):,} in all: one image is" in page
    assert f"{100 / min(sizes):.1f} points of a client" in page


@pytest.mark.usefixtures("no_pictures")
def test_unequal_rounds_are_told(fedavg: Run, local: Run, tmp_path: Path):
    assert "equally many rounds" not in report(tmp_path, fedavg, local)
    longer = made_up(tmp_path / "longer", rounds=6)
    says = "not trained for equally many rounds: 4 (fedavg and local), 6 (perfedrlnas)."
    assert says.replace("), 6", ") and 6") in report(tmp_path, fedavg, local, longer)


@pytest.mark.usefixtures("no_pictures")
def test_a_folder_that_cannot_be_read_is_named(changed: Path, fedavg: Run, tmp_path: Path):
    edit(changed, "DROP TABLE message")
    with pytest.raises(UserError, match=f"{changed}: cannot be read"):
        report(tmp_path, fedavg, Run(changed))


def test_a_comparison_is_a_new_file(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    paths = [folder / "fedavg", folder / "local"]
    assert default_page(paths) == Path("compare-fedavg-local.html")
    assert figures_of(default_page(paths)) == Path("compare-fedavg-local-figures")
    assert default_page(paths[:1]) == folder / "fedavg" / "report.html"
    assert figures_of(default_page(paths[:1])) == folder / "fedavg" / "figures"
    many = default_page([folder / f"run{k}" for k in range(20)])
    assert many == Path("compare-run0-run1-run2-and-17-more.html")


@pytest.mark.usefixtures("no_pictures")
def test_runs_with_other_data_are_not_compared_by_client(local: Run, tmp_path: Path):
    config = table("fedavg", rounds=2, data=DATA | {"seed": 1})
    other = run(config, out=tmp_path / "other")
    page = report(tmp_path, local, other)
    assert "did not deal the same images" in page
    assert "Different data, so no winner: local " in page
    assert facts.gains(groups([local, other])) == []
    assert 'class="best"' not in page


@pytest.mark.usefixtures("no_pictures")
def test_runs_of_one_algorithm_are_named_by_folder(changed: Path, fedavg: Run, local: Run):
    deeper = Path(shutil.copytree(changed, changed / "x" / "changed"))
    runs = [Run(changed), fedavg, local]
    assert [group.name for group in groups(runs)] == [
        "fedavg (changed)",
        "fedavg (fedavg)",
        "local",
    ]
    assert [group.name for group in groups([Run(changed), Run(deeper)])] == [
        f"fedavg ({changed.resolve()})",
        f"fedavg ({deeper.resolve()})",
    ]


@pytest.mark.usefixtures("no_pictures")
def test_a_run_given_twice_counts_once(folder: Path, fedavg: Run, tmp_path: Path):
    again = Run(folder / "local" / ".." / "fedavg")
    assert report(tmp_path, fedavg, again) == report(tmp_path, fedavg).replace(
        str(fedavg.path), str(again.path)
    )


def test_nothing_trained_yet(tmp_path: Path):
    config = make_config(table("fedavg"))
    prepared = prepare(config, load_federation(config.data))
    new = create_run(tmp_path / "new", config, prepared.clients, prepared.federation)
    page = Reader(report(tmp_path, new))
    assert "Nothing has been tested yet." in page.text
    assert "fedavg is not finished: 0 of 4 rounds are done, no evaluation yet" in page.text
    assert page.headline()[0]["accuracy"] is None
    assert "Every client" not in page.text
    assert "How different are the clients?" in page.text
    assert "At what price?" not in page.text


class Interrupted(RunProgress):
    """Stops the run when its third round begins."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if (name, value) == ("round", 3):
            raise KeyboardInterrupt


def test_interrupted_then_resumed(tmp_path: Path, folder: Path):
    path = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(table("fedavg"), out=path, progress=Interrupted(4))
    page = report(tmp_path, Run(path), Run(folder / "local"))
    assert "fedavg is not finished: 2 of 4 rounds are done, the accuracies are those of" in page
    assert "<b>resumed</b>" not in page
    page = report(tmp_path, resume(path))
    assert "not finished" not in page
    assert "<b>resumed</b>, round 2" in page


@pytest.mark.usefixtures("no_pictures")
def test_failures_are_told_with_their_details(changed: Path, tmp_path: Path):
    Run(changed).note(3, 1, "failure", "client 1 failed: disk full\nTraceback: <module>")
    page = report(tmp_path, Run(changed))
    assert "<b>failure</b>, round 3: client 1 failed: disk full" in page
    assert "<pre>Traceback: &lt;module&gt;</pre>" in page
    assert Reader(page).headline()[0]["failures"] == 1


HOSTILE = ("</svg><script>alert(1)</script>", "$\\frac$", "_x", '"><b>&', 'id="q" url(#r)', "数字")


def test_hostile_names_are_text(fedavg: Run, folder: Path, tmp_path: Path):
    hostile = tmp_path / '<img src=x onerror="alert(1)">&$x_{'
    shutil.copytree(folder / "fedavg", hostile)
    with np.load(hostile / "partition.npz") as file:
        kept = {key: file[key] for key in file.files if key != "classes"}
    classes = np.array([*HOSTILE, *"6789"])
    np.savez_compressed(hostile / "partition.npz", **kept, classes=classes)
    Run(hostile).note(1, 0, "failure", "<script>alert(2)</script>")
    page = report(tmp_path, Run(hostile), fedavg)
    read = Reader(page)
    assert "img" not in read.tags and page.count("<script") == 1, "the page's own"
    assert f"fedavg ({hostile.name})" in read.text
    assert "<script>alert(2)</script>" in read.text
    assert set(HOSTILE[1:]) <= {text.text for text in texts(page)}
    assert HOSTILE[0][:8] + "…" + HOSTILE[0][-7:] in {text.text for text in texts(page)}


def texts(page: str) -> list[ElementTree.Element]:
    svgs = re.findall(r"<svg .*?</svg>", page, re.DOTALL)
    name = "{http://www.w3.org/2000/svg}text"
    return [text for svg in svgs for text in ElementTree.fromstring(svg).iter(name)]


def test_same_bytes_twice(fedavg: Run, local: Run, tmp_path: Path):
    both = []
    for place in ("a", "b"):
        out = tmp_path / place
        write_report([fedavg, local], out / "report.html", out / "figures")
        both.append({p.relative_to(out): p.read_bytes() for p in out.rglob("*.*")})
    assert both[0] == both[1]
    names = {"means", "rounds", "rounds-2", "rounds-3", "clients", "gain", "labels", "timeline",
             "timeline-2"}  # fmt: skip
    assert {p.stem for p in both[0] if p.suffix == ".svg"} == names
    tables = {name for name in names if "-" not in name} | {"every-client"}
    assert {p.stem for p in both[0] if p.suffix == ".csv"} == tables


def test_page_needs_nothing_else(fedavg: Run, local: Run, tmp_path: Path):
    page = report(tmp_path, fedavg, local)
    ids = Reader(page).ids
    assert len(ids) == len(set(ids)) > 100
    named = set(re.findall(r'href="#([^"]*)"|url\(#([^)]*)\)', page))
    assert named and {a or b for a, b in named} <= set(ids)
    assert not re.search(r'\bsrc=|href="[^#]|@import|url\([^#]|<link', page)
    assert "#1c1d22" not in page[page.index("<main>") :]  # the page's own ink, light or dark


def test_files_of_pictures_stand_alone(fedavg: Run, tmp_path: Path):
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "gain.svg").write_text("of an earlier report")
    write_report([fedavg], tmp_path / "report.html", tmp_path / "figures")
    for path in (tmp_path / "figures").glob("*.svg"):
        ElementTree.parse(path)
        text = path.read_text(encoding="utf-8")
        assert "var(--" not in text
        assert "<dc:date>" not in text


def test_a_picture_of_an_earlier_report_goes(local: Run, tmp_path: Path):
    for name in ("gain.svg", "gain-2.svg", "gain.csv", "again.svg"):
        (tmp_path / name).write_text("of an earlier report, or of somebody else")
    write_report([local], tmp_path / "report.html", tmp_path)
    assert not list(tmp_path.glob("gain*")) and (tmp_path / "again.svg").exists()


def test_importing_the_page_does_not_import_matplotlib():
    code = "import sys, fedtailor.report.page; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_runs(tmp_path: Path):
    with pytest.raises(UserError, match="at least one run folder"):
        write_report([], tmp_path / "report.html", None)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.384, "0.38 s"), (12.34, "12.3 s"), (75.4, "1 min 15 s"), (3599.6, "1 h 0 min")],
)
def test_duration(seconds: float, text: str):
    assert duration(seconds) == text
