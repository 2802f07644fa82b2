"""Seconds per round and start-up of the local engine against a plain hand-written PyTorch loop.

Each side runs the reference job (see reference.py) in processes of its own, turn by turn, so that
the machine's moods hit all alike. `floor_s` and `ours_s` are seconds per round with two processes
of one thread each; `sequential_s` is the plain loop in one. Start-up is from the start of the
command to the end of its first round, less a round. Ours writes a checkpoint every round.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import reference

ROUNDS, REPEATS, WARM = 12, 4, 2


def measure(module: str, *words: str) -> tuple[list[float], float, dict[str, float]]:
    """Run one side; return its seconds per round, its start-up, and what else it says."""
    began = time.time()
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    ends = found["ends"]
    # The last round is not counted: fedtailor also tests all clients in it.
    rounds = [b - a for a, b in zip(ends[WARM:-1], ends[WARM + 1 : -1], strict=False)]
    startup = ends[0] - began - statistics.median(rounds)
    return rounds, startup, found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.npz"
        reference.write_job(job, ROUNDS)
        compare(str(job))


def compare(job: str) -> None:
    sides = {
        "sequential": ["benchmarks.plain", job, str(ROUNDS), "0"],
        "floor": ["benchmarks.plain", job, str(ROUNDS), "2"],
        "ours": ["benchmarks.ours", str(ROUNDS), "2"],
    }
    rounds: dict[str, list[float]] = {side: [] for side in sides}
    startups: dict[str, list[float]] = {side: [] for side in sides}
    sums: dict[str, float] = {}
    for repeat in range(REPEATS):
        for side, words in sides.items():
            times, startup, found = measure(*words)
            rounds[side] += times
            startups[side].append(startup)
            sums[side] = found["sum"]
            print(f"{repeat} {side}: {statistics.median(times):.3f} s/round, start {startup:.2f} s")
    if max(sums.values()) - min(sums.values()) > 1e-4 * max(sums.values()):
        raise SystemExit(f"the sides did not do the same job: {sums}")
    per_round = {side: statistics.median(times) for side, times in rounds.items()}
    start = {side: statistics.median(times) for side, times in startups.items()}
    result = {
        "name": "engine",
        "floor_s": round(per_round["floor"], 4),
        "ours_s": round(per_round["ours"], 4),
        "speedup": round(per_round["floor"] / per_round["ours"], 3),
        "sequential_s": round(per_round["sequential"], 4),
        "floor_startup_s": round(start["floor"], 3),
        "ours_startup_s": round(start["ours"], 3),
        "startup_ratio": round(start["ours"] / start["floor"], 3),
        "weights_sum": sums,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
