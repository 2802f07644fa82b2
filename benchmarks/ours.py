"""The reference job on fedtailor's local engine, run folder and checkpoints included.

`python -m benchmarks.ours ROUNDS WORKERS` prints when each round was committed, and a check sum.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import reference
from fedtailor.algorithms.fedavg import Global
from fedtailor.core import codec
from fedtailor.experiment.lifecycle import run
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord


def main() -> None:
    rounds, workers = int(sys.argv[1]), int(sys.argv[2])
    ends: list[float] = []
    commit = Run.commit

    def commit_and_note(self: Run, record: RoundRecord, server: Any) -> None:
        commit(self, record, server)
        if record.round:
            ends.append(time.time())

    Run.commit = commit_and_note
    with tempfile.TemporaryDirectory() as folder:
        found = run(reference.table(rounds, workers), Path(folder) / "run")
        state = codec.read(Global, found.server_path(rounds))
        found.close()
    total = sum(t.double().abs().sum().item() for t in state.weights.values())
    print(json.dumps({"ends": ends, "sum": total}))


if __name__ == "__main__":
    main()
