"""First weights: drawn by name, or read from a file."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, Task
from fedtailor.core.types import Setting
from fedtailor.experiment.lifecycle import run
from fedtailor.networks.initial import initial_supernet, initial_weights
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import shapes, view
from fedtailor.runs.config import config_table, make_config, read_config, write_config
from fedtailor.runs.summary import digest
from fedtailor.spaces.mobilenetv3_plato import MobileNetV3Plato
from tests.helpers.made_up import Fixed

Tiny = Callable[..., dict[str, Any]]
SPACE = MobileNetV3Plato(width=0.25, resolution=8)
TASK = Task((3, 8, 8), 4)
ARCH = SPACE.middle()


def setting(classes: int = 4, init: Path | None = None) -> Setting:
    path = None if init is None else str(init)
    return Setting(Task((3, 8, 8), classes), SPACE, 1, 0, ARCH, path)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """Return a file of a supernet's weights, none of them as drawn."""
    weights = {n: w + 1.0 for n, w in initial_supernet(setting()).items()}
    safetensors.torch.save_file(weights, tmp_path / "supernet.safetensors")
    return tmp_path / "supernet.safetensors"


def test_a_name_has_its_own_draw_whatever_else_there_is():
    one, other = initial_weights(setting()), initial_weights(setting(), SPACE.largest())
    assert torch.equal(one["stem.conv.weight"], other["stem.conv.weight"])
    assert one["last.linear.weight"].std() > 0
    assert one["mb1_1.project.norm.weight"].abs().max() == 0, "residual branches begin closed"
    assert one["stem.norm.running_var"].min() == 1


def test_what_is_returned_is_a_copy():
    initial_weights(setting())["stem.conv.weight"].zero_()
    initial_supernet(setting())["stem.conv.weight"].zero_()
    assert initial_weights(setting())["stem.conv.weight"].abs().sum() > 0
    assert initial_supernet(setting())["stem.conv.weight"].abs().sum() > 0


def test_a_network_starts_from_the_windows_of_a_saved_supernet(saved: Path):
    file = safetensors.torch.load_file(saved)
    found = initial_weights(setting(init=saved))
    for name, shape in shapes(SPACE, ARCH, TASK).items():
        assert torch.equal(found[name], view(file[name], shape)), name
    assert torch.equal(initial_supernet(setting(init=saved))["head.weight"], file["head.weight"])


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """Return a file of a supernet's weights and statistics, none of them as drawn."""
    weights = initial_supernet(setting(), statistics=True)
    changed = {n: w + torch.arange(w.numel()).view(w.shape) + 1.0 for n, w in weights.items()}
    safetensors.torch.save_file(changed, tmp_path / "measured.safetensors")
    return tmp_path / "measured.safetensors"


def test_statistics_of_a_saved_supernet_are_windows_like_its_weights(measured: Path, saved: Path):
    file, start = safetensors.torch.load_file(measured), setting(init=measured)
    found, windows = initial_weights(start), shapes(SPACE, ARCH, TASK, statistics=True)
    assert {n: tuple(w.shape) for n, w in found.items()} == windows
    assert any(windows[name] != tuple(file[name].shape) for name in windows if is_statistic(name))
    for name, shape in windows.items():
        assert torch.equal(found[name], view(file[name], shape)), name
    both = initial_supernet(start, statistics=True)
    assert both.keys() == file.keys() and all(torch.equal(both[n], file[n]) for n in file)
    plain = initial_supernet(start)
    assert plain.keys() == initial_supernet(setting()).keys()
    blank = initial_supernet(setting(init=saved), statistics=True)  # of a file without any
    assert all(w.eq(n.endswith("var")).all() for n, w in blank.items() if is_statistic(n))


def test_statistics_of_another_space_are_refused(measured: Path):
    weights = safetensors.torch.load_file(measured)
    weights["stem.norm.running_var"] = torch.ones(3)
    measured.unlink()
    safetensors.torch.save_file(weights, measured)
    with pytest.raises(UserError, match=r"stem\.norm\.running_var is \(3,\) in .* another space"):
        initial_weights(setting(init=measured))


@dataclass(frozen=True)
class NormedHead(Fixed):
    """A network whose classifier has a batch norm."""

    def build(self, arch: Arch, task: Task) -> nn.Module:
        head = nn.Sequential(nn.BatchNorm1d(12), nn.Linear(12, task.classes))
        return nn.Sequential(
            OrderedDict(pool=nn.AdaptiveAvgPool2d(2), flat=nn.Flatten(), head=head)
        )


def test_a_head_is_known_without_its_statistics(tmp_path: Path):
    start = Setting(Task((3, 8, 8), 4), NormedHead(), 1, 0)
    weights = {n: w + 1.0 for n, w in initial_weights(start).items() if not is_statistic(n)}
    safetensors.torch.save_file(weights, tmp_path / "bare")
    found = initial_weights(replace(start, init=str(tmp_path / "bare")))
    assert all(torch.equal(found[name], weight) for name, weight in weights.items())
    assert found["head.0.running_mean"].eq(0).all() and found["head.0.running_var"].eq(1).all()


def test_another_number_of_classes_gets_a_fresh_head(saved: Path):
    found, fresh = initial_supernet(setting(7, saved)), initial_supernet(setting(7))
    assert torch.equal(found["head.weight"], fresh["head.weight"])
    assert torch.equal(found["head.bias"], fresh["head.bias"])
    assert not torch.equal(found["stem.conv.weight"], fresh["stem.conv.weight"])


def test_a_network_starts_from_its_own_saved_model(tmp_path: Path):
    own = {n: w + 1.0 for n, w in initial_weights(setting()).items()}
    safetensors.torch.save_file(own, tmp_path / "own.safetensors")
    found = initial_weights(setting(init=tmp_path / "own.safetensors"))
    assert all(torch.equal(w, own[n]) for n, w in found.items()), "statistics included"


def test_what_is_wrong_with_a_file_is_one_sentence(saved: Path, tmp_path: Path):
    with pytest.raises(UserError, match=r"space\.init: there is no file"):
        initial_supernet(setting(init=tmp_path / "none"))
    (tmp_path / "bad").write_bytes(saved.read_bytes()[:100])
    with pytest.raises(UserError, match=r"space\.init: .* is no safetensors file"):
        initial_supernet(setting(init=tmp_path / "bad"))
    weights = safetensors.torch.load_file(saved)
    del weights["stem.conv.weight"]
    safetensors.torch.save_file(weights, tmp_path / "less")
    with pytest.raises(UserError, match=r"has no weight stem\.conv\.weight"):
        initial_supernet(setting(init=tmp_path / "less"))
    weights["stem.conv.weight"] = torch.zeros(4, 3, 3, 3)
    safetensors.torch.save_file(weights, tmp_path / "small")
    with pytest.raises(UserError, match=r"conv\.weight is \(4, 3, 3, 3\) in .* another space"):
        initial_supernet(setting(init=tmp_path / "small"))


def test_weights_of_a_wider_space_are_refused(tmp_path: Path):
    """Their leading channels would be taken silently, and mean something else."""
    wide = Setting(TASK, MobileNetV3Plato(width=0.5, resolution=8), 1, 0, ARCH)
    safetensors.torch.save_file(initial_supernet(wide), tmp_path / "wide")
    with pytest.raises(UserError, match="of another space"):
        initial_supernet(setting(init=tmp_path / "wide"))
    broken = initial_supernet(setting())
    broken["stem.conv.weight"][0] = float("nan")
    safetensors.torch.save_file(broken, tmp_path / "nan")
    with pytest.raises(UserError, match=r"stem\.conv\.weight in .* is not finite"):
        initial_supernet(setting(init=tmp_path / "nan"))


def test_a_file_that_changed_is_read_again(saved: Path):
    before = initial_supernet(setting(init=saved))
    weights = {n: w + 1.0 for n, w in safetensors.torch.load_file(saved).items()}
    saved.unlink()
    safetensors.torch.save_file(weights, saved)
    after = initial_supernet(setting(init=saved))
    assert not torch.equal(before["stem.conv.weight"], after["stem.conv.weight"])


CPU = {"name": "mobilenetv3_plato", "preset": "cpu", "resolution": 8}


def test_presets_are_fields_and_what_is_said_beside_them_comes_first(tiny: Tiny, tmp_path: Path):
    config = make_config(tiny(space=CPU))
    assert config.space == MobileNetV3Plato(width=0.5, resolution=8)
    write_config(config, tmp_path / "c.toml")
    assert read_config(tmp_path / "c.toml") == config
    assert config_table(config)["space"]["arch"] == "middle"
    assert "preset" not in config_table(config)["space"]


@pytest.mark.parametrize(
    ("arch", "says"),
    [
        ("huge", "space.arch: must be one of smallest, middle, largest, or of a search space"),
        ([0, 1], "space.arch: "),
        ([9] * 19, "space.arch: "),
        (3, "space.arch: must be one of"),
    ],
)
def test_an_architecture_that_is_none_is_one_sentence(tiny: Tiny, arch: object, says: str):
    with pytest.raises(UserError) as caught:
        make_config(tiny(space=CPU | {"arch": arch}))
    assert str(caught.value).startswith(says) and "\n" not in str(caught.value)


def test_a_preset_that_is_none_names_the_nearest(tiny: Tiny):
    with pytest.raises(UserError, match=r"space\.preset: no preset is called 'cpi'; did you mean"):
        make_config(tiny(space=CPU | {"preset": "cpi"}))


@pytest.mark.parametrize("arch", ["smallest", list(MobileNetV3Plato().largest())])
def test_a_fixed_model_algorithm_trains_the_architecture_it_is_told(
    tiny: Tiny, tmp_path: Path, arch: object
):
    """The same in one process and in workers, and the saved model says which it is."""
    table = tiny(space=CPU | {"arch": arch}, rounds=1)
    runs = [run(table, tmp_path / str(n), engine={"workers": n}) for n in (0, 1)]
    assert digest(runs[0]) == digest(runs[1])
    saved = safetensors.torch.load_file(tmp_path / "0" / "clients" / "000" / "weights.safetensors")
    space = MobileNetV3Plato(width=0.5, resolution=8)
    wanted = space.smallest() if arch == "smallest" else space.largest()
    names = shapes(space, wanted, Task((1, 8, 8), 10))
    assert {n: tuple(saved[n].shape) for n in names} == names


def test_a_run_can_start_from_saved_weights(tiny: Tiny, tmp_path: Path):
    first = run(tiny(space=CPU, rounds=1), tmp_path / "first")
    model = tmp_path / "first" / "clients" / "000" / "weights.safetensors"
    again = run(tiny(space=CPU | {"init": str(model)}, rounds=1), tmp_path / "again")
    assert digest(first) != digest(again)
    with pytest.raises(UserError, match=r"space\.init"):
        run(tiny(space=CPU | {"init": str(tmp_path / "nothing")}, rounds=1), tmp_path / "no")
    assert not (tmp_path / "no").exists()
