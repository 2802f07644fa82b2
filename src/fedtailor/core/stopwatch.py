"""What parts of a client's or the server's work take: CPU seconds and multiply-adds."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from fedtailor.core.types import Meter, Spent

T = TypeVar("T")


class Stopwatch:
    """Adds up what each part of a step takes, by the CPU clock of the thread that does it.

    Parts are disjoint: one that is entered within another is counted in both. What is in no part is
    not counted. On a GPU the seconds are what the CPU did meanwhile.

    Args:
        meter: what networks charge their multiply-adds to, such as `client.meter`.
    """

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._spent: dict[str, tuple[float, float]] = {}  # by part: seconds, multiply-adds
        self._adding = threading.Lock()

    @contextmanager
    def part(self, name: str, counts: bool = True) -> Iterator[None]:
        """Add what the body takes to a part, which may be entered again and from any thread.

        Args:
            name: of the part.
            counts: whether the body's multiply-adds are the part's. The meter does not know who
                charged it: of parts that run beside each other at most one counts, and the others
                must charge nothing.
        """
        self._add(name, 0.0, 0.0)  # its place in the order is that of its beginning
        macs, seconds = self._meter.macs, time.thread_time()
        try:
            yield
        finally:
            seconds = time.thread_time() - seconds
            self._add(name, seconds, self._meter.macs - macs if counts else 0.0)

    def times(self) -> tuple[Spent, ...]:
        """Return what each part took so far, in the order they were first entered."""
        with self._adding:
            return tuple(Spent(name, *spent) for name, spent in self._spent.items())

    def _add(self, name: str, seconds: float, macs: float) -> None:
        with self._adding:
            before = self._spent.get(name, (0.0, 0.0))
            self._spent[name] = before[0] + seconds, before[1] + macs


class TimedItems(Iterator[T], Generic[T]):
    """Passes items on, and adds up the CPU seconds that making them took in this thread."""

    def __init__(self, items: Iterable[T]) -> None:
        self._items = iter(items)
        self.seconds = 0.0

    def __next__(self) -> T:
        """Make the next item."""
        began = time.thread_time()
        try:
            return next(self._items)
        finally:
            self.seconds += time.thread_time() - began
