"""What `show` tells of clients that search for themselves."""

import json
from pathlib import Path

import pytest

from fedtailor.cli.app import main
from fedtailor.experiment.lifecycle import run
from fedtailor.runs.archives import agreement, archives
from fedtailor.runs.folder import Run
from tests.helpers.sde_setting import table


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(table(), tmp_path_factory.mktemp("archives") / "run")


def test_agreement_by_hand():
    assert agreement([(0, 1, 2), (0, 1, 1), (0, 0, 0), (0, 0, 0)]) == (1 + 0.5 + 0.5) / 3
    assert agreement([(3, 1)]) == 1


def test_archives_are_those_of_each_clients_last_round(made: Run):
    last = dict(
        made.db.query("SELECT client, max(round) FROM architecture WHERE role='archive' GROUP BY 1")
    )
    found = archives(made)
    assert set(found) == set(last)
    for client, one in found.items():
        rows = made.db.query(
            "SELECT arch FROM architecture WHERE role = 'archive' AND client = ? AND round = ?",
            client,
            last[client],
        )
        assert one["round"] == last[client]
        assert [tuple(a) for a in one["archive"]] == [tuple(json.loads(a)) for (a,) in rows]
        assert one["genes"] in one["archive"], "the best is in it"


def test_show_tells_them(made: Run, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["show", str(made.path)])
    shown = capsys.readouterr().out
    assert "search          on the clients' own devices" in shown
    with pytest.raises(SystemExit):
        main(["show", str(made.path), "--json"])
    assert json.loads(capsys.readouterr().out)["archives"] == {
        str(client): one for client, one in archives(made).items()
    }


def test_others_have_none(tmp_path: Path):
    config = table()
    config["algorithm"] = {"name": "fedavg"}
    config["space"] = {"name": "cnn", "width": 4, "hidden": 16}
    assert archives(run(config | {"rounds": 1}, tmp_path / "run")) == {}
