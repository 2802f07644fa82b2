"""Files of published data sets: where they lie, whether they are whole, how to fetch them."""

import hashlib
import os
import shutil
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from fedtailor.core.errors import UserError
from fedtailor.data.options import DataOptions


@dataclass(frozen=True)
class Archive:
    """A tar file on a data set's official site."""

    url: str
    md5: str
    inside: str = "."  # the folder in the archive that is wanted


def data_root(options: DataOptions) -> Path:
    """Return data.root, else $FEDTAILOR_DATA, else the folder data below the current one."""
    return Path(options.root or os.environ.get("FEDTAILOR_DATA") or "data").expanduser()


def check_md5(file: Path, md5: str, field: str = "data.root") -> None:
    """Raise a UserError unless the file is the one that was published."""
    digest = hashlib.md5(usedforsecurity=False)
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != md5:
        raise UserError(
            f"{field}: {file} is not the published file (its md5 is not {md5}), so replace it."
        )


def fetch(archive: Archive, folder: Path) -> None:
    """Download an archive, check it, and put its content into a new folder, whole or not at all."""
    if folder.exists():
        raise UserError(f"data.download: {folder} is there but not complete, so remove it first.")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            file = Path(scratch, "archive.tar.gz")
            with urllib.request.urlopen(archive.url, timeout=60) as stream, file.open("wb") as out:
                shutil.copyfileobj(stream, out)
            check_md5(file, archive.md5, "data.download")
            unpacked = Path(scratch, "unpacked")
            unpack(file, unpacked)
            (unpacked / archive.inside).rename(folder)
    except OSError as error:
        raise UserError(
            f"data.download: {archive.url} could not be fetched ({error}), so try again or put "
            f"its content into {folder} yourself."
        ) from error


def unpack(archive: Path, folder: Path) -> None:
    """Write an archive's plain files below a folder; refuse one that points out of it."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isdir():
                    continue
                path = PurePosixPath(member.name)
                stream = tar.extractfile(member) if member.isfile() else None
                if stream is None or path.is_absolute() or ".." in path.parts:
                    raise UserError(
                        f"data.download: {archive.name} holds '{member.name}', which is a link or "
                        "lies outside of its folder, so do not use this archive."
                    )
                target = folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                with stream, target.open("wb") as out:
                    shutil.copyfileobj(stream, out)
    except (tarfile.TarError, EOFError) as error:
        raise UserError(
            f"data.download: {archive.name} is damaged ({error}), so fetch it again."
        ) from error
