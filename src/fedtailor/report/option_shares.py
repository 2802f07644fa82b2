"""How often options were taken: round by round, and by choice."""

from dataclasses import dataclass

import numpy as np

from fedtailor.report.search_facts import Floats, Search, option_name
from fedtailor.runs import database
from fedtailor.runs.archives import option_counts

MAX_OPTIONS = 12  # that can be told apart in a picture
SMALLEST = "smallest"  # of options that are sizes


@dataclass(frozen=True)
class Shares:
    """Of all choices of some networks of a round, the share that each option has."""

    of: str  # what the shares are of
    options: list[str]
    rounds: list[int]
    shares: Floats  # (rounds, options)


def option_shares(search: Search) -> Shares | None:
    """Follow the options over rounds, where all choices have the same ones or names can be shared.

    Choices whose options are sizes are told as smallest to largest: sizes of different choices
    cannot be added up.
    """
    choices = search.found["choices"]
    role, of = _what(search)
    names = [[option_name(search, c, k) for k in range(len(c["options"]))] for c in choices]
    words = all(not name.replace(".", "").isdigit() for row in names for name in row)
    if not words:
        names = [_ranks(len(c["options"])) for c in choices]
    options = list(dict.fromkeys(name for row in names for name in row))
    counts = option_counts(search.run.db, role)
    if not counts or len(options) > MAX_OPTIONS:
        return None
    rounds = sorted(counts)
    table = np.zeros((len(rounds), len(options)))
    for place, round in enumerate(rounds):
        for (choice, gene), number in counts[round].items():
            table[place, options.index(names[choice][gene])] += number
    return Shares(of, options, rounds, table / table.sum(axis=1, keepdims=True))


def skip_share(shares: Shares) -> tuple[float, float] | None:
    """Return the share of skip connections in the first round and in the last; None without any."""
    places = [k for k, name in enumerate(shares.options) if "skip_connect" in name.split("+")]
    if not places:
        return None
    found = shares.shares[:, places].sum(axis=1)
    return float(found[0]), float(found[-1])


def coverage(search: Search) -> dict[tuple[int, int], int]:
    """Count by choice and option how many trained networks of all rounds took it."""
    found: dict[tuple[int, int], int] = {}
    role, _ = _what(search)
    if role == "decided":  # all of a supernet was trained, whatever is decided
        return {}
    for counts in option_counts(search.run.db, role).values():
        for key, number in counts.items():
            found[key] = found.get(key, 0) + number
    return found


def _what(search: Search) -> tuple[str, str]:
    for role, of in (("archive", "what archives keep"), ("decided", "what is left")):
        if database.has_role(search.run.db, role):
            return role, of
    return "trained", "what was trained"


def _ranks(count: int) -> list[str]:
    if count <= 1:
        return [SMALLEST][:count]
    return [SMALLEST, *["between"] * (count - 2), "largest"]
