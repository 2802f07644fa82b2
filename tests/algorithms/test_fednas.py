"""FedNAS: averages, alphas and decisions by hand, a slow round, and what does not fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch.nn import functional as F

from fedtailor.algorithms._replies import ReplyError, check_reply
from fedtailor.algorithms.fednas import ALPHAS, FedNAS, Found, Seen
from fedtailor.core import codec
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Examples,
    Message,
    Result,
    Server,
    Setting,
    Tensors,
)
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import Store, shapes
from fedtailor.search import milenas
from fedtailor.spaces.cnn import CNN
from fedtailor.spaces.darts import DARTS
from fedtailor.spaces.mobilenetv3 import MobileNetV3
from fedtailor.training import learn
from fedtailor.training.population import population_scores
from tests.helpers.few_edges import BOTH, SEP, SKIP, FewEdges
from tests.helpers.silos import DECIDED, OPEN, PLAIN, equal

SPACE = FewEdges()
COUNT = milenas.count(SPACE)
INFOS = (ClientInfo(0, 30), ClientInfo(1, 10))
Silo = Callable[..., Client]


def server_of(client: Client, round: int, public: Examples | None = None) -> Server:
    return Server(client.setting, round, INFOS, public)


def moved(sent: Message, added: float, info: ClientInfo) -> Result:
    """Return what a client sends that added something to every number it got."""
    tensors = {name: tensor + added for name, tensor in sent.tensors.items()}
    return Result(info, sent.info, Message(tensors), 1.0, 0)


def round_of(how: FedNAS, client: Client, state: Found, done: int, public: Any = None) -> Found:
    """Do a round in which clients of 30 and 10 examples add 1 and 3 to everything: 1.5 together."""
    sent = how.configure(server_of(client, done), state, list(INFOS))
    assert sent[0] is sent[1], "one message for all"
    results = [moved(sent[0], 1.0, INFOS[0]), moved(sent[1], 3.0, INFOS[1])]
    return how.aggregate(server_of(client, done, public), state, iter(results))


def genes(arch: Arch) -> dict[str, list[int]]:
    return {"genes": list(arch)}


# The server: averages and phases


@pytest.mark.parametrize("statistics", ["merged", "own"])
def test_weights_and_alphas_are_averaged_by_examples(statistics: Any, silo: Silo):
    client, how = silo(), FedNAS(search_rounds=4, statistics=statistics)
    state = how.server_init(server_of(client, 0))
    first = initial_weights(client.setting, OPEN)
    wanted = {n: w for n, w in first.items() if statistics == "merged" or not is_statistic(n)}
    assert (state.arch, state.next) == (OPEN, OPEN) and equal(state.weights, wanted)
    assert any(map(is_statistic, state.weights)) == (statistics == "merged")
    sent = how.configure(server_of(client, 1), state, [INFOS[1]])
    assert list(sent) == [1] and sent[1].info == genes(OPEN)
    assert sent[1].tensors.keys() == {*wanted, ALPHAS}
    assert sent[1].tensors[ALPHAS].tolist() == [0.0] * COUNT
    for done in (1, 2, 3):
        state = round_of(how, client, state, done)
        assert ALPHAS not in state.weights
        torch.testing.assert_close(state.alphas, torch.full((COUNT,), 1.5 * done))
        for name, weight in wanted.items():
            torch.testing.assert_close(state.weights[name], weight + 1.5 * done, msg=name)


def test_milenas_finds_the_strongest_and_trains_it_from_its_first_weights(silo: Silo):
    """Tested after the last round of the search is still the mixture's strongest part."""
    client, how = silo(), FedNAS(search_rounds=2)
    state = how.server_init(server_of(client, 0))
    state = round_of(how, client, state, 1)
    alphas = torch.arange(COUNT).float()  # of each edge the last operation: the convolution
    state = round_of(how, client, replace(state, alphas=alphas), 2)
    assert (state.arch, state.next) == (OPEN, DECIDED)
    served = how.serve(server_of(client, 2), state, INFOS[0])
    assert served.info == genes(DECIDED)
    for name, weight in served.tensors.items():
        assert not is_statistic(name) and torch.equal(weight, state.weights[name])
    assert served.tensors.keys() == shapes(SPACE, DECIDED, client.setting.task).keys()
    first = initial_weights(client.setting, DECIDED)
    sent = how.configure(server_of(client, 3), state, list(INFOS))[0]
    assert sent.info == genes(DECIDED) and equal(sent.tensors, first), "and no alphas"
    state = round_of(how, client, state, 3)
    assert (state.arch, state.next) == (DECIDED, DECIDED)
    torch.testing.assert_close(state.alphas, alphas + 1.5)
    for name, weight in first.items():
        torch.testing.assert_close(state.weights[name], weight + 1.5)
    served = how.serve(server_of(client, 3), state, INFOS[0])
    assert equal(served.tensors, state.weights), "statistics too"


def test_before_anything_is_found_the_strongest_is_served(silo: Silo):
    client, how = silo(), FedNAS()
    state = how.server_init(server_of(client, 0))
    alphas = torch.zeros(COUNT)
    alphas[0::2] = 0.1  # of each edge the first operation: the skip connection
    served = how.serve(server_of(client, 1), replace(state, alphas=alphas), INFOS[0])
    skips = tuple(SKIP if gene == BOTH else gene for gene in OPEN)
    assert served.info == genes(skips)
    ((_, network),) = replace(how, finetune_epochs=0).deploy(client, Seen(), served)
    alone = learn.network(client, served.tensors, skips)
    learn.recalibrate(alone, client.train)
    assert network.arch == skips and equal(network.weights(), alone.weights())


def test_perturbation_decides_by_spiders_schedule_and_keeps_weights(silo: Silo):
    """After rounds 4 and 6 of 8, since 3 are no multiple of 2; all else stands still."""
    client = silo()
    client = replace(client, setting=replace(client.setting, rounds=8))
    how = FedNAS(searcher="perturbation", warmup=3, recovery=2)
    state, open_edges = how.server_init(server_of(client, 0, client.test)), []
    assert state.alphas.numel() == 0
    for done in range(1, 9):
        before = state
        state = round_of(how, client, state, done, client.test)
        assert state.arch == before.next
        for name, weight in state.weights.items():
            torch.testing.assert_close(weight, before.weights[name] + 1.5)
        names = shapes(SPACE, state.arch, client.setting.task, statistics=True).keys()
        assert state.weights.keys() == names
        served = how.serve(server_of(client, done), state, INFOS[0])
        assert served.info == genes(state.arch) and equal(served.tensors, state.weights), (
            "tested is what was trained, not what will be"
        )
        open_edges.append(sum(gene == BOTH for gene in state.next))
    assert open_edges == [4, 4, 4, 2, 2, 0, 0, 0]
    assert len(state.tested) == 8, "two operations of four edges"


def test_nothing_is_decided_after_the_last_round(silo: Silo):
    client = silo()
    client = replace(client, setting=replace(client.setting, rounds=1))
    how = FedNAS(searcher="perturbation", warmup=1, recovery=1)
    state = how.server_init(server_of(client, 0))
    assert round_of(how, client, state, 1).next == OPEN, "nor are images of the server looked at"


def test_the_server_decides_by_its_own_images_what_is_missed_most(silo: Silo):
    """By plain networks, one at a time, on batches' own statistics; and it is charged."""
    client, other = silo(), silo(number=1)
    how = FedNAS(searcher="perturbation", warmup=1, recovery=1)
    state = how.server_init(server_of(client, 0))
    rng = torch.Generator().manual_seed(7)
    shaken = {n: w + 0.3 * torch.randn(w.shape, generator=rng) for n, w in state.weights.items()}
    state = replace(state, weights={n: w.abs() if "var" in n else w for n, w in shaken.items()})
    before = codec.digest(state)
    server = server_of(client, 1, other.train)
    sent = how.configure(server, state, list(INFOS))[0]
    found = how.aggregate(server, state, [Result(INFOS[0], {}, Message(sent.tensors), 1.0, 0)])
    assert codec.digest(state) == before and equal(found.weights, state.weights)
    store, decided = Store(SPACE, client.setting.task, state.weights), list(OPEN)
    edges = [edge for edge in range(28) if found.next[edge] != OPEN[edge]]
    assert len(edges) == 2 and edges[0] < 14 <= edges[1]
    tested, macs = dict(found.tested), 0.0
    for edge in edges:
        missed = {}
        for left, removed in ((SEP, SKIP), (SKIP, SEP)):
            arch = (*OPEN[:edge], left, *OPEN[edge + 1 :])
            (accuracy,) = population_scores(store, [arch], other.train, "accuracy")
            (likelihood,) = population_scores(store, [arch], other.train, "likelihood")
            operation = {SKIP: "skip_connect", SEP: "sep_conv_3x3"}[removed]
            name = f"{SPACE.choices[edge].name}/{operation}"
            assert tested.pop(name) == pytest.approx((accuracy, likelihood))
            missed[removed] = (-accuracy, -likelihood)
            macs += len(other.train) * cost.forward_macs(SPACE, arch, client.setting.task)
        decided[edge] = max(missed, key=missed.__getitem__)
    assert found.next == tuple(decided) and not tested
    assert 0.2 * macs < server.meter.macs < macs, "what variants share is computed once"
    again = how.aggregate(server_of(client, 1, other.train), state, [
        Result(INFOS[0], {}, Message(sent.tensors), 1.0, 0)])  # fmt: skip
    later = how.aggregate(server_of(client, 2, other.train), state, [
        Result(INFOS[0], {}, Message(sent.tensors), 1.0, 0)])  # fmt: skip
    assert again.next == found.next and later.tested.keys() != found.tested.keys()
    told = how.inspect(SPACE, found)
    assert told["without"].keys() == found.tested.keys()
    name = SPACE.choices[edges[0]].name
    assert len(told["alive"][name]) == 1 and told["alive"]["normal c_{k-1} to 0"] == [
        "sep_conv_3x3"
    ]


# Clients


def slow_round(how: FedNAS, client: Client, msg: Message) -> Tensors:
    """Train by plain autograd: alphas by both gradients, then weights, the gradient cut."""
    space, arch = cast(DARTS, client.setting.space), tuple(msg.info["genes"])
    net = learn.network(client, {n: t for n, t in msg.tensors.items() if n != ALPHAS}, arch)
    alphas = msg.tensors[ALPHAS].clone()
    steps = torch.optim.SGD(net.live.values(), how.lr, momentum=0.9, weight_decay=1e-3)
    vals = learn.batches(client, how.batch, epochs=99, purpose="alphas", examples=client.val)
    for batch in learn.batches(client, how.batch, epochs=how.epochs, purpose="train"):
        val, point = next(vals), alphas.requires_grad_()
        mixing = milenas.mixing(space, arch, point)
        kept = {n: b.clone() for n, b in net.module.named_buffers()}
        losses = [F.cross_entropy(net.module((one.images, mixing)), one.labels)
                  for one in (batch, val)]  # fmt: skip
        slope = torch.autograd.grad(losses[0] + how.alpha_weight * losses[1], point)[0]
        alphas = (alphas - how.alpha_lr * slope).detach()
        with torch.no_grad():
            for name, buffer in net.module.named_buffers():
                buffer.copy_(kept[name])
        steps.zero_grad()
        logits = net.module((batch.images, milenas.mixing(space, arch, alphas)))
        F.cross_entropy(logits, batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(list(net.live.values()), how.clip)
        steps.step()
    return net.weights() | {ALPHAS: alphas}


@pytest.mark.parametrize("statistics", ["merged", "own"])
def test_a_round_of_milenas_against_a_slow_one(statistics: Any, silo: Silo):
    """Two clients of their own numbers of examples; the mean of what they trained slowly."""
    how = FedNAS(alpha_lr=0.5, alpha_weight=2.0, clip=1.0, epochs=2, statistics=statistics, **PLAIN)
    clients = [silo(), replace(silo(number=1), info=INFOS[1])]
    clients[1] = replace(
        clients[1], train=replace(clients[1].train, index=clients[1].train.index[:30])
    )
    server = Server(clients[0].setting, 1, tuple(one.info for one in clients))
    state = how.server_init(server)
    sent = how.configure(server, state, [one.info for one in clients])
    replies, slow = list[Result](), list[Tensors]()
    for one in clients:
        own, reply = how.train(one, Seen(), sent[one.info.id])
        assert own == Seen(val=False) and reply.message.info == {}
        assert reply.message.tensors.keys() == sent[0].tensors.keys()
        replies.append(Result(one.info, {}, reply.message, 1.0, 0))
        slow.append(slow_round(how, one, sent[0]))
    after = how.aggregate(server, state, iter(replies))
    total = sum(one.info.examples for one in clients)
    for name, got in (after.weights | {ALPHAS: after.alphas}).items():
        mean = sum(c.info.examples / total * s[name] for c, s in zip(clients, slow, strict=True))
        torch.testing.assert_close(got, mean, rtol=1e-4, atol=1e-5, msg=name)
    assert len(set(after.alphas.tolist())) > 4
    trained = slow[0]["stem.conv.weight"] - sent[0].tensors["stem.conv.weight"]
    assert trained.norm() > 1e-3


@pytest.mark.parametrize("arch", [OPEN, DECIDED])
def test_without_alphas_a_round_is_fedavgs(arch: Arch, silo: Silo):
    """Of sums, not of averages; and on validation images as soon as all is decided."""
    client, how = silo(), FedNAS(searcher="perturbation", clip=1.0, epochs=2, **PLAIN)
    weights = initial_weights(client.setting, arch)
    own, reply = how.train(client, Seen(), Message(weights, genes(arch)))
    assert own == Seen(val=arch == DECIDED) and how.holds_out(own) == (arch == OPEN)
    trained = learn.joined(client) if arch == DECIDED else client
    alone = learn.network(client, weights, arch)
    steps = torch.optim.SGD(alone.live.values(), 0.05, momentum=0.9, weight_decay=1e-3)
    for batch in learn.batches(trained, 20, epochs=2, purpose="train"):
        steps.zero_grad()
        F.cross_entropy(alone.module(batch.images), batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(list(alone.live.values()), 1.0)
        steps.step()
    assert equal(reply.message.tensors, alone.weights())


def test_what_is_deployed_is_tuned_and_its_statistics_are_as_sent_or_own(silo: Silo):
    client = silo()
    rng = torch.Generator().manual_seed(7)
    first = initial_weights(client.setting, DECIDED)
    sent = {n: w + 0.1 * torch.rand(w.shape, generator=rng) for n, w in first.items()}
    how = FedNAS(finetune_epochs=2, **PLAIN)
    ((label, network),) = list(
        replace(how, finetune_epochs=0).deploy(client, Seen(), Message(sent, genes(DECIDED)))
    )
    assert label == "untuned" and equal(network.weights(), sent)
    bare = {n: w for n, w in sent.items() if not is_statistic(n)}
    tuned = dict(how.deploy(client, Seen(), Message(bare, genes(DECIDED))))["tuned"]
    alone = learn.network(client, bare, DECIDED)
    learn.recalibrate(alone, client.train)
    assert not equal(alone.weights(), sent)
    learn.fit(client, alone, how, lr=0.05, epochs=2, purpose="finetune")
    assert equal(tuned.weights(), alone.weights())


@pytest.mark.parametrize(
    ("searcher", "round", "rate"),
    [("milenas", 1, 1.0), ("milenas", 3, 0.5), ("milenas", 5, 1.0), ("milenas", 8, 0.5),
     ("perturbation", 1, 1.0), ("perturbation", 6, 0.5)],
)  # fmt: skip
def test_the_schedule_begins_anew_where_weights_do(
    searcher: Any, round: int, rate: float, silo: Silo
):
    """Four rounds of search, six of training: the middle of each has half the rate."""
    how = FedNAS(searcher=searcher, search_rounds=4, schedule="cosine", lr=1.0)
    assert how._rate(silo(round), searching=round <= 4) == pytest.approx(rate)


# What fits, and what does not


def setting(space: SearchSpace, rounds: int = 10) -> Setting:
    return Setting(Task((3, 32, 32), 10), space, rounds, seed=0, arch=space.middle())


@pytest.mark.parametrize("space", [MobileNetV3(), DARTS(operations="s2")], ids=["mobile", "path"])
def test_spaces_whose_operations_cannot_be_removed_are_refused(space: SearchSpace):
    with pytest.raises(UserError, match=r'^space\.name: fednas searches darts .*"relaxed"'):
        FedNAS().check(setting(space))


def test_a_search_must_leave_rounds_to_train():
    relaxed = DARTS(operations="s2", form="relaxed")
    with pytest.raises(UserError, match=r"search_rounds: .*10 rounds and leaves none of 10"):
        FedNAS(search_rounds=10).check(setting(relaxed))
    FedNAS().check(setting(relaxed))
    assert FedNAS()._last_search(setting(relaxed)) == 4
    FedNAS(searcher="perturbation", search_rounds=10).check(setting(relaxed))
    FedNAS(search_rounds=10).check(setting(CNN()))


def test_the_round_that_is_the_first_of_what_was_found():
    """The paper's last decision is after round 300; averages of alphas are checked elsewhere."""
    relaxed = DARTS(operations="s2", form="relaxed")
    assert FedNAS(searcher="perturbation").search_ends(relaxed, 100, 0.1) == 301
    assert FedNAS(searcher="perturbation").search_ends(CNN(), 100, 0.1) == 0
    assert FedNAS().search_ends(relaxed, 100, 0.1) == 0


def test_who_needs_validation_images_and_images_of_the_server():
    relaxed = DARTS(operations="s2", form="relaxed")
    milenas_, perturbed = FedNAS(), FedNAS(searcher="perturbation")
    assert milenas_.needs_val(setting(relaxed)) and not perturbed.needs_val(setting(relaxed))
    assert milenas_.needs_public(setting(relaxed)) == 0
    assert perturbed.needs_public(setting(relaxed)) == 8
    assert perturbed.needs_public(setting(CNN())) == 0 == FedNAS().needs_val(setting(CNN()))
    assert perturbed.needs_public(setting(relaxed, rounds=0)) == 0, "new clients decide nothing"


def test_a_fixed_model_is_fedavgs(silo: Silo):
    client = silo(space=CNN(width=4, hidden=16))
    how = FedNAS(**PLAIN)
    state = how.server_init(server_of(client, 0))
    assert state.alphas.numel() == 0 and (state.arch, state.next) == ((), ())
    sent = how.configure(server_of(client, 1), state, [client.info])[0]
    own, reply = how.train(client, Seen(), sent)
    alone = learn.network(client, state.weights)
    learn.fit(learn.joined(client), alone, how)
    assert own.val and equal(reply.message.tensors, alone.weights())
    assert how.inspect(client.setting.space, state).keys() == {"choices"}


def test_alphas_may_neither_be_left_out_while_all_search_nor_come_later():
    forms, weights, alphas = FedNAS().sends(), {"w": torch.zeros(2)}, {ALPHAS: torch.zeros(3)}
    searching, after = Message(weights | alphas), Message(weights)
    assert check_reply(forms, searching, searching) == check_reply(forms, after, after)
    with pytest.raises(ReplyError, match=f"'{ALPHAS}' is missing"):
        check_reply(forms, searching, after)
    with pytest.raises(ReplyError, match=f"'{ALPHAS}', which is not declared"):
        check_reply(forms, after, searching)
