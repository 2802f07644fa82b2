"""Ctrl-C is heard wherever it comes."""

import subprocess
import sys
from pathlib import Path

from tests.helpers.foreground import hear_ctrl_c

DROPPED = """
import signal, time, weakref
from fedtailor.cli.interrupts import hear_interrupts

class Module:
    pass

hear_interrupts()
module = Module()
seen = weakref.ref(module, lambda _: signal.raise_signal(signal.SIGINT))
try:
    del module  # Python drops what is raised in here
    time.sleep(60)
    print("went on")
except KeyboardInterrupt:
    print("stopped")
"""

IMPORTING = """
import time
from fedtailor.cli.interrupts import hear_interrupts

hear_interrupts()
try:
    import library
    print(library.whole)
    time.sleep(60)
    print("went on")
except KeyboardInterrupt:
    print("stopped")
"""

LIBRARY = """
import signal
try:
    signal.raise_signal(signal.SIGINT)
    whole = "whole"
except BaseException:
    pass  # as libraries do that can do without a part of themselves
"""


def printed(program: str, folder: Path) -> str:
    process = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=30,
        preexec_fn=hear_ctrl_c,
    )
    assert not process.stderr
    return process.stdout


def test_ctrl_c_is_heard_where_python_drops_exceptions(tmp_path: Path):
    assert printed(DROPPED, tmp_path) == "stopped\n"


def test_ctrl_c_waits_until_a_library_is_imported(tmp_path: Path):
    (tmp_path / "library.py").write_text(LIBRARY)
    assert printed(IMPORTING, tmp_path) == "whole\nstopped\n"
