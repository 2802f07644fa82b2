"""Published files: only those, and nothing in them runs or lands elsewhere."""

import hashlib
import io
import os
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.data.load import load_source
from fedtailor.data.options import DataOptions
from fedtailor.data.sources._cifar import Cifar, load_cifar, unpickle
from fedtailor.data.sources._download import Archive, check_md5, data_root, fetch, unpack


def md5(content: bytes) -> str:
    """Return the md5 in hexadecimal."""
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def test_data_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    assert data_root(DataOptions()) == Path("data")
    monkeypatch.setenv("FEDTAILOR_DATA", "/elsewhere")
    assert data_root(DataOptions()) == Path("/elsewhere")
    assert data_root(DataOptions(root="here")) == Path("here")


def test_md5(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello")
    check_md5(tmp_path / "x", "5d41402abc4b2a76b9719d911017c592")
    with pytest.raises(UserError, match=r"^data\.root: .*x is not the published file"):
        check_md5(tmp_path / "x", "0" * 32)


def tar(file: Path, *members: tuple[str, bytes | None]) -> Path:
    """Write a tar.gz file; a member without content is a link to /etc."""
    with tarfile.open(file, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if content is None:
                info.type, info.linkname = tarfile.SYMTYPE, "/etc"
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return file


def test_unpack(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("top/x", b"1"), ("top/deep/y", b"22"))
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out/top/x").read_bytes() == b"1"
    assert (tmp_path / "out/top/deep/y").read_bytes() == b"22"


@pytest.mark.parametrize(
    "member", [("../evil", b"1"), ("/tmp/evil", b"1"), ("a/../../evil", b"1"), ("link", None)]
)
def test_unpack_refuses_what_points_outside(
    tmp_path: Path, member: tuple[str, bytes | None]
) -> None:
    archive = tar(tmp_path / "a.tar.gz", member, ("link/passwd", b"1"))
    with pytest.raises(UserError, match=r"^data\.download: a\.tar\.gz holds '"):
        unpack(archive, tmp_path / "in" / "out")
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a.tar.gz"]


def test_unpack_refuses_a_damaged_archive(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tar.gz", ("x", os.urandom(5000)))
    archive.write_bytes(archive.read_bytes()[:2000])
    with pytest.raises(UserError, match=r"^data\.download: .*damaged"):
        unpack(archive, tmp_path / "out")


def test_fetch_is_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tar(tmp_path / "a.tar.gz", ("top/x", b"1"))
    good = Archive(file.as_uri(), md5(file.read_bytes()), "top")
    root = tmp_path / "root"
    with pytest.raises(UserError, match=r"^data\.download: .*not the published file"):
        fetch(Archive(good.url, "0" * 32, "top"), root / "set")
    with pytest.raises(UserError, match=r"^data\.download: .*could not be fetched"):
        fetch(Archive((tmp_path / "none").as_uri(), good.md5, "top"), root / "set")
    assert list(root.iterdir()) == []
    fetch(good, root / "set")
    assert [path.relative_to(root).as_posix() for path in root.rglob("*")] == ["set", "set/x"]
    with pytest.raises(UserError, match=r"^data\.download: .*remove it first"):
        fetch(good, root / "set")


class Evil:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_malicious_pickle_runs_nothing(tmp_path: Path, protocol: int) -> None:
    content = pickle.dumps({"data": Evil(tmp_path / "evil")}, protocol)
    with pytest.raises(UserError, match=r"^data\.root: this is no CIFAR file \(it asks for"):
        unpickle(content)
    assert not (tmp_path / "evil").exists()
    pickle.loads(content)
    assert (tmp_path / "evil").exists()  # so it would have


@pytest.mark.parametrize(
    "name", ["builtins\neval", "numpy\nload", "numpy.core.multiarray\nfromfile", "os\nsystem"]
)
def test_other_functions_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="it asks for"):
        unpickle(f"c{name}\n.".encode())


def test_arrays_are_read() -> None:
    for protocol in (3, 4):
        read = unpickle(pickle.dumps({"data": np.arange(3), "labels": [1]}, protocol))
        assert read["data"].tolist() == [0, 1, 2] and read["labels"] == [1]
    with pytest.raises(UserError, match=r"^data\.root: this is no CIFAR file"):
        unpickle(b"nonsense")


def small_cifar(folder: Path) -> Cifar:
    """Pack a data set in CIFAR's format into an archive, and describe it."""
    pixels = np.arange(6 * 3072).astype(np.uint8).reshape(6, 3072)
    files = {
        "one": pickle.dumps({"data": pixels[:3], "labels": [0, 1, 0]}, 3),
        "two": pickle.dumps({"data": pixels[3:5], "labels": [1, 1]}, 3),
        "test": pickle.dumps({"data": pixels[5:], "labels": [1]}, 3),
        "meta": pickle.dumps({"names": ["cat", "dog"]}, 3),
    }
    file = tar(folder / "set.tar.gz", *((f"set/{name}", data) for name, data in files.items()))
    sums = {name: md5(data) for name, data in files.items()}
    return Cifar(
        "set",
        {"one": sums["one"], "two": sums["two"]},
        {"test": sums["test"]},
        {"meta": sums["meta"]},
        "labels",
        "names",
        (0.5, 0.5, 0.5),
        (0.5, 0.5, 0.5),
        Archive(file.as_uri(), md5(file.read_bytes()), "set"),
    )


def test_cifar_is_fetched_read_and_checked(tmp_path: Path) -> None:
    cifar = small_cifar(tmp_path)
    root = str(tmp_path / "root")
    with pytest.raises(UserError, match=r"^data\.root: .*lacks one, two.*data\.download = true"):
        load_cifar(cifar, DataOptions(root=root))
    source = load_cifar(cifar, DataOptions(root=root, download=True))
    assert source.images.shape == (5, 3, 32, 32) and source.labels.tolist() == [0, 1, 0, 1, 1]
    assert source.images[4, 2, 31, 31] == (5 * 3072 - 1) % 256
    assert source.classes == ("cat", "dog") and source.test_images is None
    official = load_cifar(cifar, DataOptions(root=root, split="official"))
    assert official.test_labels is not None and official.test_labels.tolist() == [1]
    (tmp_path / "root/set/two").write_bytes(b"something else")
    with pytest.raises(UserError, match=r"^data\.root: .*two is not the published file"):
        load_cifar(cifar, DataOptions(root=root))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_absent_says_what_to_put_where(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_source(DataOptions(name=name, root=str(tmp_path)))
    said = str(caught.value)
    assert said.startswith(f"data.root: {tmp_path}") and "python.tar.gz" in said
    assert "$FEDTAILOR_DATA" in said and "data.download = true" in said
