"""What leaves a client is declared, in complete forms; nothing else passes."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedtailor.algorithms._replies import Forms, ReplyError, Sent, check_reply, trained_tensors
from fedtailor.core.types import Message
from fedtailor.training.merge import pack_masks, unpack_masks

RECEIVED = Message({"w": torch.zeros(2, 3), "b": torch.zeros(2)})
WEIGHTS = trained_tensors("weights")
FORMS: Forms = {
    "trained": (
        Sent("*", "tensor", "weights"),
        Sent("accuracy", "float", "accuracy", (), (0, 1)),
        Sent("memory", "float", "share of memory", (), (0, 1), optional=True),
    ),
    "refused": (
        Sent("accuracy", "float", "nothing", (), (0, 0)),
        Sent("memory", "float", "share of memory", (), (1, math.inf)),
    ),
}


def weights(**changes: Any) -> dict[str, torch.Tensor]:
    found = {name: torch.ones_like(tensor) for name, tensor in RECEIVED.tensors.items()}
    return {name: t for name, t in (found | changes).items() if t is not None}


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Message(weights(v=torch.zeros(2, 3))), "holds a tensor 'v'"),
        (Message(weights(w=torch.zeros(3, 2))), r"'w' is \(3, 2\)"),
        (Message(weights(w=torch.zeros(2, 3, dtype=torch.float64))), "float64"),
        (Message(weights(b=None)), "'b' is missing"),
        (Message({}), "is missing"),
        (Message(weights(b=torch.tensor([1.0, math.nan]))), "'b' is not finite"),
        (Message(weights(w=torch.full((2, 3), math.inf))), "'w' is not finite"),
        (Message(weights(), {"accuracy": 0.5}), r"'accuracy' \(float\), which is not declared"),
    ],
)
def test_weights_come_back_whole_and_finite_or_not_at_all(reply: Message, says: str):
    with pytest.raises(ReplyError, match=says):
        check_reply(WEIGHTS, RECEIVED, reply)
    assert check_reply(WEIGHTS, RECEIVED, Message(weights())) == "trained"


@pytest.mark.parametrize(
    ("info", "form"),
    [
        ({"accuracy": 0.0}, "trained"),
        ({"accuracy": 1.0, "memory": 0.5}, "trained"),
    ],
)
def test_what_may_be_there_may_be_missing(info: dict[str, Any], form: str):
    assert check_reply(FORMS, RECEIVED, Message(weights(), info)) == form


def test_every_form_is_complete():
    assert check_reply(FORMS, RECEIVED, Message({}, {"accuracy": 0.0, "memory": 2.5})) == "refused"
    for info in ({"accuracy": 0.0}, {"memory": 2.5}, {"accuracy": 0.4, "memory": 2.5}):
        with pytest.raises(ReplyError):
            check_reply(FORMS, RECEIVED, Message({}, info))


@pytest.mark.parametrize(
    ("accuracy", "says"),
    [
        (math.nan, "'accuracy' is not finite"),
        (1.5, "'accuracy' is 1.5, but must be 0 to 1"),
        (-0.1, "must be 0 to 1"),
        ("high", r"\(str\), which is not declared"),
        (True, r"\(bool\)"),
        (1, r"\(int\)"),
        ([0.5], r"\(list\)"),
    ],
)
def test_an_accuracy_is_a_number_from_0_to_1(accuracy: Any, says: str):
    with pytest.raises(ReplyError, match=says):
        check_reply(FORMS, RECEIVED, Message(weights(), {"accuracy": accuracy}))


def test_shapes_may_be_given_instead():
    forms: Forms = {"masks": (Sent("mask.*", "tensor", "masks", (-1, 2)),)}
    check_reply(forms, RECEIVED, Message({"mask.a": torch.zeros(5, 2)}))
    with pytest.raises(ReplyError, match=r"mask\.b"):
        check_reply(forms, RECEIVED, Message({"mask.b": torch.zeros(5, 3)}))
    counts: Forms = {"counts": (Sent("n", "tensor", "counts", (2,), (0, 9)),)}
    check_reply(counts, RECEIVED, Message({"n": torch.tensor([0, 9])}))
    for wrong in (Message(), Message({"n": torch.tensor([0, 10])})):
        with pytest.raises(ReplyError, match="'n' is"):
            check_reply(counts, RECEIVED, wrong)


def test_numbers_in_lists_count_too():
    forms: Forms = {"list": (Sent("xs", "list", "numbers", (), (0, 1)),)}
    check_reply(forms, RECEIVED, Message({}, {"xs": [0, [1.0, 0.5]]}))
    for wrong in ([math.inf], [[2.0]]):
        with pytest.raises(ReplyError, match="'xs' is"):
            check_reply(forms, RECEIVED, Message({}, {"xs": wrong}))


def test_nothing_means_nothing():
    assert check_reply({"nothing": ()}, RECEIVED, Message()) == "nothing"
    with pytest.raises(ReplyError):
        check_reply({"nothing": ()}, RECEIVED, Message(weights()))


MASKED: Forms = {
    "trained": (
        Sent("*", "tensor", "weights"),
        Sent("mask/*", "tensor", "what of them was trained", "mask"),
    )
}
ENTRIES = {"w": torch.tensor([[True, False, True], [True, True, False]]), "b": torch.ones(2).bool()}


def masks(**changes: Any) -> dict[str, torch.Tensor]:
    """Return masks with unused bits: of 6 entries, 2; of 2 entries, 6."""
    found = pack_masks(ENTRIES) | changes
    return {f"mask/{name}": mask for name, mask in found.items() if mask is not None}


def test_masks_come_packed_a_bit_for_every_entry():
    assert masks()["mask/w"].tolist() == [0b10111000]
    assert check_reply(MASKED, RECEIVED, Message(weights() | masks())) == "trained"
    assert all(
        torch.equal(mask, ENTRIES[name])
        for name, mask in unpack_masks(pack_masks(ENTRIES), RECEIVED.tensors).items()
    )
    none, every = (torch.tensor([bits], dtype=torch.uint8) for bits in (0, 0b11111100))
    for mask in (none, every):
        check_reply(MASKED, RECEIVED, Message(weights() | masks(w=mask)))
    for count, size in ((0, 0), (1, 1), (8, 1), (9, 2), (16, 2)):
        received = Message({"v": torch.zeros(count)})
        mask = torch.zeros(size, dtype=torch.uint8)
        check_reply(MASKED, received, Message({"v": torch.zeros(count), "mask/v": mask}))


def of_bytes(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (masks(w=None), "'mask/w' is missing"),
        (masks(v=of_bytes(0)), "holds a tensor 'mask/v', which is not declared"),
        ({"bask/w": of_bytes(0)}, "holds a tensor 'bask/w', which is not declared"),
        ({"mask/mask/w": of_bytes(0)}, "'mask/mask/w', which is not declared"),
        ({"mask/": of_bytes(0)}, "'mask/', which is not declared"),
        (masks(w=of_bytes(0, 0)), r"'mask/w' is \(2,\) of torch.uint8"),
        (masks(w=of_bytes()), r"'mask/w' is \(0,\)"),
        (masks(w=of_bytes(0).view(1, 1)), r"'mask/w' is \(1, 1\)"),
        (masks(w=of_bytes(0)[0]), r"'mask/w' is \(\)"),
        (masks(w=torch.tensor([0], dtype=torch.int8)), "of torch.int8"),
        (masks(w=torch.zeros(1)), "of torch.float32"),
        (masks(w=ENTRIES["w"]), "of torch.bool"),
        (masks(w=of_bytes(0b10111001)), "'mask/w' has bits beyond its 6 entries"),
        (masks(w=of_bytes(0b10111010)), "'mask/w' has bits beyond its 6 entries"),
        (masks(b=of_bytes(0b11100000)), "'mask/b' has bits beyond its 2 entries"),
    ],
)
def test_no_other_mask_passes(wrong: dict[str, torch.Tensor], says: str):
    beside = masks() if "mask/w" not in wrong and "mask/b" not in wrong else {}
    with pytest.raises(ReplyError, match=says):
        check_reply(MASKED, RECEIVED, Message(weights() | beside | wrong))


def test_masks_may_be_optional():
    forms = {"trained": tuple(replace(sent, optional=True) for sent in MASKED["trained"])}
    for some in ({}, masks(), masks(b=None)):
        check_reply(forms, RECEIVED, Message(some))
    with pytest.raises(ReplyError, match="bits beyond"):
        check_reply(forms, RECEIVED, Message(masks(b=of_bytes(1))))


@pytest.mark.parametrize("name", ["mask", "*/mask", "mask/*/*", ""])
def test_masks_are_named_by_a_prefix(name: str):
    with pytest.raises(ValueError, match="prefix"):
        Sent(name, "tensor", "masks", "mask")
    with pytest.raises(ValueError, match="without a range"):
        Sent("mask/*", "tensor", "masks", "mask", (0, 1))


def test_a_value_is_judged_by_the_rule_that_its_shape_fits():
    forms: Forms = {
        "either": (
            Sent("n", "tensor", "two", (2,), (0, 1), optional=True),
            Sent("n", "tensor", "three", (3,), (5, 9), optional=True),
        )
    }
    check_reply(forms, RECEIVED, Message({"n": torch.tensor([5.0, 9.0, 7.0])}))
    with pytest.raises(ReplyError, match="must be 5 to 9"):
        check_reply(forms, RECEIVED, Message({"n": torch.zeros(3)}))
