from pathlib import Path

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.core.npz import read_npz


def written(path: Path) -> bytes:
    rng = np.random.default_rng(0)
    np.savez_compressed(path, allow_pickle=False, x=rng.integers(0, 9, 500), y=np.arange(500))
    return path.read_bytes()


def test_all_arrays_or_some(tmp_path: Path):
    written(tmp_path / "some.npz")
    assert set(read_npz(tmp_path / "some.npz")) == {"x", "y"}
    assert read_npz(tmp_path / "some.npz", "y", "z")["y"].tolist() == list(range(500))
    assert set(read_npz(tmp_path / "some.npz", "y", "z")) == {"y"}


def test_whatever_byte_is_damaged_it_is_one_sentence_or_the_arrays(tmp_path: Path):
    path = tmp_path / "damaged.npz"
    whole = written(path)
    refused = 0
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            read_npz(path)
        except UserError as error:
            refused += 1
            assert str(error).startswith(f"{path}: cannot be read") and "\n" not in str(error)
    assert refused > len(whole) // 7 * 0.8


@pytest.mark.parametrize("kind", ["missing", "empty", "cut", "one array", "objects"])
def test_what_is_no_file_of_plain_arrays(tmp_path: Path, kind: str):
    path = tmp_path / "wrong.npz"
    whole = written(path)
    match kind:
        case "missing":
            path.unlink()
        case "one array":
            with path.open("wb") as stream:
                np.save(stream, np.arange(3))
        case "objects":
            np.savez(path, x=np.array([{}], dtype=object))
        case _:
            path.write_bytes(whole[:200] if kind == "cut" else b"")
    with pytest.raises(UserError, match=r"wrong\.npz: cannot be read as an \.npz file of plain"):
        read_npz(path)
