"""What leaves a client is declared, in complete forms; nothing else passes."""

import math
from typing import Any

import pytest
import torch

from fedtailor.algorithms._replies import Forms, ReplyError, Sent, check_reply, trained_tensors
from fedtailor.core.types import Message

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
