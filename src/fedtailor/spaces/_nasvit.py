"""The transformer block of NASViT.

Maps stay in channels-last order throughout: their tokens (image, row, column, channel) are then
the same memory, and only attention needs copies, to put heads first. With heads first the linear
maps over heads are plain matrix products.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.depthwise import DepthwiseConv2d

KEY, VALUE = 8, 32  # dimensions of a head's queries and keys, and of its values


class Attention(nn.Module):
    """Attention of every place to every place, heads mixed before and after the softmax."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.heads = heads = channels // KEY
        height, width = size
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, heads * VALUE)
        self.around = DepthwiseConv2d(heads * VALUE, 3)
        self.position_bias = nn.Parameter(torch.empty(heads, 1, 2 * height - 1, 2 * width - 1))
        self.first_values = {"position_bias": 0.0}
        self.mix_before = nn.Linear(heads, heads)
        self.mix_after = nn.Linear(heads, heads)
        self.project = nn.Linear(heads * VALUE, channels)
        self.register_buffer("offsets", _offsets(height, width), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Attend; tokens are (images, rows, columns, channels)."""
        images, rows, columns, _ = tokens.shape
        places, pairs = rows * columns, images * self.heads
        apart = (images, places, self.heads, -1)
        query = self.query(tokens).view(apart).permute(2, 0, 1, 3).reshape(pairs, places, KEY)
        key = self.key(tokens).view(apart).permute(2, 0, 3, 1).reshape(pairs, KEY, places)
        value = self.around(self.value(tokens).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        value = value.reshape(apart).permute(2, 0, 1, 3).reshape(pairs, places, VALUE)
        weights = self._mix(torch.bmm(query, key), images, places)
        found = torch.bmm(weights, value).view(self.heads, images, places, VALUE)
        return self.project(F.silu(found.permute(1, 2, 0, 3).reshape(images, rows, columns, -1)))

    def _mix(self, scores: Tensor, images: int, places: int) -> Tensor:
        """Turn products of queries and keys into weights of values.

        The bias of positions and the scale pass through the first mix on its small side.
        """
        before, after = self.mix_before, self.mix_after
        bias = self.position_bias.flatten(1).index_select(1, self.get_buffer("offsets"))
        bias = torch.addmm(before.bias[:, None], before.weight, bias)
        mixed = torch.mm(before.weight * KEY**-0.5, scores.view(self.heads, -1))
        mixed = mixed.view(self.heads, images, -1) + bias[:, None]
        weights = mixed.view(-1, places).softmax(1).view(self.heads, -1)
        return torch.addmm(after.bias[:, None], after.weight, weights).view(scores.shape)


def _offsets(height: int, width: int) -> Tensor:
    """Return for each query and key where the table has (rows apart, columns apart)."""
    rows, columns = torch.arange(height, device="cpu"), torch.arange(width, device="cpu")
    places = torch.cartesian_prod(rows, columns)
    down, right = (places[:, None] - places[None]).unbind(-1)
    return ((down + height - 1) * (2 * width - 1) + right + width - 1).flatten()


class Feed(nn.Module):
    """Two linear maps and a swish in between."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.second = nn.Linear(channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Map each token."""
        return self.second(F.silu(self.first(tokens)))


class Transformer(nn.Module):
    """Attention and two feed-forward layers, each on a normalised map and added to it, scaled.

    The scales are learned for each depth of the stage by themselves, and named by it. Group norm
    with one group is layer norm over the whole map with weights per channel.
    """

    def __init__(self, channels: int, size: tuple[int, int], depth: int) -> None:
        super().__init__()
        scales = (f"attention_scale_{depth}", f"feed_scale_{depth}")
        self.first_values = dict.fromkeys(scales, 1e-4)
        self.norm1 = nn.GroupNorm(1, channels)
        self.attention = Attention(channels, size)
        for name in scales:
            self.register_parameter(name, nn.Parameter(torch.empty(channels)))
        self.norm3, self.feed2 = nn.GroupNorm(1, channels), Feed(channels)
        self.norm2, self.feed1 = nn.GroupNorm(1, channels), Feed(channels)

    def forward(self, maps: Tensor) -> Tensor:
        """Change the map."""
        attention_scale, feed_scale = self._parameters.values()
        maps = self._add(maps, self.norm1, self.attention, attention_scale)
        maps = self._add(maps, self.norm3, self.feed2, feed_scale)
        return self._add(maps, self.norm2, self.feed1, feed_scale)

    @staticmethod
    def _add(maps, norm, inner, scale) -> Tensor:
        tokens = maps.permute(0, 2, 3, 1)
        found = inner(norm(maps).permute(0, 2, 3, 1))
        return torch.addcmul(tokens, found, scale, value=KEY / maps.shape[1]).permute(0, 3, 1, 2)
