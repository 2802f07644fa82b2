"""Files that are there whole or not at all, locks and hashes."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedtailor.core.errors import UserError

TRIES, PAUSE_S = 4, 0.05  # to lock a folder: somebody may hold it only to look whether it is locked


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def whole_file(path: Path, shared: bool = False) -> Iterator[Path]:
    """Yield where to write a file that is there whole or not at all, whenever this is killed.

    Args:
        path: it is on disk when the block has ended; if the block fails it is what it was.
        shared: other processes may be writing the same file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part" if shared else f"{path.name}.part")
    part.unlink(missing_ok=True)  # of a process that was killed
    try:
        yield part
        sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to write into; it becomes the new folder `path` if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        part.rename(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def lock_folder(path: Path) -> IO[str]:
    """Keep other processes from working in a folder for as long as the file is open."""
    file = (path / "lock").open("w")
    for _ in range(TRIES):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except BlockingIOError:
            time.sleep(PAUSE_S)
    file.close()
    raise UserError(f"{path}: another process is working in this folder")


def is_locked(path: Path) -> bool:
    """Tell whether a process works in a folder, which is not changed."""
    try:
        with (path / "lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until it is closed
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def copy_file(source: Path, target: Path) -> None:
    """Copy a file and have it on disk."""
    with source.open("rb") as old, target.open("wb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())


def sha256_of(path: Path) -> str:
    """Hash a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
