"""What a round has to tell, before it is written."""

import json
import time
from dataclasses import astuple, dataclass, field
from typing import TypeAlias

from fedtailor.core.records import Json, Log, Spent, UsedArch

ArchRow: TypeAlias = tuple[int, int, str, str, float | None, str, str]
OffspringRow: TypeAlias = tuple[int, int, int, str, float | None, float, bool, float | None]


@dataclass
class RoundRecord:
    """The rows of a round, collected; they are written in one go or not at all."""

    round: int
    metrics: list[tuple[int, int, str, str, str, float]] = field(default_factory=list)
    architectures: list[ArchRow] = field(default_factory=list)
    messages: list[tuple[int, int, str, int]] = field(default_factory=list)
    timings: list[tuple[int, int | None, str, float, float]] = field(default_factory=list)
    offspring: list[OffspringRow] = field(default_factory=list)
    events: list[tuple[int, int | None, str, str, float]] = field(default_factory=list)
    versions: list[tuple[int, int, str]] = field(default_factory=list)
    search: dict[str, Json] | None = None  # what is known of it, if somebody looked
    val: float | None = None  # mean untuned validation accuracy, if all clients were tested
    modelled_s: float = 0.0
    wall_s: float = 0.0

    def log(self, client: int, log: Log) -> None:
        """File what a client measured."""
        self.metrics += [
            (self.round, client, m.split, m.model, m.name, m.value) for m in log.metrics
        ]
        self.architectures += [_row(self.round, client, used) for used in log.architectures]
        self.offspring += [(self.round, client, *astuple(one)) for one in log.offspring]
        for spent in log.times:
            self.spent(client, spent)

    def spent(self, client: int | None, spent: Spent) -> None:
        """File what a part of a client's step took, or of the server's own work (None)."""
        self.timings.append((self.round, client, spent.part, spent.seconds, spent.macs))

    def message(self, client: int, direction: str, nbytes: int) -> None:
        """File how many bytes went down to a client, up from it, or to it once and for all."""
        self.messages.append((self.round, client, direction, nbytes))

    def equipped(self) -> set[int]:
        """Return the clients that got in this round what a client gets once."""
        return {client for _, client, direction, _ in self.messages if direction == "once"}

    def state(self, client: int, digest: str) -> None:
        """File that a client has private state of this round."""
        self.versions.append((client, self.round, digest))

    def event(self, client: int | None, kind: str, text: str) -> None:
        """Note that something happened."""
        self.events.append((self.round, client, kind, text, time.time()))

    def accuracies(self, split: str, model: str = "untuned") -> list[float]:
        """Return all clients' accuracies of a model."""
        wanted = (split, model, "accuracy")
        return [row[5] for row in self.metrics if row[2:5] == wanted]

    def line(self) -> str:
        """Tell the round in a line."""
        test = self.accuracies("test")
        tested = f", untuned test accuracy {sum(test) / len(test):.4f}" if test else ""
        sent = sum(row[3] for row in self.messages) / 1e6
        return f"round {self.round}{tested}, {sent:.2f} MB, {self.wall_s:.2f} s"


def _row(round: int, client: int, used: UsedArch) -> ArchRow:
    arch, prices, idle = (json.dumps(value) for value in (used.arch, used.cost, used.idle))
    return round, client, used.role, arch, used.score, prices, idle
