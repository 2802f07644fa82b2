"""What can a policy know? How much each option of a search matters, beside the noise of a reward.

    python examples/option_effects.py runs/uniform [--first 50]

Best on a PerFedRLNAS run whose policy is uniform: then every subnet is drawn at random. Accuracies
of subnets after local training are explained by least squares from the client, the round (a line
and its square) and the options taken. What is left is noise to a policy. A policy of one client
that is to tell two options apart must see the difference above the noise of its own rounds; one
that all clients share learns from all rounds.
"""

import argparse
import json

import numpy as np

from fedtailor import Run
from fedtailor.runs.config import read_config

ROWS = "SELECT round, client, arch, score FROM architecture WHERE role = 'trained' AND round >= ?"


def main() -> None:
    """Print the effect of every option against the first of its choice, in points."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("--first", type=int, default=1, help="the first round that counts")
    wanted = parser.parse_args()
    run = Run(wanted.run)
    space = read_config(run.path / "config.toml").space
    rows = run.db.query(ROWS, wanted.first)
    rounds, clients, scores = (np.array([row[at] for row in rows], float) for at in (0, 1, 3))
    archs = np.array([json.loads(row[2]) for row in rows])
    time = (rounds - rounds.mean()) / max(rounds.std(), 1e-9)
    named = [
        (f"{choice.name} {option}", archs[:, gene] == at)
        for gene, choice in enumerate(space.choices)
        for at, option in enumerate(choice.options)
        if at
    ]
    known = [clients == client for client in np.unique(clients)] + [time, time**2]
    design = np.stack([*(column for _, column in named), *known], 1).astype(float)
    found, *_ = np.linalg.lstsq(design, 100 * scores, rcond=None)
    left = 100 * scores - design @ found
    noise = float(np.sqrt(left @ left / (len(left) - np.linalg.matrix_rank(design))))
    errors = noise * np.sqrt(np.diag(np.linalg.pinv(design.T @ design)))
    for (name, _), effect, error in zip(named, found, errors, strict=False):
        print(f"{name:24} {effect:+6.2f} ± {1.96 * error:.2f}")
    plays = len(scores) / len(np.unique(clients))
    largest = float(np.abs(found[: len(named)]).max())
    print(f"{len(scores)} accuracies, {plays:.0f} of each client; {len(space.choices)} choices")
    print(f"noise of one accuracy {noise:.1f} points; largest effect {largest:.1f} points")
    # two means of half the rounds each differ by 1.96 errors at noise * 2 / sqrt(rounds)
    print(f"rounds to tell an effect of 1 point at 95 %: {(1.96 * 2 * noise) ** 2:.0f}")


if __name__ == "__main__":
    main()
