"""What leaves a client: the forms that a reply may have, and the check of one that arrived."""

import fnmatch
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedtailor.core.types import Json, Message


@dataclass(frozen=True)
class Sent:
    """One thing that leaves a client.

    Attributes:
        name: a key of the message's info, or of tensors a name or a pattern (`*` matches anything).
        kind: "tensor", or the JSON type of an info entry.
        what: a line for people.
        shape: "received": all tensors of the server's own message that have such a name, in their
            shapes and types; "mask": for each tensor of that message, its name in the place of the
            name's last `*`, a bit per entry, as `merge.pack_masks` makes them; or the sizes of one
            tensor, -1 for any.
        range: the least and the greatest value there may be; whatever is sent must be finite.
        optional: whether a reply of this form may lack it.
    """

    name: str
    kind: Literal["tensor", "int", "float", "str", "list"]
    what: str
    shape: Literal["received", "mask"] | tuple[int, ...] = "received"
    range: tuple[float, float] | None = None
    optional: bool = False

    def __post_init__(self) -> None:
        """Refuse masks that cannot be checked."""
        if self.shape == "mask" and (self.name.partition("*")[1:] != ("*", "") or self.range):
            raise ValueError(f"{self.name!r}: masks are named by a prefix and *, without a range")

    @property
    def prefix(self) -> str:
        """What comes before the name of the tensor that a mask is of."""
        return self.name[:-1]


Form: TypeAlias = tuple[Sent, ...]  # all that a reply of this form holds
Forms: TypeAlias = dict[str, Form]  # by a word that says when a reply is like that


def trained_tensors(what: str) -> Forms:
    """Declare the usual form: all tensors that the server sent, after local training."""
    return {"trained": (Sent("*", "tensor", what),)}


class ReplyError(Exception):
    """A reply is not what its algorithm declares; it must not be merged."""


def check_reply(forms: Forms, received: Message, reply: Message) -> str:
    """Return the name of the form that a reply has, or raise: nothing else may be merged.

    Args:
        forms: what the algorithm declares.
        received: the server's own message that the reply answers.
        reply: what came back.
    """
    faults = {name: list(_faults(form, received, reply)) for name, form in forms.items()}
    for name, found in faults.items():
        if not found:
            return name
    nearest = min(faults, key=lambda name: len(faults[name]))
    raise ReplyError(f"its reply is not what the algorithm declares: {faults[nearest][0]}")


def _faults(form: Form, received: Message, reply: Message) -> Iterator[str]:
    """Say all that is wrong with a reply if it is to be of a form."""
    tensors = [sent for sent in form if sent.kind == "tensor"]
    infos = {sent.name: sent for sent in form if sent.kind != "tensor"}
    for name, tensor in reply.tensors.items():
        rules = [sent for sent in tensors if _is_named(sent, name, received)]
        rule = next((r for r in rules if _shape_fits(r, name, tensor, received)), None)
        if not rules:
            yield f"it holds a tensor {name!r}, which is not declared"
        elif rule is None:
            yield f"the tensor {name!r} is {tuple(tensor.shape)} of {tensor.dtype}, as none may be"
        elif rule.shape == "mask":
            yield from _mask_faults(name, tensor, received.tensors[name.removeprefix(rule.prefix)])
        else:
            yield from _value_faults(f"the tensor {name!r}", _extremes(tensor), rule.range)
    for name in _wanted(tensors, received):
        if name not in reply.tensors:
            yield f"the tensor {name!r} is missing"
    for key, value in reply.info.items():
        if key not in infos or infos[key].kind != type(value).__name__:
            yield f"its info holds {key!r} ({type(value).__name__}), which is not declared"
        else:
            yield from _value_faults(f"{key!r}", _numbers(value), infos[key].range)
    for key, sent in infos.items():
        if key not in reply.info and not sent.optional:
            yield f"{key!r} is missing"


def _wanted(tensors: list[Sent], received: Message) -> Iterator[str]:
    """Name the tensors that a complete reply has."""
    for sent in tensors:
        if sent.optional:
            continue
        if sent.shape == "received":
            yield from (name for name in received.tensors if fnmatch.fnmatchcase(name, sent.name))
        elif sent.shape == "mask":
            yield from (sent.prefix + name for name in received.tensors)
        elif "*" not in sent.name:
            yield sent.name


def _is_named(rule: Sent, name: str, received: Message) -> bool:
    if rule.shape == "mask":
        prefix = rule.prefix
        return name.startswith(prefix) and name.removeprefix(prefix) in received.tensors
    known = rule.shape != "received" or name in received.tensors
    return known and fnmatch.fnmatchcase(name, rule.name)


def _shape_fits(rule: Sent, name: str, tensor: Tensor, received: Message) -> bool:
    if rule.shape == "received":
        sent = received.tensors[name]
        return sent.shape == tensor.shape and sent.dtype == tensor.dtype
    if rule.shape == "mask":
        entries = received.tensors[name.removeprefix(rule.prefix)].numel()
        return tuple(tensor.shape) == (-(-entries // 8),) and tensor.dtype == torch.uint8
    return len(rule.shape) == tensor.dim() and all(
        want in (-1, size) for want, size in zip(rule.shape, tensor.shape, strict=True)
    )


def _mask_faults(name: str, mask: Tensor, entries: Tensor) -> Iterator[str]:
    unused = 8 * len(mask) - entries.numel()
    if unused and int(mask[-1]) % (1 << unused):
        yield f"the tensor {name!r} has bits beyond its {entries.numel()} entries"


def _extremes(tensor: Tensor) -> list[float]:
    """Return the least and the greatest value, which are not finite if any is not."""
    return [extreme.item() for extreme in torch.aminmax(tensor)] if tensor.numel() else []


def _numbers(value: Json) -> Iterator[float]:
    if isinstance(value, int | float):
        yield value
    for inner in value if isinstance(value, list) else ():
        yield from _numbers(inner)


def _value_faults(
    what: str, values: "Iterator[float] | list[float]", allowed: tuple[float, float] | None
) -> Iterator[str]:
    low, high = allowed or (-math.inf, math.inf)
    for value in values:
        if not math.isfinite(value):
            yield f"{what} is not finite"
        elif not low <= value <= high:
            yield f"{what} is {value:g}, but must be {low:g} to {high:g}"
