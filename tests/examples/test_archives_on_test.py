"""Archives and populations on test images, against one network at a time."""

import importlib
from pathlib import Path
from types import ModuleType

import pytest

from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.networks.network import network_of
from fedtailor.training import learn
from tests.helpers.sde_setting import table

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("archives_on_test")


@pytest.mark.parametrize("statistics", ["merged", "own"])
def test_means_are_those_of_one_network_at_a_time(
    statistics: str, script: ModuleType, tmp_path: Path
):
    config = table(proposer="evolution", statistics=statistics, archive=3)
    made = run(config | {"rounds": 1, "cohort": 2}, tmp_path / "run")
    means = script.means_of(made.path)
    work = script.FromRun.of(tmp_path, script.Sizes(0, 0), 0, None, made.path, None)
    federation, store = load_federation(work.config().data), work.store()
    assert set(means) == set(work.clients) and len(means) == 2
    for client, (archive, population, personal) in means.items():
        (other,) = set(work.clients) - {client}
        theirs, own = work.search_of(other).archive, work.search_of(client).population.archs
        tested = {}
        for arch in (*own, *theirs):
            network = network_of(store.space, arch, store.task, store.cut(arch))
            if statistics == "own":
                learn.recalibrate(network, script.mixed(federation.examples(client, "train")))
            found = learn.evaluate(network, federation.examples(client, "test"))
            tested[arch] = 100 * found["accuracy"]
        kept = work.search_of(client).archive
        assert len(kept) == 3 < len(tested)
        assert archive == pytest.approx(sum(tested[arch] for arch in kept) / 3)
        assert population == pytest.approx(sum(tested[arch] for arch in own) / len(own))
        assert personal == pytest.approx(
            archive - sum(tested[arch] for arch in theirs) / 3, abs=1e-4
        )


def test_the_table_pairs_clients(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Differences of the clients that both have, each the mean over its seeds: 2, 3 and 4."""
    runs = {
        "a0": {0: (10.0, 1.0, 0.0), 1: (20.0, 1.0, 0.0), 2: (30.0, 1.0, 0.0), 7: (99.0, 1.0, 9.0)},
        "a1": {0: (10.0, 1.0, 0.0), 1: (20.0, 1.0, 0.0), 2: (30.0, 1.0, 0.0)},
        "b0": {0: (11.0, 1.0, 1.0), 1: (21.0, 1.0, 1.0), 2: (31.0, 1.0, 1.0)},
        "b1": {0: (13.0, 1.0, 3.0), 1: (25.0, 1.0, 5.0), 2: (37.0, 1.0, 7.0)},
    }
    monkeypatch.setattr(script, "means_of", lambda path: runs[str(path)])
    monkeypatch.setattr("sys.argv", ["", "a=a0,a1", "b=b0,b1"])
    script.main()
    rows = capsys.readouterr().out.splitlines()
    same = "+3.00 (+0.52 to +5.48)"
    assert rows[-1].startswith(f"| b | 23.00 | 1.00 | {same} | {same} | +0.00")
    assert rows[-2] == "| a | 29.88 | 1.00 | +0.00 (+0.00 to +0.00) |"
