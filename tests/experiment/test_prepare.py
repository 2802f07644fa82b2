"""What an experiment is made of: its space knows the size of the images, its config does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.core.packing import pack_setting, unpack_setting
from fedtailor.data.federation import load_federation
from fedtailor.experiment.lifecycle import run
from fedtailor.experiment.plan_text import plan_lines
from fedtailor.experiment.planning import plan
from fedtailor.experiment.prepare import setting_of
from fedtailor.report.page import write_report
from fedtailor.runs import database
from fedtailor.runs.config import config_table, make_config
from fedtailor.runs.summary import summarise
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato

Tiny = Callable[..., dict[str, Any]]

LAST = [len(choice.options) - 1 for choice in MobileNetV3Plato().choices]


def test_a_space_without_resolution_takes_the_images_own():
    """Digits have 8 pixels: three of five kernels make no difference."""
    space = {"name": "mobilenetv3_plato", "width": 0.5, "arch": LAST}
    config = make_config({"space": space, "data": {"name": "digits", "clients": 2}})
    setting = setting_of(config, load_federation(config.data))
    assert setting.space == MobileNetV3Plato(width=0.5, resolution=8)
    assert setting.arch == setting.space.largest() and setting.arch[10:15] == (1, 1, 0, 0, 0)
    assert unpack_setting(pack_setting(setting)) == setting
    assert config.space == MobileNetV3Plato(width=0.5)
    assert "resolution" not in config_table(config)["space"]


@pytest.mark.parametrize("name", ["perfedrlnas", "knnper"])
def test_methods_that_choose_refuse_clients_without_validation_images(
    name: str, tiny: Tiny, tmp_path: Path
):
    table = tiny(algorithm__name=name, data__fractions=[0.8, 0, 0.2])
    with pytest.raises(UserError, match=rf"^data\.fractions: {name} chooses by validation images"):
        run(table, tmp_path / "run")
    x, split = np.zeros((12, 8, 8), np.uint8), np.array([0, 0, 2] * 4)
    np.savez(tmp_path / "own.npz", x=x, y=np.arange(12) % 2, client=np.arange(12) // 6, split=split)
    table["data"] = {"path": str(tmp_path / "own.npz"), "partition": "by_client"}
    with pytest.raises(UserError, match=rf"^data\.path: {name} .* client 0 comes with none"):
        run(table | {"cohort": 2}, tmp_path / "run")


def test_others_do_without(tiny: Tiny, tmp_path: Path):
    found = run(tiny(data__fractions=[0.8, 0, 0.2], rounds=2), tmp_path / "run")
    summary = summarise(found)
    assert summary["val_selected"] is None and summary["test_accuracy"]["mean"] > 0
    planned = plan(make_config(tiny(data__fractions=[0.8, 0, 0.2])))
    assert planned["sizes"][0] == {"train": 48, "val": 0, "test": 12}


def test_a_run_that_is_shorter_than_its_search_says_so():
    """By a client's own rounds: with half of the clients in a round it takes twice as many."""
    table = {
        "algorithm": {"name": "spider", "warmup": 0, "recovery": 1},
        "space": {"name": "darts", "operations": "s2", "form": "relaxed"},
        "data": {"clients": 4},
    }
    for more, ends in (
        ({"rounds": 14}, None),
        ({"rounds": 13}, 14),
        ({"rounds": 27, "cohort": 2}, 28),
        ({"rounds": 28, "cohort": 2}, None),
        ({"rounds": 14, "cohort": 9}, None),
        ({"rounds": 14, "cohort": 2, "data": {"partition": "by_client"}}, None),
        ({"rounds": 14, "cohort": 5, "data": {}}, 28),
    ):
        told = " ".join(make_config(table | more).warnings())
        assert (f"decides its last choices in round {ends} or so" in told) == (ends is not None)


def test_a_search_without_choices_says_so(tiny: Tiny, tmp_path: Path):
    table = tiny(algorithm__name="perfedrlnas", rounds=1, save_models=False)
    says = "space.name: cnn has no choices, so perfedrlnas searches nothing"
    assert says in "\n".join(make_config(table).warnings())
    found = run(table, tmp_path / "run")
    assert database.warnings(found.db)[0].startswith(says)
    page = write_report([found], tmp_path / "page.html", None).read_text(encoding="utf-8")
    assert says in page
    planned = plan(make_config(table))
    assert says in " ".join(" ".join(plan_lines(planned)).split())
    table["space"] = {"name": "mobilenetv3", "preset": "cpu"}
    assert make_config(table).warnings() == ()
