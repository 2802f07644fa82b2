import torch
from hypothesis import given
from hypothesis import strategies as st

from fedtailor.core.types import Tensors
from fedtailor.training.merge import Part, merge


def drawn(seed: int, names: list[str]) -> Tensors:
    rng = torch.Generator().manual_seed(seed)
    return {name: torch.randn(3, 2, generator=rng) for name in names}


@given(
    st.lists(st.tuples(st.integers(0, 9), st.floats(0.1, 1000), st.sets(st.sampled_from("abc"))))
)
def test_merge_is_the_weighted_mean_of_those_who_trained(parts: list[tuple[int, float, set[str]]]):
    server = drawn(99, ["a", "b", "c"])
    before = {name: w.clone() for name, w in server.items()}
    made = [Part(drawn(seed, sorted(names)), weight) for seed, weight, names in parts]
    merged = merge(server, iter(made))
    for name, old in before.items():
        assert torch.equal(server[name], old)
        mine = [p for p in made if name in p.weights]
        if not mine:
            assert torch.equal(merged[name], old)
            continue
        counts = [float(p.weight) for p in mine]  # pyright: ignore[reportArgumentType]
        mean = sum(p.weights[name].double() * n for p, n in zip(mine, counts, strict=True))
        mean = mean / sum(counts)
        assert torch.allclose(merged[name].double(), torch.as_tensor(mean), atol=1e-5)


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=8), st.integers(0, 99))
def test_merging_untouched_weights_is_the_identity_to_the_bit(weights: list[float], seed: int):
    server = {name: w * 1e3**i for i, (name, w) in enumerate(drawn(seed, ["a", "b"]).items())}
    copies = [Part({n: w.clone() for n, w in server.items()}, weight) for weight in weights]
    merged = merge(server, copies)
    assert all(torch.equal(merged[name], server[name]) for name in server)


def test_a_client_alone_moves_its_weights_all_the_way():
    server = {"a": torch.zeros(2), "b": torch.ones(2)}
    merged = merge(server, [Part({"a": torch.full((2,), 3.0)}, 17.0)])
    assert merged["a"].tolist() == [3, 3]
    assert merged["b"].tolist() == [1, 1]
