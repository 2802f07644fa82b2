"""The transformer block of NASViT, on maps.

In channels-last order a map's tokens (image, row, column, channel) are the same memory, so that
norms and convolutions see maps, linear layers see tokens, and nothing is copied between them.
Attention puts heads first: the linear maps over heads are then plain matrix products.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.networks.depthwise import DepthwiseConv2d

KEY, VALUE = 8, 32  # dimensions of a head's queries and keys, and of its values
FIRST_SCALE = 1e-4


class Transformer(nn.Module):
    """Attention and two linear networks, each on the normalised map and added to it, scaled.

    Group norm with one group is layer norm over the whole map, its weights one per channel.

    Args:
        channels: of the map, a multiple of 8: a head per 8.
        size: height and width of the map.
        depth: blocks of the stage, as its scales are learned for each depth by themselves.
    """

    def __init__(self, channels: int, size: tuple[int, int], depth: int) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(1, channels)
        self.attention = Attention(channels, size)
        self.attention_scale = Scale(channels, depth)
        self.norm3, self.mlp2 = nn.GroupNorm(1, channels), MLP(channels)
        self.norm2, self.mlp1 = nn.GroupNorm(1, channels), MLP(channels)
        self.mlp_scale = Scale(channels, depth)

    def forward(self, x: Tensor) -> Tensor:
        """Change the map."""
        x = self.attention_scale(x, self.attention(_tokens(self.norm1(x))))
        x = self.mlp_scale(x, self.mlp2(_tokens(self.norm3(x))))
        return self.mlp_scale(x, self.mlp1(_tokens(self.norm2(x))))


class Attention(nn.Module):
    """Attention of every place to every place; heads mix before and after the softmax."""

    def __init__(self, channels: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.heads = heads = channels // KEY
        self.query = nn.Linear(channels, heads * KEY)
        self.key = nn.Linear(channels, heads * KEY)
        self.value = nn.Linear(channels, heads * VALUE)
        self.around = DepthwiseConv2d(heads * VALUE, 3)
        self.position = Position(heads, size)
        self.mix_before = nn.Linear(heads, heads)
        self.mix_after = nn.Linear(heads, heads)
        self.project = nn.Linear(heads * VALUE, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Attend; tokens are (images, rows, columns, channels)."""
        images, rows, columns, _ = tokens.shape
        heads, places = self.heads, rows * columns
        apart, together = (images, places, heads, KEY), heads * images
        query = self.query(tokens).view(apart).permute(2, 0, 1, 3).reshape(together, places, KEY)
        key = self.key(tokens).view(apart).permute(2, 0, 3, 1).reshape(together, KEY, places)
        value = self.around(self.value(tokens).permute(0, 3, 1, 2))
        value = value.view(images, heads, VALUE, rows, columns).permute(1, 0, 3, 4, 2)
        weights = self._weights(torch.bmm(query * KEY**-0.5, key).view(heads, images, -1), places)
        found = torch.bmm(
            weights.view(together, places, places), value.reshape(together, places, VALUE)
        )
        found = found.view(heads, images, rows, columns, VALUE).permute(1, 2, 3, 0, 4)
        return self.project(F.silu(found.reshape(images, rows, columns, -1)))

    def _weights(self, scores: Tensor, places: int) -> Tensor:
        scores = scores + self.position()
        scores = _mix(self.mix_before, scores.view(self.heads, -1))
        weights = scores.view(-1, places).softmax(1)
        return _mix(self.mix_after, weights.view(self.heads, -1))


class Position(nn.Module):
    """What each head adds for how far a key lies from a query: one value per (rows, columns).

    No distance is in the middle of the table, so that a smaller map's is its centred window.
    """

    offsets: Tensor

    def __init__(self, heads: int, size: tuple[int, int]) -> None:
        super().__init__()
        height, width = size
        self.bias = nn.Parameter(torch.empty(heads, 1, 2 * height - 1, 2 * width - 1))
        self.register_buffer("offsets", _offsets(height, width), persistent=False)

    def forward(self) -> Tensor:
        """Return (heads, 1, queries times keys)."""
        offsets = self.offsets.to(self.bias.device)  # elsewhere only where costs are counted
        return self.bias.flatten(2).index_select(2, offsets)


class MLP(nn.Module):
    """Two linear layers and a swish."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(channels, channels)
        self.second = nn.Linear(channels, channels)

    def forward(self, tokens: Tensor) -> Tensor:
        """Change each token."""
        return self.second(F.silu(self.first(tokens)))


class Scale(nn.Module):
    """Add tokens to a map, each channel scaled; the scales are named by the stage's depth."""

    def __init__(self, channels: int, depth: int) -> None:
        super().__init__()
        self.name = f"depth_{depth}"
        self.register_parameter(self.name, nn.Parameter(torch.empty(channels)))
        self.first_values = {self.name: FIRST_SCALE}
        self.factor = KEY / channels

    def forward(self, x: Tensor, found: Tensor) -> Tensor:
        """Return the map with the tokens added."""
        scale = getattr(self, self.name)
        return torch.addcmul(_tokens(x), found, scale, value=self.factor).permute(0, 3, 1, 2)


def _tokens(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _mix(linear: nn.Linear, heads_first: Tensor) -> Tensor:
    """Apply a linear layer to the first dimension."""
    return torch.addmm(linear.bias[:, None], linear.weight, heads_first)


def _offsets(height: int, width: int) -> Tensor:
    """Return for each query and key where in the flat table their distance is."""
    rows, columns = torch.arange(height, device="cpu"), torch.arange(width, device="cpu")
    places = torch.cartesian_prod(rows, columns)
    down, right = (places[:, None] - places[None]).unbind(-1)
    return ((down + height - 1) * (2 * width - 1) + right + width - 1).flatten()
