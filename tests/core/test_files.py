"""Files that are there whole or not at all."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from fedtailor.core.files import is_locked, lock_folder, whole_file


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_is_there_whole_or_as_it_was(shared: bool, tmp_path: Path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("one", "two"):
        with whole_file(path, shared) as part:
            part.write_text(text)
            assert part.parent == path.parent and path.exists() == (text == "two")
        assert path.read_text() == text
    with pytest.raises(KeyboardInterrupt), whole_file(path, shared) as part:
        part.write_text("thr")
        raise KeyboardInterrupt
    assert path.read_text() == "two" and list(path.parent.iterdir()) == [path]


def test_what_a_killed_process_left_is_not_taken_up(tmp_path: Path):
    path = tmp_path / "file.txt"
    (tmp_path / "file.txt.part").write_text("half")
    with whole_file(path) as part:
        assert not part.exists()
        part.write_text("whole")
    assert path.read_text() == "whole" and list(tmp_path.iterdir()) == [path]


def test_processes_that_write_the_same_file_do_not_meet(tmp_path: Path):
    with whole_file(tmp_path / "file.txt", shared=True) as part:
        assert str(os.getpid()) in part.name
        part.write_text("mine")


def test_whoever_looks_whether_a_folder_is_locked_keeps_nobody_out(tmp_path: Path):
    assert not is_locked(tmp_path) and list(tmp_path.iterdir()) == []
    with lock_folder(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)
    with (tmp_path / "lock").open() as looker:
        fcntl.flock(looker, fcntl.LOCK_SH)
        threading.Timer(0.03, lambda: fcntl.flock(looker, fcntl.LOCK_UN)).start()
        with lock_folder(tmp_path):
            assert is_locked(tmp_path)
