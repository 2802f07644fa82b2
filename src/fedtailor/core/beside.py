"""Something done beside something else, in a thread of its own where there is a core for it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Have an exception of the body say in what part of the work it happened."""
    try:
        yield
    except Exception as error:
        error.add_note(f"while {part}")
        raise


@contextmanager
def beside(work: Callable[[], T], part: str, spare: bool) -> Iterator[Callable[[], T]]:
    """Have `work` done while the body does something else; yield what returns its result.

    Without a core to spare it is done when its result is asked for. The result is the same as long
    as neither looks at what the other changes or draws from torch's own generator. If the body
    fails, that is what is raised; the work is waited for all the same.
    """

    def named() -> T:
        with naming(part):
            return work()

    if not spare:
        yield named
        return
    # It computes by one thread, as a client does: how many there are is a thread's own.
    with ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        yield pool.submit(named).result
