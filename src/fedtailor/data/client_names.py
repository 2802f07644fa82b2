"""What clients are called: by names where the data has them, else by their numbers."""

import re
from collections.abc import Sequence

from fedtailor.core.errors import UserError, nearest

MOST_LETTERS = 60  # of a name in a file's


def names_or_numbers(names: Sequence[str], clients: int) -> list[str]:
    """Return what each client is called: its name, or its number as text where it has none."""
    return [
        names[number] if number < len(names) and names[number] else str(number)
        for number in range(clients)
    ]


def label_of(names: Sequence[str], number: int) -> str:
    """Return a client's name with its number beside it, or the number alone."""
    if number >= len(names) or names[number] == str(number):
        return str(number)
    return f"{names[number]} ({number})"


def file_stem_of(names: Sequence[str], number: int) -> str:
    """Return what a client's file is called: its number, then its name as far as files allow."""
    if number >= len(names) or names[number] == str(number):
        return f"{number:03d}"
    letters = re.sub(r"[^\w.-]+", "-", names[number])[:MOST_LETTERS].strip(".-")
    return f"{number:03d}-{letters}" if letters else f"{number:03d}"


def find_client(names: Sequence[str], wanted: int | str) -> int:
    """Return the number of the client that is meant; of a text, a name comes before a number."""
    text = str(wanted)
    if isinstance(wanted, str) and text in names:
        return list(names).index(text)
    if text.isascii() and text.isdigit():
        if int(text) < len(names):
            return int(text)
        raise UserError(
            f"client: there are {len(names)} clients, numbered from 0; {text} is none of them"
        )
    if all(name == str(number) for number, name in enumerate(names)):
        raise UserError(
            f"client: these clients have no names; give a number from 0 to {len(names) - 1}, "
            f"not {text!r}"
        )
    few = list(names) if len(names) <= 20 else []
    raise UserError(f"client: none is called {text!r}{nearest(text, few or list(names))}")
