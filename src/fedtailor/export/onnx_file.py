"""A model as an ONNX file, which runs without PyTorch."""

import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.onnx import ONNXProgram

from fedtailor.core.errors import UserError
from fedtailor.core.files import whole_file
from fedtailor.export.checking import Answer, check

NEEDED = ("onnx", "onnxscript", "onnxruntime")
INPUT, OUTPUT = "images", "logits"


def refuse_without_extra() -> None:
    """Raise if what is needed for ONNX is not installed."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"onnx: {missing[0]} is not installed; pip install 'fedtailor[onnx]'")


def write_onnx(
    path: Path,
    program: ExportedProgram,
    about: dict[str, Any],
    wanted: Answer,
    images: Tensor,
) -> float:
    """Write a file once it was run and answered as PyTorch does; return how far they are apart."""
    refuse_without_extra()
    made = _translated(program)
    for key in ("classes", "shape", "mean", "std", "space", "arch"):
        made.model.metadata_props[f"fedtailor.{key}"] = json.dumps(about[key], ensure_ascii=False)
    with whole_file(path) as part:
        made.save(part, external_data=False)
        return check(wanted, onnx_answer(part), images, "onnxruntime")


def _translated(program: ExportedProgram) -> ONNXProgram:
    try:
        with _quiet():
            found = torch.onnx.export(
                program, dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False
            )
    except Exception as error:  # an operation that ONNX does not have
        cause = error.__cause__ or error
        said = str(cause).strip().splitlines()[0]
        raise UserError(
            f"onnx: torch's exporter cannot write this network ({said}); --torch may"
        ) from error
    assert found is not None
    return found


def onnx_answer(path: Path) -> Answer:
    """Return an ONNX file as a function of images."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])

    def answer(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {INPUT: images.contiguous().numpy()})[0])

    return answer


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's talk from users: of torchvision, which is not used, and of itself."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
