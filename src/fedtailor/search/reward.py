"""What a round of PerFedRLNAS is worth to each client's policy (Eq. 8 and 9)."""

from dataclasses import dataclass

from fedtailor.core.space import Arch
from fedtailor.core.sums import mean


@dataclass(frozen=True)
class Played:
    """One client's round, as its policy sees it."""

    client: int
    genes: Arch  # as drawn
    accuracy: float
    seconds: float
    memory: float = 0.0  # share of its memory that training took; above 1 it could not train

    @property
    def overflowed(self) -> bool:
        """Whether the client could not train for want of memory."""
        return self.memory > 1


@dataclass(frozen=True)
class Past:
    """What the server remembers of a client."""

    round: int  # of its last reward
    times: int  # rewards so far
    reward: float  # the last one
    usual: float  # their mean
    accuracy: float | None  # the latest or the best, as the rules say


@dataclass(frozen=True)
class Rules:
    """How rewards are counted.

    Args:
        time: the paper's lambda_time, per second over the round's fastest client.
        memory: weight of the share of memory used: 0 is Eq. 8, 1 is Eq. 9.
        best: the average accuracy is that of the clients' best so far, not of their latest.
        graded: memory counts above the budget too: among networks that are all too large, the less
            large one is then the better.
    """

    time: float = 0.001
    memory: float = 0.0
    best: bool = False
    graded: bool = False


def rewards(played: list[Played], average: float, rules: Rules) -> list[float]:
    """Return the rewards of a round: Eq. 8, with memory Eq. 9."""
    longest = max((one.seconds for one in played), default=0.0)
    seconds = [longest if one.overflowed else one.seconds for one in played]
    shortest = min(seconds, default=0.0)
    return [
        (0.0 if one.overflowed else one.accuracy)
        - average
        - rules.time * (time - shortest)
        - rules.memory * (one.memory if rules.graded else min(one.memory, 1.0))
        for one, time in zip(played, seconds, strict=True)
    ]


def remember(
    round: int, past: dict[int, Past], played: list[Played], rules: Rules
) -> dict[int, Past]:
    """Enter a round: first the accuracies, then the rewards they lead to."""
    latest = {client: one.accuracy for client, one in past.items()}
    for one in played:
        if not one.overflowed:
            before = latest.get(one.client)
            keep = rules.best and before is not None and before > one.accuracy
            latest[one.client] = before if keep else one.accuracy
    known = [accuracy for accuracy in latest.values() if accuracy is not None]
    average = mean(known)
    found = dict(past)
    for one, reward in zip(played, rewards(played, average, rules), strict=True):
        before = past.get(one.client, Past(round, 0, 0.0, 0.0, None))
        times = before.times + 1
        usual = before.usual + (reward - before.usual) / times
        found[one.client] = Past(round, times, reward, usual, latest.get(one.client))
    return found
