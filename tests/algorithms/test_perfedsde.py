"""PerFedSDE-NAS, Algorithm 1 line by line, where every architecture's fitness is known."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedtailor.algorithms import perfedsde
from fedtailor.algorithms.perfedsde import PerFedSDENAS, Search
from fedtailor.core.processes import failure_of
from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Examples, Message, Reply
from fedtailor.data.batches import batch_count
from fedtailor.data.federation import Federation
from fedtailor.networks import cost
from fedtailor.networks.norms import is_statistic
from fedtailor.networks.store import coverage, cut, shapes
from fedtailor.search.evolution import Population
from fedtailor.training import learn
from fedtailor.training.merge import pack_masks
from fedtailor.training.supernet import SupernetTrainer
from fedtailor.training.updates import MASK
from tests.helpers.sde_setting import client_of, served, tiny_setting
from tests.helpers.tiny_space import Tiny

SMALL = {
    "population": 6, "archive": 2, "candidates": 5, "offspring": 3, "iterations": 3, "batch": 16,
    "proposer": "evolution", "lr": 0.1,
}  # fmt: skip
Look = Callable[..., "Watched"]


class Watched:
    """A client's rounds with a fitness that is known, and all that happens in them."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, federation: Federation, gain: float, **how: Any
    ) -> None:
        self.algorithm = PerFedSDENAS(**(SMALL | how))
        self.setting = tiny_setting(federation)
        self.federation, self.gain = federation, gain
        self.scored: list[tuple[Arch, ...]] = []  # in the order of calls
        self.judged: list[tuple[str, Examples]] = []  # by what, and on which images
        self.offspring: list[list[Arch]] = []  # what was chosen in each iteration
        self.archives: list[tuple[Arch, ...]] = []  # what each epoch drew from
        self.drawn: list[Arch] = []  # what trained, batch by batch
        self.epochs = 0
        choose = perfedsde.choose

        def chosen(*given: Any) -> list[Arch]:
            self.offspring.append(choose(*given))
            return self.offspring[-1]

        monkeypatch.setattr(perfedsde, "choose", chosen)
        monkeypatch.setattr(perfedsde, "fitness", self._fitness)
        monkeypatch.setattr(perfedsde.schemes, "among", self._among)

    def known(self, arch: Arch, epochs: int) -> float:
        """Larger options are better; the weights are better after every epoch."""
        return float(sum(arch)) + self.gain * epochs

    def _fitness(
        self, client: Client, store: Any, archs: Iterable[Arch], score: str, examples: Examples
    ) -> list[float]:
        self.scored.append(tuple(archs))
        self.judged.append((score, examples))
        return [self.known(arch, self.epochs) for arch in self.scored[-1]]

    def _among(self, archs: tuple[Arch, ...]) -> Any:
        self.archives.append(archs)
        self.epochs += 1

        def draw(rng: torch.Generator) -> tuple[Arch, ...]:
            self.drawn.append(archs[int(torch.randint(len(archs), (), generator=rng))])
            return (self.drawn[-1],)

        return draw

    def client(self, round: int = 1, number: int = 0, **more: Any) -> Client:
        return client_of(self.federation, self.setting, number, round, **more)

    def first(self) -> Search:
        return self.algorithm.client_init(self.client())

    def message(self) -> Message:
        return served(self.algorithm, self.client())

    def round(self, own: Search | None = None, round: int = 1) -> tuple[Search, Reply]:
        own = self.first() if own is None else own
        return self.algorithm.train(self.client(round), own, self.message())


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, federation: Federation) -> Look:
    return lambda gain=0.0, **how: Watched(monkeypatch, federation, gain, **how)


Members = list[tuple[Arch, float]]  # oldest first


def best(members: Members, number: int) -> Members:
    """Take the best out one by one, of equals the youngest; they stay in the order of age."""
    left, found = list(members), []
    for _ in range(min(number, len(left))):
        top = max(score for _, score in left)
        found.append(next(one for one in reversed(left) if one[1] == top))
        left.remove(found[-1])
    return [one for one in members if one in found]


def by_the_book(look: Watched, first: Iterable[Arch], epochs: int) -> tuple[Members, list[Any]]:
    """Do the bookkeeping of a round on paper, with the offspring that there were."""
    how = look.algorithm
    members, archives = [(arch, look.known(arch, epochs)) for arch in first], []
    for j, offspring in enumerate(look.offspring[-how.iterations :], epochs + 1):
        archives.append(tuple(arch for arch, _ in best(members, how.archive)))
        if how.reevaluate == "iteration":
            members = [(arch, look.known(arch, j)) for arch, _ in members]
        members += [(arch, look.known(arch, j)) for arch in offspring]
        members = best(members, 6)
    return members, archives


@pytest.mark.parametrize("gain", [0.0, 0.7, 100.0])
@pytest.mark.parametrize("reevaluate", ["round", "iteration"])
def test_two_rounds_are_those_of_the_book(gain: float, reevaluate: str, watched: Look):
    """Without a gain many are equal; with a large one the youngest weights win."""
    look = watched(gain, reevaluate=reevaluate)
    before = look.first().population.archs
    own = None
    for round in (1, 2):
        own, _ = look.round(own, round)
        members, archives = by_the_book(look, before, 3 * (round - 1))
        assert look.archives[-3:] == archives, "line 16: of P_j, not of what comes after"
        assert own.population == Population(*zip(*members, strict=True)), "lines 19 and 20"
        assert own.archive == tuple(arch for arch, _ in best(members, 2))
        assert (own.best,) == tuple(arch for arch, _ in best(members, 1)), "line 22"
        before = own.population.archs
    assert len(before) == 6 and own is not None


@pytest.mark.parametrize("reevaluate", ["round", "iteration"])
def test_what_is_scored_and_when(reevaluate: str, watched: Look):
    look = watched(gain=1.0, reevaluate=reevaluate)
    own, _ = look.round()
    prelim, *later = look.scored
    assert prelim == look.first().population.archs, "line 10, once a round"
    again = 6 if reevaluate == "iteration" else 0
    for some, offspring in zip(later, look.offspring, strict=True):
        assert len(offspring) == 3 and len(some) == again + 3
        assert some[again:] == tuple(offspring), "line 19"
    look.round(own, round=2)
    assert look.scored[4] == own.population.archs, "inherited, and scored anew"


@pytest.mark.parametrize("accuracy", ["val", "test"])
@pytest.mark.parametrize("score", ["accuracy", "likelihood"])
def test_what_judges(accuracy: str, score: str, watched: Look):
    """In a round and when a client deploys: validation images, unless test images are asked for."""
    look = watched(accuracy=accuracy, fitness=score)
    own, _ = look.round()
    list(look.algorithm.deploy(look.client(), own, look.message()))
    images = {"val": look.client().val, "test": look.client().test}[accuracy]
    assert len(look.judged) == 5
    for by, examples in look.judged:
        assert by == score and torch.equal(examples.index, images.index)


def test_survivors_keep_their_scores_within_a_round_and_not_beyond(watched: Look):
    """Offspring are scored with weights that have just been trained: the paper's stale scores."""
    look = watched(gain=100.0)
    own, _ = look.round()
    epochs = {int(score // 100) for score in own.population.scores}
    assert epochs == {2, 3}, "the strangers of the last two iterations took all six places"
    anew = watched(gain=100.0, reevaluate="iteration")
    own, _ = anew.round()
    assert {int(score // 100) for score in own.population.scores} == {3}, "all are of one age"


def test_the_first_population_is_a_clients_own_whatever_the_round(watched: Look):
    look = watched()
    drawn = [
        look.algorithm.client_init(look.client(round, number)).population.archs
        for round, number in ((1, 0), (7, 0), (1, 1))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0])) == 6, "all different"
    other = replace(look.client(), setting=replace(look.setting, seed=4))
    assert look.algorithm.client_init(other).population.archs != drawn[0]


def test_sizes(watched: Look):
    assert PerFedSDENAS().size(Tiny()) == 18, "3D: six choices"
    everyone = watched(archive=0)
    own, _ = everyone.round()
    assert [len(archive) for archive in everyone.archives] == [6, 6, 6], "without an archive"
    assert own.archive == own.population.archs
    few = watched(population=30, archive=30, candidates=400, offspring=300, iterations=1)
    own, _ = few.round()
    assert len(own.population) == 30, "of 216, all of which were scored"
    whole = watched(population=300, archive=1).first()
    assert len(whole.population) == 216, "a small space has no more"


@pytest.mark.parametrize("proposer", ["evolution", "random", "effects"])
@pytest.mark.parametrize("surrogate", ["rbf", "ridge", "none"])
def test_a_population_of_one_architecture_goes_on(proposer: str, surrogate: str, watched: Look):
    look = watched(archive=1, proposer=proposer, surrogate=surrogate)
    one = (2, 1, 2, 1, 2, 1)
    own, _ = look.round(Search(Population((one,), (0.0,)), (one,)))
    assert len(own.population) == 6 and own.best == one
    assert look.archives == [(one,)] * 3


def test_epochs_go_on_with_one_stream_of_batches_and_one_optimizer(
    watched: Look, monkeypatch: pytest.MonkeyPatch
):
    look, seen, made = watched(), [], []
    batches, start = SupernetTrainer.batches, SupernetTrainer.__init__

    def recorded(self: SupernetTrainer, epochs: int) -> Any:
        some = list(batches(self, epochs))
        seen.append(torch.cat([batch.images for batch in some]).flatten(1))
        return iter(some)

    def counted(self: SupernetTrainer, *given: Any, **named: Any) -> None:
        made.append(self)
        start(self, *given, **named)

    monkeypatch.setattr(SupernetTrainer, "batches", recorded)
    monkeypatch.setattr(SupernetTrainer, "__init__", counted)
    look.round()
    assert len(made) == 1 and len(seen) == 3
    rows = [[tuple(row) for row in one.tolist()] for one in seen]
    assert sorted(rows[0]) == sorted(rows[1]) == sorted(rows[2]), "whole epochs"
    assert rows[0] != rows[1] and rows[1] != rows[2] and rows[0] != rows[2]


def test_one_architecture_trains_on_a_batch_and_masks_are_of_those_that_did(watched: Look):
    """A member of an archive that no batch drew is in no mask."""
    look = watched(archive=4, population=12, batch=30, weight_decay=0.1)
    _, reply = look.round()
    batches = batch_count(len(look.client().train), 30)
    assert batches == 2 and len(look.drawn) == 3 * batches
    assert set(look.drawn) < {arch for archive in look.archives for arch in archive}
    masks = pack_masks(coverage(Tiny(), set(look.drawn), look.setting.task, statistics=True))
    sent = reply.message.tensors
    assert {n for n in sent if n.startswith(MASK)} == {MASK + name for name in masks}
    assert all(torch.equal(sent[MASK + name], bits) for name, bits in masks.items())


def test_what_a_client_keeps_is_the_best_with_its_own_weights(watched: Look):
    look = watched()
    own, reply = look.round()
    wanted = shapes(Tiny(), own.best, look.setting.task, statistics=True)
    sent = cut(reply.message.tensors, wanted)
    assert set(own.weights) == set(wanted)
    assert all(torch.equal(own.weights[name], sent[name]) for name in wanted)
    roles = [(used.role, used.arch) for used in reply.log.architectures]
    assert roles == [("trained", own.best), *(("archive", arch) for arch in own.archive)]
    scores = dict(zip(own.population.archs, own.population.scores, strict=True))
    assert all(used.score == scores[used.arch] for used in reply.log.architectures)
    prices = [cost.prices(Tiny(), used.arch, look.setting.task) for used in reply.log.architectures]
    assert [used.cost for used in reply.log.architectures] == prices


def test_the_log_tells_the_best_individuals_accuracies_and_all_that_was_charged(
    federation: Federation,
):
    """Line 22; what is tested for the log alone is charged to nobody."""
    how, client = PerFedSDENAS(**SMALL), client_of(federation, tiny_setting(federation), 0, 1)
    client = replace(client, test=client.train)  # on which it is better
    own, reply = how.train(client, how.client_init(client), served(how, client))
    assert sum(spent.macs for spent in reply.log.times) == client.meter.macs > 0
    network = learn.network(client, own.weights, own.best)
    tested = {s: learn.evaluate(network, getattr(client, s))["accuracy"] for s in ("val", "test")}
    told = {m.split: m.value for m in reply.log.metrics if m.name == "accuracy"}
    assert told == tested and tested["val"] != tested["test"]
    assert all(m.model == "trained" for m in reply.log.metrics if m.name == "accuracy")
    (loss,) = (m.value for m in reply.log.metrics if m.name == "loss")
    assert 0 < loss < 5


def test_newcomers_search_without_training_or_sending(watched: Look):
    look = watched()
    how = look.algorithm.for_newcomers()
    assert how == replace(look.algorithm, epochs=0)
    assert (look.algorithm.doing, how.doing) == ("training", "searching")
    look.algorithm = how
    own, reply = look.round()
    assert not reply.message.tensors and not reply.message.info and not own.weights
    assert how.sends() == {"searched": ()}
    assert len(look.scored) == 4 and not look.drawn, "it searches all the same"
    assert {metric.name for metric in reply.log.metrics} == {"accuracy"}, "there is no loss"
    names = [name for name, _ in how.deploy(look.client(), own, look.message())]
    assert names == ["untuned", "tuned"], "nothing was kept"


def test_deployed_is_the_best_of_the_archive_with_the_served_weights(watched: Look):
    look = watched(finetune_epochs=1)
    own, _ = look.round()
    small, large = (0,) * 6, (1,) * 6
    other = replace(own, archive=(large, small), best=(0, 1, 0, 1, 0, 1), weights={})
    client, message = look.client(round=4), look.message()
    models = dict(look.algorithm.deploy(client, other, message))
    assert models["untuned"].arch == models["tuned"].arch == large
    order = [name for name, _ in look.algorithm.deploy(client, own, message)]
    assert order == ["untuned", "kept", "tuned"]
    for name, network in look.algorithm.deploy(client, own, message):
        wanted = shapes(Tiny(), network.arch, look.setting.task, statistics=True)
        given = {"untuned": cut(message.tensors, wanted), "kept": own.weights}.get(name, {})
        same = [torch.equal(tensor, given[n]) for n, tensor in network.weights().items() if given]
        assert all(same) and bool(same) == (name != "tuned")
        assert name != "kept" or network.arch == own.best


def test_own_statistics_are_of_the_clients_training_images(watched: Look):
    """Of what it keeps and of what it deploys; they are neither received nor sent."""
    look = watched(statistics="own", finetune_epochs=0)
    own, reply = look.round()
    client, message = look.client(), look.message()
    assert not any(map(is_statistic, [*message.tensors, *reply.message.tensors]))
    models = dict(look.algorithm.deploy(client, own, message))
    assert set(models) == {"untuned", "kept"}
    for name, given in (("untuned", message), ("kept", reply.message)):
        arch, found = models[name].arch, models[name].weights()
        weights = cut(given.tensors, shapes(Tiny(), arch, look.setting.task))
        expected = learn.network(client, weights, arch)
        learn.recalibrate(expected, client.train)
        assert any(map(is_statistic, found))
        assert all(torch.equal(found[n], tensor) for n, tensor in expected.weights().items())


def test_a_client_that_was_never_drawn_deploys_the_best_of_its_first(watched: Look):
    look = watched()
    own = look.first()
    assert own.archive == own.population.archs[:2]
    _, network = next(look.algorithm.deploy(look.client(), own, look.message()))
    assert network.arch == max(own.archive, key=sum)
    assert max(map(sum, own.population.archs)) > sum(network.arch), "not of all of them"


@pytest.mark.parametrize("spare", [0, 1])
@pytest.mark.parametrize("part", ["proposing architectures", "training"])
def test_a_failure_says_in_which_part(
    spare: int, part: str, watched: Look, monkeypatch: pytest.MonkeyPatch
):
    look = watched()
    client, own, message = look.client(spare=spare), look.first(), look.message()

    def broken(*_: Any) -> None:
        raise ArithmeticError("broken")

    if part == "training":
        monkeypatch.setattr(SupernetTrainer, "epochs", broken)
    else:
        monkeypatch.setattr(perfedsde, "choose", broken)
    with pytest.raises(ArithmeticError) as caught:
        look.algorithm.train(client, own, message)
    assert failure_of(caught.value).reason == f"ArithmeticError: broken (while {part})"
