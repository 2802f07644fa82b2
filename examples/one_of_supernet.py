"""One architecture of a finished search for all clients: where does a difference come from?

    python examples/one_of_supernet.py runs/perfedsde middle.safetensors --arch middle
    fedtailor run my.toml algorithm.name=fedavg space.arch=middle rounds=0 \
        start=middle.safetensors --out runs/middle-of-perfedsde

Two searches differ in their supernets' weights and in the architectures that clients deploy, which
may be of other sizes. With one architecture for everybody, cut from either supernet with its merged
batch-norm statistics, only the weights differ. The file is what a run of fedavg starts from; with
`rounds=0` it is deployed and tuned at once. For runs of perfedsde, or of perfedrlnas.
"""

import argparse
from pathlib import Path

from fedtailor.algorithms._base import state_types
from fedtailor.algorithms.fedavg import Global
from fedtailor.core import codec
from fedtailor.core.space import Arch
from fedtailor.data.federation import load_federation
from fedtailor.experiment.prepare import setting_of
from fedtailor.networks.store import Store
from fedtailor.runs.config import read_config
from fedtailor.runs.folder import CONFIG, Run


def cut_of(run: Run, arch: str) -> tuple[Arch, Global]:
    """Return an architecture that goes by a word, and its network as a state of fedavg."""
    config = read_config(run.path / CONFIG)
    setting = setting_of(config, load_federation(config.data))
    kind, _ = state_types(config.algorithm)
    state = codec.read(kind, run.server_path(run.last_round()))
    wanted: Arch = getattr(setting.space, arch)()
    return wanted, Global(Store(setting.space, setting.task, state.weights).cut(wanted))


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("file", type=Path)
    parser.add_argument("--arch", choices=("smallest", "middle", "largest"), default="middle")
    asked = parser.parse_args()
    _, state = cut_of(Run(asked.run), asked.arch)
    codec.write_whole(asked.file, state)


if __name__ == "__main__":
    main()
