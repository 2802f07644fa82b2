"""Looking at a run folder: no code that it names is run, no state is read, nothing is written."""

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import safetensors
import tomli_w

from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.experiment.lifecycle import run
from fedtailor.runs.folder import Run, asked
from fedtailor.runs.summary import digest, summarise
from tests.helpers.sample_runs import made_up, table

BUDGET = {"memory_mb": {"uniform": [1.0, 8.0]}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Hold a run with private states and one of a search; no test may change them."""
    folder = tmp_path_factory.mktemp("runs")
    run(table("ditto", rounds=2), out=folder / "ditto").close()
    made_up(folder / "search", budget=BUDGET).close()
    return folder


def said(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def looks(capsys: pytest.CaptureFixture[str], path: Path, page: Path) -> list[Any]:
    """Return all that can be looked at."""
    shown = said(capsys, "show", path), json.loads(said(capsys, "show", path, "--json"))
    said(capsys, "report", path, "--out", page)
    return [*shown, page.read_text()]


@pytest.mark.parametrize("name", ["ditto", "search"])
def test_no_state_is_read(
    name: str,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    path, page = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(folder / name, path)
    before = looks(capsys, path, page)
    shutil.rmtree(path / "state")
    monkeypatch.setattr(safetensors, "safe_open", None)
    assert looks(capsys, path, page) == before
    assert before[1]["digest"] and (before[1]["search"] != {}) == (name == "search")
    if name == "search":
        for title in ("Who got which network?", "fit the devices?", "like networks?"):
            assert title in before[2]


def test_code_that_a_config_names_is_not_run(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, evil, marker = tmp_path / "run", tmp_path / "evil.py", tmp_path / "it ran"
    shutil.copytree(folder / "search", path)
    evil.write_text(f"open({str(marker)!r}, 'w').close()\n")
    config = tomllib.loads((path / "config.toml").read_text())
    for kind in ("algorithm", "space"):
        config[kind]["name"] = f"{evil}:Class"
    config["data"]["path"] = f"{evil}:images"
    (path / "config.toml").write_text(tomli_w.dumps(config))
    text, found, page = looks(capsys, path, tmp_path / "page.html")
    assert not marker.exists()
    assert found["algorithm"] == f"{evil}:Class" and "evil.py:Class" in text
    assert found["test_accuracy"]["mean"] == pytest.approx(0.4)
    assert "Who got which network?" in page and "evil.py:Class" in page


def test_a_run_from_before_times_were_kept_can_be_looked_at(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path, page = tmp_path / "run", tmp_path / "page.html"
    shutil.copytree(folder / "ditto", path)
    with_times = looks(capsys, path, page)
    assert "cost    " in with_times[0] and "What a client's round costs" in with_times[2]
    Run(path).db.query("DROP TABLE timing")
    text, found, shown = looks(capsys, path, page)
    assert found == with_times[1] | {"cost": None}
    assert "cost    " not in text and "What a client's round costs" not in shown
    said(capsys, "report", path, folder / "ditto", "--out", page)
    assert "What a client's round costs" in page.read_text(), "the other run has them"


def test_looking_writes_nothing(folder: Path, capsys: pytest.CaptureFixture[str]):
    def content() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    said(capsys, "show", folder / "search")
    assert content() == before


def test_a_digest_tells_runs_apart_by_states_metrics_and_architectures(
    folder: Path, tmp_path: Path
):
    known = {digest(Run(folder / "search")), digest(Run(folder / "ditto"))}
    assert len(known) == 2
    for number, change in enumerate((
        "UPDATE state SET digest = 'x' WHERE round = 2",
        "UPDATE version SET digest = 'x' WHERE client = (SELECT min(client) FROM version)",
        "UPDATE metric SET value = value + 1e-9 WHERE model = 'untuned'",
        "UPDATE metric SET model = 'other' WHERE model = 'untuned'",
        "INSERT INTO architecture VALUES (1, 0, 'trained', '[]', 0.5, '{}', '[]')",
    )):  # fmt: skip
        path = tmp_path / str(number)
        shutil.copytree(folder / "ditto", path)
        changed = Run(path)
        changed.db.query(change)
        known.add(digest(changed))
    assert len(known) == 7
    shutil.copytree(folder / "ditto", tmp_path / "slower")
    slower = Run(tmp_path / "slower")
    slower.db.query("UPDATE timing SET seconds = 2 * seconds")
    assert digest(slower) == digest(Run(folder / "ditto")), "nothing timed is in it"


def test_what_a_config_does_not_say_is_a_sentence(folder: Path, tmp_path: Path):
    path = tmp_path / "run"
    shutil.copytree(folder / "ditto", path)
    (path / "config.toml").write_text("rounds = 2\n[data]\n")
    assert asked(Run(path), "rounds") == 2
    with pytest.raises(UserError, match=r"config\.toml: algorithm\.name is missing"):
        summarise(Run(path))
    (path / "config.toml").write_text("rounds =")
    with pytest.raises(UserError, match=r"config\.toml: cannot be read"):
        summarise(Run(path))
    (path / "config.toml").unlink()
    with pytest.raises(UserError, match="the run's config is missing"):
        summarise(Run(path))


@pytest.mark.parametrize("text", ["{not json", "5", ""])
@pytest.mark.parametrize(
    "column", ["architecture.arch", "architecture.cost", "architecture.idle", "event.text",
               "search.found"]
)  # fmt: skip
def test_damaged_json_in_the_database_is_a_sentence(
    folder: Path, tmp_path: Path, column: str, text: str, capsys: pytest.CaptureFixture[str]
):
    shutil.copytree(folder / "search", tmp_path / "run")
    table, name = column.split(".")
    damaged = Run(tmp_path / "run")
    if table == "event":
        damaged.note(4, None, "models", "[]")
    damaged.db.query(f"UPDATE {table} SET {name} = ?", text)
    damaged.close()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "run")])
    message = capsys.readouterr().err
    assert ended.value.code == 2 and len(message.splitlines()) == 1
    assert "run.db: cannot be read" in message and repr(text) in message


def test_a_config_whose_tables_are_none_breaks_no_words(folder: Path, tmp_path: Path):
    shutil.copytree(folder / "ditto", tmp_path / "run")
    (tmp_path / "run" / "config.toml").write_text("algorithm = 5\nspace = []\n")
    assert "None with None" in repr(Run(tmp_path / "run"))


def test_a_comparison_is_a_page_of_its_own(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    paths = [Path(shutil.copytree(folder / name, tmp_path / name)) for name in ("ditto", "search")]
    before = {path: path.read_bytes() for one in paths for path in one.rglob("*") if path.is_file()}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = said(capsys, "report", *paths)
    assert text.startswith("wrote compare-ditto-search.html, its figures and their numbers in ")
    said(capsys, "report", paths[0], "--out", "other.html")
    assert {path.name for path in Path().iterdir()} == {
        "compare-ditto-search.html", "compare-ditto-search-figures",
        "other.html", "other-figures",
    }  # fmt: skip
    after = {path: path.read_bytes() for one in paths for path in one.rglob("*") if path.is_file()}
    assert after == before
