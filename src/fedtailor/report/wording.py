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


def duration(seconds: float) -> str:
    """Write a time with two of its units at most."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {whole % 60} s"
