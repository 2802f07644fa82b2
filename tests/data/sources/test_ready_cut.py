"""Data that comes with its train, val and test rows, in all the forms it may come in."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions

WORDS = np.array(["train", "val", "test"])


def load(path: Path, **options: Any) -> Federation:
    """Read data whose clients keep what is theirs."""
    return load_federation(DataOptions(path=str(path), **{"partition": "by_client", **options}))


def parts(data: Federation) -> list[list[list[int]]]:
    """Return the first pixel of every image, by client and split."""
    pixels = data.images[:, 0, 0, 0]
    return [
        [pixels[data.examples(k, split).index].tolist() for split in ("train", "val", "test")]
        for k in range(len(data.bounds))
    ]


def images(*values: int) -> npt.NDArray[np.uint8]:
    """Return images of one value each."""
    return np.array(values, dtype=np.uint8)[:, None, None] * np.ones((1, 4, 4), np.uint8)


@pytest.mark.parametrize("numbers", [True, False])
def test_npz_with_a_split(tmp_path: Path, numbers: bool) -> None:
    split = np.array([2, 0, 0, 1, 0, 2, 0, 2])
    client = np.array(list("aaaabbbb"))
    column = split if numbers else WORDS[split]
    file = tmp_path / "own.npz"
    np.savez(file, x=images(*range(8)), y=np.arange(8) % 2, client=client, split=column)
    data = load(file)
    assert parts(data) == [[[1, 2], [3], [0]], [[4, 6], [], [5, 7]]]
    assert parts(load(file, seed=5)) == parts(data), "nothing is drawn"


FOLDERS = ["{client}/{split}/{label}/{n}.png", "{split}/{client}/{label}/{n}.png"]


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_of_train_and_test(tmp_path: Path, name: str) -> None:
    for n, (client, split) in enumerate(
        [("ann", "train"), ("ann", "train"), ("ann", "test"), ("bob", "train"), ("bob", "train"),
         ("bob", "val"), ("bob", "test")]
    ):  # fmt: skip
        path = tmp_path / name.format(client=client, split=split, label="cd"[n % 2], n=n)
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), n).save(path)
    data = load(tmp_path)
    assert data.client_names == ("ann", "bob") and data.classes == ("c", "d")
    found = [[sorted(some) for some in client] for client in parts(data)]
    assert found == [[[0, 1], [], [2]], [[3, 4], [5], [6]]]


def test_folders_without_clients_are_a_pool_and_an_official_test_set(tmp_path: Path) -> None:
    for n in range(40):
        path = tmp_path / ("test" if n < 8 else "train") / "cd"[n % 2] / f"{n}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), n).save(path)
    shared = {"partition": "iid", "clients": 2}
    data = load(tmp_path, split="official", **shared)
    tests = [value for _, _, test in parts(data) for value in test]
    assert sorted(tests) == list(range(8))
    pooled = load(tmp_path, **shared)
    assert len(pooled.labels) == 32, "as of a named data set, the test set is left alone"
    assert 'used by data.split = "official" only' in " ".join(pooled.notes)


def write_pfllib(file: Path, x: Any, y: Any) -> None:
    """Write a file as PFLlib's utils/dataset_utils.py does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("wb") as stream:
        np.savez_compressed(stream, data={"x": x, "y": y})  # pyright: ignore[reportArgumentType]


def test_pfllib(tmp_path: Path) -> None:
    for client in range(11):
        for split, count in (("train", 3), ("test", 2)):
            x = np.full((count, 1, 4, 4), client / 10 - 0.5, dtype=np.float32)
            write_pfllib(tmp_path / split / f"{client}.npz", x, np.arange(count))
    (tmp_path / "config.json").write_text("{}")
    data = load(tmp_path)
    assert data.names == [str(client) for client in range(11)], "10 comes after 9"
    assert [[len(some) for some in one] for one in parts(data)] == [[3, 0, 2]] * 11
    assert parts(data)[10] == [[0.5] * 3, [], [0.5] * 2]
    assert (data.mean, data.std) == ((0.0,), (1.0,)), "the numbers as they are"


class Evil:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.mkdir, (self.path,)


def test_files_run_nothing(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write_pfllib(tmp_path / split / "0.npz", np.zeros((3, 1, 4, 4), np.float32), np.arange(3))
    file = tmp_path / "train" / "1.npz"
    write_pfllib(file, Evil(tmp_path / "evil"), np.arange(3))
    with pytest.raises(UserError, match=r"^data\.path: .*1\.npz cannot be read .*it asks for"):
        load(tmp_path)
    assert not (tmp_path / "evil").exists()
    with file.open("rb") as stream:
        np.load(stream, allow_pickle=True)["data"].item()
    assert (tmp_path / "evil").exists(), "so it would have"
    for wrong in (pickle.dumps([1]), b""):
        file.write_bytes(wrong)
        with pytest.raises(UserError, match=r"1\.npz cannot be read as a client's images"):
            load(tmp_path)


def leaf(**users: list[float]) -> str:
    """Return a file of users, each of whose images have one value."""
    table = {
        name: {"x": [[value] * 16 for value in values], "y": list(range(len(values)))}
        for name, values in users.items()
    }
    sizes = [len(values) for values in users.values()]
    return json.dumps({"users": list(users), "num_samples": sizes, "user_data": table})


def test_leaf(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
    (tmp_path / "train" / "a.json").write_text(leaf(zoe=[0.25, 0.5], ann=[0.0, 1.0, 0.75]))
    (tmp_path / "train" / "b.json").write_text(leaf(bob=[0.5, 0.5]))
    (tmp_path / "test" / "all.json").write_text(leaf(bob=[1.0], ann=[0.5], zoe=[0.25]))
    data = load(tmp_path)
    assert data.client_names == ("ann", "bob", "zoe") and data.images.shape[1:] == (1, 4, 4)
    assert parts(data)[0] == [[0.0, 1.0, 0.75], [], [0.5]]
    assert parts(data)[2] == [[0.25, 0.5], [], [0.25]]
    (tmp_path / "train" / "c.json").write_text(leaf(bob=[0.5, 0.5]))
    with pytest.raises(UserError, match=r"c\.json has client bob once more"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fractions": (0.8, 0.1, 0.1)}, r"^data\.fractions: this data comes with its train"),
        ({"per_client": 2}, r"^data\.per_client: "),
        ({"test_unseen": 0.5}, r"^data\.test_unseen: "),
        ({"split": "official"}, r"^data\.split: "),
    ],
)
def test_what_would_cut_anew_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    file = tmp_path / "own.npz"
    split = np.array([0, 0, 2] * 2)
    np.savez(file, x=images(*range(6)), y=np.arange(6), client=split // 3, split=split)
    with pytest.raises(UserError, match=says):
        load(file, **options)


def test_a_client_without_train_or_test_images_is_named(tmp_path: Path) -> None:
    file, client = tmp_path / "own.npz", np.array(["a", "a", "a", "b", "b", "b"])
    for split, count in (([0, 0, 2, 0, 0, 0], 3), ([0, 0, 2, 0, 2, 2], 1)):
        np.savez(file, x=images(*range(6)), y=np.arange(6), client=client, split=np.array(split))
        with pytest.raises(UserError, match=rf"client b \(1\) comes with {count} images"):
            load(file)
    np.savez(file, x=images(0, 1), y=np.arange(2), split=np.array(["train", "trial"]))
    with pytest.raises(UserError, match="split holds 'trial', but must be one of train, val"):
        load(file, partition="iid")
