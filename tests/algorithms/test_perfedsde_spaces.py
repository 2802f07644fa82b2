"""PerFedSDE-NAS in the package's own search spaces, with their shipped generators."""

from dataclasses import replace
from typing import Any

import pytest

from fedtailor.algorithms._replies import check_reply
from fedtailor.algorithms.perfedsde import PerFedSDENAS, Search
from fedtailor.core.types import Client, Message, Setting
from fedtailor.data.federation import load_federation
from fedtailor.data.options import DataOptions
from fedtailor.runs.config import make_space
from fedtailor.search.evolution import Population
from tests.helpers.sde_setting import client_of, served


@pytest.fixture(scope="module", params=["mobilenetv3", "darts", "nasvit"])
def real(request: pytest.FixtureRequest) -> tuple[Client, Message]:
    """A client of a real space, and the supernet that it is sent."""
    data = load_federation(DataOptions(clients=2, partition="iid", per_client=20))
    space = make_space({"name": request.param, "preset": "cpu"}).at(data.task)
    client = client_of(data, Setting(data.task, space, rounds=2, seed=0), 0, 1)
    return client, served(PerFedSDENAS(), client)


FEW: dict[str, Any] = {
    "iterations": 1, "population": 9, "archive": 2, "candidates": 4, "offspring": 2,
    "finetune_epochs": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", ["diffusion", "evolution", "random", "effects"])
def test_every_proposer_in_every_space(name: Any, real: tuple[Client, Message]):
    client, message = real
    how = PerFedSDENAS(**FEW, proposer=name)
    how.check(client.setting)
    first = how.client_init(client)
    own, reply = how.train(client, first, message)
    new = set(own.population.archs) - set(first.population.archs)
    assert len(own.population) == 9 and len(new) <= 2
    assert all(client.setting.space.repair(arch) == arch for arch in own.population.archs)
    assert check_reply(how.sends(), message, reply.message) == "trained"


def test_a_client_with_two_training_images_and_one_to_validate(real: tuple[Client, Message]):
    client, message = real
    few = replace(
        client,
        train=replace(client.train, index=client.train.index[:2]),
        val=replace(client.val, index=client.val.index[:1]),
    )
    how = PerFedSDENAS(**FEW)
    own, _ = how.train(few, how.client_init(few), message)
    assert [name for name, _ in how.deploy(few, own, message)] == ["untuned", "kept", "tuned"]


def test_a_population_that_has_converged_goes_on_in_every_space(real: tuple[Client, Message]):
    client, message = real
    one = client.setting.space.smallest()
    for guide in ("data", "both"):
        how = PerFedSDENAS(**FEW, guide=guide)
        own, _ = how.train(client, Search(Population((one,), (0.0,)), (one,)), message)
        assert own.population.archs[0] == one and len(own.population) == 3
