"""What a round of PerFedRLNAS is worth to each client's policy (Eq. 8 and 9)."""

from dataclasses import dataclass

from fedtailor.types import Arch


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


def rewards(
    played: list[Played],
    average: float,
    lambda_time: float,
    lambda_memory: float,
    graded: bool = False,
) -> list[float]:
    """Return the rewards of a round: Eq. 8, with `lambda_memory` Eq. 9.

    Where `graded`, memory counts above the budget too: among networks that are all too large, the
    less large one is then the better.
    """
    longest = max((one.seconds for one in played), default=0.0)
    seconds = [longest if one.overflowed else one.seconds for one in played]
    shortest = min(seconds, default=0.0)
    return [
        (0.0 if one.overflowed else one.accuracy)
        - average
        - lambda_time * (time - shortest)
        - lambda_memory * (one.memory if graded else min(one.memory, 1.0))
        for one, time in zip(played, seconds, strict=True)
    ]
