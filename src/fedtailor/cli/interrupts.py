"""Ctrl-C, also where Python or a library would lose it."""

import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

SOON = 0.02  # seconds


def hear_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt, and come again where that would be of no use.

    In a destructor or in the callback of a weak reference (the import system has these) Python
    drops every exception. And a library that is cut off in the middle of its import may swallow it
    and break later, or end the process without a word.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _interrupting_again(sys.unraisablehook)


def _interrupt(number: int, frame: FrameType | None) -> None:
    if _is_importing(frame):
        _again_soon()
    else:
        signal.default_int_handler(number, frame)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _again_soon() -> None:
    """Send the signal, which wakes what sleeps, to the main thread: none other hears signals."""
    thread = threading.main_thread().ident or 0
    timer = threading.Timer(SOON, signal.pthread_kill, (thread, signal.SIGINT))
    timer.daemon = True
    timer.start()


def _interrupting_again(otherwise: Callable[[Any], Any]) -> Callable[[Any], None]:
    def hook(dropped: Any) -> None:
        if dropped.exc_type is KeyboardInterrupt:
            _again_soon()
        else:
            otherwise(dropped)

    return hook
