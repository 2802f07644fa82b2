"""One client tries a round with few images, in a few sizes: what a round costs by its images.

A method may do anything with a client's images, so nothing is known but what is measured: a round
takes something in any case, something for each batch and something for each validation image. What
clients do in their first round alone is measured with every round.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import nnls

from fedtailor.core.compute import device_of, one_thread
from fedtailor.core.errors import UserError
from fedtailor.core.types import Message, Server
from fedtailor.data.federation import Federation
from fedtailor.engines._base import ClientHost, Done, Ticket
from fedtailor.engines._client import perform
from fedtailor.experiment.prepare import Prepared
from fedtailor.runs.config import Config

BATCHES = 3  # to train on, of the longer rehearsal; the others have one
TESTED = 192  # validation and test images of the rehearsal with more of them
FEWER = 3  # the others have a third
DRAWN = 20  # networks of a search, to know what one of them costs on average


@dataclass(frozen=True)
class Amount:
    """What a client has to do in a round."""

    batches: float
    val: float  # validation images


@dataclass(frozen=True)
class Cost:
    """What a round costs by its amount of work: nothing costs less than nothing."""

    fixed: float
    per_batch: float
    per_val_image: float

    def of(self, amount: Amount) -> float:
        """Return what this much work costs."""
        return self.fixed + self.per_batch * amount.batches + self.per_val_image * amount.val


@dataclass(frozen=True)
class Rehearsed:
    """What was measured: everything on this machine, by one thread."""

    batch: int  # images of a batch
    seconds: Cost  # of a client's round
    macs: Cost
    testing: float  # seconds for an image
    tuning: float  # seconds for a batch
    down: int  # bytes of a client's round
    up: int


def fit_cost(amounts: Sequence[Amount], measured: Sequence[float]) -> Cost:
    """Find the costs that explain best what was measured, by least squares.

    Costs that these amounts cannot tell apart count as those of batches, or else of validation
    images: as the ones that grow with a client's data.
    """
    columns = {
        "per_batch": [amount.batches for amount in amounts],
        "per_val_image": [amount.val for amount in amounts],
        "fixed": [1.0] * len(amounts),
    }
    told: dict[str, list[float]] = {}
    for name, column in columns.items():
        if np.linalg.matrix_rank(np.array([*told.values(), column])) > len(told):
            told[name] = column
    scale = max(measured, default=0.0) or 1.0
    found, _ = nnls(np.array(list(told.values())).T, np.array(measured) / scale)
    costs = dict.fromkeys(columns, 0.0) | dict(zip(told, (scale * found).tolist(), strict=True))
    return Cost(**costs)


def rehearse(prepared: Prepared) -> Rehearsed:
    """Let the first client do steps on some of its images."""
    config, setting, clients = prepared.config, prepared.setting, prepared.clients
    algorithm, federation = config.algorithm, prepared.federation
    if algorithm.searches:  # what is drawn must be trained here, whoever it was drawn for
        clients = tuple(replace(c, budget=replace(c.budget, memory_mb=None)) for c in clients)
    batch, device = min(algorithm.batch, clients[0].examples), device_of(config.engine.device)
    server = Server(setting, 1, clients[: federation.clients], prepared.public)
    with one_thread(), tempfile.TemporaryDirectory() as folder:
        hosts = [
            ClientHost(algorithm, setting, few, clients, Path(folder), None, device)
            for few in shortened(federation, batch)
        ]
        state = algorithm.server_init(server)
        served = algorithm.serve(server, state, clients[0])
        sent, more = _typical(config, server, state, served)
        trained = [_second_of_two(host, "train", sent) for host in hosts]
        tested, deployed = (_second_of_two(hosts[0], s, served) for s in ("evaluate", "deploy"))
    amounts = [_amount(host.federation, batch) for host in hosts]
    _, first, _, last = hosts[0].federation.bounds[0].tolist()
    return Rehearsed(
        batch,
        fit_cost(amounts, [done.seconds for done in trained]),
        fit_cost(amounts, [done.macs for done in trained]),
        tested.seconds / (last - first),
        max(0.0, deployed.seconds - tested.seconds),
        round(sent.nbytes * more),
        round(trained[0].reply.message.nbytes * more),
    )


def shortened(federation: Federation, batch: int) -> list[Federation]:
    """Leave the first client some of its images: few, more to train on, more to test on.

    Those that have too few images for one of these do without it. Test images come with those of
    validation, as many as the client has for each: methods that test in a round test both.
    """
    train, val, test = federation.bounds[0].diff().tolist()
    share = min(1.0, TESTED / (val + test))
    most = [max(min(1, images), int(images * share)) for images in (val, test)]
    least = [max(min(1, images), images // FEWER) for images in most]
    sizes = [(batch, *least)]
    if train >= 2 * batch:
        sizes.append((batch * min(BATCHES, train // batch), *least))
    if most[0] > least[0]:
        sizes.append((batch, *most))
    return [_first_images(federation, each) for each in sizes]


def _first_images(federation: Federation, sizes: tuple[int, ...]) -> Federation:
    """Leave the first client so many images of each split, and the others none."""
    starts = federation.bounds[0].tolist()[:3]
    parts = [
        federation.rows[start : start + size] for start, size in zip(starts, sizes, strict=True)
    ]
    ends = torch.tensor([0, *sizes]).cumsum(0)
    return replace(federation, rows=torch.cat(parts), bounds=ends[None])


def _amount(federation: Federation, batch: int) -> Amount:
    train, val, _ = federation.bounds[0].diff().tolist()
    return Amount(train / batch, val)


def _typical(config: Config, server: Server, state: Any, served: Message) -> tuple[Message, float]:
    """Return a message of middling size of those a round sends, and their mean size beside it."""
    if not config.algorithm.searches:
        return served, 1.0
    drawn = config.algorithm.configure(server, state, list(server.clients[:DRAWN])).values()
    order = sorted(drawn, key=lambda message: message.nbytes)
    middle = order[len(order) // 2]
    mean = sum(message.nbytes for message in order) / len(order)
    return middle, mean / max(middle.nbytes, 1)  # silos that search alone are sent nothing


def _second_of_two(
    host: ClientHost, step: Literal["train", "evaluate", "deploy"], message: Message
) -> Done:
    """The first step of a kind pays for what is built only once."""
    ticket = Ticket(step, 0, 1)
    try:
        perform(host, ticket, message)
        return perform(host, ticket, message)
    except Exception as error:
        raise UserError(f"a trial step to {step} failed: {error}") from error
