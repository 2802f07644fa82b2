"""What `fedtailor ls` says of a method."""

import json
from pathlib import Path

import pytest

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.cli import listing
from fedtailor.cli.app import main
from fedtailor.core import registry
from fedtailor.core.errors import UserError
from tests.helpers.sample_runs import made_up


@pytest.mark.parametrize("text", [None, "A method of one line.", "A method.\n\nNo paper at all."])
def test_a_method_need_not_name_a_paper(
    text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    module = listing.inspect.getmodule(FedAvg)
    monkeypatch.setattr(module, "__doc__", text)
    with pytest.raises(SystemExit) as ended:
        main(["ls", "algorithms"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.partition("  fedavg ")[2].split())
    about = text.partition("fedbabu ")[0]
    assert "Leaves a client: " in about and "[" not in about


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what `ls` prints."""
    with pytest.raises(SystemExit) as ended:
        main(["ls", *words])
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_everything_fits_80_columns(capsys: pytest.CaptureFixture[str]):
    names = [name for kind in registry.KINDS for name in registry.names(kind)]
    names += [path.stem for path in listing.STARTERS.glob("*.toml")]
    for words in ([], *([name] for name in names)):
        text = listed(capsys, *words)
        assert max(len(line) for line in text.splitlines()) <= 80, words


def test_a_name_has_its_keys_with_defaults_and_meanings(capsys: pytest.CaptureFixture[str]):
    text = " ".join(listed(capsys, "perfedrlnas").split())
    assert "lambda_time = 0.001 per second over the round's fastest client" in text
    assert "finetune_epochs = 10 local epochs before a deployed model is tested" in text
    assert "'personal' | 'shared' | 'both' | 'uniform'; one each" in text
    assert "[engine]" in listed(capsys, "local") and "[algorithm]" in listed(capsys, "local")
    (found,) = json.loads(listed(capsys, "nasvit", "--json"))
    assert found["kind"] == "space" and {"width", "strides"} <= {f["name"] for f in found["fields"]}
    (found,) = json.loads(listed(capsys, "digits", "--json"))
    assert [field["name"] for field in found["fields"] if not field["meaning"]] == []


def test_a_starter_says_what_it_is_and_how_it_is_had(capsys: pytest.CaptureFixture[str]):
    lines = listed(capsys, "spider-digits").splitlines()
    assert lines[0].startswith("spider-digits: A first private architecture: SPIDER on digits")
    assert "  fedtailor run FILE algorithm.name=fedavg|local" in lines
    assert lines[-1].startswith("A starter: fedtailor cp spider-digits FILE")
    (found,) = json.loads(listed(capsys, "spider-digits", "--json"))
    assert found["kind"] == "starter" and found["text"][0] == found["about"]
    with pytest.raises(UserError, match="did you mean spider-digits"):
        listing.described("spider-digit")


def test_runs_are_listed_with_what_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    made_up(tmp_path / "b")
    config = made_up(tmp_path / "broken").path / "config.toml"
    config.unlink()
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / "run.db").write_text("no database")
    lines = listed(capsys, str(tmp_path)).splitlines()
    assert lines[0].split() == ["run", "method", "space", "data", "accuracy", "state"]
    assert (
        lines[1].split()[0] == "b" and "digits" in lines[1] and lines[1].endswith("4 of 4 rounds")
    )
    assert "cannot be read" in lines[2] and "%" in lines[1]
    assert lines[3].split()[0] == "junk" and "cannot be read" in lines[3]
    with pytest.raises(SystemExit) as ended:
        main(["show", str(tmp_path), "--json"])
    shown = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0 and shown[0]["test_accuracy"] > 0
    with pytest.raises(SystemExit) as ended:
        main(["ls", str(tmp_path / "b" / "state")])
    assert ended.value.code == 2 and "there are no run folders" in capsys.readouterr().err
