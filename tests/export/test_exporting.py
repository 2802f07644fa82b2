"""Models of real runs, carried out of them and back."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from fedtailor import Run, UserError, from_pretrained, load_model
from fedtailor.cli.app import main
from fedtailor.experiment.lifecycle import run
from fedtailor.export.checking import accuracy, answering, sample_of
from fedtailor.export.exporting import Targets, export_model
from fedtailor.export.folding import CLOSE
from fedtailor.runs.summary import summarise

SPACES = {
    "knnper": {"name": "cnn", "width": 4, "hidden": 16},
    "fedrep": {"name": "cnn", "width": 4, "hidden": 16},
    "perfedrlnas": {"name": "darts", "preset": "cpu", "resolution": 8},
}
OWN_SPACE = Path(__file__).parents[1] / "helpers" / "tiny_space.py"


def table(algorithm: str, **more: Any) -> dict[str, Any]:
    return {
        "rounds": 2,
        "algorithm": {"name": algorithm, "lr": 0.05, "finetune_epochs": 1},
        "space": SPACES[algorithm],
        "data": {"clients": 3, "per_client": 60, "partition": "dirichlet_equal"},
        "engine": {"workers": 0},
    } | more


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    return {name: run(table(name), folder / name) for name in SPACES}


@pytest.mark.parametrize("name", SPACES)
def test_a_loaded_model_is_the_one_that_was_tested(name: str, runs: dict[str, Run]):
    wanted = summarise(runs[name])["test_accuracy"]["per_client"]
    for client in (0, 2):
        model = load_model(runs[name].path, client)
        sample = sample_of(runs[name], client, model, own_code=False)
        assert accuracy(answering(model), sample) == pytest.approx(wanted[client])
        assert model.labels == tuple("0123456789")


def test_a_loaded_model_says_whose_it_is(runs: dict[str, Run]):
    made = runs["fedrep"]
    reached = 100 * summarise(made)["test_accuracy"]["per_client"][2]
    model = load_model(made, "2")
    weights = sum(weight.numel() for weight in model.network.parameters())
    assert repr(model) == (
        "PersonalModel(client 2 of fedrep with cnn on digits, 2 of 2 rounds, test accuracy "
        f"{reached:.1f} %; cnn, images 1x8x8 into 10 classes, {weights:,} parameters)"
    )


@pytest.mark.parametrize("name", SPACES)
def test_a_client_s_model_is_written_in_every_form(name: str, runs: dict[str, Run], tmp_path: Path):
    pytest.importorskip("onnxruntime")
    targets = Targets(tmp_path / "m.onnx", tmp_path / "torch", tmp_path / "hub")
    found = export_model(runs[name], 1, targets)
    assert all(apart < CLOSE for apart in found["apart"].values())
    assert list(found["apart"]) == ["hub", "torch", "onnx"]
    assert found["accuracy_here"] == pytest.approx(found["test_accuracy"])
    assert found["compared_on"] == "its test images"
    assert {p.name for p in (tmp_path / "hub").iterdir()} == {
        "README.md", "config.json", "model.safetensors",
    }  # fmt: skip
    images = torch.rand(3, 1, 8, 8)
    back = from_pretrained(tmp_path / "hub")
    assert torch.equal(back(images), load_model(runs[name], "1")(images))
    assert back.labels == tuple("0123456789")
    card = (tmp_path / "hub" / "README.md").read_text()
    assert f"| test accuracy | {100 * found['test_accuracy']:.1f} % |" in card
    assert f"| parameters | {found['parameters']:,} |" in card
    assert "say something of that client's data" in card
    assert ("**memory**" in card) == (name == "knnper")
    assert str(runs[name].path) not in card


def test_arch_json_says_how_to_build_the_network(runs: dict[str, Run]):
    about = json.loads((runs["perfedrlnas"].path / "clients/001/arch.json").read_text())
    assert about["space"]["name"] == "darts"
    assert about["space"]["resolution"] == 8


def test_runs_from_before_arch_json_named_the_space_load_too(runs: dict[str, Run], tmp_path: Path):
    import shutil

    shutil.copytree(runs["perfedrlnas"].path, tmp_path / "old")
    file = tmp_path / "old/clients/001/arch.json"
    about = json.loads(file.read_text())
    del about["space"]
    file.write_text(json.dumps(about))
    images = torch.rand(2, 1, 8, 8)
    assert torch.equal(
        load_model(tmp_path / "old", 1)(images), load_model(runs["perfedrlnas"], 1)(images)
    )


def test_own_code_is_run_only_when_told(tmp_path: Path):
    space = {"name": f"{OWN_SPACE}:Tiny"}
    made = run(table("fedrep", space=space), tmp_path / "run")
    with pytest.raises(UserError, match="is code; if you trust it, --own-code"):
        load_model(made, 0)
    assert load_model(made, 0, own_code=True)(torch.rand(2, 1, 8, 8)).shape == (2, 10)
    with pytest.raises(UserError, match="hub: the network is built by a space file of your own"):
        export_model(made, 0, Targets(hub=tmp_path / "hub"), own_code=True)
    assert not (tmp_path / "hub").exists()
    (tmp_path / "hub").mkdir()
    about = json.loads((made.path / "clients/000/arch.json").read_text())
    (tmp_path / "hub/config.json").write_text(json.dumps({"model_type": "fedtailor", **about}))
    safetensors.torch.save_file({"x": torch.zeros(1)}, tmp_path / "hub/model.safetensors")
    with pytest.raises(UserError, match=r"a file of somebody's own .*: code, which is not run"):
        from_pretrained(tmp_path / "hub")


def test_a_run_that_saved_no_models_is_refused(tmp_path: Path):
    made = run(table("fedrep", save_models=False, rounds=1), tmp_path / "run")
    with pytest.raises(UserError, match="the run saved no models"):
        load_model(made, 0)


def test_a_client_is_called_by_its_name(
    runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    path = shutil.copytree(runs["fedrep"].path, tmp_path / "run")
    known: dict[str, Any] = dict(np.load(path / "partition.npz"))
    known["names"] = np.array(["a", "b", "c"])
    np.savez(path / "partition.npz", **known)
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(path), "--client", "b", "--hub", str(tmp_path / "hub")])
    assert "client b (1): cnn, " in capsys.readouterr().out
    assert ", client b (1): cnn\n" in (tmp_path / "hub" / "README.md").read_text(encoding="utf-8")
    with pytest.raises(SystemExit, match="0"):
        main(["export", str(path), "--all", "--hub", str(tmp_path / "all")])
    assert {p.name for p in (tmp_path / "all").iterdir()} == {"000-a", "001-b", "002-c"}


def test_random_images_serve_where_the_data_is_gone(runs: dict[str, Run], tmp_path: Path):
    import shutil

    shutil.copytree(runs["fedrep"].path, tmp_path / "moved")
    config = tmp_path / "moved/config.toml"
    config.write_text(config.read_text().replace("[data]", '[data]\npath = "/not/here.npz"'))
    found = export_model(Run(tmp_path / "moved"), 0, Targets(torch=tmp_path / "out"))
    assert found["compared_on"].startswith("random images (data.path: there is no folder")
    assert found["accuracy_here"] is None


def test_the_verbs(runs: dict[str, Run], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    from PIL import Image

    path = str(runs["fedrep"].path)
    with pytest.raises(SystemExit, match="0"):
        main(["export", path, "--all", "--hub", str(tmp_path / "all")])
    assert {p.name for p in (tmp_path / "all").iterdir()} == {"000", "001", "002"}
    assert "client 2: cnn, " in capsys.readouterr().out
    Image.new("RGB", (20, 30), (9, 9, 9)).save(tmp_path / "a.png")
    said = []
    for words in (["predict", path, "--client", "2"], ["predict", str(tmp_path / "all/002")]):
        with pytest.raises(SystemExit, match="0"):
            main([*words, str(tmp_path / "a.png"), "--json"])
        said.append(json.loads(capsys.readouterr().out))
    assert said[0] == said[1]
    assert sum(said[0][0]["probabilities"].values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["export"], "name a client with --client, or all of them with --all"),
        (["export", "--client", "0"], "name a form: --onnx FILE, --torch DIR or --hub DIR"),
        (
            ["export", "--client", "7", "--hub", "x"],
            "there are 3 clients, numbered from 0; 7 is none of them",
        ),
        (["predict", "--client", "0"], "name an image file"),
        (["predict", "a.png"], "--client says whose model of the run"),
        (["predict", "--client", "0", "none.png"], "image: none.png is no file"),
    ],
)
def test_what_is_missing_is_said(
    words: list[str], sentence: str, runs: dict[str, Run], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as left:
        main([words[0], str(runs["fedrep"].path), *words[1:]])
    assert left.value.code == 2
    assert sentence in capsys.readouterr().err


def test_onnx_without_the_extra_names_the_command(
    runs: dict[str, Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from fedtailor.export import onnx_file

    monkeypatch.setattr(onnx_file, "NEEDED", ("a_package_that_is_not_there",))
    with pytest.raises(UserError, match=r"pip install 'fedtailor\[onnx\]'"):
        export_model(runs["fedrep"], 0, Targets(onnx=tmp_path / "m.onnx"))
