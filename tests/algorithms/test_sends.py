"""The declaration of what leaves a client is enforced."""

import pytest
import torch

from fedtailor.algorithms._base import Sent, UndeclaredError, check_sends
from fedtailor.core.types import Message

RECEIVED = Message({"w": torch.zeros(2, 3)})


@pytest.mark.parametrize(
    "reply",
    [
        Message({"v": torch.zeros(2, 3)}),  # a name the server did not send
        Message({"w": torch.zeros(3, 2)}),  # another shape
        Message({"w": torch.zeros(2, 3, dtype=torch.float64)}),  # another type
        Message({}, {"accuracy": 0.5}),  # an info entry nobody declared
    ],
)
def test_what_is_not_declared_is_refused(reply: Message):
    with pytest.raises(UndeclaredError):
        check_sends((Sent("*", "tensor", "weights"),), RECEIVED, reply)


def test_what_is_declared_passes():
    check_sends((Sent("*", "tensor", "weights"),), RECEIVED, Message({"w": torch.ones(2, 3)}))
    sends = (Sent("mask.*", "tensor", "masks", (-1, 2)), Sent("score", "float", "accuracy"))
    reply = Message({"mask.a": torch.zeros(5, 2)}, {"score": 0.5})
    check_sends(sends, RECEIVED, reply)
    with pytest.raises(UndeclaredError, match="score"):
        check_sends(sends, RECEIVED, Message({}, {"score": "high"}))
    with pytest.raises(UndeclaredError, match=r"mask\.b"):
        check_sends(sends, RECEIVED, Message({"mask.b": torch.zeros(5, 3)}))
    with pytest.raises(UndeclaredError):
        check_sends((), RECEIVED, Message({"w": torch.ones(2, 3)}))
