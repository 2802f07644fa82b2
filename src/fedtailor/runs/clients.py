"""Whom a run's numbers of clients mean: read from the run folder alone."""

from fedtailor.data.client_names import find_client, label_of
from fedtailor.runs.folder import Run


def client_names(run: Run) -> list[str]:
    """Return what all clients are called, in the order of their numbers."""
    return list(run.clients.values())


def client_labels(run: Run) -> list[str]:
    """Return all clients' names with their numbers beside them."""
    names = client_names(run)
    return [label_of(names, number) for number in range(len(names))]


def client_number(run: Run, client: int | str) -> int:
    """Return the number of the client that a name or a number means."""
    return find_client(client_names(run), client)
