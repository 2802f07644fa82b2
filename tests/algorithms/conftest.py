"""What tests of algorithms share."""

from collections.abc import Callable

import pytest

from fedtailor.core.space import SearchSpace
from fedtailor.core.types import Client, Setting
from fedtailor.data.federation import Federation
from tests.helpers.few_edges import FewEdges
from tests.helpers.sde_setting import client_of


@pytest.fixture
def silo(federation: Federation) -> Callable[..., Client]:
    """Return a maker of clients with 48 images to train, 16 for validation."""

    def make(round: int = 1, number: int = 0, space: SearchSpace | None = None) -> Client:
        setting = Setting(federation.task, space or FewEdges(), rounds=10, seed=3)
        return client_of(federation, setting, number, round)

    return make
