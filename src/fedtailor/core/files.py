"""Files that are there whole or not at all, locks and hashes."""

import fcntl
import hashlib
import os
import shutil
from pathlib import Path
from typing import IO

from fedtailor.core.errors import UserError


def sync(path: Path) -> None:
    """Have a file, or the names in a folder, on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock_folder(path: Path) -> IO[str]:
    """Keep other processes from working in a folder for as long as the file is open."""
    file = (path / "lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UserError(f"{path}: another process is working in this folder") from None
    return file


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
