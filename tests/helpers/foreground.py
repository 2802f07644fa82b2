"""Processes that hear Ctrl-C, also where the tests run in a shell's background."""

import signal


def hear_ctrl_c() -> None:
    """Undo what such a shell told its jobs; what a process begins with (`preexec_fn`)."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
