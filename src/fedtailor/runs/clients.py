"""Which client is meant."""

from fedtailor.core.errors import UserError
from fedtailor.runs import database
from fedtailor.runs.folder import Run


def client_number(run: Run, text: str) -> int:
    """Return the number of the client that a user means."""
    there = sorted(database.devices(run.db))
    if not text.isdecimal() or int(text) not in there:
        raise UserError(
            f"client: {run.path} has no client {text}; there are {there[0]} to {there[-1]}"
        )
    return int(text)
