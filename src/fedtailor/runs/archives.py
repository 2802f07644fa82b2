"""What clients that search for themselves ended with: by their own logs, not by the server."""

from collections import Counter
from typing import Any

from fedtailor.core.sums import mean
from fedtailor.runs import database
from fedtailor.runs.database import ArchOfClient, Database
from fedtailor.runs.folder import Run


def archives(run: Run) -> dict[int, Any]:
    """Return by client what its last round ended with; {} where nobody has an archive.

    Each has the `round`, the `genes` of the best architecture, those of the whole `archive`, and
    the `agreement`: the share of the archive that has the most common option, mean over genes.
    """
    members: dict[int, list[ArchOfClient]] = {}
    for row in database.architectures(run.db, "archive"):
        earlier = members.get(row.client, [])
        same = earlier and earlier[0].round == row.round
        members[row.client] = [*earlier, row] if same else [row]
    best = {row.client: row.genes for row in database.architectures(run.db, "trained")}
    return {
        client: {
            "round": rows[0].round,
            "genes": list(best[client]),
            "archive": [list(row.genes) for row in rows],
            "agreement": agreement([row.genes for row in rows]),
        }
        for client, rows in sorted(members.items())
    }


def agreement(archs: list[tuple[int, ...]]) -> float:
    """Return how much architectures are alike: 1 if all are equal."""
    shares = [Counter(gene).most_common(1)[0][1] / len(archs) for gene in zip(*archs, strict=True)]
    return mean(shares)


def option_counts(db: Database, role: str) -> dict[int, dict[tuple[int, int], int]]:
    """Count by round how many architectures of a role took an option (choice, gene)."""
    rows = db.query(
        "SELECT round, each.key, each.value, count(*) FROM architecture, json_each(arch) AS each"
        " WHERE role = ? GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
        role,
    )
    found: dict[int, dict[tuple[int, int], int]] = {}
    for round, choice, gene, number in rows:
        found.setdefault(round, {})[choice, gene] = number
    return found
