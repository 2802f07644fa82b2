"""A score network over the tokens of architectures: a transformer that sees through noise.

DiffusionNAG (An et al. 2024) trains a transformer, the encoder of CATE, on noised one-hot tables by
denoising score matching; PerFedSDE-NAS (supplement, section C and Table A) takes it over. `PAPER`
is that network. Both differ from the papers: tables are centred, so that noise alone is the better
start; an absent layer has a value of its own (see `tokens`).

The light default also learns something else. Bayes' rule gives the probabilities of a token's
values from its own noised row and from those of tokens with which it is measured to go together
(see `forest`). The network adds to their logarithms what else the tokens tell of each other; it
begins with nothing, as the exact score of tokens that are independent or go together in pairs. It
sees the probabilities by each token's own row, which hold all that the row and the level of noise
can tell, so it needs no time, and learns by cross-entropy from tables of which every token has a
level of its own: where all are equally noisy, little can be learned of one from others. Tweedie's
formula turns probabilities into the score. Tokens look at themselves, at those that they read and
at those that read them. Beside the sinusoidal code of its place in the stage a token has learned
codes, of the stage and of its own.
"""

import itertools
import math
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.search.diffusion import forest
from fedtailor.search.diffusion.forest import Forest
from fedtailor.search.diffusion.sde import EPSILON, SDE, Score, score_loss
from fedtailor.search.diffusion.tokens import Encoding

UNSEEN = 0.5  # a value that no architecture has counts as if half a one had it
CLOSED = -1e9  # finite: who may look at no token looks at all of them alike, as in the paper


@dataclass(frozen=True)
class ScoreSettings:
    """The sizes of a score network, and what it sees."""

    layers: Annotated[int, Ge(1)] = 3
    width: Annotated[int, Ge(2)] = 64  # even, and a multiple of heads
    heads: Annotated[int, Ge(1)] = 4
    feedforward: Annotated[int, Ge(1)] = 128
    hidden: tuple[Annotated[int, Ge(1)], ...] = (128,)  # of the head
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    output: Literal["posterior", "score"] = "posterior"
    # what tokens look at: adjacency, those that read them; both, also those that they read
    mask: Literal["adjacency", "both", "none"] = "both"
    loops: bool = True  # whether they look at themselves
    positions: Literal["stage", "absolute", "both"] = "both"
    every_block: bool = False  # whether the head sees the outputs of all blocks or of the last


LIGHT = ScoreSettings()
PAPER = ScoreSettings(
    layers=12,
    heads=8,
    hidden=(1536, 1536),
    dropout=0.1,
    output="score",
    mask="adjacency",
    loops=False,
    positions="stage",
    every_block=True,
)


class ScoreNetwork(nn.Module):
    """The score of noised tables, and the probabilities of the values behind the noise.

    Noised tables are on the scale of `to_diffused` and may be on any device: results are on the
    same. A new network has no weights: see `initial.initialise`.

    Args:
        code: the tables of a space.
        sde: the equation that adds the noise.
        settings: the sizes.
    """

    shares: Tensor
    allowed: Tensor
    parents: Tensor
    ratios: Tensor

    def __init__(self, code: Encoding, sde: SDE, settings: ScoreSettings = LIGHT) -> None:
        super().__init__()
        self.sde, self.settings = sde, settings
        self.register_buffer("shares", code.allowed / code.allowed.sum(1, keepdim=True))
        self.register_buffer("allowed", code.allowed, persistent=False)
        alone = forest.bare(code.length, code.vocabulary)
        self.register_buffer("parents", alone.parents)
        self.register_buffer("ratios", alone.ratios)
        self.network = _Transformer(code, settings)

    def centre(self, values: Tensor) -> None:
        """Measure the shares of values, which centre the tables, and what goes in pairs.

        Args:
            values: of the architectures that will be trained on, (n, tokens).
        """
        allowed = self.allowed.cpu()
        counts = F.one_hot(values.cpu(), allowed.shape[1]).sum(0) + UNSEEN * allowed
        shares = counts / counts.sum(1, keepdim=True)
        found = forest.measure(values.cpu(), shares)
        self.shares.copy_(shares)
        self.parents.copy_(found.parents)
        self.ratios.copy_(found.ratios)

    def to_diffused(self, one_hot: Tensor) -> Tensor:
        """Bring tables of 0 and 1 to the scale on which they are noised: mean 0, 2 apart."""
        return 2 * (one_hot - self.shares.to(one_hot.device))

    def from_diffused(self, x: Tensor) -> Tensor:
        """Undo `to_diffused`."""
        return x / 2 + self.shares.to(x.device)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the score of noised tables (n, tokens, values) at times (n,)."""
        noised = x.to(self.shares.device)
        scale, std = _marginal(self.sde, t.to(noised.device))
        if self.settings.output == "score":
            score = self.network(noised, std.flatten()) / std
        else:
            clean = self.to_diffused(self._logits(noised, scale, std).softmax(2))
            score = (scale * clean - noised) / std**2
        return score.to(x.device)

    def loss(self, values: Tensor, rng: torch.Generator) -> Tensor:
        """Return the loss of clean values (n, tokens), noised at random times."""
        x0 = self.to_diffused(F.one_hot(values.cpu(), self.shares.shape[1]).float())
        if self.settings.output == "score":
            return score_loss(self.sde, self, x0, rng)
        t = EPSILON + (1 - EPSILON) * torch.rand(values.shape, generator=rng)
        scale, std = (each[..., None] for each in self.sde.marginal(t))
        x = scale * x0 + std * torch.randn(x0.shape, generator=rng)
        device = self.shares.device
        logits = self._logits(x.to(device), scale.to(device), std.to(device))
        return F.cross_entropy(logits.flatten(0, 1), values.flatten().to(device))

    def _logits(self, x: Tensor, scale: Tensor, std: Tensor) -> Tensor:
        """Return unnormalised log-probabilities of the clean values, -inf of what is not allowed.

        A token's row of value v is N(scale 2 (e_v - shares), std^2); what of its log-density varies
        with v is 2 scale (x_v + 2 scale shares_v) / std^2.
        """
        likelihood = 2 * scale / std**2 * (x + 2 * scale * self.shares)
        alone = likelihood + self.shares.log()
        chances = alone.softmax(2)
        told = forest.messages(Forest(self.parents, self.ratios), chances)
        return alone + told + self.network(chances - self.shares)


def denoised(sde: SDE, score: Score, x: Tensor, t: Tensor) -> Tensor:
    """Return the expected clean x_0 behind x at times t (Tweedie's formula)."""
    scale, std = _marginal(sde, t)
    return (x + std**2 * score(x, t)) / scale


class Linear(nn.Linear):
    """A linear layer that does not draw its weights: torch would from its global generator."""

    def reset_parameters(self) -> None:
        """Begin at 0."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


class _Transformer(nn.Module):
    """Tables, and levels of noise where it is to know them, to tables."""

    mask: Tensor
    places: Tensor
    stages: Tensor

    def __init__(self, code: Encoding, settings: ScoreSettings) -> None:
        super().__init__()
        width, learned = settings.width, settings.positions == "both"
        if width % settings.heads or width % 2:
            raise ValueError("width must be even, and a multiple of heads")
        names, stages = code.stages.unique(return_inverse=True)
        places = torch.arange(code.length) if settings.positions == "absolute" else code.places
        self.register_buffer("mask", _mask(code, settings), persistent=False)
        self.register_buffer("places", _sinusoids(places, width), persistent=False)
        self.register_buffer("stages", stages, persistent=False)
        self.stage = nn.Parameter(torch.zeros(len(names), width)) if learned else None
        self.token = nn.Parameter(torch.zeros(code.length, width)) if learned else None
        self.embed = Linear(code.vocabulary, width)
        timed = (Linear(width, 4 * width), nn.SiLU(), Linear(4 * width, width))
        self.time = nn.Sequential(*timed) if settings.output == "score" else None
        self.drop = nn.Dropout(settings.dropout)
        self.blocks = nn.ModuleList(_Block(settings) for _ in range(settings.layers))
        seen = settings.layers if settings.every_block else 1
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(seen))
        sizes = (seen * width, *settings.hidden, code.vocabulary)
        self.head = _head(sizes, silent=settings.output == "posterior")

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        places = self.places
        if self.stage is not None and self.token is not None:
            places = places + self.stage[self.stages] + self.token
        x = self.drop(self.embed(x) * math.sqrt(places.shape[1])) + places
        if self.time is not None and noise is not None:
            x = x + self.time(_sinusoids(noise, places.shape[1]))[:, None]
        outputs: list[Tensor] = []
        for block in self.blocks:
            x = block(x, self.mask)
            outputs.append(x)
        seen = outputs[-len(self.norms) :]
        normed = [norm(each) for norm, each in zip(self.norms, seen, strict=True)]
        return self.head(normed[0] if len(normed) == 1 else torch.cat(normed, 2))


class _Block(nn.Module):
    """Attention, then two linear layers, each normed before and added to its input."""

    def __init__(self, settings: ScoreSettings) -> None:
        super().__init__()
        width = settings.width
        self.heads = settings.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.look, self.mix = Linear(width, 3 * width), Linear(width, width)
        self.widen, self.narrow = (
            Linear(width, settings.feedforward),
            Linear(settings.feedforward, width),
        )
        self.drop = nn.Dropout(settings.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.drop(self.mix(self._attention(self.look(self.before(x)), mask)))
        hidden = self.drop(self.widen(self.between(x)).relu_())
        return x + self.drop(self.narrow(hidden))

    def _attention(self, looks: Tensor, mask: Tensor) -> Tensor:
        """Attend by plain products: at these lengths torch's fused attention takes 1.5-3 times."""
        rows, length, each = len(looks), looks.shape[1], looks.shape[2] // 3 // self.heads
        apart = looks.view(rows, length, 3, self.heads, each).permute(2, 0, 3, 1, 4)
        query, key, value = apart.reshape(3, rows * self.heads, length, each).unbind(0)
        scores = torch.baddbmm(mask, query, key.transpose(1, 2), alpha=each**-0.5)
        found = torch.bmm(self.drop(scores.softmax(2)), value)
        return found.view(rows, self.heads, length, each).transpose(1, 2).flatten(2)


def _head(sizes: tuple[int, ...], silent: bool) -> nn.Sequential:
    """Return linear layers with ELU between them; a silent one begins at 0."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [Linear(before, after), nn.ELU()]
    layers.pop()
    if silent:
        layers[-1].first_values = {"weight": 0.0}  # pyright: ignore[reportArgumentType] - a plain dict
    return nn.Sequential(*layers)


def _mask(code: Encoding, settings: ScoreSettings) -> Tensor:
    """Return what is added to the attention of the row's token to the column's."""
    length, reads = code.length, code.adjacency
    if settings.mask != "adjacency":
        reads = reads | reads.T | (settings.mask == "none")
    myself = torch.eye(length, dtype=torch.bool)
    looks = reads | myself if settings.loops else reads & ~myself
    return torch.zeros(length, length).masked_fill(~looks, CLOSED)


def _sinusoids(numbers: Tensor, width: int) -> Tensor:
    """Return sines and cosines of numbers, of frequencies from 1 to 1/10000."""
    steps = torch.arange(width // 2, device=numbers.device) / (width // 2)
    angles = numbers[:, None] * 1e4**-steps
    return torch.cat([angles.sin(), angles.cos()], 1)


def _marginal(sde: SDE, t: Tensor) -> tuple[Tensor, Tensor]:
    """Return scale and std of noised tables, shaped to multiply them."""
    scale, std = sde.marginal(t)
    return scale[:, None, None], std[:, None, None]
