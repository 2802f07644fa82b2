"""Work beside work: the same results with and without a thread, and failures that say where."""

import threading
import time

import pytest
import torch

from fedtailor.core.beside import beside, naming
from fedtailor.core.processes import failure_of


@pytest.mark.parametrize("spare", [False, True])
@pytest.mark.parametrize("slower", ["work", "body", "neither"])
def test_both_parts_are_done_whichever_takes_longer(spare: bool, slower: str):
    done: list[str] = []

    def work() -> int:
        time.sleep(0.05 * (slower == "work"))
        done.append("work")
        return 7

    with beside(work, "working", spare) as result:
        time.sleep(0.05 * (slower == "body"))
        done.append("body")
    assert result() == 7
    assert sorted(done) == ["body", "work"]


def test_with_a_core_to_spare_the_work_goes_on_while_the_body_does():
    started = threading.Event()
    with beside(started.set, "working", spare=True):
        assert started.wait(10), "the body would wait for ever"
    with beside(started.clear, "working", spare=False) as result:
        time.sleep(0.01)
        assert started.is_set(), "without one it waits until it is asked for"
    result()
    assert not started.is_set()


def test_the_thread_computes_with_one_thread_of_its_own():
    torch.set_num_threads(2)
    try:
        assert torch.get_num_threads() == 2
        with beside(torch.get_num_threads, "counting", spare=True) as counted:
            pass
        assert counted() == 1
        assert torch.get_num_threads() == 2, "the main thread keeps its own"
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("spare", [False, True])
def test_a_failure_names_its_part(spare: bool):
    def fail() -> None:
        raise ValueError("no such architecture")

    with pytest.raises(ValueError) as caught, beside(fail, "proposing", spare) as result:
        pass
        result()
    assert failure_of(caught.value).reason == "ValueError: no such architecture (while proposing)"
    ended = threading.active_count()
    with pytest.raises(ArithmeticError) as caught:
        with beside(fail, "proposing", spare), naming("training"):
            raise ArithmeticError("diverged")
    assert failure_of(caught.value).reason == "ArithmeticError: diverged (while training)"
    assert threading.active_count() == ended
