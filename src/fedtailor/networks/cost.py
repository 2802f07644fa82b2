"""What an architecture costs: parameters, multiply-adds, training memory, bytes and round time.

Everything is counted on the meta device: nothing is computed or allocated. Counts are kept per
piece of a network, so that an architecture made of known pieces is a few additions.
"""

from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Budget
from fedtailor.networks import counting
from fedtailor.networks.counting import State, within
from fedtailor.networks.keeping import FLOAT, Ledger
from fedtailor.networks.pieces import pieces_of
from fedtailor.networks.plans import unnamed
from fedtailor.networks.store import shapes

MIB = 1024**2  # what budgets call a megabyte


def parameters(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the trainable parameters."""
    return sum(counting.parameters(unnamed(piece)) for piece in pieces_of(space, arch, task))


def parameter_names(space: SearchSpace, arch: Arch, task: Task) -> list[str]:
    """List the trainable parameters."""
    return list(shapes(space, arch, task))


def wire_bytes(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the bytes of the weights as they travel: parameters and batch-norm statistics."""
    return sum(counting.state_bytes(unnamed(piece)) for piece in pieces_of(space, arch, task))


def forward_macs(space: SearchSpace, arch: Arch, task: Task) -> int:
    """Count the multiply-adds of one image's forward pass."""
    state: State = (task.shape,)
    total = 0
    for piece in pieces_of(space, arch, task):
        macs, state = counting.forward(unnamed(piece), state)
        total += macs
    return total


def training_macs(
    space: SearchSpace, arch: Arch, task: Task, frozen: frozenset[str] = frozenset()
) -> float:
    """Count the multiply-adds of one image's forward and backward pass, some parameters frozen.

    Where nothing is frozen a product costs twice as much backward as forward, but for those of
    the images, which need no gradient.
    """
    state: State = (task.shape,)
    total, needs = 0.0, (False,)
    for piece in pieces_of(space, arch, task):
        if all(needs) and not frozen:
            macs, state = counting.forward(unnamed(piece), state)
            total, needs = total + 3 * macs, (True,) * len(state)
        else:
            own = within(frozen, f"{piece.name}." if piece.name else "")
            macs, state, needs = counting.training(unnamed(piece), state, needs, own)
            total += macs
    return total


def training_memory(
    space: SearchSpace, arch: Arch, task: Task, batch: int, optimizer: str = "sgd"
) -> int:
    """Estimate the peak bytes of a training step: weights, gradients, momentum, activations.

    Activations are what autograd keeps for the backward pass, each tensor once.
    """
    ledger, flowing, weights = Ledger((task.shape,), batch, (False,)), [0], 0
    for piece in map(unnamed, pieces_of(space, arch, task)):
        flowing = ledger.step(piece, flowing)
        weights += counting.parameters(piece)
    loss = batch * (FLOAT * task.classes + 8) + FLOAT  # log-softmax, labels, their total weight
    copies = 4 if optimizer == "adamw" else 3  # weights, gradients and one or two moments
    return copies * FLOAT * weights + ledger.nbytes + loss


def prices(
    space: SearchSpace, arch: Arch, task: Task, batch: int | None = None, optimizer: str = "sgd"
) -> dict[str, float]:
    """Return what an architecture costs, by the names used everywhere; memory for a batch."""
    found = {
        "parameters": float(parameters(space, arch, task)),
        "macs": float(forward_macs(space, arch, task)),
    }
    if batch is not None:
        found["memory_mb"] = training_memory(space, arch, task, batch, optimizer) / MIB
    return found


def round_seconds(macs: float, nbytes: int, budget: Budget) -> float:
    """Model a client's round: compute at its speed, then both directions over its line."""
    return macs / budget.speed + nbytes * 8 / (budget.mbps * 1e6)
