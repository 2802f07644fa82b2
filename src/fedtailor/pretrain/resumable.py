"""The steps of a training that can be stopped: what is saved on the way, and who is told."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fedtailor.core import codec

T = TypeVar("T")
OnProgress: TypeAlias = Callable[[int, int], None]  # told what is done, and of how much


@dataclass(frozen=True)
class Checkpoints:
    """Where a training is saved, and how often; at its end in any case."""

    file: Path | None = None  # None: nowhere
    steps: int | None = None  # between two
    seconds: float | None = None

    def found(self, kind: type[T]) -> T | None:
        """Return the one that is there, if any."""
        if self.file is None or not self.file.exists():
            return None
        return codec.read(kind, self.file)

    def due(self, done: int, since: float) -> bool:
        """Tell whether it is time, after so many steps and since the last one was written."""
        if self.steps is not None and done % self.steps == 0:
            return True
        return self.seconds is not None and time.monotonic() - since >= self.seconds


NOWHERE = Checkpoints()


def remaining_steps(
    done: int,
    total: int,
    progress: OnProgress | None = None,
    checkpoints: Checkpoints = NOWHERE,
    state: Callable[[], Any] = dict,
) -> Iterator[int]:
    """Yield the steps that are left, counted from 0; after each, save what is due and tell.

    Args:
        done: steps before the first.
        total: of the whole training.
        progress: told after every step.
        checkpoints: where `state` is written; it is what the training needs to go on.
        state: asked only when it is written.
    """
    saved = time.monotonic()
    for step in range(done, total):
        yield step
        file, last = checkpoints.file, step + 1 == total
        if file is not None and (last or checkpoints.due(step + 1, saved)):
            codec.write_whole(file, state())
            saved = time.monotonic()
        if progress is not None:
            progress(step + 1, total)
