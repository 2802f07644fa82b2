"""Memory and time against the number of clients: Ditto, so that every client has private state.

For each number of clients, in a process of its own: a round in which all train, so that all have
private state, with the peak of the memory that parent and workers hold for themselves; then rounds
of ten clients, timed from commit to commit. The pool of images is the same for all. Flat means:
`memory_ratio` and `round_ratio`, of the most clients to the fewest, are near 1.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.experiment.lifecycle import run
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord

NUMBERS = (100, 1_000, 10_000)
POOL, PER_CLIENT, COHORT, ROUNDS = 120_000, 12, 10, 25


def data() -> tuple[np.ndarray, np.ndarray]:
    """Return a pool of random images that is the same for any number of clients."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (POOL, 3, 16, 16), dtype=np.uint8)
    return images, rng.integers(0, 10, POOL)


def table(clients: int, cohort: int | None, rounds: int) -> dict[str, Any]:
    return {
        "rounds": rounds,
        "cohort": cohort,
        "eval_every": rounds,
        "save_models": False,
        "algorithm": {"name": "ditto", "lr": 0.01},
        "space": {"name": "cnn", "width": 8, "hidden": 32},
        "data": {
            "path": f"{__file__}:data",
            "clients": clients,
            "partition": "iid",
            "per_client": PER_CLIENT,
        },
        "engine": {"workers": 2, "device": "cpu"},
    }


def private_mb(pid: int) -> float:
    """Return what a process holds for itself: shared data and mapped files are not counted."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def watch(peaks: dict[str, float], stop: threading.Event) -> None:
    me = os.getpid()
    while not stop.wait(0.2):
        children = Path(f"/proc/{me}/task/{me}/children").read_text().split()
        workers = sum(private_mb(int(pid)) for pid in children)
        peaks["total"] = max(peaks.get("total", 0.0), private_mb(me) + workers)


def one(clients: int) -> dict[str, float]:
    """Measure one number of clients."""
    peaks: dict[str, float] = {}
    stop = threading.Event()
    watcher = threading.Thread(target=watch, args=(peaks, stop))
    with tempfile.TemporaryDirectory() as folder:
        watcher.start()
        began = time.monotonic()
        with_state = run(_plain(table(clients, None, 1)), Path(folder) / "all")
        all_s = time.monotonic() - began
        states = len(list(with_state.states.glob("client-*")))
        stop.set()
        watcher.join()
        rounds = _rounds(_plain(table(clients, COHORT, ROUNDS)), Path(folder) / "some")
    return {
        "clients": clients,
        "states": states,
        "peak_mb": round(peaks["total"], 1),
        "all_train_and_test_s": round(all_s, 2),
        "round_s": round(statistics.median(rounds), 4),
    }


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if value is not None}


def _rounds(config: dict[str, Any], path: Path) -> list[float]:
    """Return the seconds from commit to commit; the last round tests all clients: not counted."""
    ends: list[float] = []
    commit = Run.commit

    def commit_and_note(self: Run, record: RoundRecord, server: Any) -> None:
        commit(self, record, server)
        ends.append(time.monotonic())

    Run.commit = commit_and_note
    run(config, path)
    Run.commit = commit
    return [b - a for a, b in itertools.pairwise(ends)]


def main() -> None:
    if len(sys.argv) > 1:
        print(json.dumps(one(int(sys.argv[1]))))
        return
    found = []
    for clients in NUMBERS:
        command = [sys.executable, "-m", "benchmarks.clients", str(clients)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    result = {
        "name": "clients",
        "sizes": found,
        "memory_ratio": round(found[-1]["peak_mb"] / found[0]["peak_mb"], 3),
        "round_ratio": round(found[-1]["round_s"] / found[0]["round_s"], 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
