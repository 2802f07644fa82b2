"""What a network makes of images before it classifies them: their embeddings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from fedtailor.core.errors import UserError
from fedtailor.core.types import Examples
from fedtailor.data.batches import batch, chunks
from fedtailor.networks.network import Network, is_head
from fedtailor.training.evaluate import EVALUATION_BATCH


@dataclass(frozen=True)
class Embedded:
    """What a network makes of some images, in their order."""

    features: Tensor  # (n, d): what the classifier reads
    logits: Tensor  # (n, classes)
    labels: Tensor  # (n,)


def embed(network: Network, examples: Examples) -> Embedded:
    """Pass images through a network as they are, never augmented; whoever does is charged.

    It is left in evaluation mode.
    """
    module, found = network.module.eval(), list[tuple[Tensor, Tensor, Tensor]]()
    with torch.no_grad():
        for rows in chunks(examples, EVALUATION_BATCH):
            images, labels = batch(examples, rows, None, network.device)
            found.append((*read_by_head(module, network, images), labels))
    features, logits, labels = (torch.cat(parts) for parts in zip(*found, strict=True))
    return Embedded(features, logits, labels)


def read_by_head(
    module: nn.Module, answer: Callable[[Tensor], Tensor], images: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what a module's classifier reads of images, averaged over a map, and the logits.

    That is what the first computation with one of its parameters is given, wherever it pools.
    """
    with _FirstInput(module) as first:
        logits = answer(images)
    if first.given is None:
        raise UserError(
            "space.name: it cannot be told what the classifier (parameters head.) is given, so let "
            "it be a linear layer or a convolution"
        )
    return first.given.flatten(2).mean(2) if first.given.dim() > 2 else first.given, logits


class _FirstInput(TorchFunctionMode):
    """Keeps what the head's first computation is given."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        parameters = (p for name, p in module.named_parameters() if is_head(name))
        self._head: dict[int, Tensor] = {id(parameter): parameter for parameter in parameters}
        self.given: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function, and look at what it is called with."""
        result = func(*args, **(kwargs or {}))
        tensors = [t for t in (*args, *(kwargs or {}).values()) if isinstance(t, Tensor)]
        others = [t for t in tensors if id(t) not in self._head]
        if self.given is None and len(others) < len(tensors):
            if others:
                self.given = others[0]
            elif isinstance(result, Tensor):  # such as a transposed weight
                self._head[id(result)] = result
        return result
