"""The verbs that carry models out: export and predict."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fedtailor.cli.common import AsJson, print_json, warn

OwnCode = Annotated[
    bool,
    Parameter(
        negative="",
        help="Import a space or data file of a user's own that the run names: this runs its code.",
    ),
]


def export(
    path: Path,
    /,
    *,
    client: str | None = None,
    every: Annotated[bool, Parameter(name="--all", negative="")] = False,
    onnx: Path | None = None,
    torch: Path | None = None,
    hub: Path | None = None,
    own_code: OwnCode = False,
    as_json: AsJson = False,
) -> None:
    """Write the model of a client for other programs, with its preprocessing and label names.

    What is written was first compared with the trained model on the client's test images, in
    batches of 1, 2 and 17. Batch norm is folded into the layers before it where that changes no
    output. For example:

    fedtailor export runs/a --client 3 --onnx client3.onnx

    fedtailor export runs/a --all --torch models

    Args:
        path: the folder of a finished run.
        client: the client.
        every: every client's; the targets are then folders with an entry for each.
        onnx: a file for ONNX runtimes; needs pip install 'fedtailor[onnx]'.
        torch: a folder with model.py and model.safetensors, which need no fedtailor.
        hub: a folder as model hubs expect it, for `fedtailor.from_pretrained`: a card, config.json
            and model.safetensors.
        own_code: import a space or data file of a user's own that the run names: runs its code.
        as_json: print JSON for scripts.
    """
    from fedtailor.core.errors import UserError
    from fedtailor.export.exporting import Targets, export_all, export_model
    from fedtailor.runs import database
    from fedtailor.runs.clients import client_number
    from fedtailor.runs.folder import Run

    if every == (client is not None):
        raise UserError("export: name a client with --client, or all of them with --all")
    run, targets, found = Run(path), Targets(onnx, torch, hub), list[dict[str, Any]]()

    def told(one: dict[str, Any]) -> None:
        found.append(one)
        if not as_json:
            _tell(one)

    if client is not None:
        told(export_model(run, client_number(run, client), targets, own_code))
    else:
        last = run.last_round()
        there = [c for c, _ in database.of_clients(run.db, last, "test", "untuned", "accuracy")]
        export_all(run, there, targets, own_code, told)
    if as_json:
        print_json(found)


def predict(
    path: Path,
    /,
    *images: Path,
    client: str | None = None,
    own_code: OwnCode = False,
    as_json: AsJson = False,
) -> None:
    """Say what a client's model sees in image files.

    They are resized and turned to gray or colour as the model takes them.

    Args:
        path: the folder of a finished run, or one that `fedtailor export --hub` wrote.
        images: image files.
        client: whose model, of a run.
        own_code: import a space file of a user's own that the run names: this runs its code.
        as_json: print JSON for scripts: the probabilities of all classes.
    """
    from fedtailor.core.errors import UserError
    from fedtailor.export.hub import from_pretrained, is_hub
    from fedtailor.export.personal import load_model
    from fedtailor.export.prediction import predict_files

    if not images:
        raise UserError("predict: name an image file")
    if is_hub(path):
        model = from_pretrained(path)
    elif client is None:
        raise UserError("predict: --client says whose model of the run")
    else:
        model = load_model(path, client, own_code)
    found = predict_files(model, images)
    if as_json:
        print_json(found)
        return
    width = max(len(one["file"]) for one in found)
    for one in found:
        print(f"{one['file']:{width}}  {one['label']}  {100 * one['probability']:.1f} %")


def _tell(one: dict[str, Any]) -> None:
    """Print what was written of a client."""
    times = ", ".join(f"{took:.2f} ms by {name}" for name, took in one["latency_ms"].items())
    print(
        f"client {one['name']}: {one['space']}, {one['parameters']:,} parameters, "
        f"{one['macs'] / 1e6:,.1f} M multiply-adds, one image {times} (one thread); "
        f"{one['folded']} of {one['norms']} batch norms folded"
    )
    for path, (form, apart) in zip(one["written"], one["apart"].items(), strict=True):
        print(f"  wrote {path} ({form}; at most {apart:.1g} from PyTorch on {one['compared_on']})")
    told, here = one["test_accuracy"], one["accuracy_here"]
    if told is not None and here is not None and abs(told - here) > 1e-9:
        warn(
            f"client {one['name']}: the model tells {100 * here:.2f} % of its test images right "
            f"here, where the run measured {100 * told:.2f} %"
        )
    if one["memory"]:
        warn(
            f"client {one['name']}: the model carries a memory of the client's own images and "
            "their labels"
        )
