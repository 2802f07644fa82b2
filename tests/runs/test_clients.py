"""Clients are called by their names, from the data to the report, with their numbers beside."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.cli.app import main
from fedtailor.core.errors import UserError
from fedtailor.data.client_names import find_client
from fedtailor.experiment.lifecycle import run as run_experiment
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.experiment.steps import ClientFailedError
from fedtailor.report.page import write_report
from fedtailor.runs.clients import client_labels, client_names, client_number
from fedtailor.runs.config import make_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import summarise

NAMES = ["hospital-a", "klinik-ö", "practice 3"]


def data_file(path: Path, names: list[Any], images: int = 20) -> Path:
    """Write random images of clients with these names."""
    rng, count = np.random.default_rng(0), images * len(names)
    x = rng.integers(0, 256, (count, 8, 8), dtype=np.uint8)
    np.savez(path, x=x, y=np.arange(count) % 3, client=np.array(names * images))
    return path


@pytest.fixture
def table(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> dict[str, Any]:
    path = data_file(tmp_path / "own.npz", NAMES)
    own = {"path": str(path), "partition": "by_client"}
    return tiny(rounds=1, cohort=2, save_models=False) | {"data": own}


def test_names_go_from_the_data_to_the_run_folder_and_the_report(
    table: dict[str, Any], tmp_path: Path
):
    found = run_experiment(table, tmp_path / "run")
    assert client_names(found) == NAMES == summarise(found)["client_names"]
    assert found.clients == {0: "hospital-a", 1: "klinik-ö", 2: "practice 3"}
    assert client_labels(found) == ["hospital-a (0)", "klinik-ö (1)", "practice 3 (2)"]
    assert [client_number(found, text) for text in ("klinik-ö", "1", "practice 3")] == [1, 1, 2]
    with pytest.raises(UserError, match=r"'hospital-b'; did you mean hospital-a\?"):
        client_number(found, "hospital-b")
    with pytest.raises(UserError, match="3 clients, numbered from 0; 3 is none"):
        client_number(found, "3")
    page = write_report([found], tmp_path / "page.html", None).read_text(encoding="utf-8")
    assert '<th scope="row">klinik-ö (1)</th>' in page
    pictures = re.sub(r"<table.*?</table>", "", page, flags=re.DOTALL)
    assert re.search(r"<text[^>]*>klinik-ö \(1\)</text>", pictures), "on an axis"
    assert re.search(r'data-client="1"><title>client klinik-ö \(1\): ', pictures), "to a pointer"


def test_clients_of_data_without_names_are_numbers(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
):
    found = run_experiment(tiny(rounds=1), tmp_path / "run")
    assert client_names(found) == client_labels(found) == ["0", "1", "2", "3", "4"]
    assert client_number(found, "4") == 4
    with pytest.raises(UserError, match="have no names; give a number from 0 to 4, not 'ann'"):
        client_number(found, "ann")
    (tmp_path / "run" / "partition.npz").unlink()  # as where clients keep their data
    assert client_names(Run(tmp_path / "run")) == ["0", "1", "2", "3", "4"]


def test_a_name_that_is_a_number_comes_before_the_number():
    assert [find_client(["1", "2", "7"], text) for text in ("1", "2", "7", "0")] == [0, 1, 2, 0]


def test_a_number_from_python_is_never_a_name():
    names = ["1", "2", "7"]
    assert [find_client(names, number) for number in (0, 1, 2)] == [0, 1, 2]
    with pytest.raises(UserError, match="3 clients, numbered from 0; 7 is none"):
        find_client(names, 7)


def test_plan_and_failures_name_clients(
    table: dict[str, Any], tmp_path: Path, misbehaving: Callable[[str], str]
):
    lines = plan_lines(plan(make_config(table)))
    assert sum(line.lstrip().startswith("klinik-ö (1)") for line in lines) == 1
    table["algorithm"] = {"name": misbehaving("Fails")}
    table["cohort"] = 3
    with pytest.raises(ClientFailedError, match=r"client klinik-ö \(1\) failed to train"):
        run_experiment(table, tmp_path / "run")


def test_generate_takes_a_name(
    table: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = ["generate", "--space", "mobilenetv3", "--n", "1", "partition=by_client", "--data"]
    path = str(table["data"]["path"])
    with pytest.raises(SystemExit) as ended:
        main([*words, path, "--client", "hospitl-a"])
    assert ended.value.code == 2 and "did you mean hospital-a?" in capsys.readouterr().err
    drawn = []
    for client in ("klinik-ö", "1"):
        with pytest.raises(SystemExit) as ended:
            main([*words, path, "--client", client])
        assert ended.value.code == 0
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]


def test_the_mean_over_images_counts_clients_by_their_test_images(
    tiny: Callable[..., dict[str, Any]], tmp_path: Path
):
    """30 images to train on and 10, 20 and 30 to test on; what weighs is checked by hand."""
    rng, sizes = np.random.default_rng(1), (10, 20, 30)
    client = np.concatenate([np.full(30 + size, k) for k, size in enumerate(sizes)])
    split = np.concatenate([np.repeat([0, 2], [30, size]) for size in sizes])
    x, y = (
        rng.integers(0, 256, (len(client), 8, 8), dtype=np.uint8),
        rng.integers(0, 2, len(client)),
    )
    np.savez(tmp_path / "own.npz", x=x, y=y, client=client, split=split)
    own = {"path": str(tmp_path / "own.npz"), "partition": "by_client"}
    found = summarise(run_experiment(tiny(rounds=1, cohort=2) | {"data": own}, tmp_path / "run"))
    one = found["test_accuracy"]
    right = sum(one["per_client"][k] * size for k, size in enumerate(sizes))
    assert right == pytest.approx(round(right)), "whole images"
    assert one["mean_over_images"] == pytest.approx(right / 60) != pytest.approx(one["mean"])
    assert found["test_images"] == {"all": 60, "fewest": 10}
    assert found["val_selected"] is None
