"""SPIDER, Algorithm 1 line by line, against independent computations."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedtailor.algorithms.fedavg import Global
from fedtailor.algorithms.spider import SPIDER, Private
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Examples,
    Message,
    Reply,
    Result,
    Server,
    Setting,
)
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.norms import is_statistic
from fedtailor.spaces.cnn import CNN
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training import learn
from tests.helpers.few_edges import FewEdges
from tests.helpers.silos import DECIDED, HALF, OPEN, PLAIN, begun, equal, received

# Line 18: the own network


@pytest.mark.parametrize("arch", [OPEN, HALF, DECIDED, ()], ids=["open", "half", "decided", "cnn"])
def test_the_own_network_is_pulled_to_the_weights_received_of_its_operations(
    arch: Arch, silo: Callable[..., Client]
):
    """Eq. 4 as a loss, by autograd; and no gradient is cut. A fixed model has nothing to search."""
    client = silo(space=FewEdges() if arch else CNN(width=4, hidden=16))
    how = SPIDER(strength=0.7, clip=1e-6, weight_decay=0.01, epochs=2, **PLAIN)
    own, message = begun(client, arch), received(client, 0.3)
    after, _ = how.train(client, own, message)
    if arch in (DECIDED, ()):
        client = learn.joined(client)
    mine = learn.network(client, own.weights, arch)
    steps = torch.optim.SGD(mine.live.values(), 0.05, momentum=0.9, weight_decay=0.01)
    for batch in learn.batches(client, 20, epochs=2, purpose="train"):
        steps.zero_grad()
        distance = sum((p - message.tensors[n]).square().sum() for n, p in mine.live.items())
        (F.cross_entropy(mine.module(batch.images), batch.labels) + 0.35 * distance).backward()
        steps.step()
    found = mine.weights()
    assert after.weights.keys() == found.keys() and after.arch == arch and after.rounds == 2
    for name, weight in found.items():
        torch.testing.assert_close(after.weights[name], weight, rtol=1e-4, atol=1e-5)
    assert any(map(is_statistic, after.weights)) == bool(arch), "statistics of its own"
    assert how.holds_out(own) == (arch in (OPEN, HALF))


def test_names_of_the_own_network_are_those_of_its_live_operations(silo: Callable[..., Client]):
    client = silo()
    after, reply = SPIDER(**PLAIN).train(client, begun(client, HALF), received(client))
    operations = {tuple(n.split(".")[:3]) for n in after.weights if ".edge" in n}
    normal = {("edge0", "sep_conv_3x3"), ("edge1", "sep_conv_3x3"), ("edge4", "sep_conv_3x3")}
    reduction = {
        ("edge0", "skip_connect"),  # strided, so it has weights
        ("edge1", "sep_conv_3x3"),
        ("edge4", "sep_conv_3x3"),
    }
    cells = {"cell0": normal, "cell1": reduction, "cell2": reduction}
    assert operations == {(cell, *one) for cell, some in cells.items() for one in some}
    assert ("cell1.edge0.sep_conv_3x3.depthwise1.weight") in reply.message.tensors


def test_an_endless_pull_holds_it_and_none_lets_it_go(silo: Callable[..., Client]):
    client, distance = silo(), {}
    own, message = begun(client, OPEN), received(client, 0.3)
    for strength in (1e-9, 1.0, 15.0):
        how = SPIDER(strength=strength, momentum=0.0, epochs=8, **PLAIN)
        after, _ = how.train(client, own, message)
        names = [n for n in own.weights if not is_statistic(n)]
        # the root of all squares: one weight alone goes its own way on another processor
        apart = [(after.weights[n] - message.tensors[n]).flatten() for n in names]
        distance[strength] = torch.cat(apart).norm().item()
    assert distance[15.0] < distance[1.0] / 2 < distance[1e-9] / 4


# Line 17: the supernet


def test_the_supernet_trains_as_if_there_were_nothing_else(silo: Callable[..., Client]):
    """Plain cross-entropy, its gradient cut to 5 by default, batches of 20, no pull."""
    client = silo()
    how, message = SPIDER(epochs=2, **PLAIN), received(client)
    _, reply = how.train(client, begun(client, OPEN, shift=0.5), message)
    shared, norms = learn.network(client, message.tensors, OPEN), list[float]()
    steps = torch.optim.SGD(shared.live.values(), 0.05, momentum=0.9, weight_decay=1e-3)
    for batch in learn.batches(client, 20, epochs=2, purpose="train"):
        steps.zero_grad()
        F.cross_entropy(shared.module(batch.images), batch.labels).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(shared.live.values()), 5.0)))
        steps.step()
    found = {n: w for n, w in shared.weights().items() if not is_statistic(n)}
    assert equal(reply.message.tensors, found)
    assert how.clip == 5.0 and reply.message.info == {}
    tight = replace(how, clip=min(norms) / 10)
    _, cut = tight.train(client, begun(client, OPEN, shift=0.5), message)
    assert not equal(cut.message.tensors, found)


def test_what_is_sent_does_not_hang_on_the_own_network(silo: Callable[..., Client]):
    """To the bit: not on its weights, its operations, nor on how strongly it is pulled."""
    client = silo()
    message = received(client)
    replies = [
        replace(SPIDER(**PLAIN), strength=strength).train(client, own, message)[1].message
        for strength, own in [
            (0.01, begun(client, OPEN)),
            (0.01, begun(client, OPEN, shift=0.5)),
            (2.0, begun(client, HALF)),
        ]
    ]
    assert equal(replies[0].tensors, replies[1].tensors)
    assert equal(replies[0].tensors, replies[2].tensors)


def test_epochs_in_turn_are_the_same_as_steps_in_turn(silo: Callable[..., Client]):
    """Algorithm 1 as it is written: a step of the one, a step of the other, on every batch."""
    client, how = silo(), SPIDER(strength=0.5, epochs=3, **PLAIN)
    own, message = begun(client, HALF, shift=0.2), received(client)
    after, reply = how.train(client, own, message)
    shared = learn.network(client, message.tensors, OPEN)
    mine = learn.network(client, own.weights, own.arch)
    of_shared, of_mine = (learn.optimizer(one, how, 0.05) for one in (shared, mine))
    for batch in learn.batches(client, 20, epochs=3, purpose="train"):
        of_shared.zero_grad()
        shared.loss(batch).backward()
        learn.move(shared, of_shared, 5.0)
        of_mine.zero_grad()
        mine.loss(batch).backward()
        learn.pull(mine, message.tensors, 0.5)
        learn.move(mine, of_mine)
    assert equal(reply.message.tensors, shared.weights(statistics=False))
    assert equal(after.weights, mine.weights())


def test_supernets_are_averaged_by_examples(silo: Callable[..., Client]):
    client = silo()
    weights = received(client).tensors
    infos = tuple(ClientInfo(i, examples) for i, examples in enumerate((10, 30, 60)))
    moved = [Message({n: w + step for n, w in weights.items()}) for step in (1.0, 2.0, 3.0)]
    results = [Result(i, {}, m, 1.0, 0) for i, m in zip(infos, moved, strict=True)]
    after = SPIDER().aggregate(Server(client.setting, 1, infos), Global(weights), results)
    for name, weight in weights.items():
        torch.testing.assert_close(after.weights[name], weight + 2.5)


def test_the_rate_falls_by_the_rounds_of_the_run(silo: Callable[..., Client]):
    """Both models', by half a cosine, to nothing."""
    first, how = silo(1), SPIDER(momentum=0.0, weight_decay=0.0, strength=1e-9, batch=48, clip=0.0)
    own, message = begun(first, OPEN), received(first)
    moves = []
    for round in (1, 6):
        client = replace(silo(round), train=replace(first.train, index=first.train.index[:40]))
        client = replace(client, setting=replace(client.setting, rounds=10))
        after, reply = how.train(client, own, message)
        moves.append(
            [
                (after.weights["head.bias"] - own.weights["head.bias"]).norm().item(),
                (reply.message.tensors["head.bias"] - message.tensors["head.bias"]).norm().item(),
            ]
        )
    assert how.lr == 0.01
    for early, late in zip(*moves, strict=True):
        assert late == pytest.approx(early / 2, rel=1e-3)


# A silo's first round, alone or not


def test_the_own_network_begins_as_the_supernet_that_is_received(silo: Callable[..., Client]):
    client, how = silo(), SPIDER(epochs=0)
    first, message = how.client_init(client), received(client, 0.4)
    assert first == Private(OPEN)
    own, reply = how.train(client, first, message)
    assert own.rounds == 1 and own.arch == OPEN
    assert equal({n: w for n, w in own.weights.items() if not is_statistic(n)}, message.tensors)
    assert equal(reply.message.tensors, message.tensors)
    later, _ = how.train(client, own, received(client, 0.8))
    assert equal(later.weights, own.weights), "and then it is its own"


def test_alone_nothing_is_sent_and_all_begin_alike(silo: Callable[..., Client]):
    how = SPIDER(strength=0.0, **PLAIN)
    server = Server(silo().setting, 1, (silo().info,))
    state = how.server_init(server)
    assert state.weights == {} and how.sends() == {"nothing": ()}
    message = how.serve(server, state, silo().info)
    assert message.tensors == {}
    client = silo()
    own, reply = how.train(client, how.client_init(client), message)
    assert reply.message.tensors == {} and reply.message.info == {}
    assert how.aggregate(server, state, []) == state
    mine = learn.network(client, initial_supernet(client.setting), OPEN)
    learn.fit(client, mine, replace(how, clip=0.0))
    assert equal(own.weights, mine.weights()), "as one would train the supernet alone"


# Phase 3, and what is deployed


def test_validation_images_join_when_all_is_decided(
    silo: Callable[..., Client], monkeypatch: pytest.MonkeyPatch
):
    """In the very round of the last decision, for both models."""
    sizes: list[int] = []
    batches = learn.batches

    def counted(client: Client, *given: Any, **named: Any) -> Any:
        sizes.append(len(client.train))
        return batches(client, *given, **named)

    monkeypatch.setattr(learn, "batches", counted)
    client, how = silo(), SPIDER(warmup=1, recovery=1, searcher="random", **PLAIN)
    own, message = how.client_init(client), received(client)
    for _ in range(4):
        own, _ = how.train(client, own, message)
    few, all_ = len(client.train), len(client.train) + len(client.val)
    assert sizes == [few, few, few, few, all_, all_, all_, all_]
    crowded = FewEdges(crowded=True)
    client, how = silo(space=crowded), replace(how, inputs=2)
    own, message = how.client_init(client), received(client)
    del sizes[:]
    for _ in range(5):
        own, _ = how.train(client, own, message)
    assert sizes == [few] * 6 + [all_] * 4, "and not before the nodes are"
    assert sum(map(bool, own.arch[2:5])) == 2


def test_deployed_is_the_own_network_with_its_own_statistics(silo: Callable[..., Client]):
    client, message = silo(), received(silo(), 0.3)
    own = begun(client, HALF, rounds=3)
    (label, network), *more = SPIDER().deploy(client, own, message)
    assert label == "untuned" and not more, "the headline of the paper"
    assert network.arch == HALF and equal(network.weights(), own.weights)
    how = SPIDER(finetune_epochs=2, **PLAIN)
    for arch, trained in ((HALF, client), (DECIDED, learn.joined(client))):
        own = begun(client, arch, rounds=3)
        assert how.holds_out(own) == (trained is client), "by which the engine joins images"
        tuned = dict(how.deploy(trained, own, message))["tuned"].weights()
        alone = learn.network(client, own.weights, arch)
        learn.fit(trained, alone, how, lr=0.05, epochs=2, purpose="finetune")
        assert equal(tuned, alone.weights())


def test_a_silo_that_was_never_drawn_gets_the_supernet_recalibrated(silo: Callable[..., Client]):
    client, message = silo(), received(silo(), 0.3)
    for how in (SPIDER(), SPIDER(strength=0.0)):
        sent = message if how.strength else Message()
        _, network = next(how.deploy(client, how.client_init(client), sent))
        first = message.tensors if how.strength else initial_supernet(client.setting)
        alone = learn.network(client, first, OPEN)
        learn.recalibrate(alone, client.train)
        assert network.arch == OPEN and equal(network.weights(), alone.weights())


# Every set of operations, few images, and what does not fit


def made_up(count: int, seed: int, task: Task) -> Examples:
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, *task.shape), generator=rng, dtype=torch.uint8)
    labels = torch.arange(count) % task.classes
    return Examples(images, labels, torch.arange(count), (0.5,), (0.25,))


def _trained(space: DARTS, train: int, val: int, how: SPIDER) -> tuple[Private, Reply, list[str]]:
    task = Task((1, 16, 16), 3)
    examples = made_up(train + val, 1, task)
    parts = [
        replace(examples, index=rows) for rows in torch.arange(train + val).split([train, val])
    ]
    setting = Setting(task, space, rounds=4, seed=0)
    client = Client(setting, ClientInfo(0, train), 1, parts[0], parts[1], parts[1])
    server = Server(setting, 1, (client.info,))
    message = how.serve(server, how.server_init(server), client.info)
    own, reply = how.train(client, how.client_init(client), message)
    return own, reply, [label for label, _ in how.deploy(client, own, message)]


@pytest.mark.parametrize("operations", ["darts", "s1", "s2", "s3", "s4", "s5"])
def test_every_set_of_operations_with_two_images_per_class_and_one_to_validate(operations: Any):
    space = DARTS(channels=2, cells=3, operations=operations, form="relaxed")
    how = SPIDER(warmup=0, recovery=1, finetune_epochs=1)
    own, reply, labels = _trained(space, 6, 1, how)
    assert labels == ["untuned", "tuned"] and space.repair(own.arch) == own.arch
    assert len([e for e in range(28) if own.arch[e] != space.largest()[e]]) == 2
    assert sum(m.name.startswith("without/") for m in reply.log.metrics) == 2 * (
        len(space.offers[0])
    )


@pytest.mark.parametrize(("train", "val"), [(2, 1), (2, 9), (33, 2)])
def test_few_images(train: int, val: int):
    own, _, labels = _trained(FewEdges(), train, val, SPIDER(warmup=0, recovery=1))
    assert labels == ["untuned"] and own.arch != OPEN


@pytest.mark.parametrize(
    "space",
    [MobileNetV3(), DARTS(operations="s2"), DARTS()],
    ids=["mobilenetv3", "path of s2", "path"],
)
def test_spaces_whose_operations_cannot_be_removed_are_refused(space: SearchSpace):
    setting = Setting(Task((3, 32, 32), 10), space, rounds=4, seed=0, arch=space.middle())
    for how in (SPIDER(), SPIDER(searcher="none")):
        with pytest.raises(
            UserError, match=r'^space\.name: .*form = "relaxed".*\bset\b'
        ) as refused:
            how.check(setting)
        assert "\n" not in str(refused.value)


def test_what_fits_is_not_refused_and_the_printed_rule_warns():
    setting = Setting(Task((3, 32, 32), 10), CNN(), rounds=4, seed=0)
    for space in (CNN(), DARTS(form="relaxed"), DARTS(form="relaxed", operations="s4")):
        SPIDER(inputs=2).check(replace(setting, space=space))
    with pytest.raises(UserError, match=r"^algorithm\.inputs: .*set inputs = 0"):
        SPIDER(searcher="none", inputs=2).check(setting)
    assert SPIDER().warnings() == SPIDER(searcher="random").warnings() == ()
    assert "missed least" in SPIDER(searcher="printed").warnings()[0]


@pytest.mark.parametrize(
    ("changes", "share", "ends"),
    [
        ({}, 1.0, 301),  # the paper's: the last search of a silo is at t = 300
        ({}, 0.25, 1204),
        ({"inputs": 2}, 1.0, 361),
        ({"warmup": 6, "recovery": 3, "searcher": "random"}, 1.0, 46),
        ({"searcher": "milenas", "search_rounds": 24}, 1.0, 25),
        ({"searcher": "milenas"}, 1.0, 41),
        ({"searcher": "none"}, 1.0, 0),
    ],
)
def test_the_round_in_which_all_is_decided(changes: dict[str, Any], share: float, ends: int):
    how, space = SPIDER(**changes), DARTS(operations="s2", form="relaxed")
    assert how.search_ends(space, 100, share) == ends
    assert how.search_ends(CNN(), 100, share) == 0


def test_only_a_search_needs_images_that_are_held_out():
    """Else `data.join_val` asks for what is done anyway."""
    setting = Setting(Task((3, 32, 32), 10), DARTS(form="relaxed"), rounds=4, seed=0)
    assert SPIDER().needs_val(setting) and SPIDER(searcher="random").needs_val(setting)
    assert not SPIDER(searcher="none").needs_val(setting)
    assert not SPIDER().needs_val(replace(setting, space=CNN()))
