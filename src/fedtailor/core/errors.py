"""Errors that are meant for people. Nothing heavy is imported here."""

import difflib


class UserError(Exception):
    """Something the user can mend: one sentence, exit code 2, no traceback."""


def nearest(name: str, valid: list[str]) -> str:
    """End a sentence with the valid name that was probably meant, or with all there are."""
    close = difflib.get_close_matches(name, valid, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are: {', '.join(valid)}" if valid else ""
