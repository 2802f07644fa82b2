"""Ways to take batch norm's statistics, against torch's own function."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.networks import norms


def maps(seed: int) -> Tensor:
    return torch.randn(6, 3, 2, 2, generator=torch.Generator().manual_seed(seed)) + seed


def used_norm() -> nn.BatchNorm2d:
    """Return a norm that has seen images and has a scale of its own."""
    norm = nn.BatchNorm2d(3)
    nn.init.uniform_(norm.weight)
    norm(maps(1))
    return norm.eval()


def kept_of(norm: nn.BatchNorm2d) -> list[object]:
    buffers = [(id(buffer), buffer.tolist()) for buffer in norm.buffers()]
    return [buffers, norm.training, norm.momentum, norm.track_running_stats]


def test_by_batch_no_statistics_are_used_or_touched():
    norm = used_norm()
    before = kept_of(norm)
    with torch.no_grad(), norms.by_batch([norm]):
        found = norm(maps(2)), norm(maps(3))
    for seed, normalised in zip((2, 3), found, strict=True):
        plain = F.batch_norm(maps(seed), None, None, norm.weight, norm.bias, training=True)
        assert torch.equal(normalised, plain)
    assert kept_of(norm) == before


def test_averages_are_plain_means_over_batches_and_may_be_lent_again():
    norm = used_norm()
    before = kept_of(norm)
    with torch.no_grad():
        with norms.lent([norm]) as buffers, norms.averaging([norm]):
            norm(maps(2)), norm(maps(5))
        assert kept_of(norm) == before
        with norms.lent([norm], buffers) as again:
            found = norm(maps(7))
    assert again is buffers and kept_of(norm) == before
    both = torch.stack([maps(seed).transpose(0, 1).flatten(1) for seed in (2, 5)])
    mean, variance = both.mean(2).mean(0), both.var(2).mean(0)
    expected = F.batch_norm(maps(7), mean, variance, norm.weight, norm.bias)
    assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("how", [norms.by_batch, norms.lent, norms.averaging])
def test_an_error_changes_nothing(how):  # noqa: ANN001
    norm = used_norm()
    before = kept_of(norm)
    with pytest.raises(RuntimeError, match="broken"), norms.lent([norm]), how([norm]):
        norm(maps(2))
        raise RuntimeError("broken")
    assert kept_of(norm) == before


def test_each_module_gets_its_own_mode_back():
    inner = nn.Sequential(nn.Dropout(), nn.ReLU())
    model = nn.Sequential(nn.BatchNorm2d(3), inner)
    inner.eval()
    inner[0].train()
    before = [module.training for module in model.modules()]
    for broken in (False, True):
        try:
            with norms.still(list(model.modules())):
                assert not any(module.training for module in model.modules())
                if broken:
                    raise RuntimeError
        except RuntimeError:
            pass
        assert [module.training for module in model.modules()] == before
