"""Training a supernet: of one architecture it is what training that network alone is."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Meter
from fedtailor.data.batches import batch_count
from fedtailor.data.federation import Federation
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store
from fedtailor.training import learn
from fedtailor.training.learn import Recipe
from fedtailor.training.supernet import SupernetTrainer
from tests.helpers.sde_setting import client_of, tiny_setting

ARCH: Arch = (1, 0, 2, 1, 0, 1)
LATE = 8  # of 10 rounds: schedules have come far


def client_at(federation: Federation, round: int = LATE) -> Client:
    client = client_of(federation, tiny_setting(federation), 0, round)
    return replace(client, meter=Meter())


def store_of(client: Client) -> Store:
    weights = initial_supernet(client.setting, statistics=True)
    return Store(client.setting.space, client.setting.task, weights)


@pytest.mark.parametrize(
    "how",
    [
        {"momentum": 0.0},
        {"momentum": 0.9},
        {"weight_decay": 0.3},
        {"schedule": "cosine"},
        {"schedule": "step"},
        {"clip": 0.05},
        {"label_smoothing": 0.5},
        {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.5},
    ],
    ids=str,
)
def test_every_part_of_a_recipe_does_what_it_does_to_a_network(
    how: dict[str, Any], federation: Federation
):
    """The same batches, the last one smaller; the same rate of a late round; the same charge."""
    recipe = Recipe(batch=20) if how.get("lr") else Recipe(lr=0.1, batch=20)
    recipe = replace(recipe, **how)
    one, other = client_at(federation), client_at(federation)
    assert len(one.train) % recipe.batch, "a last batch of fewer images"
    store = store_of(one)
    network = learn.network(other, store.cut(ARCH), ARCH)
    trainer = SupernetTrainer(one, store, recipe)
    torch.manual_seed(0)  # of dropout
    loss = [trainer.epochs(1, lambda _: (ARCH,)) for _ in range(2)][-1]
    torch.manual_seed(0)
    assert loss == pytest.approx(learn.fit(other, network, recipe, epochs=2), rel=1e-4)
    for name, weight in network.weights().items():
        torch.testing.assert_close(store.cut(ARCH)[name], weight, rtol=1e-3, atol=1e-4)
    assert one.meter.macs == other.meter.macs > 0
    assert trainer.times == {ARCH: 2 * batch_count(len(one.train), recipe.batch)}


def test_architectures_are_drawn_by_a_key_of_their_own(federation: Federation):
    """Which images a batch has says nothing of who trains on it; other clients draw others."""
    client, keys = client_at(federation), []

    def noted(rng: torch.Generator) -> tuple[Arch, ...]:
        keys.append(rng.initial_seed())
        return (ARCH,)

    SupernetTrainer(client, store_of(client), Recipe(lr=0.1)).epochs(1, noted)
    assert set(keys) == {client.rng("train/archs").initial_seed()}
    assert client.rng("train").initial_seed() not in keys


def test_all_that_a_scheme_draws_trains_on_the_batch_and_a_rate_can_be_given(
    federation: Federation,
):
    client, other = client_at(federation), (0, 1, 0, 1, 2, 0)
    store, frozen = store_of(client), store_of(client)
    recipe = Recipe(lr=0.1, batch=1000)
    trainer = SupernetTrainer(client, store, recipe)
    trainer.epochs(3, lambda _: (ARCH, other))
    assert trainer.times == {ARCH: 3, other: 3}
    SupernetTrainer(client, frozen, recipe, lr=0.0).epochs(1, lambda _: (ARCH,))
    kept, moved = frozen.cut(ARCH), store.cut(ARCH)
    first = store_of(client).cut(ARCH)
    learned = [name for name in first if "running" not in name]
    assert all(torch.equal(kept[name], first[name]) for name in learned)
    assert not all(torch.equal(moved[name], first[name]) for name in learned)
