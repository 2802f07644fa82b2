"""What clients are called: by names where the data has them, else by their numbers."""

from collections.abc import Sequence

from fedtailor.core.errors import UserError, nearest


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
