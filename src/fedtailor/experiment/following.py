"""How far work is, shown while it is done: in a terminal, in a notebook, or by plain lines."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.live import Live

from fedtailor.experiment.progress import RunProgress
from fedtailor.report.wording import clip, duration, percent

LINE_EVERY_S = 5.0
NOTEBOOK_EVERY_S = 0.5
PACED = 2  # rounds after which the time that is left can be told
FEW_LETTERS = 5  # of a run's name that still say something


@contextmanager
def followed(progress: bool | RunProgress | None, label: str) -> Iterator[RunProgress]:
    """Yield what the body is to write its progress to, and show it meanwhile.

    Args:
        progress: whether to show it; None: where there is a terminal or a notebook. Whoever gives
            an object shows it himself.
        label: what the line begins with.
    """
    if isinstance(progress, RunProgress):
        yield progress
        return
    made = RunProgress()
    with show(made, label, progress):
        yield made
        made.doing, made.done, made.total = "finished", 0, 0
        made.mean = made.worst = None  # untuned and on the way: the result says what was reached


def show(
    progress: RunProgress, label: str, shown: bool | None = True
) -> AbstractContextManager[object]:
    """Show how far work is while the body does it; `shown` as of `living`."""
    console = _console()
    width = console.width if console.is_terminal and not console.is_jupyter else None
    return living(lambda: line(progress, label, width), shown)


def living(now: Callable[[], str], shown: bool | None = True) -> AbstractContextManager[object]:
    """Show a text while the body runs: one living line, or plain lines where nothing can live.

    Args:
        now: the text as it is at the moment.
        shown: False: nothing is; None: only where there is a terminal or a notebook.
    """
    console = _console()
    if shown is False or (shown is None and not (console.is_terminal or console.is_jupyter)):
        return nullcontext()
    if console.is_jupyter:
        return _in_notebook(now)
    if console.is_terminal:
        return Live(console=console, get_renderable=now, refresh_per_second=5, transient=True)
    return _repeated(lambda: print(now(), file=sys.stderr, flush=True), LINE_EVERY_S)


def line(progress: RunProgress, label: str = "", width: int | None = None) -> str:
    """Put the progress into one line; where it is too long, what matters least is left out."""
    before = progress.unit == "round" and not progress.round  # nothing can be counted yet
    now = f"{progress.doing} {progress.done}/{progress.total}" if progress.total else progress.doing
    parts: dict[str, str] = {}  # in the order of the line
    if not before:
        parts["round"] = f"{progress.unit} {progress.round}/{progress.rounds}"
    parts["now"] = now
    if progress.mean is not None and progress.worst is not None:
        parts["accuracy"] = f"accuracy {percent(progress.mean)}"
        parts["worst"] = f"worst 10 % {percent(progress.worst)}"
    if progress.unit == "round" and not before:
        parts["sent"] = f"{progress.bytes / 1e6:.1f} MB"
    if progress.rounds_done >= PACED:
        pace = progress.seconds / progress.rounds_done
        left = progress.rounds - progress.rounds_done - progress.started_at
        parts["pace"] = f"{f'{pace:.2g}' if pace < 10 else f'{pace:.0f}'} s/{progress.unit}"
        if left > 0:
            parts["left"] = f"{duration(pace * left)} left"
    named = f"{label}: " if label else ""
    for least in ("sent", "pace", "worst", None):
        text = named + " · ".join(parts.values())
        if width is None or len(text) <= width:
            return text
        parts.pop(least or "", None)
    short = " · ".join(parts.values())
    room = width - len(short) - 2
    return f"{clip(label, room)}: {short}" if label and room >= FEW_LETTERS else short[:width]


def _console() -> Console:
    return Console(stderr=True, highlight=False)


@contextmanager
def _in_notebook(now: Callable[[], str]) -> Iterator[None]:
    """Replace one output again and again, so that a notebook keeps one line.

    Rich would do so with ipywidgets only, of which a saved notebook shows nothing.
    """
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    shown = [now()]
    output: Any = display({"text/plain": shown[0]}, raw=True, display_id=True)

    def update() -> None:
        if (text := now()) != shown[0]:
            shown[0] = text
            output.update({"text/plain": text}, raw=True)

    try:
        with _repeated(update, NOTEBOOK_EVERY_S):
            yield
    finally:
        update()  # what was done last stays


@contextmanager
def _repeated(do: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do something from time to time while the body runs."""
    stop = threading.Event()

    def again() -> None:
        while not stop.wait(every_s):
            do()

    thread = threading.Thread(target=again, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
