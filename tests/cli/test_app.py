"""The command line as people use it: real processes, exit codes, and what is printed."""

import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from fedtailor.algorithms.spider import SPIDER
from fedtailor.cli import demo
from fedtailor.cli.app import main
from fedtailor.experiment.lifecycle import run as run_experiment
from fedtailor.runs.config import make_config, write_config
from fedtailor.runs.summary import digest
from tests.helpers.foreground import hear_ctrl_c

Tiny = Callable[..., dict[str, Any]]
COMMAND = [sys.executable, "-m", "fedtailor"]


def fedtailor(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *(str(word) for word in words)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, check=False, timeout=200
    )


class Said(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Return the command line without a process of its own, which takes seconds to begin."""

    def main_of(*words: str | Path) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        out, errors = capsys.readouterr()
        return Said(int(ended.value.code or 0), out, errors)

    return main_of


@pytest.fixture
def config(tiny: Tiny, tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    write_config(make_config(tiny()), path)
    return path


def test_run_show_and_report(config: Path, tmp_path: Path, say: Callable[..., Said]):
    done = say("run", config, "algorithm.name=ditto", "--out", tmp_path / "run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wanted = {"algorithm", "rounds", "digest", "test_accuracy", "untuned", "val_selected", "bytes",
              "wall_s", "modelled_s"}  # fmt: skip
    assert wanted <= set(found)
    keys = {"mean", "std", "worst10", "per_client", "mean_over_images"}
    assert set(found["test_accuracy"]) == keys
    assert found["algorithm"] == "ditto" and found["rounds"] == 4
    assert len(found["test_accuracy"]["per_client"]) == 5
    assert found["bytes"]["up"] == found["bytes"]["down"] > 0
    assert "macro_f1" in found["other_scores"] and "balanced_accuracy" in found["other_scores"]
    shown = say("show", tmp_path / "run", "--json")
    assert json.loads(shown.stdout) == found
    folder = {path.name for path in (tmp_path / "run").iterdir()}
    assert folder >= {"config.toml", "environment.json", "partition.npz", "run.db", "state",
                      "clients", "report.html", "figures", "log.txt"}  # fmt: skip
    text = say("show", tmp_path / "run").stdout
    assert f"{100 * found['test_accuracy']['mean']:.1f} %" in text and "report" in text
    assert f"step          {found['cost']['sum']['seconds']['mean']:.3f} ± " in text
    again = say("run", config, "--out", tmp_path / "run")
    assert again.returncode == 2 and "fedtailor resume" in again.stderr
    page = say("report", tmp_path / "run", "--out", tmp_path / "page.html")
    assert page.returncode == 0 and "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["run", "CONFIG", "algorithm.lrr=1"], "algorithm.lrr: unknown; did you mean lr?"),
        (["run", "CONFIG", "lr=0.1"], "lr: unknown; did you mean algorithm.lr?"),
        (["run", "CONFIG", "partition=iid"], "partition: unknown; did you mean data.partition?"),
        (["run", "CONFIG", "cohort=50"], "cohort: 50 clients a round, but there are 5"),
        (["run", "CONFIG", "lr"], "an override is written key=value"),
        (["run", "CONFIG", "data.name=cifar10", "data.root=nowhere"], "data.root: "),
        (["run", "CONFIG", "space={name='resnet18',norm='group',groups=3}"], "space.groups: "),
        (["run", "nothing.toml"], "`fedtailor cp quickstart nothing.toml` makes one"),
        (["run", "spider-digits"], "`fedtailor cp spider-digits spider-digits.toml` makes one"),
        (["show", "nowhere"], "nowhere: not a run folder"),
        (["show", "nowhere", "--reach", "55"], "--reach: an accuracy is above 0 and at most 1"),
        (["report", "nowhere", "--reach", "elsewhere"], "elsewhere: not a run folder"),
        (["resume", "nowhere"], "nowhere: not a run folder"),
        (["ls", "algos"], "did you mean algorithms?"),
        (["cp", "quickstar", "x.toml"], "did you mean quickstart?"),
        (["cp", "quickstart", "CONFIG"], "is there already"),
        (["run", "CONFIG", "--out", "/dev/null/x"], "Not a directory"),
        (["plan", "CONFIG", "algorithm.lr=1e30", "algorithm.epochs=3"], "a trial step to train"),
        (["fly"], "Unknown command"),
        (["show", "runs/a", "runs/b"], "runs/b: more than this verb takes"),
        (["run"], "requires an argument"),
    ],
)
def test_what_is_wrong_is_a_sentence_and_exit_code_2(
    words: list[str], says: str, config: Path, tmp_path: Path, monkeypatch: Any, capsys: Any
):
    before = set(tmp_path.rglob("*"))
    arguments = [str(config) if word == "CONFIG" else word for word in words]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    errors = capsys.readouterr().err
    assert ended.value.code == 2
    *progress, last = errors.splitlines()  # a slow machine says what it is at
    assert last.startswith("fedtailor: ") and says in last
    assert all(re.match(r"\S+: (reading|making)", line) for line in progress), errors
    assert set(tmp_path.rglob("*")) == before, "nothing is written"


def test_a_run_that_diverges_says_what_to_change(config: Path, tmp_path: Path, capsys: Any):
    words = ["run", str(config), "algorithm.lr=1e30", "--out", str(tmp_path / "run")]
    with pytest.raises(SystemExit) as ended:
        main(words)
    errors = capsys.readouterr().err
    assert ended.value.code == 1 and "in round 1" in errors and "resume" not in errors
    assert "algorithm.lr=1e+29 (it is 1e+30) or algorithm.clip=1" in errors


def test_a_search_is_shown_with_its_warnings_and_times(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    def say(*words: str) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        assert ended.value.code == 0
        return capsys.readouterr()

    path, other, page = (str(tmp_path / name) for name in ("run", "other", "page.html"))
    words = ["rounds=2", "save_models=false", "space={name='mobilenetv3_plato',width=0.125}"]
    search = ["algorithm.name=perfedrlnas", "algorithm.accuracy=test"]
    out, errors = say("run", str(config), *words, *search, "--out", path)
    assert errors.startswith("fedtailor: warning: algorithm.accuracy: ")
    assert "trained  " in out and "most decided" not in out, "in short"
    assert "searches on the test data" in (tmp_path / "run" / "report.html").read_text()
    assert "warning" not in say("run", str(config), *words, "--out", other)[1]
    text, _ = say("show", path, "--reach", "0.01")
    assert "most decided    mb" in text and "to 1.0 % " in text and "(trained)" in text
    found = json.loads(say("show", path, "--reach", other, "--json")[0])
    assert set(found["reach"]) == {"accuracy", "untuned", "trained"}
    assert len(next(iter(found["search"]["clients"].values()))["genes"]) == 19
    assert "most decided" not in say("show", other)[0]
    say("report", path, other, "--reach", "0.01", "--out", page)
    text = Path(page).read_text()
    assert "time to 1.0\xa0%" in text and "Who got which network?" in text


def test_exit_code_and_sentence_of_the_real_program(config: Path):
    done = fedtailor("run", config, "algorithm.lrr=1")
    assert done.returncode == 2
    assert done.stderr == "fedtailor: algorithm.lrr: unknown; did you mean lr?\n"
    assert done.stdout == ""


def test_damaged_run_folders_are_a_sentence(config: Path, tmp_path: Path, say: Callable[..., Said]):
    say("run", config, "rounds=1", "--out", tmp_path / "run")
    database = tmp_path / "run" / "run.db"
    database.write_bytes(b"\0" * 100 + database.read_bytes()[100:])
    done = say("show", tmp_path / "run")
    assert done.returncode == 2 and "run.db: cannot be read" in done.stderr
    assert "Traceback" not in done.stderr


def test_ls_lists_everything_with_paper_and_what_leaves(tmp_path: Path, say: Callable[..., Said]):
    found = json.loads(say("ls", "--json").stdout)
    names = {entry["name"] for entry in found["algorithms"]}
    assert names >= {"local", "fedavg", "ditto", "fedrep", "fedbabu"}
    assert {entry["name"] for entry in found["spaces"]} >= {"cnn", "resnet18"}
    assert {entry["name"] for entry in found["data"]} >= {"digits", "cifar10", "cifar100"}
    assert all(entry["about"] for entries in found.values() for entry in entries)
    assert all(entry["paper"] for entry in found["algorithms"])
    text = " ".join(say("ls", "algorithms").stdout.split())
    assert "Leaves a client: nothing" in text and "McMahan" in text


def test_cp_plan_and_what_it_promises(tmp_path: Path, say: Callable[..., Said], monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    assert say("cp", "quickstart", "my.toml").returncode == 0
    words = ("rounds=2", "cohort=4", "data.new_clients=1")
    found = json.loads(say("plan", "my.toml", *words, "--json").stdout)
    assert found["clients"] == 8 and found["new_clients"] == 1
    assert len(found["label_counts"]) == 9
    assert sum(map(sum, found["label_counts"])) == 1797
    assert found["parameters"] == 48_730
    done = say("run", "my.toml", *words, "--out", "run", "--json")
    summary = json.loads(done.stdout)
    assert summary["bytes"] == {"up": found["bytes"]["up"], "down": found["bytes"]["down"]}
    assert len(summary["test_accuracy"]["per_client"]) == 8, "new clients are kept out"
    text = say("plan", "my.toml").stdout
    assert "48,730 parameters" in text


def in_the_foreground(command: list[str]) -> subprocess.Popen[str]:
    """Start a command that hears Ctrl-C."""
    return subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=hear_ctrl_c,
    )


def test_ctrl_c_ends_cleanly_and_says_how_to_resume(config: Path, tiny: Tiny, tmp_path: Path):
    path = tmp_path / "run"
    words = ["rounds=30", "algorithm.name=ditto", "algorithm.lr=0.01", "engine.workers=2"]
    command = [*COMMAND, "run", str(config), *words, "--out", str(path)]
    process = in_the_foreground(command)
    while process.poll() is None and not list(path.glob("state/server-round-00000[2-9]*")):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: workers get it too
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert f"go on with: fedtailor resume {path}" in errors
    assert "Traceback" not in errors
    done = fedtailor("resume", path, "--json")
    assert done.returncode == 0, done.stderr
    table = tiny(algorithm__name="ditto", algorithm__lr=0.01, rounds=30)
    whole = run_experiment(table, tmp_path / "whole")
    assert json.loads(done.stdout)["digest"] == digest(whole)


def test_ctrl_c_while_starting_is_a_sentence_too(config: Path, tmp_path: Path):
    words = ["rounds=200", "engine.workers=2", "--out", str(tmp_path / "run")]
    for delay in (0.8, 1.6, 2.4):
        process = in_the_foreground([*COMMAND, "run", str(config), *words])
        time.sleep(delay)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        # 2: a run is there from the last time; -2: by the signal itself, to a shell 130
        assert process.returncode in (130, 2, -2), errors
        assert "Traceback" not in errors
        *progress, last = errors.splitlines() or [""]
        assert last.startswith("fedtailor: ") or process.returncode == -2, errors
        assert all(line.startswith("run: ") for line in progress), errors


def test_progress_is_live_in_a_terminal(config: Path, tmp_path: Path):
    master, slave = pty.openpty()
    words = ["rounds=12", "eval_every=2", "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        [*COMMAND, "run", str(config), *words],
        stderr=slave,
        stdout=slave,
        env=os.environ | {"COLUMNS": "200"},  # in a narrow terminal some of it is left out
    )
    os.close(slave)
    shown = b""
    while process.poll() is None or select.select([master], [], [], 0)[0]:
        if select.select([master], [], [], 0.2)[0]:
            try:
                shown += os.read(master, 65536)
            except OSError:
                break
    os.close(master)
    assert process.wait() == 0
    text = shown.decode()
    for part in ("round ", "accuracy ", "worst 10 % ", " MB", " s/round", " left"):
        assert part in text


def test_demo_ends_with_a_table_and_the_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    small = {
        "rounds": 1,
        "algorithm": {"finetune_epochs": 1},
        "data": demo.QUICK["data"] | {"clients": 4, "per_client": 40},
        "save_models": False,
    }
    monkeypatch.setattr(demo, "QUICK", demo.QUICK | small)
    monkeypatch.setitem(demo.OTHERWISE, "spider", demo.OTHERWISE["spider"] | {"rounds": 2})
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--quick", "--out", str(tmp_path / "demo")])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for name in ("local", "fedavg", "perfedrlnas", "perfedsde", "spider"):
        assert str(tmp_path / "demo" / name) in shown
        assert (tmp_path / "demo" / name / "run.db").exists()
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "local, fedavg, perfedrlnas, perfedsde, spider on digits with darts" in page
    drawn = {path.stem for path in (tmp_path / "demo" / "figures").glob("*.svg")}
    assert {"gain", "architectures", "search", "parameters"} <= drawn


@pytest.mark.parametrize("quick", [False, True])
def test_the_demo_compares_like_with_like(quick: bool):
    configs = {name: make_config(demo.config_of(name, quick)) for name in demo.METHODS}
    plain = configs["fedavg"]
    for name, config in configs.items():
        assert config.algorithm_name == name
        if name != "spider":
            assert replace(config, algorithm=plain.algorithm, algorithm_name="fedavg") == plain
            epochs = config.algorithm.epochs * getattr(config.algorithm, "iterations", 1)
            assert epochs == plain.algorithm.epochs
        assert config.data == plain.data
        shared = ("batch", "optimizer", "lr", "momentum", "finetune_epochs", "finetune_lr")
        for field in shared:
            assert getattr(config.algorithm, field) == getattr(plain.algorithm, field)
    assert plain.space_arch == "middle"
    assert plain.data.clients == (3 if quick else 8)


@pytest.mark.parametrize("quick", [False, True])
def test_spider_decides_all_edges_in_the_demo(quick: bool):
    config = make_config(demo.config_of("spider", quick))
    how = config.algorithm
    assert isinstance(how, SPIDER) and config.cohort is None
    last = how.recovery * (math.ceil(how.warmup / how.recovery) + 13) + 1
    assert last < config.rounds, "and trains on"


def test_from_python(tiny: Tiny, tmp_path: Path):
    """The API of equal power: a script without a main guard, workers included."""
    script = tmp_path / "script.py"
    table = tiny(engine__workers=1, rounds=1)
    script.write_text(
        "from fedtailor import Run, resume, run, summarise\n"
        f"found = run({table!r}, out='run', seed=3)\n"
        "assert isinstance(found, Run) and found.config['seed'] == 3\n"
        "print(summarise(resume('run', report=False))['rounds'])\n"
    )
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout == "1\n", done.stderr
    assert done.stderr == "", "there is no terminal to show progress in"
    assert (tmp_path / "run" / "report.html").is_file() and any(
        (tmp_path / "run/figures").iterdir()
    )
