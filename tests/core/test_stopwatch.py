"""What parts take: the thread's own CPU time, and the multiply-adds charged meanwhile."""

import threading
import time
from collections.abc import Iterator

import pytest

from fedtailor.core.stopwatch import Stopwatch, TimedItems
from fedtailor.core.types import Meter, Spent
from tests.helpers.misbehaving import burn

SLACK = 0.03  # seconds of CPU that measuring and a busy machine may add


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return what the thread's clock shows: one number, to be set."""
    shows = [100.0]
    monkeypatch.setattr(time, "thread_time", lambda: shows[0])
    return shows


def test_parts_add_up_in_the_order_they_were_first_entered(clock: list[float]):
    meter = Meter()
    meter.macs = 7.0
    watch = Stopwatch(meter)
    for part, seconds, macs in (("b", 1.0, 10.0), ("a", 2.0, 0.0), ("b", 4.0, 30.0)):
        with watch.part(part):
            clock[0] += seconds
            meter.macs += macs
        clock[0] += 1000.0  # in no part
        meter.macs += 1000.0
    assert watch.times() == (Spent("b", 5.0, 40.0), Spent("a", 2.0, 0.0))


def test_the_order_is_that_of_beginnings(clock: list[float]):
    watch = Stopwatch(Meter())
    with watch.part("long"):
        with watch.part("short"):
            clock[0] += 1.0
    assert [spent.part for spent in watch.times()] == ["long", "short"]


def test_a_part_that_charges_nothing_takes_none_of_its_neighbours(clock: list[float]):
    meter = Meter()
    watch = Stopwatch(meter)
    with watch.part("beside", counts=False), watch.part("training"):
        meter.macs += 5.0
    assert watch.times() == (Spent("beside", 0.0, 0.0), Spent("training", 0.0, 5.0))


def test_a_part_that_fails_has_taken_its_time(clock: list[float]):
    watch = Stopwatch(Meter())
    with pytest.raises(ValueError, match="no"), watch.part("a"):
        clock[0] += 2.0
        raise ValueError("no")
    assert watch.times() == (Spent("a", 2.0),)


def test_waiting_costs_nothing():
    watch = Stopwatch(Meter())
    with watch.part("waits"):
        time.sleep(0.1)
    with watch.part("works"):
        burn(0.05)
    waits, works = (spent.seconds for spent in watch.times())
    assert waits < SLACK
    assert 0.05 <= works < 0.05 + SLACK


def test_parts_in_two_threads_at_once_get_their_own_seconds():
    meter = Meter()
    watch, both = Stopwatch(meter), threading.Barrier(2)

    def generate() -> None:
        for _ in range(5):
            both.wait()
            with watch.part("generation", counts=False):
                burn(0.01)

    beside = threading.Thread(target=generate)
    beside.start()
    for _ in range(5):
        both.wait()
        with watch.part("training"):
            burn(0.03)
            meter.macs += 1.0
    beside.join()
    found = {spent.part: spent for spent in watch.times()}
    assert 0.05 <= found["generation"].seconds < 0.05 + SLACK
    assert 0.15 <= found["training"].seconds < 0.15 + SLACK
    assert (found["generation"].macs, found["training"].macs) == (0.0, 5.0)


def test_items_are_timed_where_they_are_made(clock: list[float]):
    def made() -> Iterator[int]:
        for number in (1, 2):
            clock[0] += 3.0
            yield number
        clock[0] += 5.0

    items = TimedItems(made())
    for _ in items:
        clock[0] += 1000.0  # whoever uses them
    assert items.seconds == 3.0 + 3.0 + 5.0
    assert next(items, None) is None
