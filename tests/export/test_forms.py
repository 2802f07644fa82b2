"""Every form of a model answers as the trained one does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fedtailor.core import registry
from fedtailor.core.space import Task
from fedtailor.core.types import Setting
from fedtailor.export.checking import BATCHES, answering, difference
from fedtailor.export.folding import CLOSE, allowed, folded
from fedtailor.export.onnx_file import onnx_answer, write_onnx
from fedtailor.export.personal import PersonalModel, build_model
from fedtailor.export.program import exported, loaded_program, write_program
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.norms import measuring, norms_of

TASK = Task((3, 8, 8), 3)
SPACES = registry.names("space")
UNFOLDED = {"darts": 5, "darts_network": 2, "levit": 1}  # batch norms that no layer feeds


def shaken(name: str) -> PersonalModel:
    """Build the smallest network of a space, whose batch norms have something to say."""
    kind = registry.find("space", name)
    fields = kind.presets.get("cpu", {})
    space = kind(**fields).at(TASK)
    arch, rng = space.smallest(), torch.Generator().manual_seed(0)
    weights = {
        key: tensor + 0.1 * torch.randn(tensor.shape, generator=rng)
        for key, tensor in initial_weights(Setting(TASK, space, 1, 0), arch).items()
    }
    about: dict[str, Any] = {
        "space": json.loads(json.dumps({"name": name, **fields})),
        "arch": list(arch),
        "shape": list(TASK.shape),
        "classes": ["cat", "dog", 'a "cow"'],
        "mean": [0.4, 0.5, 0.6],
        "std": [0.2, 0.3, 0.4],
    }
    model = build_model(about, weights)
    with measuring(model), torch.no_grad():
        model(images(64))
    return model


def images(count: int = 17) -> torch.Tensor:
    return torch.rand(count, *TASK.shape, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", SPACES)
def test_every_form_of_every_space_answers_alike(name: str, tmp_path: Path):
    pytest.importorskip("onnxruntime")
    model, some = shaken(name), images()
    wanted = answering(model)
    assert wanted(some).std(0).max() > 100 * CLOSE, "it tells images apart"
    smaller, lost = folded(model, some)
    assert lost == len(norms_of(model)) - UNFOLDED.get(name, 0)
    assert len(norms_of(smaller)) == UNFOLDED.get(name, 0)
    assert difference(wanted, answering(smaller), some) < allowed(wanted(some))
    program = exported(smaller, model.shape)
    write_program(tmp_path, program, model.labels, model.shape)
    assert difference(wanted, answering(loaded_program(tmp_path)), some) < allowed(wanted(some))
    assert write_onnx(tmp_path / "m.onnx", program, model.about, wanted, some) < allowed(
        wanted(some)
    )
    assert difference(wanted, onnx_answer(tmp_path / "m.onnx"), some) < allowed(wanted(some))


def test_a_layer_that_others_read_keeps_its_batch_norm():
    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.other = torch.nn.Conv2d(3, 4, 1), torch.nn.Conv2d(4, 4, 1)
            self.norm, self.second = torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            read = self.conv(images)
            return self.second(self.other(self.norm(read) + read)).mean((2, 3))

    model = Shared().eval()
    model.norm.get_buffer("running_mean").fill_(0.7)
    model.second.get_buffer("running_mean").fill_(0.7)
    smaller, lost = folded(model, images())
    assert lost == 1
    assert difference(answering(model), answering(smaller), images()) < CLOSE


def test_a_program_runs_where_there_is_no_fedtailor(tmp_path: Path):
    model = shaken("cnn")
    write_program(
        tmp_path, exported(folded(model, images())[0], model.shape), model.labels, (3, 8, 8)
    )
    torch.manual_seed(0)
    code = (
        "import sys; sys.modules['fedtailor'] = None; import torch; from model import load, LABELS;"
        "assert LABELS[2] == 'a \"cow\"';"
        "g = torch.Generator().manual_seed(1); x = torch.rand(17, 3, 8, 8, generator=g);"
        "print(load()(x).tolist())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    found = torch.tensor(json.loads(done.stdout))
    assert torch.allclose(found, answering(model)(images()), atol=CLOSE)


def test_a_file_that_answers_otherwise_is_not_written(tmp_path: Path):
    pytest.importorskip("onnxruntime")
    from fedtailor.core.errors import UserError

    model = shaken("cnn")
    program = exported(model, model.shape)
    with pytest.raises(UserError, match="answers otherwise than PyTorch, by up to"):
        write_onnx(
            tmp_path / "m.onnx", program, model.about, lambda x: answering(model)(x) + 1, images()
        )
    assert list(tmp_path.iterdir()) == []


def test_batches_are_compared_beyond_the_example():
    """A program that took the example's size for a constant is found out."""
    from fedtailor.core.errors import UserError

    assert set(BATCHES) == {1, 2, 17}
    with pytest.raises(UserError, match="a batch of 1 comes out as"):
        difference(lambda x: x[:, 0, 0], lambda x: torch.zeros(2, 8), images())
