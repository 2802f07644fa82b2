"""How numbers are written for people, on the page and in the terminal."""

from collections.abc import Iterable, Sequence
from typing import Any

from fedtailor.data.client_names import label_of
from fedtailor.runs.comparison import Interval

MINUS = "\N{MINUS SIGN}"
MAX_ROWS = 40  # clients in a table of a terminal
LETTERS = 22  # of a client's name in it


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f} %"


def points(share: float) -> str:
    """Write a difference of shares, with its sign."""
    shown = f"{abs(100 * share):.1f}"
    sign = "" if float(shown) == 0 else "+" if share > 0 else MINUS
    return sign + shown


def within(found: Interval) -> str:
    """Write where a difference lies, in points; of one client nothing is known."""
    if found.low is None or found.high is None:
        return "one client: no interval"
    return f"{points(found.low)} to {points(found.high)}"


def signed(found: Interval, digits: int = 1) -> str:
    """Write a number that may be of either sign, where it lies, and whether that may be chance."""

    def text(value: float) -> str:
        return f"{value:+.{digits}f}".replace("-", MINUS)

    if found.low is None or found.high is None:
        return f"{text(found.mean)} (one client: no interval)"
    chance = ", not beyond chance" if found.low <= 0 <= found.high else ""
    return f"{text(found.mean)} ({text(found.low)} to {text(found.high)}{chance})"


def reach(found: Interval) -> str:
    """Write how far a mean's interval reaches on either side, in points."""
    return "" if found.high is None else f"± {100 * (found.high - found.mean):.1f}"


def listed(names: Sequence[str]) -> str:
    """Write names in a row."""
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def counted(number: int, noun: str) -> str:
    """Write a number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def mean_and_spread(spread: dict[str, Any] | None) -> str:
    """Write a mean over clients and their standard deviation, in points."""
    if spread is None:
        return "-"
    return f"{percent(spread['mean'])} ± {100 * spread['std']:.1f}"


def plus_minus(spread: dict[str, float], unit: float = 1.0, digits: int = 3) -> str:
    """Write a mean and its standard deviation in a unit."""
    mean, std = (spread[key] / unit for key in ("mean", "std"))
    return f"{mean:,.{digits}f} ± {std:,.{digits}f}"


def duration(seconds: float) -> str:
    """Write a time with two of its units at most."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"


def clip(text: str, length: int) -> str:
    """Shorten a name that would push others aside; names often differ in their ends."""
    if len(text) <= length:
        return text
    return f"{text[: length // 2]}…{text[-((length - 1) // 2) :]}"


def client_column(clients: Iterable[int | str], names: Sequence[str] = ()) -> dict[int | str, str]:
    """Return a column of clients' names, numbers beside them, as wide as its heading `client`.

    What is not a number, such as `shared`, stands as it is.
    """
    texts: dict[int | str, str] = {"client": "client"}
    for client in clients:
        numbered = isinstance(client, int)
        texts[client] = clip(label_of(names, client), LETTERS) if numbered else client
    width = max(len(text) for text in texts.values())
    return {client: text.rjust(width) for client, text in texts.items()}
