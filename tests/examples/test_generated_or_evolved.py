"""Fig. 3 of PerFedSDE-NAS on a finished run: its last supernet, and what its clients ended with."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest

from fedtailor.algorithms.perfedsde import Search, Supernet
from fedtailor.core import codec
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.networks.store import Store
from fedtailor.runs import database
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import Run, state_file
from fedtailor.search.evolution import Population
from fedtailor.training.population import population_scores
from tests.helpers.sde_setting import table, write_generator

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("generated")
    config = table(generator=write_generator(folder))
    config["data"] |= {"clients": 5}
    return run(config | {"rounds": 2}, folder / "run")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("generated_or_evolved")


def state(made: Run, client: int) -> Search:
    versions = {c: r for c, r, _ in database.client_states(made.db, made.last_round())}
    return codec.read(Search, made.states / state_file(client, versions[client]))


def test_of_a_run(
    made: Run, script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    words = [str(tmp_path / "work"), "--run", str(made.path), "--workers", "1"]
    words += ["--tested", "6", "--candidates", "12", "--figure", str(tmp_path / "fig3.svg")]
    script.main(words)
    shown = capsys.readouterr().out
    kinds = [f"{kind}{how}" for kind in script.KINDS for how in ("", script.RBF, script.RIDGE)]
    assert all(f"| {kind} |" in shown for kind in ("population", *kinds))
    assert "<svg" in (tmp_path / "fig3.svg").read_text()
    took_part = {client for client, *_ in database.client_states(made.db, made.last_round())}
    assert 2 <= len(took_part) < 5, "some never took part, and are left out"
    assert {f"client {client} done" for client in took_part} <= set(shown.splitlines())
    files = sorted((tmp_path / "work").glob("client-*.json"))
    found = {one["client"]: one for one in (json.loads(file.read_text()) for file in files)}
    assert set(found) == took_part
    for one in found.values():
        assert all(len(values) == 6 for values in one["accuracy"].values())
        assert all(values == sorted(values, reverse=True) for values in one["accuracy"].values())
    stamps = [file.stat().st_mtime_ns for file in files]
    script.main(words)
    assert capsys.readouterr().out == shown
    assert [file.stat().st_mtime_ns for file in files] == stamps, "nothing is done twice"


def test_the_population_is_the_clients_own_with_the_last_supernet(
    made: Run, script: ModuleType, tmp_path: Path
):
    work = script.FromRun.of(tmp_path, script.Sizes(6, 12), 0, None, made.path, None)
    client = work.clients[0]
    config = read_config(made.path / "config.toml")
    federation = load_federation(config.data)
    weights = codec.read(Supernet, made.server_path(made.last_round())).weights
    assert codec.digest(work.store().copy()) == codec.digest(weights)
    val, train = (federation.examples(client, split) for split in ("val", "train"))

    def score(archs: list) -> list[float]:
        store = Store(config.space, federation.task, weights)
        return population_scores(store, archs, val, "likelihood", calibration=train)

    scored: Population = work.scored(client, config.space, score)
    own = state(made, client).population
    assert scored.archs == own.archs
    assert list(scored.scores) == score(list(own.archs)) != list(own.scores)
    assert work.asked(client) != work.asked(work.clients[1])


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--epochs", "3"], "a run has its own supernet"),
        (["--clients", "1"], "1 clients that took part"),
    ],
)
def test_what_a_run_has_of_its_own_cannot_be_asked(
    more: list[str],
    says: str,
    made: Run,
    script: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
):
    with pytest.raises(SystemExit) as ended:
        script.main([str(tmp_path / "work"), "--run", str(made.path), *more])
    assert ended.value.code == 2 and says in capsys.readouterr().err


def test_only_runs_that_search_on_clients(
    script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config = table() | {"algorithm": {"name": "local"}, "rounds": 1}
    other = run(config, tmp_path / "run")
    with pytest.raises(SystemExit):
        script.main([str(tmp_path / "work"), "--run", str(other.path)])
    assert "is not a run of perfedsde" in capsys.readouterr().err
