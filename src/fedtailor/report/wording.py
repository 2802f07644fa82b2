"""How numbers are written for people, on the page and in the terminal."""

from typing import Any


def percent(share: float) -> str:
    """Write a share."""
    return f"{100 * share:.1f} %"


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
