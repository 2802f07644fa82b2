import torch

from fedtailor.core.rng import numpy_rng_for, rng_for, seed_for


def test_same_key_same_draws_and_no_stream():
    first = torch.rand(3, generator=rng_for(0, 1, 2, "train"))
    torch.rand(5, generator=rng_for(0, 9, 9, "other"))
    assert torch.equal(first, torch.rand(3, generator=rng_for(0, 1, 2, "train")))
    draws = [numpy_rng_for(0, "x").random(3).tolist() for _ in range(2)]
    assert draws[0] == draws[1]


def test_keys_that_differ_in_anything_differ():
    keys = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (0, 12), (0, 1, "2"), (0, "1", 2), (0, "1\x1f2"), (0,)]
    assert len({seed_for(*key) for key in keys}) == len(keys)


def test_the_seed_of_a_key_never_changes():
    """Published results hang on it."""
    assert seed_for(0, 1, "train") == 1286880084183543489


def test_the_global_generator_is_left_alone():
    before = torch.random.get_rng_state()
    torch.rand(3, generator=rng_for(0, "x"))
    assert torch.equal(before, torch.random.get_rng_state())
