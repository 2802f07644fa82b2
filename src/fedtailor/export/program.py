"""A model as a program that needs no code of ours: plain PyTorch text beside a file of weights."""

from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind

from fedtailor.core.errors import UserError
from fedtailor.core.types import Tensors

CODE, WEIGHTS = "model.py", "model.safetensors"
HEAD = '''"""A model as plain PyTorch operations, its weights in {weights} beside this file.

It needs torch and safetensors, nothing else:

    from model import load, LABELS
    logits = load()(images)  # (n, {shape}), float32, pixels from 0 to 1
    print(LABELS[int(logits[0].argmax())])
"""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import device, inf, nan  # noqa: F401

LABELS = {labels}
SHAPE = {size}  # channels, height, width


class Model(torch.nn.Module):
    """Logits of images; its weights are buffers."""

    def __init__(self, weights):
        super().__init__()
        for name, tensor in weights.items():
            self.register_buffer(name, tensor)

    def forward(self, images):
        """Return the logits of images (n, {shape}), float32, pixels from 0 to 1."""
        weights = [self.get_buffer(name) for name in NAMES]
        return self.compute(*weights, images)[0]

'''
FOOT = '''

NAMES = {names}


def load(file=Path(__file__).with_name("{weights}")):
    """Return the model with the weights of a file."""
    return Model(load_file(file)).eval()
'''


def exported(model: nn.Module, shape: tuple[int, ...]) -> ExportedProgram:
    """Trace a model with a batch of 2, for batches of any size."""
    example = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            return torch.export.export(
                model.eval(), (example,), dynamic_shapes=({0: Dim("batch", min=1)},)
            )
    except Exception as error:  # whatever a user's own network makes the exporter stumble over
        said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(
            f"torch.export cannot trace this network ({said}); a network of your own must not "
            "branch on values, nor take len() of a batch"
        ) from error


def as_python(
    program: ExportedProgram, labels: tuple[str, ...], shape: tuple[int, ...]
) -> tuple[str, Tensors]:
    """Return a program as the text of a Python file and the weights that it reads."""
    weights: Tensors = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            continue
        constant = spec.kind == InputKind.CONSTANT_TENSOR or spec.persistent is False
        held = program.constants if constant else program.state_dict
        tensor = held[str(spec.target)]
        assert isinstance(tensor, Tensor)
        weights[spec.arg.name] = tensor.detach().clone(memory_format=torch.contiguous_format)
    size = ", ".join(str(n) for n in shape)
    head = HEAD.format(weights=WEIGHTS, labels=list(labels), shape=size, size=tuple(shape))
    body = program.graph_module.code.replace("def forward(", "def compute(", 1).strip()
    foot = FOOT.format(weights=WEIGHTS, names=list(weights))
    return head + "    " + body.replace("\n", "\n    ").rstrip() + "\n" + foot, weights


def write_program(
    folder: Path, program: ExportedProgram, labels: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    """Write a program into a folder."""
    text, weights = as_python(program, labels, shape)
    compile(text, CODE, "exec")
    (folder / CODE).write_text(text, encoding="utf-8")
    safetensors.torch.save_file(weights, folder / WEIGHTS)


def loaded_program(folder: Path) -> nn.Module:
    """Return the model of a folder just written, by its own code."""
    space: dict[str, object] = {"__file__": str(folder / CODE), "__name__": "model"}
    exec(compile((folder / CODE).read_text(encoding="utf-8"), folder / CODE, "exec"), space)
    load = space["load"]
    assert callable(load)
    found = load()
    assert isinstance(found, nn.Module)
    return found
