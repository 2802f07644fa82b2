"""Writing a client's model in the forms that are asked for, each checked before it counts."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.files import whole_folder
from fedtailor.data.client_names import file_stem_of
from fedtailor.export.card import USE_HUB, USE_TORCH, card
from fedtailor.export.checking import (
    accuracy,
    answering,
    check,
    latency_ms,
    sample_of,
)
from fedtailor.export.facts import facts_of
from fedtailor.export.folding import folded
from fedtailor.export.hub import from_pretrained, write_hub
from fedtailor.export.onnx_file import onnx_answer, refuse_without_extra, write_onnx
from fedtailor.export.personal import build_model
from fedtailor.export.program import exported, loaded_program, write_program
from fedtailor.networks.norms import norms_of
from fedtailor.runs.clients import client_labels, client_names
from fedtailor.runs.folder import Run
from fedtailor.runs.saved_models import read_model


@dataclass(frozen=True)
class Targets:
    """Where a model goes, in which forms."""

    onnx: Path | None = None  # a file
    torch: Path | None = None  # a folder
    hub: Path | None = None  # a folder

    def each(self, name: str) -> "Targets":
        """Return a place for one client of many, below these, which are folders."""
        return Targets(
            self.onnx and self.onnx / f"{name}.onnx",
            self.torch and self.torch / name,
            self.hub and self.hub / name,
        )

    def refuse(self) -> None:
        """Raise before any work if nothing is asked for, or something is in the way."""
        wanted = [path for path in (self.onnx, self.torch, self.hub) if path is not None]
        if not wanted:
            raise UserError("export: name a form: --onnx FILE, --torch DIR or --hub DIR")
        if self.onnx is not None:
            refuse_without_extra()
        for path in wanted:
            if path.exists():
                raise UserError(f"{path}: is there already; nothing was written")


def export_model(run: Run, client: int, targets: Targets, own_code: bool = False) -> dict[str, Any]:
    """Write a client's model; return what was found out about it on the way."""
    targets.refuse()
    about, weights = read_model(run, client)
    model = build_model(about, weights, own_code)
    sample, wanted = sample_of(run, client, model, own_code), answering(model)
    smaller, lost = folded(model, sample.images[:17])
    facts = facts_of(run, client, model)
    found: dict[str, Any] = {
        "client": client,
        "name": client_labels(run)[client],
        "space": about["space"]["name"],
        "labels": list(model.labels),
        **{key: facts[key] for key in ("parameters", "macs", "val_accuracy", "test_accuracy")},
        "accuracy_here": accuracy(wanted, sample),
        "norms": len(norms_of(model)),
        "folded": lost,
        "compared_on": sample.name,
        "memory": facts["memory"],
        "latency_ms": {"torch": latency_ms(answering(smaller), model.shape)},
        "apart": {},
        "written": [],
    }
    took = found["latency_ms"]["torch"]
    facts["latency"] = f"{took:.2f} ms by PyTorch, one thread of the exporting machine's CPU"
    title = f"{facts['data']['name']}, client {found['name']}: {found['space']}"
    if targets.hub is not None:
        text = card(model, facts, title, USE_HUB)
        with whole_folder(targets.hub) as part:
            write_hub(part, about, weights, text)
            apart = check(wanted, answering(from_pretrained(part)), sample.images, "the folder")
        _written(found, "hub", targets.hub, apart)
    if targets.onnx is None and targets.torch is None:
        return found
    program = exported(smaller, model.shape)
    if targets.torch is not None:
        text = card(model, facts, title, USE_TORCH)
        with whole_folder(targets.torch) as part:
            write_program(part, program, model.labels, model.shape)
            (part / "README.md").write_text(text, encoding="utf-8")
            apart = check(wanted, answering(loaded_program(part)), sample.images, "model.py")
        _written(found, "torch", targets.torch, apart)
    if targets.onnx is not None:
        apart = write_onnx(targets.onnx, program, about, wanted, sample.images)
        _written(found, "onnx", targets.onnx, apart)
        found["latency_ms"]["onnx"] = latency_ms(onnx_answer(targets.onnx), model.shape)
    return found


def export_all(
    run: Run,
    clients: list[int],
    targets: Targets,
    own_code: bool,
    told: Callable[[dict[str, Any]], None],
) -> None:
    """Write every client's model below the targets, which are folders."""
    targets.refuse()
    names = client_names(run)
    for client in clients:
        told(export_model(run, client, targets.each(file_stem_of(names, client)), own_code))


def _written(found: dict[str, Any], form: str, path: Path, apart: float) -> None:
    found["apart"][form] = apart
    found["written"].append(str(path))
