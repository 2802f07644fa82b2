"""Whole runs of PerFedSDE-NAS: in workers, killed, for new clients, and what is refused."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedtailor.algorithms.perfedsde import PerFedSDENAS, Search, Supernet
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.types import Setting
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.experiment.lifecycle import resume, run
from fedtailor.experiment.onboarding import onboard
from fedtailor.experiment.prepare import prepare
from fedtailor.runs.config import make_config, read_config, write_config
from fedtailor.runs.folder import Run, state_file
from fedtailor.runs.summary import digest, summarise
from fedtailor.search.diffusion.generator import save
from fedtailor.spaces.cnn import CNN
from tests.algorithms.test_perfedrlnas_runs import KILLED
from tests.helpers.sde_setting import client_of, table, write_generator
from tests.helpers.tiny_generator import generator
from tests.helpers.tiny_space import Tiny

OFFSPRING = "SELECT * FROM offspring ORDER BY round, client, rowid"  # not in the digest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_generator(tmp_path_factory.mktemp("generator"))


@pytest.fixture(scope="module")
def searching(made: str) -> dict[str, Any]:
    """The paper's way, and guidance by scores too; two clients are kept out."""
    found = table(proposer="diffusion", generator=made, guide="both")
    found["data"]["new_clients"] = 2
    return found


@pytest.fixture(scope="module")
def whole(searching: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(searching, tmp_path_factory.mktemp("whole") / "run")


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_give_the_same_bytes(
    workers: int, searching: dict[str, Any], whole: Run, tmp_path: Path
):
    other = run(searching | {"engine": {"workers": workers}}, tmp_path / "run")
    assert digest(other) == digest(whole)
    assert other.db.query(OFFSPRING) == whole.db.query(OFFSPRING) != []


def test_killed_in_mid_search_and_resumed_to_the_same_bytes(
    searching: dict[str, Any], whole: Run, tmp_path: Path
):
    config, path = tmp_path / "config.toml", tmp_path / "run"
    write_config(make_config(searching), config)
    command = [sys.executable, "-c", KILLED, str(config), str(path)]
    assert subprocess.run(command, check=False).returncode == -9
    assert Run(path).last_round() == 1
    resumed = resume(path)
    assert digest(resumed) == digest(whole)
    assert resumed.db.query(OFFSPRING) == whole.db.query(OFFSPRING)


def test_a_run_tells_what_the_paper_does(whole: Run):
    summary = summarise(whole)
    found = whole.db.query("SELECT DISTINCT model FROM metric WHERE round = 3 AND split = 'test'")
    assert {model for (model,) in found} >= {"untuned", "kept", "tuned"}
    assert summary["trained"] is not None
    roles = dict(whole.db.query("SELECT role, count(*) FROM architecture GROUP BY role"))
    assert roles["trained"] == 6 and roles["archive"] == 3 * 6
    assert summary["search"].keys() == {"choices"}, "the server knows nothing else of it"


def test_the_paper_s_value_is_of_the_client_s_own_weights(whole: Run):
    """After the last round nothing has changed since: `kept` is `trained`."""
    values = {
        model: dict(
            whole.db.query(
                "SELECT client, value FROM metric WHERE model = ? AND round = 3 AND split = 'test'"
                " AND name = 'accuracy'",
                model,
            )
        )
        for model in ("trained", "kept", "untuned")
    }
    assert len(values["trained"]) == 2 and values["trained"] != values["untuned"]
    assert all(values["kept"][client] == value for client, value in values["trained"].items())


def test_never_drawn_clients_do_not_change_the_headline(whole: Run):
    """They have nothing kept; what counts is tuned all the same."""
    trained = {c for (c,) in whole.db.query("SELECT DISTINCT client FROM architecture"
                                            " WHERE role = 'trained'")}  # fmt: skip
    kept = {c for (c,) in whole.db.query("SELECT client FROM metric WHERE model = 'kept'")}
    assert kept == trained
    tuned = whole.db.query("SELECT avg(value) FROM metric WHERE model = 'tuned' AND round = 3"
                           " AND split = 'test' AND name = 'accuracy'")  # fmt: skip
    assert summarise(whole)["test_accuracy"]["mean"] == pytest.approx(tuned[0][0])


def test_a_client_goes_on_with_its_own_population(whole: Run):
    """Most of it is still there when the client is drawn again."""
    rounds: dict[int, list[int]] = {}
    for client, round in whole.db.query("SELECT DISTINCT client, round FROM architecture"
                                        " WHERE role = 'trained'"):  # fmt: skip
        rounds.setdefault(client, []).append(round)
    assert any(len(times) > 1 for times in rounds.values())
    for client, times in rounds.items():
        own = codec.read(Search, whole.path / "state" / state_file(client, max(times)))
        assert len(own.population) == 8 and own.best in own.archive
        assert own.weights and own.embedding.numel()


def test_costs_are_told_by_the_paper_s_parts(whole: Run):
    """Table D: generation takes seconds and no multiply-adds, which networks alone are charged."""
    cost = summarise(whole)["cost"]
    parts = cost["parts"]
    wanted = {"features", "preliminary evaluation", "generation", "training", "evaluation"}
    assert set(parts) == wanted and cost["client_rounds"] == 6
    charged = {part for part, spent in parts.items() if spent["macs"]["mean"]}
    assert charged == wanted - {"features", "generation"}
    assert all(parts[part]["seconds"]["mean"] > 0 for part in wanted)
    assert cost["bytes"]["up"]["std"] == cost["bytes"]["down"]["std"] == 0
    weights, masked = cost["bytes"]["down"]["mean"], cost["bytes"]["up"]["mean"]
    assert weights < masked < weights * (1 + 1 / 32) + 100, "a bit for each of 32"
    once = sum(Path(file).stat().st_size for file in needed(whole).values())
    assert cost["bytes"]["once"] == {"mean": once, "std": 0}


def needed(found: Run) -> dict[str, Path]:
    config = read_config(found.path / "config.toml")
    task = load_federation(config.data).task
    return config.algorithm.needs(Setting(task, Tiny(), 3, 0))


def test_new_clients_search_with_the_weights_as_they_are(whole: Run, tmp_path: Path):
    """Nothing is trained or sent; populations change, and tuning comes at the end."""
    new = onboard(whole.path, tmp_path / "new", rounds=2)
    before, after = (codec.read(Supernet, one.server_path(n)) for one, n in ((whole, 3), (new, 2)))
    assert codec.digest(before) == codec.digest(after)
    config = read_config(new.path / "config.toml")
    federation, how = load_federation(config.data), config.algorithm
    assert isinstance(how, PerFedSDENAS) and how.epochs == 0
    sent = new.db.query("SELECT client, direction, sum(bytes) FROM message GROUP BY 1, 2")
    assert {c for c, _, _ in sent} == {4, 5}
    assert all((nbytes == 0) == (way == "up") for _, way, nbytes in sent)
    trained = new.db.query("SELECT sum(macs) FROM timing WHERE part = 'training'")
    assert trained == [(0.0,)]
    models = {m for (m,) in new.db.query("SELECT DISTINCT model FROM metric WHERE round = 2")}
    assert models == {"trained", "untuned", "tuned"}
    for number in (4, 5):
        own = codec.read(Search, new.path / "state" / state_file(number, 2))
        client = client_of(federation, Setting(federation.task, Tiny(), 2, config.seed), number, 1)
        first = how.client_init(client).population.archs
        assert own.population.archs != first, "they searched"
        assert own.embedding.numel() and not own.weights
    with pytest.raises(UserError, match="epochs: stays as new clients need it"):
        onboard(whole.path, tmp_path / "trains", algorithm={"epochs": 1})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"archive": 9}, "algorithm.archive: 9 of a population of 8"),
        ({"offspring": 9}, "algorithm.offspring: 9 cannot be chosen of 8 candidates"),
        ({"proposer": "diffusion"}, 'take "evolution"'),
        (
            {"proposer": "diffusion", "generator": "missing.safetensors"},
            "algorithm.generator: there is no file",
        ),
        ({"merge": "frequency"}, "algorithm.merge: "),
        ({"proposer": "sde"}, "algorithm.proposer: "),
        ({"archive": -1}, "algorithm.archive: "),
        ({"population": 0}, "algorithm.population: "),
        ({"iterations": 0}, "algorithm.iterations: "),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(
    changes: dict[str, Any], sentence: str, tmp_path: Path
):
    with pytest.raises(UserError) as refused:
        run(table(**changes), tmp_path / "run")
    assert sentence in str(refused.value) and "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists(), "before anything is written"


def test_generators_and_encoders_that_do_not_fit_are_refused(made: str, tmp_path: Path):
    other = table(proposer="diffusion", generator=made)
    other["space"] = {"name": "mobilenetv3", "preset": "cpu"}
    with pytest.raises(UserError, match=r"^algorithm\.generator: .* of a space with other choices"):
        prepared(other)
    file = tmp_path / "other.safetensors"
    save(generator(Tiny(), features=12), file)  # the package's encoder has more
    with pytest.raises(UserError, match=r"^algorithm\.encoder: .* made with another one"):
        prepared(table(proposer="diffusion", generator=str(file)))
    prepared(table(proposer="diffusion", generator=str(file), guide="scores"))  # needs no encoder
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"^algorithm\.encoder: .* cannot be read"):
        prepared(table(proposer="diffusion", generator=made, encoder=str(broken)))
    with pytest.raises(UserError, match=r"^algorithm\.generator: .* damaged"):
        prepared(table(proposer="diffusion", generator=str(broken)))


def test_sizes_may_be_as_large_as_they_can():
    prepared(table(archive=8, offspring=8))
    fixed = {"space": {"name": "cnn", "width": 4, "hidden": 16}}
    prepared(table(proposer="diffusion", archive=10) | fixed)  # of one network all is the archive


def prepared(config: dict[str, Any]) -> None:
    made = make_config(config)
    prepare(made, load_federation(made.data))


def test_files_that_clients_need_are_named(made: str, tmp_path: Path):
    setting = Setting(load_federation(DataOptions()).task, Tiny(), 2, 0)
    how = PerFedSDENAS(proposer="diffusion", generator=made)
    assert set(how.needs(setting)) == {"algorithm.generator", "algorithm.encoder"}
    assert how.needs(setting)["algorithm.generator"] == Path(made)
    assert set(replace(how, guide="scores").needs(setting)) == {"algorithm.generator"}
    assert replace(how, proposer="evolution").needs(setting) == {}
    assert how.needs(replace(setting, space=CNN())) == {}
    warm = str(tmp_path / "warm.safetensors")
    assert set(how.needs(replace(setting, init=warm))) == {
        "space.init", "algorithm.generator", "algorithm.encoder",
    }  # fmt: skip


def test_testing_on_test_images_warns():
    assert PerFedSDENAS().warnings() == ()
    assert "too high" in PerFedSDENAS(accuracy="test").warnings()[0]
