"""Is what was written what was trained? And how long does it take here?"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from fedtailor.core.compute import one_thread
from fedtailor.core.errors import UserError
from fedtailor.core.validation import validate
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.export.folding import allowed
from fedtailor.export.personal import PersonalModel, is_own
from fedtailor.runs.folder import Run, asked

Answer: TypeAlias = Callable[[Tensor], Tensor]
BATCHES = (1, 2, 17)
TIMED = 20  # passes of one image, of which the median counts


@dataclass(frozen=True)
class Sample:
    """Images to compare models on, pixels from 0 to 1."""

    images: Tensor
    labels: Tensor | None  # None: the images are drawn at random
    why: str = ""  # they are

    @property
    def name(self) -> str:
        """What the images are, in words."""
        return f"random images ({self.why})" if self.labels is None else "its test images"


def sample_of(run: Run, client: int, model: PersonalModel, own_code: bool) -> Sample:
    """Return a client's test images, or random ones where they are not at hand."""
    options = validate(DataOptions, asked(run, "data"), "data")
    try:
        if options.path and is_own(options.path) and not own_code:
            raise UserError("the data is a function of a user's own, which --own-code would run")
        examples = load_federation(options).examples(client, "test")
    except UserError as error:
        drawn = torch.rand(max(BATCHES), *model.shape, generator=torch.Generator().manual_seed(0))
        return Sample(drawn, None, str(error))
    images = examples.images[examples.index]
    unit = 255.0 if images.dtype == torch.uint8 else 1.0
    return Sample(images.float() / unit, examples.labels[examples.index])


def difference(wanted: Answer, found: Answer, images: Tensor) -> float:
    """Return how far two models' outputs are apart at most, in batches of several sizes."""
    worst = 0.0
    for size in BATCHES:
        some = images[torch.arange(size) % len(images)]
        here, there = wanted(some), found(some)
        if here.shape != there.shape:
            raise UserError(
                f"a batch of {size} comes out as {tuple(there.shape)}, not {tuple(here.shape)}; "
                "nothing was written"
            )
        worst = max(worst, (here - there).abs().max().item())
    return worst


def check(wanted: Answer, found: Answer, images: Tensor, what: str) -> float:
    """Raise unless two models answer alike; return how far they are apart."""
    apart = difference(wanted, found, images)
    if not apart <= allowed(wanted(images[: max(BATCHES)])):
        raise UserError(
            f"{what} answers otherwise than PyTorch, by up to {apart:.2g}; nothing was written"
        )
    return apart


def accuracy(answer: Answer, sample: Sample) -> float | None:
    """Return the share of a client's test images that a model tells right."""
    if sample.labels is None:
        return None
    parts = zip(sample.images.split(256), sample.labels.split(256), strict=True)
    right = sum(int((answer(images).argmax(1) == labels).sum()) for images, labels in parts)
    return right / len(sample.labels)


def answering(model: nn.Module) -> Answer:
    """Return a model as a function of images."""

    def answer(images: Tensor) -> Tensor:
        with torch.inference_mode():
            return model(images)

    return answer


def latency_ms(answer: Answer, shape: tuple[int, ...]) -> float:
    """Measure one image's pass here, by one thread: the median of some."""
    image, times = torch.rand(1, *shape), list[float]()
    with one_thread():
        for _ in range(TIMED + 3):
            began = time.perf_counter()
            answer(image)
            times.append(time.perf_counter() - began)
    return 1000 * statistics.median(times[3:])  # the first ones prepare
