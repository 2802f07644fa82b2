import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pytest
import torch
from annotated_types import Ge
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.core import codec
from fedtailor.core.errors import UserError

T = TypeVar("T")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.uint8, torch.bool]  # fmt: skip


@dataclass(frozen=True)
class Inner:
    weights: dict[str, Tensor]
    score: float
    note: str | None = None


@dataclass(frozen=True)
class Outer:
    by_client: dict[int, Inner]
    order: tuple[int, ...]
    pair: tuple[str, float]
    history: list[Tensor]
    anything: Any
    maybe: Inner | None = None
    positive: Annotated[int, Ge(1)] = 1
    flag: bool = False
    values: dict[str, list[float]] = field(default_factory=dict)


def tensors() -> st.SearchStrategy[Tensor]:
    shapes = st.lists(st.integers(0, 4), max_size=4)

    def make(shape: list[int], dtype: torch.dtype, seed: int, transposed: bool) -> Tensor:
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 10
        return (drawn.T if transposed and drawn.dim() == 2 else drawn).to(dtype)

    return st.builds(make, shapes, st.sampled_from(DTYPES), st.integers(0, 99), st.booleans())


names = st.text(max_size=6)
floats = st.floats(allow_nan=False)
scalars = st.none() | st.booleans() | st.integers() | floats | names
plain = st.recursive(
    scalars | tensors(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(names | st.integers(), inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
    ),
    max_leaves=8,
)
inners = st.builds(Inner, st.dictionaries(names, tensors(), max_size=3), floats, st.none() | names)
outers = st.builds(
    Outer,
    st.dictionaries(st.integers(), inners, max_size=3),
    st.lists(st.integers()).map(tuple),
    st.tuples(names, floats),
    st.lists(tensors(), max_size=3),
    plain,
    st.none() | inners,
    st.integers(1),
    st.booleans(),
    st.dictionaries(names, st.lists(floats, max_size=3), max_size=3),
)


def through_a_file(kind: type[T], value: T) -> T:
    with tempfile.TemporaryDirectory() as folder:
        codec.write(Path(folder) / "x", value)
        return codec.read(kind, Path(folder) / "x")


def same(a: Any, b: Any) -> bool:
    """Compare deeply and strictly: types, tensor dtypes, shapes and bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, Tensor):
        bits = [t.contiguous().flatten().view(torch.uint8).tolist() for t in (a, b)]
        return a.dtype == b.dtype and a.shape == b.shape and bits[0] == bits[1]
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, Inner | Outer):
        return same(vars(a), vars(b))
    return repr(a) == repr(b)  # tells -0.0 from 0.0


@given(outers)
def test_files_give_back_what_was_packed(value: Outer):
    assert same(through_a_file(Outer, value), value)


@given(outers, outers)
def test_digest_tells_values_apart(a: Outer, b: Outer):
    assert (codec.digest(a) == codec.digest(b)) == same(a, b)


def test_files_give_back_what_was_written(tmp_path: Path):
    value = Inner({"a": torch.arange(6.0).view(2, 3).T, "b": torch.tensor(1)}, math.inf)
    codec.write(tmp_path / "x", value)
    assert same(codec.read(Inner, tmp_path / "x"), value)


def test_nothing_is_shared_with_what_was_packed():
    weight = torch.zeros(3)
    packed, tree = codec.pack(Inner({"a": weight, "same": weight}, 0.0))
    weight.fill_(1)
    back = codec.unpack(Inner, packed, tree)
    packed["/weights/a"].fill_(2)
    assert back.weights["a"].tolist() == back.weights["same"].tolist() == [0, 0, 0]
    back.weights["a"].fill_(3)
    assert back.weights["same"].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    "value",
    [object(), {1.5: 0}, {"a": {1, 2}}, print, torch.zeros(2, dtype=torch.complex64), b"bytes",
     torch.zeros(2, 2).to_sparse()],
)  # fmt: skip
def test_what_cannot_be_given_back_is_refused(value: Any):
    with pytest.raises(codec.CodecError):
        codec.pack(value)


def test_data_of_another_type_is_refused():
    with pytest.raises(codec.CodecError):
        codec.unpack(Outer, *codec.pack(Inner({}, 0.0)))


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
def test_a_damaged_file_is_one_sentence(tmp_path: Path, damage: str):
    path = tmp_path / "state"
    codec.write(path, Inner({"a": torch.zeros(100)}, 0.0))
    whole = path.read_bytes()
    path.write_bytes(whole[:-50] if damage == "truncated" else b"\xff" * 300)
    if damage == "missing":
        path.unlink()
    with pytest.raises(UserError, match=str(path)):
        codec.read(Inner, path)
