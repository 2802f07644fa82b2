"""Generators and pre-trainings that take no time, and what is learned from in them."""

import torch
from torch import nn

from fedtailor.core.space import SearchSpace, Task
from fedtailor.core.types import Examples
from fedtailor.networks.initial import initialise
from fedtailor.pretrain.network_training import Training
from fedtailor.pretrain.settings import Pretraining
from fedtailor.pretrain.sub_tasks import TaskDraw
from fedtailor.pretrain.supernet_training import SupernetTraining
from fedtailor.search import genes
from fedtailor.search.diffusion.encoder import Encoder
from fedtailor.search.diffusion.generator import Generator, Sampling
from fedtailor.search.diffusion.predictor import Predictor, PredictorSettings
from fedtailor.search.diffusion.score_network import ScoreNetwork, ScoreSettings
from fedtailor.search.diffusion.sde import VE
from fedtailor.search.diffusion.tokens import encode, encoding

TASK = Task((3, 8, 8), 4)
SCORE = ScoreSettings(layers=1, width=8, heads=2, feedforward=8, hidden=(8,))
PREDICTOR = PredictorSettings(
    layers=1, width=8, latent=8, set_width=8, heads=2, hidden=8, effects=2
)
TINY = Pretraining(
    supernet=SupernetTraining(steps=4, batch=16, randoms=1, warmup=2, crop=1),
    images=24,
    archs=8,
    tasks=6,
    draw=TaskDraw(most=4, least=10, support=3),
    kept=3,
    score=SCORE,
    score_archs=40,
    score_training=Training(4, 8, warmup=1),
    predictor=PREDICTOR,
    predictor_training=Training(4, 8, warmup=1),
    per_task=4,
    sampling=Sampling(steps=2),
    drawn=5,
    clients=2,
    per_client=3,
)


def generator(space: SearchSpace, features: int = 12, seed: int = 0) -> Generator:
    """Return a generator of random weights that knows how often a space's values occur."""
    rng = torch.Generator().manual_seed(seed)
    score = ScoreNetwork(encoding(space), VE(), SCORE)
    predictor = Predictor(encoding(space), VE(), features, PREDICTOR)
    for module in (score, predictor):
        initialise(module, rng)
        module.eval().requires_grad_(requires_grad=False)
    score.centre(encode(space, genes.sample_many(space, 200, rng)))
    predictor.shares.copy_(score.shares)
    return Generator(space, score, predictor, {"made": "up", "by": [1, 2.5, None]})


def examples(classes: int = TASK.classes, count: int = 80) -> Examples:
    """Return noise whose mean colour tells the class."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % classes
    images = 30 * torch.randn(count, *TASK.shape, generator=rng) + 128
    images += 40 * torch.eye(classes)[labels][:, :3, None, None]
    pixels = images.clamp(0, 255).to(torch.uint8)
    return Examples(pixels, labels, torch.arange(count), (0.5,) * 3, (0.25,) * 3)


class _Colours(nn.Module):
    def __init__(self, across: int) -> None:
        super().__init__()
        self.across = across
        self.unused = nn.Parameter(torch.zeros(1))  # by which an encoder's device is known

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.adaptive_avg_pool2d(images, self.across).flatten(1)


def encoder(across: int = 2) -> Encoder:
    """Return one whose features are the colours of an image's parts."""
    return Encoder(_Colours(across), 3 * across**2, (0.5,) * 3, (0.25,) * 3, f"colours {across}")
