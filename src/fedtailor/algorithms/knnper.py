"""kNN-Per: FedAvg's model beside what a client remembers, its nearest own images.

Paper: Marfoq et al. 2022, "Personalized Federated Learning through Local Memorization".

A client keeps what the global model's classifier reads of its own images (their embeddings), with
their labels. Of a new image, p = lambda p_near + (1 - lambda) p_model, where p_near are the labels
of the k nearest, each weighed by exp(-d^2 / (scale dim)) and all weights summing to 1.

Differs from the paper:
- k and lambda are chosen on the client's validation images while only training images are
  remembered, by accuracy and among equals by likelihood; then validation images are remembered,
  too. The authors' code and SPIDER take the best lambda on test images;
- probabilities are mixed; the authors' code, as shipped, mixes the model's raw outputs with
  probabilities;
- embeddings are averaged over their map, so that networks for small images have vectors, too;
- the base is trained here, by FedAvg, where the paper starts from weights of ImageNet.
What is tested as "untuned" is the global model alone. With `finetune_epochs` it is tuned before
its embeddings are taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval, Len
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.core.types import Client, Message, Setting, Tensors
from fedtailor.networks.network import Network
from fedtailor.networks.pieces import blueprint
from fedtailor.training import learn
from fedtailor.training.embed import Embedded, read_by_head

REMEMBERING = "remembering"  # the model that counts


@dataclass(frozen=True)
class Memory:
    """What a client remembers of its own images."""

    features: Tensor  # (n, d)
    labels: Tensor  # (n, classes): 1 at an image's own, else 0

    @classmethod
    def of(cls, *parts: Embedded) -> "Memory":
        """Remember all images of some parts."""
        classes = parts[0].logits.shape[1]
        labels = torch.cat([F.one_hot(part.labels, classes) for part in parts])
        return cls(torch.cat([part.features for part in parts]), labels.float())

    def answer(self, features: Tensor, k: int, scale: float) -> Tensor:
        """Return the probabilities of all classes by the k nearest, of all if there are fewer.

        Of images that are equally far the one remembered first is nearer.
        """
        if torch.compiler.is_compiling():  # ONNX has neither cdist nor a stable sort
            squares = (features[:, None] - self.features[None]).square().sum(2)
            near, which = squares.topk(min(k, len(self.labels)), largest=False)
        else:
            exact = "donot_use_mm_for_euclid_dist"  # the other way loses small differences
            squares = torch.cdist(features, self.features, compute_mode=exact).square()
            near, which = squares.sort(dim=1, stable=True)
        heard = (-near[:, :k] / (scale * features.shape[1])).softmax(1)
        return (heard[:, :, None] * self.labels[which[:, :k]]).sum(1)


def mix(remembered: Tensor, computed: Tensor, share: float) -> Tensor:
    """Return the logarithm of mixed probabilities; one that is 0 counts as the least there is."""
    mixed = share * remembered + (1 - share) * computed
    return mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log()


class Remembering(nn.Module):
    """A network and, beside it, a client's memory; what it returns are logarithms.

    All that it needs is in its state: the network's weights, the memory, k, share and scale.
    """

    def __init__(
        self, network: nn.Module, memory: Memory, k: int, share: float, scale: float
    ) -> None:
        super().__init__()
        self.network, self.chosen = network, (k, share, scale)
        self.register_buffer("features", memory.features)
        self.register_buffer("labels", memory.labels)
        for name, value in zip(("k", "share", "scale"), self.chosen, strict=True):
            self.register_buffer(name, torch.tensor(float(value)))

    def forward(self, images: Tensor) -> Tensor:
        """Return the logarithms of the classes' probabilities."""
        k, share, scale = self.chosen
        features, logits = read_by_head(self.network, self.network, images)
        near = Memory(self.get_buffer("features"), self.get_buffer("labels"))
        return mix(near.answer(features, k, scale), logits.softmax(1), share)


def remembering(network: nn.Module, state: Tensors) -> Remembering:
    """Give a network the memory that a state holds, beside weights that are called network.*."""
    memory = Memory(state["features"], state["labels"])
    k, share, scale = (float(state[name]) for name in ("k", "share", "scale"))
    return Remembering(network, memory, int(k), share, scale)


@dataclass(frozen=True)
class KNNPer(FedAvg):
    """FedAvg whose clients also ask their nearest own images."""

    finetune_epochs: Annotated[int, Ge(0)] = 0
    neighbours: Annotated[tuple[Annotated[int, Ge(1)], ...], Len(1)] = (1, 3, 5, 7, 10)  # k, tried
    shares: Annotated[tuple[Annotated[float, Interval(ge=0, le=1)], ...], Len(1)] = tuple(
        tenth / 10 for tenth in range(11)
    )  # the paper's lambda, tried: how much of an answer is remembered
    scale: Annotated[float, Gt(0)] = 1.0  # of the kernel: the larger, the further it hears

    def check(self, setting: Setting) -> None:
        """Raise where it cannot be told what the classifier reads."""
        module = blueprint(lambda: setting.space.build(setting.arch, setting.task)).eval()
        read_by_head(module, module, torch.empty(2, *setting.task.shape, device="meta"))

    def needs_val(self, setting: Setting) -> bool:
        """Tell that k and the share are chosen by validation images."""
        return True

    def knows_val(self, label: str) -> bool:
        """Tell that validation images are remembered, once they have served to choose."""
        return label == REMEMBERING

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the global model, the same fine-tuned where that is wanted, then with a memory."""
        network = learn.network(client, msg.tensors)
        yield from self.tune(client, network)
        train, val = (learn.embed(network, some) for some in (client.train, client.val))
        k, share = self.choose(Memory.of(train), val)
        module = Remembering(network.module, Memory.of(train, val), k, share, self.scale)
        yield REMEMBERING, network.inside(module)

    def choose(self, memory: Memory, val: Embedded) -> tuple[int, float]:
        """Return the k and the share that are best on validation images; of equals the first."""
        best, found = (-1.0, 0.0), (0, 0.0)
        computed = val.logits.softmax(1)
        for k in dict.fromkeys(min(k, len(memory.labels)) for k in self.neighbours):
            remembered = memory.answer(val.features, k, self.scale)
            for share in self.shares:
                mixed = mix(remembered, computed, share)
                right = (mixed.argmax(1) == val.labels).sum().item()
                score = right, -F.nll_loss(mixed, val.labels).item()
                if score > best:
                    best, found = score, (k, share)
        return found
