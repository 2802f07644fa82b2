"""What a client that trained many architectures of a supernet sends, and how it is counted.

The update is dense. Where a merge asks who trained what, a mask goes with each tensor, a bit for
every entry that some architecture trained: known from the architectures that were bound, never
guessed from differences, since weight decay moves what was not trained and what was trained may not
have moved.
"""

from typing import Literal, TypeAlias

from fedtailor.core.types import Tensors
from fedtailor.networks.store import Store, coverage
from fedtailor.training.merge import Part, pack_masks, unpack_masks, weighed
from fedtailor.training.supernet import SupernetTrainer

MASK = "mask/"  # before a tensor's name: the name of its mask
# Not `frequency`: how often each entry was trained would tell the server of the client's search.
UpdateRule: TypeAlias = Literal["count", "count_samples", "fedavg"]


def is_masked(rule: UpdateRule) -> bool:
    """Tell rules that count each entry by those who trained it; `fedavg` counts all alike."""
    return rule != "fedavg"


def supernet_update(rule: UpdateRule, store: Store, trainer: SupernetTrainer) -> Tensors:
    """Return all weights of a store and, where the rule needs them, the masks of what trained."""
    if not is_masked(rule):
        return store.copy()
    trained = coverage(store.space, trainer.times, store.task, store.keeps_statistics)
    return store.copy() | {MASK + name: bits for name, bits in pack_masks(trained).items()}


def update_part(rule: UpdateRule, weights: Tensors, update: Tensors, examples: int) -> Part:
    """Return such an update as a part of a merge into `weights`, counted as the rule says."""
    sent = {name: update[name] for name in weights}
    if not is_masked(rule):
        return weighed(rule, sent, examples)
    masks = unpack_masks({name: update[MASK + name] for name in weights}, weights)
    return weighed(rule, sent, examples, masks)
