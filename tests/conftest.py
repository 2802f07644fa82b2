"""What tests share: a tiny experiment, and clients of it."""

import os

os.environ.setdefault("MKL_CBWR", "AVX2")  # as the package does; pytest plugins may import torch

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from fedtailor.core.types import Client, ClientInfo, Setting
from fedtailor.data.federation import Federation, load_federation
from fedtailor.data.options import DataOptions
from fedtailor.spaces.cnn import CNN

settings.register_profile("default", deadline=None)
settings.load_profile("default")
torch.set_num_threads(1)

TINY: dict[str, Any] = {
    "rounds": 4,
    "cohort": 3,
    "eval_every": 2,
    "algorithm": {"lr": 0.1, "finetune_epochs": 1},
    "space": {"name": "cnn", "width": 4, "hidden": 16},
    "data": {"clients": 5, "per_client": 60, "partition": "dirichlet_equal", "alpha": 0.5},
    "engine": {"workers": 0},
}


@pytest.fixture
def tiny() -> Callable[..., dict[str, Any]]:
    """Return a maker of tiny configs: dotted keys, with __ for the dot, replace values."""

    def make(**changes: Any) -> dict[str, Any]:
        table = {k: dict(v) if isinstance(v, dict) else v for k, v in TINY.items()}
        for key, value in changes.items():
            *parents, last = key.split("__")
            inner = table
            for parent in parents:
                inner = inner.setdefault(parent, {})
            inner[last] = value
        return table

    return make


@pytest.fixture(scope="session")
def federation() -> Federation:
    return load_federation(DataOptions(clients=4, partition="iid", per_client=80))


@pytest.fixture
def client(federation: Federation) -> Client:
    train, val, test = (federation.examples(0, split) for split in ("train", "val", "test"))
    setting = Setting(federation.task, CNN(width=4, hidden=16), rounds=10, seed=3)
    return Client(setting, ClientInfo(0, len(train)), 1, train, val, test)


@pytest.fixture
def misbehaving() -> Callable[[str], str]:
    """Return how a config names an algorithm of tests/helpers/misbehaving.py."""
    return lambda name: f"{Path(__file__).parent / 'helpers' / 'misbehaving.py'}:{name}"
