"""Masked updates: what is marked is what was trained, and merging them is two sums."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from fedtailor.core.types import Client
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import Store, shapes, view
from fedtailor.search.schemes import among
from fedtailor.training.learn import Recipe
from fedtailor.training.merge import merge, unpack_masks
from fedtailor.training.supernet import SupernetTrainer
from fedtailor.training.updates import MASK, UpdateRule, supernet_update, update_part
from tests.helpers.tiny_space import Tiny

ARCHIVE = ((0, 1, 1, 0, 2, 1), (2, 0, 0, 1, 0, 0))


def trained(client: Client, statistics: bool, archive: tuple = ARCHIVE) -> tuple[Store, dict]:
    """Train some architectures with all that moves what is not trained."""
    client = replace(client, setting=replace(client.setting, space=Tiny()))
    weights = initial_supernet(client.setting, statistics)
    store = Store(client.setting.space, client.setting.task, weights)
    trainer = SupernetTrainer(client, store, Recipe(lr=0.1, momentum=0.9, weight_decay=0.1))
    trainer.epochs(2, among(archive))
    assert set(trainer.times) == set(archive)
    return store, {"before": weights, "update": supernet_update("count", store, trainer)}


@pytest.mark.parametrize("statistics", [False, True])
def test_masks_are_the_union_of_what_was_trained(client: Client, statistics: bool):
    store, sent = trained(client, statistics)
    before, update = sent["before"], sent["update"]
    names = [name for name in update if not name.startswith(MASK)]
    assert set(names) == set(before) == {n.removeprefix(MASK) for n in update if n not in names}
    assert any(map(is_statistic, names)) == statistics
    masks = unpack_masks({name: update[MASK + name] for name in names}, before)
    for name in names:
        union = torch.zeros_like(before[name], dtype=torch.bool)
        for arch in ARCHIVE:
            own = shapes(store.space, arch, store.task, statistics)
            if name in own:
                view(union, own[name]).fill_(True)
        assert torch.equal(masks[name], union), name
        assert torch.equal(update[name][~union], before[name][~union]), "untouched to the bit"
    moved = sum(int((update[n] != before[n]).sum()) for n in names)
    marked = sum(int(masks[n].sum()) for n in names)
    assert 0.9 * marked < moved <= marked < sum(t.numel() for t in before.values())


def test_what_trained_is_marked_even_if_it_did_not_move(client: Client):
    """At a rate of 0 nothing does; biases are still 0, as they began."""
    client = replace(client, setting=replace(client.setting, space=Tiny()))
    weights = initial_supernet(client.setting, statistics=False)
    store = Store(client.setting.space, client.setting.task, weights)
    trainer = SupernetTrainer(client, store, Recipe(), lr=0.0)
    trainer.epochs(1, among(ARCHIVE[:1]))
    update = supernet_update("count", store, trainer)
    masks = unpack_masks({name: update[MASK + name] for name in weights}, weights)
    trained = shapes(store.space, ARCHIVE[0], store.task)
    for name, weight in weights.items():
        assert torch.equal(update[name], weight)
        window = torch.Size(trained.get(name, (0,))).numel()
        assert int(masks[name].sum()) == window, name
    assert not weights["head.linear.bias"].any() and masks["head.linear.bias"].all()


@pytest.mark.parametrize("rule", ["count", "count_samples"])
def test_a_merge_is_two_sums_so_that_secure_summation_could_hide_who_trained_what(
    rule: UpdateRule, client: Client
):
    """The mean over those who trained: masked differences and masks, each summed over clients."""
    sents = [trained(client, True, archive)[1] for archive in (ARCHIVE, ARCHIVE[:1], ARCHIVE[1:])]
    before, updates, sizes = sents[0]["before"], [sent["update"] for sent in sents], (1, 11, 21)
    parts = map(partial(update_part, rule, before), updates, sizes)
    merged = merge(before, parts)
    shares = sizes if rule == "count_samples" else (1, 1, 1)
    for name, old in before.items():
        masks = [
            share * unpack_masks({name: update[MASK + name]}, before)[name].double()
            for update, share in zip(updates, shares, strict=True)
        ]
        moves = [
            mask * (update[name].double() - old)
            for mask, update in zip(masks, updates, strict=True)
        ]
        expected = old.double() + sum(moves) / torch.stack(masks).sum(0).clamp(min=1)
        torch.testing.assert_close(merged[name].double(), expected, rtol=1e-5, atol=1e-6)


def test_without_masks_all_count_by_their_examples(client: Client):
    sents = [trained(client, False, archive)[1] for archive in (ARCHIVE, ARCHIVE[:1])]
    before = sents[0]["before"]
    updates = [{n: sent["update"][n] for n in before} for sent in sents]
    parts = [update_part("fedavg", before, u, n) for u, n in zip(updates, (30, 10), strict=True)]
    for name, weight in merge(before, parts).items():
        torch.testing.assert_close(weight, 0.75 * updates[0][name] + 0.25 * updates[1][name])
