"""The page that goes with a model: what it is, how good, what of its client it tells."""

from typing import Any

from fedtailor.export.personal import PersonalModel

PERSONAL = """This is a *personal* model: its weights, its architecture and the list of its labels
were made for one client and say something of that client's data. Give it away only if the client
may."""
MEMORY = """It also carries a **memory**: embeddings and labels of the client's own images, from
which much of them can be told."""
USE_HUB = """```python
import fedtailor

model = fedtailor.from_pretrained("{folder}")
logits = model(images)  # (n, {shape}), float32, pixels from 0 to 1
print(model.labels[int(logits[0].argmax())])
```

or `fedtailor predict {folder} IMAGE...`."""
USE_TORCH = """`model.py` is the network as plain PyTorch operations, normalisation included,
and reads `model.safetensors` beside it. It needs torch and safetensors, and nothing of fedtailor:

```python
from model import load, LABELS  # in this folder

logits = load()(images)  # (n, {shape}), float32, pixels from 0 to 1
print(LABELS[int(logits[0].argmax())])
```"""


def card(model: PersonalModel, facts: dict[str, Any], title: str, usage: str) -> str:
    """Write the page in Markdown, with the header that model hubs read."""
    shape = ", ".join(str(n) for n in model.shape)
    rows = "\n".join(f"| {name} | {value} |" for name, value in _rows(model, facts))
    warning = f"{PERSONAL}\n\n{MEMORY}" if facts["memory"] else PERSONAL
    return f"""---
library_name: fedtailor
pipeline_tag: image-classification
tags: [federated-learning, personalized]
---

# {title}

{warning}

## Use

{usage.format(folder=".", shape=shape)}

Output is one number for each class, higher for likelier; softmax makes probabilities of them.

## What it is

| | |
|---|---|
{rows}
"""


def _rows(model: PersonalModel, facts: dict[str, Any]) -> list[tuple[str, str]]:
    about, data, images = model.about, facts["data"], facts["images"]
    sends = facts["sends"]
    dealt = ", ".join(f"{key} {value}" for key, value in data.items() if key != "name")
    rows = [
        ("network", f"`{about['space']['name']}`, architecture {_arch(about['arch'])}"),
        ("parameters", f"{facts['parameters']:,}"),
        ("multiply-adds of one image", f"{facts['macs']:,}"),
        ("time of one image", facts.get("latency", "not measured")),
        ("trained by", f"`{facts['algorithm']}`, {facts['rounds']} rounds"),
        ("which model", f"`{facts['model']}`, the last that the method deploys"),
        ("data", f"{data['name']} ({dealt})"),
        ("the client's images", _counts(images)),
        ("validation accuracy", _percent(facts["val_accuracy"])),
        ("test accuracy", _percent(facts["test_accuracy"])),
        ("what left the client", "not told" if sends is None else "; ".join(sends) or "nothing"),
        ("images", f"{'x'.join(map(str, about['shape']))} (channels, height, width), from 0 to 1"),
        ("normalised by", f"mean {about['mean']}, std {about['std']} (done by the model)"),
        ("labels", ", ".join(model.labels)),
    ]
    return [(name, value.replace("|", "\\|").replace("\n", " ")) for name, value in rows]


def _arch(arch: list[int]) -> str:
    return "`" + " ".join(str(gene) for gene in arch) + "`" if arch else "fixed"


def _counts(images: dict[str, int] | None) -> str:
    if images is None:
        return "not told"
    return ", ".join(f"{count} {name}" for name, count in images.items())


def _percent(share: float | None) -> str:
    return "not measured" if share is None else f"{100 * share:.1f} %"
