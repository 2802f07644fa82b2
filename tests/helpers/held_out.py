"""Methods that begin, at some time, to train on their validation images."""

from dataclasses import dataclass

from fedtailor.algorithms.ditto import Ditto, Personal
from fedtailor.core.types import Client, Message, Reply
from fedtailor.training import learn


@dataclass(frozen=True)
class Counted(Personal):
    """A client's own weights, and how often it trained."""

    rounds: int = 0


@dataclass(frozen=True)
class Joins(Ditto):
    """Ditto whose clients hold their validation images out for some rounds of their own."""

    after: int = 2

    def client_init(self, client: Client) -> Counted:
        return Counted()

    def holds_out(self, own: Personal) -> bool:
        return isinstance(own, Counted) and own.rounds <= self.after

    def train(self, client: Client, own: Personal, msg: Message) -> tuple[Personal, Reply]:
        rounds = 1 + (own.rounds if isinstance(own, Counted) else 0)
        kept, reply = super().train(
            learn.joined(client) if rounds > self.after else client, own, msg
        )
        return Counted(kept.weights, rounds), reply
