"""SPIDER's search, Algorithm 2: when it decides, what, and whether it finds what is useful."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import cast

import pytest
import torch

from fedtailor.algorithms.spider import SPIDER, Private
from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Message, Setting, Tensors
from fedtailor.data.federation import Federation
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.store import Store, cut, shapes
from fedtailor.search import milenas
from fedtailor.spaces._darts_cell import INPUT_EDGES
from fedtailor.spaces.darts import DARTS
from fedtailor.training import learn
from fedtailor.training.population import population_scores
from tests.helpers.few_edges import BOTH, SEP, SKIP
from tests.helpers.sde_setting import client_of
from tests.helpers.silos import DECIDED, OPEN, PLAIN, begun, equal, received

# Algorithm 2: when


def events(how: SPIDER, client: Client, own: Private, rounds: int) -> Iterator[int]:
    """Tell in which of its rounds a silo searches, without training it."""
    for t in range(rounds):
        after, log = how._searched(client, replace(own, rounds=t))
        assert bool(log.architectures) == (after.arch != own.arch)
        if log.architectures:
            yield t
        own = replace(after, rounds=t)


@pytest.mark.parametrize(
    ("warmup", "recovery", "expected"),
    [
        (30, 20, list(range(40, 301, 20))),  # the paper's: 14 of them
        (40, 20, list(range(40, 301, 20))),
        (41, 20, list(range(60, 321, 20))),
        (0, 3, list(range(0, 40, 3))),
        (5, 1, list(range(5, 19))),
    ],
)
def test_searches_come_in_the_rounds_that_are_for_them(
    warmup: int, recovery: int, expected: list[int], silo: Callable[..., Client]
):
    space = DARTS(channels=2, cells=3, operations="s2", form="relaxed")
    client = silo(space=space)
    how = SPIDER(searcher="random", warmup=warmup, recovery=recovery)
    assert list(events(how, client, how.client_init(client), 360)) == expected


def test_nodes_come_after_edges(silo: Callable[..., Client]):
    """Three nodes have more than two inputs."""
    client = silo(space=DARTS(channels=2, cells=3, operations="s2", form="relaxed"))
    how = SPIDER(searcher="random", inputs=2)
    found = list(events(how, client, how.client_init(client), 400))
    assert found == list(range(40, 361, 20))


def test_a_round_of_training_counts_what_came_before_it(silo: Callable[..., Client]):
    """The first search is in the third round: t = 2."""
    client, how = silo(), SPIDER(warmup=1, recovery=2, epochs=0, searcher="random")
    own, archs = how.client_init(client), list[Arch]()
    for _ in range(6):
        own, _ = how.train(client, own, received(client))
        archs.append(own.arch)
    assert archs[0] == archs[1] == OPEN != archs[2] == archs[3] != archs[4] == archs[5]
    assert own.rounds == 6 and not how.holds_out(own)


def test_without_a_search_the_own_network_is_the_spaces_architecture(silo: Callable[..., Client]):
    client, how = silo(), SPIDER(searcher="none", warmup=0, recovery=1, epochs=0)
    for arch in (DECIDED, OPEN):
        chosen = replace(client, setting=replace(client.setting, arch=arch))
        own = how.client_init(chosen)
        assert own.arch == arch and not how.holds_out(own)
        own, reply = how.train(chosen, own, received(client))
        assert own.arch == arch and not reply.log.architectures
        assert reply.message.tensors.keys() == received(client).tensors.keys(), "it is whole"


# Algorithm 2: what


def test_both_edges_are_decided_from_the_same_state_and_told(silo: Callable[..., Client]):
    """By plain networks, one at a time: the one that is missed most stays."""
    client, how = silo(), SPIDER(warmup=0, recovery=1, epochs=0, **PLAIN)
    own = begun(client, OPEN, rounds=4, shift=0.5)
    after, reply = how.train(client, own, received(client))
    measured = {m.name: m.value for m in reply.log.metrics if m.split == "val"}
    store, decided = Store(client.setting.space, client.setting.task, own.weights), list(OPEN)
    names = {SKIP: "skip_connect", SEP: "sep_conv_3x3"}
    edges = [edge for edge in range(28) if after.arch[edge] != OPEN[edge]]
    assert len(edges) == 2 and edges[0] < 14 <= edges[1]
    for edge in edges:
        missed = {}
        for left, removed in ((SEP, SKIP), (SKIP, SEP)):
            arch = (*OPEN[:edge], left, *OPEN[edge + 1 :])
            (accuracy,) = population_scores(store, [arch], client.val, "accuracy")
            (likelihood,) = population_scores(store, [arch], client.val, "likelihood")
            name = f"{client.setting.space.choices[edge].name}/{names[removed]}"
            assert measured.pop(f"without/{name}") == pytest.approx(accuracy)
            assert measured.pop(f"loss without/{name}") == pytest.approx(-likelihood)
            missed[removed] = (-accuracy, -likelihood)
        decided[edge] = max(missed, key=missed.__getitem__)
    assert after.arch == tuple(decided) and not measured
    rows = reply.log.architectures
    assert [row.role for row in rows] == ["decided", "decided"]
    assert rows[1].arch == after.arch
    assert rows[0].arch == (*after.arch[:14], *OPEN[14:])
    space, task = client.setting.space, client.setting.task
    assert [row.cost for row in rows] == [cost.prices(space, row.arch, task) for row in rows]
    assert set(after.weights) < set(own.weights)
    assert all(torch.equal(w, own.weights[n]) for n, w in after.weights.items())


def test_tests_of_removals_touch_neither_weights_nor_statistics(silo: Callable[..., Client]):
    client, how = silo(), SPIDER(warmup=0, recovery=1, **PLAIN)
    own = begun(client, OPEN, rounds=4)
    before = {name: weight.clone() for name, weight in own.weights.items()}
    after, _ = how._searched(client, own)
    assert equal(own.weights, before)
    assert all(torch.equal(weight, before[name]) for name, weight in after.weights.items())
    assert client.meter.macs > 0, "and they are charged"


def test_chance_tests_nothing(silo: Callable[..., Client]):
    """It draws the same edges, in the same rounds."""
    client, drawn = silo(), {}
    for searcher in ("accuracy", "loss", "printed", "random"):
        own = begun(client, OPEN, rounds=4)
        how = SPIDER(warmup=0, recovery=1, searcher=searcher)  # pyright: ignore[reportArgumentType]
        alone = replace(client, meter=type(client.meter)())
        after, log = how._searched(alone, own)
        assert bool(log.metrics) == bool(alone.meter.macs) == (searcher != "random")
        drawn[searcher] = [edge for edge in range(28) if after.arch[edge] != OPEN[edge]]
    assert len({tuple(edges) for edges in drawn.values()}) == 1


def test_where_one_operation_can_stay_it_does_without_a_test(silo: Callable[..., Client]):
    """Noise reads nothing: the last edge from an input keeps its convolution."""
    space = DARTS(channels=2, cells=3, operations="s4", form="relaxed")
    noise, convolution = 1, 2
    arch = [noise if e in INPUT_EDGES[0][1:] else convolution for e in range(28)]
    arch[0] = noise | convolution
    client, how = silo(space=space), SPIDER(warmup=0, recovery=1)
    after, log = how._searched(client, Private(tuple(arch), {}, 0))
    assert after.arch == (convolution, *arch[1:]) and not how.holds_out(after)
    assert not log.metrics and not client.meter.macs
    assert [row.arch for row in log.architectures] == [after.arch]


def test_decisions_differ_by_silo_and_by_round(silo: Callable[..., Client]):
    how = SPIDER(warmup=0, recovery=1, searcher="random")
    space = DARTS(channels=2, cells=3, operations="s2", form="relaxed")
    found = {
        how._searched(silo(round, number, space), Private(space.largest(), {}, 5))[0].arch
        for round in (1, 2, 3)
        for number in (0, 1, 2)
    }
    assert len(found) > 6


STRIDED = (14, 15, 16, 17, 19, 20, 23, 24)  # reduction edges from the inputs: both have weights
USEFUL = dict(zip(STRIDED, (SEP, SKIP, SKIP, SEP, SKIP, SEP, SEP, SKIP), strict=True))


def _useless(name: str) -> bool:
    """Tell the last weights of the operations that are to give nothing."""
    last = {SKIP: ".sep_conv_3x3.pointwise2.", SEP: ".skip_connect.conv"}
    return any(
        f"{cell}.edge{edge - 14}{last[good]}" in name
        for cell in ("cell1", "cell2")
        for edge, good in USEFUL.items()
    )


@pytest.fixture(scope="module")
def planted(federation: Federation) -> tuple[Client, Private]:
    """A network that knows its validation images; of eight edges only one operation does anything.

    A batch norm of zeros is zero: what is useless changes nothing, to the bit.
    """
    space = DARTS(channels=4, cells=3, operations="s2", form="relaxed")
    normal = [SEP, SEP, 0, 0, SKIP, 0, 0, SKIP, 0, 0, 0, SKIP, 0, 0]
    arch = space.repair((*normal, *(BOTH if e in STRIDED else 0 for e in range(14, 28))))
    client = client_of(federation, Setting(federation.task, space, 10, 3), 0, 1)
    weights = Store(space, federation.task, initial_supernet(client.setting)).cut(arch)
    weights = {n: torch.zeros_like(w) if _useless(n) else w for n, w in weights.items()}
    network = learn.network(replace(client, train=client.val), weights, arch)
    live = network.only(lambda name: not _useless(name))
    recipe = learn.Recipe(lr=0.1, batch=16)
    learn.fit(replace(client, train=client.val), live, recipe, epochs=60)
    return client, Private(arch, network.weights(), 1)


def _kept(searcher: str, planted: tuple[Client, Private], round: int = 1) -> list[bool]:
    """Search until all is decided; return of each edge whether what is useful stayed."""
    client, own = planted
    how = SPIDER(warmup=0, recovery=1, searcher=searcher)  # pyright: ignore[reportArgumentType]
    for later in range(8):
        own, _ = how._searched(replace(client, round=round + later), own)
    assert all(own.arch[edge] in (SKIP, SEP) for edge in STRIDED)
    return [own.arch[edge] == good for edge, good in USEFUL.items()]


@pytest.mark.parametrize("searcher", ["accuracy", "loss"])
def test_what_is_useful_is_found(searcher: str, planted: tuple[Client, Private]):
    assert all(_kept(searcher, planted))


def test_the_printed_rule_drops_what_is_useful(planted: tuple[Client, Private]):
    """At the first decision for certain, when the network is still whole."""
    client, own = planted
    for edge, good in USEFUL.items():
        others = {e: USEFUL[e] for e in STRIDED if e != edge}
        arch = tuple(others.get(e, gene) for e, gene in enumerate(own.arch))
        for searcher, stays in (("printed", BOTH - good), ("accuracy", good)):
            how = SPIDER(warmup=0, recovery=1, searcher=searcher)  # pyright: ignore[reportArgumentType]
            found, _ = how._searched(client, replace(own, arch=arch))
            assert found.arch[edge] == stays
    assert sum(_kept("printed", planted)) <= 3


def test_chance_does_not_find_what_is_useful(planted: tuple[Client, Private]):
    found = [sum(_kept("random", planted, round)) for round in range(1, 200, 10)]
    assert max(found) < 8 and 3 < sum(found) / len(found) < 5, "four of eight, on average"


def test_milenas_by_hand(silo: Callable[..., Client]):
    """Alphas, then weights, batch by batch; validation images from a key of their own."""
    client = silo()
    how = SPIDER(searcher="milenas", alpha_lr=0.5, alpha_weight=2.0, strength=0.1, **PLAIN)
    message, own = received(client, 0.05), how.client_init(client)
    assert set(own.alphas) == {0.0}
    after, reply = how.train(client, own, message)
    space = cast(DARTS, client.setting.space)
    mine = learn.network(client, begun_weights(client, message), own.arch)
    steps = learn.optimizer(mine, how, how.lr)
    alphas = torch.zeros(milenas.count(space))
    pairs = zip(
        learn.batches(client, how.batch, purpose="train"),
        learn.batches(client, how.batch, epochs=99, purpose="alphas", examples=client.val),
        strict=False,
    )
    for train, val in pairs:
        mixed = milenas.Mixed(mine, alphas, iter([val]), 0.5, 2.0)
        mixed.learn(train)
        alphas = mixed.alphas
        steps.zero_grad()
        mixed.loss(train).backward()
        learn.pull(mine, message.tensors, 0.1)
        learn.move(mine, steps)
    assert after.alphas == tuple(alphas.tolist()) and len(set(after.alphas)) > 4
    assert equal(after.weights, mine.weights())
    plain, _ = replace(how, searcher="none").train(client, own, message)
    assert not equal(after.weights, plain.weights), "the own network is mixed"
    assert equal(reply.message.tensors, SPIDER(strength=0.1, **PLAIN).train(
        client, SPIDER().client_init(client), message)[1].message.tensors
    ), "the supernet is not"  # fmt: skip


def begun_weights(client: Client, message: Message) -> Tensors:
    space, task = client.setting.space, client.setting.task
    return cut(message.tensors, shapes(space, space.largest(), task))


@pytest.mark.parametrize(("given", "rounds"), [(2, 10), (None, 5)])
def test_milenas_decides_all_edges_after_its_rounds(
    given: int | None, rounds: int, silo: Callable[..., Client]
):
    """Left out, four tenths of the run's."""
    client, how = silo(), SPIDER(searcher="milenas", search_rounds=given, **PLAIN)
    client = replace(client, setting=replace(client.setting, rounds=rounds))
    own, message = how.client_init(client), received(client)
    for done in range(4):
        own, reply = how.train(client, own, message)
        decided = [row.role for row in reply.log.architectures]
        assert decided == (["decided"] if done == 2 else [])
        assert how.holds_out(own) == (done < 2)
        names = [label for label, _ in how.deploy(client, own, message)]
        assert names[0] == "untuned"
        _, network = next(how.deploy(client, own, message))
        expected = milenas.strongest(
            cast(DARTS, client.setting.space), OPEN, torch.tensor(own.alphas)
        )
        assert network.arch == expected
        if done >= 2:
            assert own.arch == expected
            assert equal(network.weights(), own.weights)
    assert all(live.bit_count() < 2 for live in own.arch)
