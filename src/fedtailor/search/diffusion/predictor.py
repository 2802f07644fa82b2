"""What an architecture will score on a client's data: a predictor that sees through noise.

PerFedSDE-NAS (Liao et al.), supplement D, after DiffusionNAG (An et al. 2024): directed graph
convolutions (DiGCN, Wen et al. 2020) over an architecture's tokens; over features of the client's
images one Set Transformer (Lee et al. 2019) within each class and one over the classes; then a
perceptron over both. `PAPER` has the paper's sizes. The default differs from the paper:
- In place of the noised table the graph reads the probabilities of the tokens' values that Bayes'
  rule gives where tokens are independent; they mean the same at every level of noise.
- Tokens read with weights of their own beside the shared ones (`positions`): the mean over tokens
  would forget which stage a value is in.
- Beside the perceptron, every value of every token has an effect of its own, linear in the data's
  embedding (`effects`): in trainings of some hundred steps, on made-up accuracies of that form,
  the perceptron alone did not find that data matter.
Both differ from it: classes may have any number of images, and there may be any number of them; a
learned embedding stands for "no data" and takes a tenth of the training; the time is known by the
logarithm of noise over signal. Dropout acts where a generator is given, and only there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Interval
from scipy.stats import kendalltau
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.search.diffusion.encoder import Features
from fedtailor.search.diffusion.score_network import Linear
from fedtailor.search.diffusion.sde import SDE
from fedtailor.search.diffusion.tokens import Encoding

CLOSED = -1e9  # finite: who may look at nothing gets something meaningless, which is not used


@dataclass(frozen=True)
class PredictorSettings:
    """The sizes of a predictor, and what it sees."""

    layers: Annotated[int, Ge(1)] = 3  # of graph convolutions
    width: Annotated[int, Ge(2)] = 64  # even
    latent: Annotated[int, Ge(1)] = 64  # of an architecture
    set_width: Annotated[int, Ge(1)] = 32  # of a data set; a multiple of heads
    heads: Annotated[int, Ge(1)] = 4
    hidden: Annotated[int, Ge(1)] = 64
    dropout: Annotated[float, Interval(ge=0, lt=1)] = 0.1
    blank: Annotated[float, Interval(ge=0, le=1)] = 0.1  # share of training without data
    reads: Literal["posterior", "noisy"] = "posterior"
    positions: bool = True
    effects: Annotated[int, Ge(0)] = 16  # rank of what data do to values' effects; 0: nothing
    norms: bool = True  # layer norm in and after the Set Transformers


LIGHT = PredictorSettings()
PAPER = PredictorSettings(
    layers=4,
    width=144,
    latent=128,
    set_width=56,
    hidden=512,
    reads="noisy",
    positions=False,
    effects=0,
    norms=False,
)


class Predictor(nn.Module):
    """The score of noised architectures on a data set.

    Noised tables are on the scale 2 (one-hot - shares); the buffer `shares` must be that of the
    score network. A new predictor has no weights: see `initial.initialise`.

    Args:
        code: the tables of a space.
        sde: the equation that adds the noise.
        feature_size: of the encoder.
        settings: the sizes.
    """

    shares: Tensor
    allowed: Tensor

    def __init__(
        self, code: Encoding, sde: SDE, feature_size: int, settings: PredictorSettings = LIGHT
    ) -> None:
        super().__init__()
        self.sde, self.settings, self.feature_size = sde, settings, feature_size
        self.register_buffer("shares", code.allowed / code.allowed.sum(1, keepdim=True))
        self.register_buffer("allowed", code.allowed, persistent=False)
        self.graph = _Graph(code, settings)
        self.images = _SetTransformer(feature_size, settings)
        self.classes = _SetTransformer(settings.set_width, settings)
        self.normed = _norm(settings)
        self.no_data = nn.Parameter(torch.zeros(settings.set_width))
        self.effects = _Effects(code, settings) if settings.effects else None
        self.fuse = Linear(settings.latent + settings.set_width, settings.hidden)
        self.answer = Linear(settings.hidden, 1)

    def embed(self, values: Tensor, present: Tensor) -> Tensor:
        """Return the embeddings of data sets: (sets, set_width).

        Args:
            values: features of images, (sets, classes, images, features).
            present: which of them are there, (sets, classes, images); others may be anything. A set
                that has none at all has the embedding of no data.
        """
        values, present = values.to(self.shares.device), present.to(self.shares.device)
        values = torch.where(present[..., None], values, 0.0)
        inner = self.images(values.flatten(0, 1), present.flatten(0, 1))
        found = self.normed(self.classes(inner.unflatten(0, present.shape[:2]), present.any(2)))
        return torch.where(present.any(2).any(1)[:, None], found, self.no_data)

    def embed_features(self, features: Features) -> Tensor:
        """Return the embedding of one data set: (set_width,)."""
        return self.embed(*grouped([features]))[0]

    def posterior(self, x: Tensor, t: Tensor) -> Tensor:
        """Return the probabilities of clean values behind noised ones, if tokens are independent.

        The row of value v is N(2 scale (e_v - shares), std^2); what of its log-density varies with
        v is 2 scale (x_v + 2 scale shares_v) / std^2. The likeliest value has what the others
        leave: so gradients stay exact where it is all but certain, which softmax would round away.
        """
        scale, std = (each[:, None, None] for each in self.sde.marginal(t))
        likelihood = 2 * scale / std**2 * (x + 2 * scale * self.shares)
        logits = likelihood + self.shares.clamp(min=1e-9).log()
        logits = logits.masked_fill(~self.allowed, -math.inf)
        first = F.one_hot(logits.argmax(2), logits.shape[2])
        others = logits.softmax(2) * (1 - first)
        return others + first * (1 - others.sum(2, keepdim=True))

    def forward(
        self,
        x: Tensor,
        t: Tensor,
        embedding: Tensor | None = None,
        rng: torch.Generator | None = None,
    ) -> Tensor:
        """Return the predicted scores: (n,).

        Args:
            x: noised tables, (n, tokens, values).
            t: their times, (n,).
            embedding: of all rows' data set, (set_width,), or of each row's; none: of no data.
            rng: for dropout, in training.
        """
        device = self.shares.device
        table, t = x.to(device), t.to(device)
        if self.settings.reads == "posterior":
            table = self.posterior(table, t) - self.shares
        scale, std = self.sde.marginal(t)
        latent = self.graph(table, (std / scale).log(), rng)
        data = (self.no_data if embedding is None else embedding.to(device)).expand(len(x), -1)
        found = self.answer(self.fuse(torch.cat([latent, data], 1)).tanh()).squeeze(1)
        if self.effects is not None:
            found = found + self.effects(table, data)
        return found.to(x.device)

    def loss(
        self,
        x0: Tensor,
        t: Tensor,
        targets: Tensor,
        embeddings: Tensor | None,
        rng: torch.Generator,
    ) -> Tensor:
        """Return the mean squared error on clean tables noised to times t; arguments as above."""
        scale, std = (each.cpu()[:, None, None] for each in self.sde.marginal(t))
        x = scale * x0.cpu() + std * torch.randn(x0.shape, generator=rng)
        blank = torch.rand(len(x0), 1, generator=rng) < self.settings.blank
        if embeddings is not None:
            device = self.shares.device
            embeddings = torch.where(blank.to(device), self.no_data, embeddings.to(device))
        return F.mse_loss(self(x, t, embeddings, rng), targets.cpu())


def grouped(sets: Sequence[Features]) -> tuple[Tensor, Tensor]:
    """Lay out data sets by class: values (sets, classes, images, features), and which are there."""
    parts = [[each.values[each.labels == label] for label in each.labels.unique()] for each in sets]
    most = max((len(one) for part in parts for one in part), default=0)
    shape = (len(sets), max(map(len, parts), default=0), most)
    values = torch.zeros(*shape, sets[0].values.shape[1])
    present = torch.zeros(shape, dtype=torch.bool)
    for row, part in enumerate(parts):
        for label, one in enumerate(part):
            values[row, label, : len(one)] = one
            present[row, label, : len(one)] = True
    return values, present


def standardised(accuracies: Tensor, over: Literal["task", "all"] = "task") -> Tensor:
    """Return accuracies (tasks, architectures) with mean 0 and deviation 1 as targets.

    Over all of them, as in the paper, they tell mostly how hard a task is.
    """
    dims = (0, 1) if over == "all" else (1,)
    centred = accuracies - accuracies.mean(dims, keepdim=True)
    spread = centred.square().mean(dims, keepdim=True).sqrt()
    return torch.where(spread > 1e-6, centred / spread.clamp(min=1e-6), 0.0)


def kendall_within(predictions: Tensor, truth: Tensor) -> float:
    """Return Kendall's tau over the architectures of a task, averaged over tasks.

    Tasks on which all architectures are equal do not count, and without others it is 0; where all
    predictions are equal tau is 0.

    Args:
        predictions: (tasks, architectures).
        truth: likewise.
    """
    pairs = zip(predictions.tolist(), truth.tolist(), strict=True)
    kept = [(guess, true) for guess, true in pairs if len(set(true)) > 1]
    taus = [np.asarray(kendalltau(*pair))[0] if len(set(pair[0])) > 1 else 0.0 for pair in kept]
    return float(np.mean(taus)) if taus else 0.0


class _Graph(nn.Module):
    """Tables and levels of noise to latent vectors of architectures."""

    flow: Tensor

    def __init__(self, code: Encoding, settings: PredictorSettings) -> None:
        super().__init__()
        width, values = settings.width, code.vocabulary
        loops = code.adjacency.float() + torch.eye(code.length)
        self.register_buffer("flow", loops / loops.sum(1, keepdim=True), persistent=False)
        self.dropout = settings.dropout
        self.read = _Read(code, width) if settings.positions else nn.Identity()
        sizes = [width if settings.positions else values, *[width] * settings.layers]
        self.layers = nn.ModuleList(Linear(a, 2 * b) for a, b in pairwise(sizes))
        self.time = nn.Sequential(Linear(width, 4 * width), nn.SiLU(), Linear(4 * width, width))
        self.last = Linear(width, settings.latent)

    def forward(self, table: Tensor, noise: Tensor, rng: torch.Generator | None) -> Tensor:
        x = self.read(table)
        for layer in self.layers:  # 1/2 [relu(A X W1) + relu(A^T X W2)]
            down, up = layer(x).chunk(2, 2)
            x = 0.5 * ((self.flow @ down).relu() + (self.flow.T @ up).relu())
            x = _dropped(x, self.dropout, rng)
        return self.last(x.mean(1) + self.time(_sinusoids(noise, x.shape[2])))


class _Read(nn.Module):
    """Rows of a table to vectors, by weights that all tokens share and by each one's own."""

    stages: Tensor
    places: Tensor

    def __init__(self, code: Encoding, width: int) -> None:
        super().__init__()
        stages, places = (
            each.unique(return_inverse=True)[1] for each in (code.stages, code.places)
        )
        self.register_buffer("stages", stages, persistent=False)
        self.register_buffer("places", places, persistent=False)
        self.shared = Linear(code.vocabulary, width)
        self.own = nn.Parameter(torch.zeros(code.length * width, code.vocabulary))
        self.stage = nn.Parameter(torch.zeros(int(stages.max()) + 1, width))
        self.place = nn.Parameter(torch.zeros(int(places.max()) + 1, width))

    def forward(self, table: Tensor) -> Tensor:
        own = self.own.view(table.shape[1], -1, table.shape[2])
        weights = (own + self.shared.weight).transpose(1, 2)
        codes = self.shared.bias + self.stage[self.stages] + self.place[self.places]
        return torch.bmm(table.transpose(0, 1), weights).transpose(0, 1) + codes


class _Effects(nn.Module):
    """Tables and embeddings to sums of the values' effects, which are linear in the embedding."""

    def __init__(self, code: Encoding, settings: PredictorSettings) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.zeros(settings.effects, code.allowed.numel()))
        self.data = Linear(settings.set_width, settings.effects)

    def forward(self, table: Tensor, data: Tensor) -> Tensor:
        return ((table.flatten(1) @ self.values.T) * self.data(data)).sum(1)


class _SetTransformer(nn.Module):
    """Sets of vectors to one vector each: they look at each other twice, then a seed at them."""

    def __init__(self, size: int, settings: PredictorSettings) -> None:
        super().__init__()
        width = settings.set_width
        self.first = _Attention(size, size, settings)
        self.second = _Attention(width, width, settings)
        self.seed = nn.Parameter(torch.zeros(1, width))
        self.pool = _Attention(width, width, settings)
        self.last = Linear(width, width)

    def forward(self, x: Tensor, present: Tensor) -> Tensor:
        mask = torch.zeros_like(present, dtype=x.dtype).masked_fill(~present, CLOSED)[:, None, None]
        x = self.first(x, x, mask)
        x = self.second(x, x, mask)
        return self.last(self.pool(self.seed.expand(len(x), 1, -1), x, mask)).squeeze(1)


class _Attention(nn.Module):
    """The Set Transformer's block: some vectors look at others; both sets keep their order."""

    def __init__(self, size: int, seen: int, settings: PredictorSettings) -> None:
        super().__init__()
        width = settings.set_width
        if width % settings.heads:
            raise ValueError("set_width must be a multiple of heads")
        self.heads = settings.heads
        self.ask, self.look = Linear(size, width), Linear(seen, 2 * width)
        self.mix = Linear(width, width)
        self.between, self.after = _norm(settings), _norm(settings)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        asked = self.ask(x)
        query, key, value = (
            each.unflatten(2, (self.heads, -1)).transpose(1, 2)
            for each in (asked, *self.look(y).chunk(2, 2))
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(asked.shape[2]) + mask
        found = self.between(asked + (scores.softmax(3) @ value).transpose(1, 2).flatten(2))
        return self.after(found + self.mix(found).relu())


def _norm(settings: PredictorSettings) -> nn.Module:
    return nn.LayerNorm(settings.set_width) if settings.norms else nn.Identity()


def _dropped(x: Tensor, rate: float, rng: torch.Generator | None) -> Tensor:
    if rng is None or not rate:
        return x
    keep = torch.rand(x.shape, generator=rng) >= rate
    return x * keep.to(x.device) / (1 - rate)


def _sinusoids(numbers: Tensor, width: int) -> Tensor:
    """Return sines and cosines of logarithms of noise, of frequencies from 1 to 30."""
    powers = torch.linspace(0, math.log(30), width // 2, device=numbers.device)
    angles = numbers[:, None] * powers.exp()
    return torch.cat([angles.sin(), angles.cos()], 1)
