"""Files that clients need: known by their bytes, and counted once for each client that trains."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.cli.terminal import summary_lines
from fedtailor.core.errors import UserError
from fedtailor.core.types import ClientInfo, Setting
from fedtailor.engines import _in_process
from fedtailor.experiment import rounds as loop
from fedtailor.experiment.gain import measure_gain
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.experiment.progress import RunProgress
from fedtailor.experiment.rounds import draw_cohort
from fedtailor.networks.initial import initial_weights
from fedtailor.report.tables import Row, result_tables
from fedtailor.runs import database
from fedtailor.runs.comparison import groups
from fedtailor.runs.config import make_config
from fedtailor.runs.folder import Run
from fedtailor.runs.summary import digest, summarise
from fedtailor.runs.time_to_accuracy import time_to
from fedtailor.spaces.cnn import CNN
from tests.helpers import known_costs
from tests.helpers.made_up import TASK

Tiny = Callable[..., dict[str, Any]]
EQUIPPED = f"{known_costs.__file__}:Equipped"
TABLE = bytes(range(256)) * 3
CLIENTS = tuple(ClientInfo(client, 10) for client in range(5))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Return a method's own file and weights to start from, by the keys that name them."""
    (tmp_path / "table.bin").write_bytes(TABLE)
    setting = Setting(TASK, CNN(width=4, hidden=16), 1, seed=9)
    safetensors.torch.save_file(initial_weights(setting), tmp_path / "first.safetensors")
    return {
        "algorithm.table": tmp_path / "table.bin",
        "space.init": tmp_path / "first.safetensors",
    }


@pytest.fixture
def table(tiny: Tiny, files: dict[str, Path]) -> dict[str, Any]:
    """Return a config whose clients need both: two of five are drawn in each of six rounds."""
    own, init = (str(path) for path in files.values())
    return tiny(
        algorithm__name=EQUIPPED, algorithm__table=own, space__init=init, rounds=6, cohort=2
    )


def size(files: dict[str, Path]) -> int:
    return sum(len(path.read_bytes()) for path in files.values())


def cohorts(rounds: int, cohort: int, seed: int = 0) -> list[list[int]]:
    drawn = (draw_cohort(CLIENTS, cohort, seed, round) for round in range(1, rounds + 1))
    return [[info.id for info in each] for each in drawn]


def once(found: Run) -> list[tuple[int, int, int]]:
    sql = "SELECT round, client, bytes FROM message WHERE direction = 'once' ORDER BY rowid"
    return found.db.query(sql)  # pyright: ignore[reportReturnType]


def first_times(rounds: list[list[int]], nbytes: int) -> list[tuple[int, int, int]]:
    """Return round, client and bytes of everybody's first time, slowly."""
    found: list[tuple[int, int, int]] = []
    for round, drawn in enumerate(rounds, 1):
        known = {client for _, client, _ in found}
        found += [(round, client, nbytes) for client in drawn if client not in known]
    return found


def test_a_method_needs_the_weights_that_it_starts_from():
    setting = Setting(TASK, CNN(), 1, 0, init="/some/weights")
    assert FedAvg().needs(setting) == {"space.init": Path("/some/weights")}
    assert FedAvg().needs(Setting(TASK, CNN(), 1, 0)) == {}
    both = known_costs.Equipped(table="mine").needs(setting)
    assert both == {"space.init": Path("/some/weights"), "algorithm.table": Path("mine")}


def test_they_are_counted_in_a_clients_first_round_and_never_again(
    table: dict[str, Any], files: dict[str, Path], tmp_path: Path
):
    progress = RunProgress()
    found = run(table, tmp_path / "run", progress)
    expected = first_times(cohorts(6, 2), size(files))
    assert 2 < len(expected) < 12 and once(found) == expected
    sent = database.bytes_sent(found.db)
    assert list(sent) == ["up", "down", "once"] and sent["once"] == len(expected) * size(files)
    assert sent["up"] == sent["down"] > 0
    assert progress.bytes == sum(sent.values())
    text = "\n".join(summary_lines(summarise(found)))
    assert f"MB down, {sent['once'] / 1e6:.1f} MB once" in text
    told, _ = result_tables([Row(groups([found])[0], [summarise(found)])])
    cell = told.rows[0][1][told.columns.index("MB up, down")]
    assert cell.small.endswith(f" down\n{sent['once'] / 1e6:,.2f} once")
    whole = time_to(found, 1e-6)
    assert whole is not None and whole["round"] == 2
    rows = found.db.query("SELECT bytes FROM message WHERE round <= 2")
    assert whole["bytes"] == sum(nbytes for (nbytes,) in rows) > 2 * size(files)


def test_a_run_that_needs_nothing_counts_nothing(tiny: Tiny, tmp_path: Path):
    found = run(tiny(), tmp_path / "run")
    assert list(database.bytes_sent(found.db)) == ["up", "down"]
    assert json.loads((found.path / "environment.json").read_text())["needs"] == {}
    assert "once" not in "\n".join(summary_lines(summarise(found)))


def test_the_folder_says_which_files_they_were(
    table: dict[str, Any], files: dict[str, Path], tmp_path: Path
):
    found = run(table | {"rounds": 1}, tmp_path / "run")
    about = json.loads((found.path / "environment.json").read_text())["needs"]
    assert about == {
        key: {
            "file": path.name,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": len(path.read_bytes()),
        }
        for key, path in files.items()
    }


def stopped_after(rounds: int, table: dict[str, Any], path: Path) -> None:
    """Leave a run in the middle of a round: its messages are sent, but it is not committed."""
    train = loop._train

    def until(execution: Any, record: Any, *rest: Any) -> Any:
        state = train(execution, record, *rest)
        if record.round == rounds + 1:
            raise KeyboardInterrupt
        return state

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_train", until)
        with pytest.raises(KeyboardInterrupt):
            run(table, path)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_resumed_run_counts_as_one_that_was_never_stopped(
    table: dict[str, Any], tmp_path: Path, rounds: int
):
    whole = run(table, tmp_path / "whole")
    stopped_after(rounds, table, tmp_path / "run")
    resumed = resume(tmp_path / "run")
    everything = "SELECT * FROM message ORDER BY rowid"
    assert resumed.db.query(everything) == whole.db.query(everything)
    assert digest(resumed) == digest(whole)


def test_clients_that_fail_had_theirs_all_the_same(
    table: dict[str, Any], files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    performed = _in_process.perform

    def perform(host: Any, ticket: Any, message: Any) -> Any:
        if ticket.step == "train":
            raise ValueError("not today")
        return performed(host, ticket, message)

    monkeypatch.setattr(_in_process, "perform", perform)
    found = run(table | {"on_failure": "skip", "rounds": 3}, tmp_path / "run")
    assert once(found) == first_times(cohorts(3, 2), size(files))
    assert database.bytes_sent(found.db)["up"] == 0


@pytest.mark.parametrize("key", ["algorithm.table", "space.init"])
def test_a_run_goes_on_only_with_the_same_bytes(
    table: dict[str, Any], files: dict[str, Path], tmp_path: Path, key: str
):
    stopped_after(1, table, tmp_path / "run")
    path = files[key]
    whole = path.read_bytes()
    path.unlink()
    with pytest.raises(UserError, match=rf"^{key}: there is no file \S+{path.name}$"):
        resume(tmp_path / "run")
    path.write_bytes(whole[:-4] + bytes(4))
    with pytest.raises(
        UserError, match=rf"^{key}: \S+{path.name} is not the file that the run began with$"
    ):
        resume(tmp_path / "run")
    path.write_bytes(whole)  # its date does not matter
    assert resume(tmp_path / "run").finished()


def test_a_need_that_the_config_no_longer_names_is_missed(table: dict[str, Any], tmp_path: Path):
    stopped_after(1, table, tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    kept = [line for line in config.read_text().splitlines() if not line.startswith("init = ")]
    config.write_text("\n".join(kept))
    with pytest.raises(UserError, match=r"^space\.init: the run began with first\.safetensors;"):
        resume(tmp_path / "run")


def test_environments_of_before_and_broken_ones(tiny: Tiny, tmp_path: Path):
    stopped_after(1, tiny(), tmp_path / "run")
    file = tmp_path / "run" / "environment.json"
    for broken in ("[]", "{", ""):
        file.write_text(broken)
        with pytest.raises(UserError, match=r"environment\.json: cannot be read"):
            resume(tmp_path / "run")
    file.write_text('{"seed": 0}')  # of a run from before there were needs
    assert resume(tmp_path / "run").finished()


def test_what_is_not_there_is_said_before_anything_is_written(
    table: dict[str, Any], tmp_path: Path
):
    for there, says in ((tmp_path / "none", "there is no file"), (tmp_path, "cannot be read")):
        table["algorithm"]["table"] = str(there)
        for begin in (lambda: run(table, tmp_path / "run"), lambda: plan(make_config(table))):
            with pytest.raises(UserError, match=rf"^algorithm\.table: .*{says}"):
                begin()
    assert not (tmp_path / "run").exists()


def test_the_plan_says_what_a_client_needs(
    table: dict[str, Any], files: dict[str, Path], tiny: Tiny
):
    found = plan(make_config(table))
    assert found["bytes_once_per_client"] == size(files)
    assert found["bytes"].keys() == {"down", "up"}
    text = "\n".join(plan_lines(found))
    assert f"in all, and {size(files) / 1e6:,.1f} MB once for each client" in text
    plain = plan(make_config(tiny()))
    assert plain["bytes_once_per_client"] == 0 and "once" not in "\n".join(plan_lines(plain))


def test_a_gain_is_not_measured_with_other_files(
    table: dict[str, Any], files: dict[str, Path], tmp_path: Path
):
    found = run(table | {"rounds": 1}, tmp_path / "run")
    files["algorithm.table"].write_bytes(TABLE[:-1])
    with pytest.raises(UserError, match=r"^algorithm\.table: .* is not the file that the run"):
        measure_gain(found.path, epochs=1)
