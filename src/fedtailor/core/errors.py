"""Errors that are meant for people. Nothing heavy is imported here."""


class UserError(Exception):
    """Something the user can mend: one sentence, exit code 2, no traceback."""
