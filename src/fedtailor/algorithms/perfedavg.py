"""Per-FedAvg: a model from which one step on a client's own data leads to a good one.

Paper: Fallah et al. 2020, "Personalized Federated Learning with Theoretical Guarantees: A
Model-Agnostic Meta-Learning Approach".

Clients descend F(w) = f(w - alpha grad f(w)). With three independent batches a step, and
g = grad f(w - alpha grad f(w; D); D'), the step is along g (`fo`), or along g - alpha H g (`hf`),
H g by a difference of gradients at w + delta g and w - delta g on D''.

Differs from the paper:
- what is tested as "untuned" is the model after `inner_steps` on *training* data, as it is meant to
  be used; the authors' reproduction by others adapts on test data;
- batch-norm statistics, which the paper has not, are moved by the batches D' alone; they are
  averaged with the weights;
- a round is `epochs` over the data, where the paper counts steps; alpha and beta are 0.01 and 0.001
  as in the reproductions, and no momentum is added unless asked for.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval

from fedtailor.algorithms._base import mean_of
from fedtailor.algorithms.fedavg import FedAvg, Global
from fedtailor.core.types import (
    Batch,
    Client,
    Log,
    Message,
    Reply,
    Result,
    Server,
    Tensors,
)
from fedtailor.networks.network import Network
from fedtailor.training import learn


@dataclass(frozen=True)
class PerFedAvg(FedAvg):
    """FedAvg whose clients train the model that is best one step ahead."""

    lr: Annotated[float, Gt(0)] = 0.001  # the paper's beta: of the outer step
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    finetune_epochs: Annotated[int, Ge(0)] = 0  # beside the inner steps
    variant: Literal["fo", "hf"] = "fo"  # first order, or with the curvature
    inner_lr: Annotated[float, Gt(0)] = 0.01  # the paper's alpha
    inner_steps: Annotated[int, Ge(0)] = 1  # before a client uses its model
    delta: Annotated[float, Gt(0)] = 1e-3  # hf: how far apart gradients are taken
    weighted: bool = False  # average by examples; the paper averages plainly

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        """Descend what the loss will be one step ahead."""
        network = learn.network(client, msg.tensors)
        steps = learn.optimizer(network, self, learn.rate_of(self, client))
        streams = [
            learn.batches(client, self.batch, epochs=self.epochs, purpose=purpose)
            for purpose in ("inner", "outer", "curve")
        ]
        mean = learn.EpochMean(client.device)
        for inner, outer, curve in zip(*streams, strict=True):
            gradient, loss = self.gradient(network, inner, outer, curve)
            for name, parameter in network.live.items():
                parameter.grad = gradient[name]
            learn.move(network, steps, self.clip)
            mean.add(loss, outer)
        return None, Reply(Message(network.weights()), Log.of(loss=mean.value))

    def gradient(
        self, network: Network, inner: Batch, outer: Batch, curve: Batch
    ) -> tuple[Tensors, torch.Tensor]:
        """Return the gradient of the loss one step ahead, exact to first order or to second."""
        here = {name: parameter.detach() for name, parameter in network.live.items()}

        def at(moved: float, along: Tensors) -> Tensors:
            return {name: weight + moved * along[name] for name, weight in here.items()}

        smooth = self.label_smoothing
        first, _ = network.gradient(inner, smoothing=smooth)
        ahead, loss = network.gradient(
            outer, at(-self.inner_lr, first), smoothing=smooth, statistics=True
        )
        if self.variant == "fo":
            return ahead, loss
        up, _ = network.gradient(curve, at(self.delta, ahead), smoothing=smooth)
        down, _ = network.gradient(curve, at(-self.delta, ahead), smoothing=smooth)
        scale = self.inner_lr / (2 * self.delta)
        return {name: g - scale * (up[name] - down[name]) for name, g in ahead.items()}, loss

    def aggregate(self, server: Server, state: Global, results: Iterable[Result]) -> Global:
        """Average what came back."""
        return Global(mean_of(state.weights, results, self.weighted))

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use the model after its steps on the client's training data, then fine-tuned."""
        network = learn.network(client, msg.tensors)
        batches = learn.batches(client, self.batch, epochs=self.inner_steps, purpose="adapt")
        for batch in itertools.islice(batches, self.inner_steps):
            gradient, _ = network.gradient(batch, smoothing=self.label_smoothing)
            with torch.no_grad():
                for name, parameter in network.live.items():
                    parameter.sub_(gradient[name], alpha=self.inner_lr)
        return self.tune(client, network)
