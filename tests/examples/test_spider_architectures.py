"""What silos ended with, on made-up architectures and on small runs; and chance of a size."""

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from fedtailor.algorithms.spider import Private
from fedtailor.core.types import Setting
from fedtailor.data.federation import Federation
from fedtailor.experiment.lifecycle import run
from fedtailor.networks import cost
from fedtailor.runs.summary import summarise
from tests.helpers import few_edges
from tests.helpers.few_edges import BOTH, SEP, SKIP, FewEdges
from tests.helpers.sde_setting import client_of
from tests.helpers.silos import OPEN

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("spider_architectures")


def test_the_majority_and_of_equals_the_dearer(script: ModuleType):
    archs = [(SKIP, SEP, SKIP), (SKIP, SKIP, SEP), (SEP, SKIP, SKIP), (SKIP, SEP, SKIP)]
    assert script.majority(archs) == (SKIP, SEP, SKIP)


def test_distances_of_the_same_and_of_other_silos(script: ModuleType):
    """Three silos that find the same again, each unlike the others: 1 of 6 ways to deal them."""
    archs = [(1, 1, 1, 1), (2, 2, 1, 1), (2, 2, 2, 2)]
    again = [(1, 1, 1, 1), (2, 2, 1, 1), (2, 2, 2, 1)]
    same, others, p = script.apart(archs, again)
    assert same == pytest.approx(1 / 3)
    assert others == pytest.approx(np.mean([2, 3, 2, 1, 4, 2]))
    assert p == pytest.approx(1 / 6)
    assert script.apart(archs, [archs[0]] * 3)[2] == 1.0, "no silo is closer to its own"


def test_skips_by_cell(script: ModuleType):
    normal = (SKIP, SEP, 0, 0, BOTH, 0, 0, SKIP, 0, 0, 0, SKIP, 0, 0)
    assert script.skips(FewEdges(), normal + OPEN[14:]) == [3, 2]


def test_tables_of_runs(script: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    space = {"name": f"{few_edges.__file__}:FewEdges", "arch": "largest"}
    config = {
        "rounds": 4,
        "algorithm": {"name": "spider", "warmup": 1, "recovery": 1, "searcher": "random"},
        "space": space,
        "data": {"clients": 3, "per_client": 40, "partition": "iid"},
        "engine": {"workers": 0},
        "save_models": False,
    }
    runs = [run(config, tmp_path / str(seed), seed=seed) for seed in (0, 1)]
    ditto = run(config | {"algorithm": {"name": "ditto"}, "rounds": 1}, tmp_path / "ditto")
    script.main([f"random={runs[0].path},{runs[1].path}", f"ditto={ditto.path}"])
    lines = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()]
    found, other = (dict(zip(script.HEAD, lines[place], strict=True)) for place in (2, 3))
    task = script.Silos(ditto.path).task
    whole = cost.training_memory(FewEdges(), OPEN, task, 32) / cost.MIB
    assert found["undecided"] == "0.0" and other["undecided"] == "4.0"
    assert found["MB in turn"] == other["MB deployed"] == f"{whole:.1f}"
    assert found["MB together"] == other["MB together"] == f"{2 * whole:.1f}"
    assert float(found["thousand parameters"]) < float(other["thousand parameters"])
    sent = [sum(summarise(one)["bytes"].values()) / 1e6 for one in runs]
    assert found["MB sent"] == f"{np.mean(sent):,.1f}"
    assert lines[-1][:3] == ["random", "0, 1", "28"]
    script.main(["--majority", str(runs[0].path)])
    chosen = json.loads(capsys.readouterr().out)
    assert len(chosen) == 28 and set(chosen) <= {0, SKIP, SEP}
    other = run(config | {"space": {"name": "cnn"}, "rounds": 1}, tmp_path / "cnn")
    with pytest.raises(SystemExit) as ended:
        script.main([f"cnn={other.path}"])
    assert ended.value.code == 2 and "is not a run on darts" in capsys.readouterr().err


def test_chance_of_a_size(monkeypatch: pytest.MonkeyPatch, federation: Federation):
    """Of 300 searches by chance, as many convolutions as were asked for, and nothing is tested."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    matched = importlib.import_module("matched_chance").Matched
    how = matched(warmup=0, recovery=1, normal_share=0.8, reduction_share=0.1)
    setting, decided = Setting(federation.task, FewEdges(), rounds=10, seed=3), list[list[int]]()
    for round in range(1, 301):
        client = client_of(federation, setting, 0, round)
        arch = how._searched(client, Private(OPEN))[0].arch
        decided.append([gene for gene, old in zip(arch, OPEN, strict=True) if gene != old])
        assert not client.meter.macs
    normal, reduction = (np.array(decided) == SEP).mean(0)
    assert normal == pytest.approx(0.8, abs=0.08) and reduction == pytest.approx(0.1, abs=0.06)
