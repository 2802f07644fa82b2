"""What `plan` promises of a search: what its networks cost, and who can train them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.runs.config import make_config
from fedtailor.runs.summary import summarise
from tests.helpers.sde_setting import table as searching

Tiny = Callable[..., dict[str, Any]]
SPACE = {"name": "mobilenetv3_plato", "preset": "cpu"}


def test_a_search_is_planned_by_its_smallest_and_largest(tiny: Tiny):
    table = tiny(algorithm__name="perfedrlnas", space=SPACE, budget={"memory_mb": [5, 10, 100]})
    found = plan(make_config(table))
    sizes = found["architectures"]
    assert list(sizes) == ["smallest", "middle", "largest"]
    for key in ("parameters", "macs", "memory_mb"):
        assert sizes["smallest"][key] < sizes["middle"][key] < sizes["largest"][key]
    over = [sizes[name]["over_memory_budget"] for name in sizes]
    assert over == [[], [0, 3], [0, 1, 3, 4]]
    least, most = (4 * sizes[name]["parameters"] for name in ("smallest", "largest"))
    assert least < found["bytes_per_client_round"]["down"] < most
    lines = plan_lines(found)
    assert repr(found) == "\n".join(lines)
    assert any(line.startswith("largest") and "4 of 5 clients" in line for line in lines)
    assert not any(line.startswith("model  ") for line in lines)


def test_a_search_on_the_clients_is_planned_by_what_it_will_do(tmp_path: Path):
    """Its round is mostly validation images: the run then spends and sends what was planned."""
    many = searching(population=60, archive=0, batch=4)  # so many that clients' networks are alike
    table = many | {"rounds": 1, "cohort": None, "eval_every": 1}
    table["data"]["per_client"] = 160  # a third of a client's validation images is still enough
    found, spent = plan(make_config(table)), summarise(run(table, tmp_path / "run"))["cost"]
    sent = {way: spent["bytes"][way]["mean"] for way in ("down", "up")}
    assert found["bytes_per_client_round"] == sent
    macs, parts = spent["sum"]["macs"]["mean"], spent["parts"]
    assert parts["preliminary evaluation"]["macs"]["mean"] > 0.2 * macs
    assert found["training_macs_per_client_round"] == pytest.approx(macs, rel=0.2)


def test_a_fixed_network_is_planned_as_one(tiny: Tiny):
    found = plan(tiny(space=SPACE), data={"clients": 3})  # a table, as `run` takes it
    assert found["architectures"] == {} and found["clients"] == 3
    assert any(line.startswith("model  ") for line in plan_lines(found))


def test_the_plan_tells_whose_images_differ(tiny: Tiny):
    plain, found = (plan(make_config(tiny(data__shift=shift))) for shift in ([], ["blur", "none"]))
    assert "shifts" not in plain
    assert found["shifts"] == (["blur 1", "none"] * 5)[: len(found["sizes"])]
    told = [line for line in plan_lines(found) if "|" in line]
    assert [line.rpartition("|  ")[2] for line in told] == found["shifts"]
    assert all(line.endswith("|") for line in plan_lines(plain) if "|" in line)
