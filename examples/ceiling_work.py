"""What `ceiling.py` is asked, and where it keeps what it has done."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from fedtailor.core.rng import rng_for
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.runs.config import make_space
from fedtailor.search import genes

Condition = Literal["labels", "shift", "amounts"]
SPACES = ("mobilenetv3", "darts", "mobilenetv3_plato", "nasvit")
SHIFTS = ("none", "low_resolution", "blur", "grey", "noise", "rotation", "contrast")
CLIENTS, ARCHS, TUNED_ARCHS = 20, 200, 20
ORIGINS = ("merged", "measured", "own", "batch")  # of batch-norm statistics


@dataclass(frozen=True)
class Work:
    """What is asked, and where it is kept."""

    folder: Path
    space: str
    condition: Condition
    steps: int
    tuned_clients: int
    seed: int

    def federation(self) -> Federation:
        """Return the clients; their test images are official ones."""
        alike = {"labels": ("dirichlet", ()), "shift": ("iid", SHIFTS), "amounts": ("iid", ())}
        partition, shift = alike[self.condition]
        return load_federation(
            DataOptions(
                name="cifar10", clients=CLIENTS, partition=partition, alpha=0.3, seed=self.seed,
                split="official", fractions=(0.85, 0.05, 0.1), shift=shift,
            )
        )  # fmt: skip

    def searched(self, federation: Federation) -> SearchSpace:
        """Return the search space."""
        return make_space({"name": self.space, "preset": "cpu"}).at(federation.task)

    def archs(self, space: SearchSpace) -> list[Arch]:
        """Return architectures drawn at random, all different."""
        return genes.sample_many(space, ARCHS, rng_for(self.seed, "ceiling"))

    def file(self, what: str) -> Path:
        """Name a file of these weights: where images are not shifted, partitions share them."""
        weights = "shifted" if self.condition == "shift" else "plain"
        name = f"{self.space}-{weights}" if what == "supernet" else f"{self.space}-{what}"
        return self.folder / f"{name}-{self.steps}-{self.seed}.{_ending(what)}"


def _ending(what: str) -> str:
    return "safetensors" if what == "supernet" else "npz"
