"""Lines 12 to 14 of PerFedSDE-NAS: what proposes, what chooses, and what each ablation changes."""

import itertools
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.algorithms import perfedsde
from fedtailor.algorithms.perfedsde import PerFedSDENAS
from fedtailor.core import codec
from fedtailor.core.space import Arch
from fedtailor.core.types import Client, Result, Server, Tensors
from fedtailor.data.federation import Federation
from fedtailor.search import proposal_source
from fedtailor.search.evolution import Population, survivors
from fedtailor.search.propose import Proposer, proposer
from fedtailor.search.surrogate import Surrogate
from fedtailor.training.merge import unpack_masks
from fedtailor.training.updates import MASK
from tests.helpers.sde_setting import algorithm_of, client_of, served, tiny_setting, write_generator
from tests.helpers.tiny_space import Tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_generator(tmp_path_factory.mktemp("generator"))


@pytest.fixture
def first_client(federation: Federation) -> Client:
    return client_of(federation, tiny_setting(federation), 0, 1)


def trained(how: PerFedSDENAS, client: Client) -> Any:
    return how.train(client, how.client_init(client), served(how, client))


@dataclass(frozen=True)
class Listening:
    """A proposer that notes what it was given, and gave."""

    inner: Proposer
    notes: list[tuple[Population, int, int, list[Arch]]]

    def propose(self, space: Any, population: Population, number: int, rng: Any) -> list[Arch]:
        seed = rng.initial_seed()
        found = self.inner.propose(space, population, number, rng)
        self.notes.append((population, number, seed, found))
        return found


class Recorded:
    """What lines 12 to 14 and 16 were given and gave, iteration by iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.learned: list[tuple[Population, str]] = []
        self.proposals: list[tuple[Population, int, int, list[Arch]]] = []
        self.chosen: list[list[Arch]] = []
        self.scored: list[Population] = []
        self.archives: list[tuple[Arch, ...]] = []
        fit, choose, among = perfedsde.surrogate.fit, perfedsde.choose, perfedsde.schemes.among
        source, score = proposal_source.ProposalSource.proposer, PerFedSDENAS._scored

        def fitted(space: Any, archs: Any, scores: Any, kind: Any) -> Surrogate:
            self.learned.append((Population(archs, scores), kind))
            return fit(space, archs, scores, kind)

        def chosen(*given: Any) -> list[Arch]:
            self.chosen.append(choose(*given))
            return self.chosen[-1]

        def drawn(archs: tuple[Arch, ...]) -> Any:
            self.archives.append(archs)
            return among(archs)

        def scored(*given: Any) -> Population:
            self.scored.append(score(*given))
            return self.scored[-1]

        def watched(own: Any, embedding: torch.Tensor) -> Any:
            return Listening(source(own, embedding), self.proposals)

        monkeypatch.setattr(perfedsde.surrogate, "fit", fitted)
        monkeypatch.setattr(perfedsde, "choose", chosen)
        monkeypatch.setattr(perfedsde.schemes, "among", drawn)
        monkeypatch.setattr(PerFedSDENAS, "_scored", scored)
        monkeypatch.setattr(proposal_source.ProposalSource, "proposer", watched)

    def population(self, iteration: int) -> Population:
        """Return P_j: what the scores so far make of it."""
        found = self.scored[0]
        for some in self.scored[1 : iteration + 1]:
            found = survivors(found + some, 8)
        return found


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    return Recorded(monkeypatch)


def test_the_population_proposes_and_teaches_the_surrogate(
    recorded: Recorded, first_client: Client
):
    """The present one, keyed by the iteration; offspring are what the surrogate thinks most of."""
    trained(algorithm_of(iterations=3), first_client)
    for j in range(3):
        population, number, seed, candidates = recorded.proposals[j]
        assert recorded.learned[j] == (recorded.population(j), "rbf"), "line 12"
        assert population == recorded.population(j) and number == len(candidates) == 8, "line 13"
        assert seed == first_client.rng(f"propose/{j}").initial_seed()
        assert len(recorded.chosen[j]) == 3 and set(recorded.chosen[j]) < set(candidates)
        assert recorded.scored[j + 1].archs == tuple(recorded.chosen[j]), "line 19"


def test_the_best_guesses_are_chosen(monkeypatch: pytest.MonkeyPatch, first_client: Client):
    def larger_is_better(*_: Any) -> Surrogate:
        return Surrogate("mean", lambda archs: np.array([float(sum(a)) for a in archs]), 0.0, 1.0)

    monkeypatch.setattr(perfedsde.surrogate, "fit", larger_is_better)
    seen = Recorded(monkeypatch)
    trained(algorithm_of(proposer="random"), first_client)
    for (*_, candidates), chosen in zip(seen.proposals, seen.chosen, strict=True):
        sums = sorted(map(sum, candidates), reverse=True)
        assert [sum(arch) for arch in chosen] == sums[:3]


def test_without_a_surrogate_the_first_proposals_are_taken(
    recorded: Recorded, first_client: Client
):
    trained(algorithm_of(surrogate="none"), first_client)
    for (_, number, _, found), chosen in zip(recorded.proposals, recorded.chosen, strict=True):
        assert number == 3 and found == chosen


@pytest.mark.parametrize("reevaluate", ["round", "iteration"])
def test_a_ridge_learns_from_all_that_is_of_use(
    reevaluate: str, recorded: Recorded, first_client: Client
):
    """All scores of the round; where all are measured anew, those of the present weights."""
    trained(algorithm_of(surrogate="ridge", reevaluate=reevaluate, iterations=3), first_client)
    everything = recorded.scored[0]
    for j in range(3):
        assert recorded.learned[j] == (everything, "ridge")
        later = recorded.scored[j + 1]
        everything = later if reevaluate == "iteration" else everything + later
        assert len(later) == (11 if reevaluate == "iteration" else 3)


@pytest.mark.parametrize(
    ("changes", "level"),
    [
        ({}, None),
        ({"reevaluate": "iteration"}, "scored with them"),
        ({"epochs": 0, "surrogate": "none"}, "scored before, with the same weights"),
    ],
    ids=["round", "iteration", "frozen"],
)
def test_the_log_has_what_offspring_were_expected_to_score_and_did(
    changes: dict[str, Any], level: str | None, recorded: Recorded, first_client: Client
):
    """A population is told beside them only if its scores are of the same weights."""
    how = algorithm_of(iterations=3, **changes)
    _, reply = trained(how, first_client)
    found, again = list(reply.log.offspring), "reevaluate" in changes
    assert len(found) == 9 and {one.source for one in found} == {"evolution"}
    for j in range(3):
        before, after = recorded.population(j), recorded.population(j + 1)
        later = recorded.scored[j + 1]
        scores = dict(zip(later.archs, later.scores, strict=True))
        learned = perfedsde.surrogate.fit(Tiny(), before.archs, before.scores, "rbf")
        guesses = learned.predict(recorded.chosen[j])
        old = later.scores[:8] if again else before.scores
        for arch, guess in zip(recorded.chosen[j], guesses, strict=True):
            one = found.pop(0)
            assert (one.iteration, one.measured) == (j, scores[arch])
            assert one.predicted == (None if "surrogate" in changes else pytest.approx(guess))
            assert one.survived == (arch in after.archs)
            assert one.population == (pytest.approx(np.mean(old)) if level else None)


@pytest.mark.parametrize("guide", ["data", "scores", "both", "none"])
def test_a_guide_sees_what_it_is_called_after(guide: Any, made: str, first_client: Client):
    """Other images, or other scores, lead to other architectures or to the same ones."""
    how = algorithm_of(proposer="diffusion", generator=made, guide=guide, surrogate="none")
    source = how.source(Tiny())
    mine = source.embedding(first_client.train)
    others = source.embedding(replace(first_client.train, index=first_client.test.index))
    assert bool(mine.numel()) == source.sees_data == (guide in ("data", "both"))
    archs = how.client_init(first_client).population.archs
    rising = Population(archs, tuple(float(n) for n in range(8)))
    falling = replace(rising, scores=rising.scores[::-1])

    def proposed(embedding: torch.Tensor, population: Population) -> list[Arch]:
        key = torch.Generator().manual_seed(1)
        return source.proposer(embedding).propose(Tiny(), population, 30, key)

    usual = proposed(mine, rising)
    assert (proposed(10 * others, rising) != usual) == (guide in ("data", "both"))
    assert (proposed(mine, falling) != usual) == (guide in ("scores", "both"))


def test_the_embedding_is_of_the_clients_own_data_and_made_once(
    made: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
):
    how = algorithm_of(proposer="diffusion", generator=made)
    clients = [client_of(federation, tiny_setting(federation), number, 1) for number in (0, 1)]
    (first, reply), (second, _) = (trained(how, client) for client in clients)
    expected = how.source(Tiny()).embedding(clients[0].train)
    assert torch.equal(first.embedding, expected) and not torch.equal(
        first.embedding, second.embedding
    )
    assert reply.log.times[0].part == "features"
    monkeypatch.setattr(proposal_source.ProposalSource, "embedding", None)
    later, reply = how.train(replace(clients[0], round=2), first, served(how, clients[0]))
    assert torch.equal(later.embedding, expected)
    assert "features" not in [spent.part for spent in reply.log.times]


def test_a_model_without_choices_proposes_nothing(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, client: Client
):
    monkeypatch.setattr(proposal_source.ProposalSource, "proposer", None)
    monkeypatch.setattr(proposal_source.ProposalSource, "embedding", None)
    how = PerFedSDENAS(iterations=2, batch=16)
    how.check(client.setting)
    own, reply = trained(how, client)
    assert own.population.archs == own.archive == ((),) and own.best == ()
    assert reply.log.architectures == () and reply.message.tensors
    parts = {spent.part: spent.macs for spent in reply.log.times}
    assert set(parts) == {"preliminary evaluation", "training", "evaluation"}


@pytest.mark.parametrize("slow", ["proposing", "training"])
def test_generation_beside_training_gives_the_same_bytes(
    slow: str, made: str, federation: Federation, monkeypatch: pytest.MonkeyPatch
):
    """Dropout draws from torch's own generator while a thread proposes."""
    how = algorithm_of(generator=made, proposer="diffusion", guide="both")
    propose, epochs = PerFedSDENAS._offspring, perfedsde.SupernetTrainer.epochs

    def slowly(function: Any, part: str) -> Any:
        def waited(*given: Any) -> Any:
            time.sleep(0.2 if slow == part else 0.0)
            return function(*given)

        return waited

    def done(spare: int) -> str:
        client = client_of(federation, tiny_setting(federation), 0, 1, spare=spare)
        torch.manual_seed(5)
        own, reply = trained(how, client)
        return codec.digest([own, reply.message.tensors, replace(reply.log, times=())])

    one_after_the_other = done(0)
    monkeypatch.setattr(PerFedSDENAS, "_offspring", slowly(propose, "proposing"))
    monkeypatch.setattr(perfedsde.SupernetTrainer, "epochs", slowly(epochs, "training"))
    assert done(1) == one_after_the_other == done(0)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_thread_proposes_where_there_is_a_core_for_it(
    spare: int, federation: Federation, monkeypatch: pytest.MonkeyPatch
):
    threads, choose = [], perfedsde.choose

    def noted(*given: Any) -> list[Arch]:
        threads.append(threading.current_thread() is threading.main_thread())
        return choose(*given)

    monkeypatch.setattr(perfedsde, "choose", noted)
    trained(algorithm_of(), client_of(federation, tiny_setting(federation), 0, 1, spare=spare))
    assert threads == [not spare] * 2


# ablations

COMPONENTS: dict[str, dict[str, Any]] = {
    "diffusion": {"proposer": "evolution", "surrogate": "none"},
    "archive": {"archive": 0},
    "Eq. 5": {"merge": "fedavg"},
}


def mean_by_the_book(left_out: set[str], before: Tensors, sent: list[tuple[int, Tensors]]) -> Any:
    """Average updates slowly: over those who trained an entry, or by shares of the data."""
    for name, old in before.items():
        weights = [torch.full_like(old, examples, dtype=torch.float64) for examples, _ in sent]
        if "Eq. 5" not in left_out:
            masks = [unpack_masks({name: update[MASK + name]}, before)[name] for _, update in sent]
            weights = [mask.double() for mask in masks]
        moves = [w * (u[name].double() - old) for w, (_, u) in zip(weights, sent, strict=True)]
        yield name, old + sum(moves) / torch.stack(weights).sum(0).clamp(min=1)


@pytest.mark.parametrize(
    "left_out",
    [set(some) for n in range(4) for some in itertools.combinations(COMPONENTS, n)],
    ids=lambda some: " + ".join(sorted(some)) or "nothing",
)
def test_each_ablation_changes_its_component_and_no_other(
    left_out: set[str], made: str, federation: Federation, recorded: Recorded
):
    """Tables 5 and C. The first iteration has the same population, scores and key in all eight."""
    full = {"proposer": "diffusion", "generator": made, "surrogate": "rbf", "guide": "data"}
    changes = {key: value for part in left_out for key, value in COMPONENTS[part].items()}
    setting = tiny_setting(federation)
    clients = [client_of(federation, setting, number, 1) for number in (0, 1)]
    few = clients[1].train.index[:10]  # clients of unequal size
    clients[1] = replace(
        clients[1],
        train=replace(clients[1].train, index=few),
        info=replace(clients[1].info, examples=10),
    )
    paper, how = algorithm_of(**full), algorithm_of(**full | changes)
    usual, _ = trained(paper, clients[0])
    replies = [trained(how, client) for client in clients]
    scored, then = recorded.scored[0], paper.iterations + 1
    assert recorded.scored[then] == scored, "the same population and scores"
    generated, bred = recorded.chosen[0], _bred(scored, clients[0])
    assert generated != bred
    assert recorded.chosen[paper.iterations] == (bred if "diffusion" in left_out else generated)
    embeddings = usual.embedding.numel(), replies[0][0].embedding.numel()
    assert embeddings == (8, 0 if "diffusion" in left_out else 8)
    archive = recorded.archives[0]
    assert archive == survivors(scored, 3).archs != scored.archs
    assert recorded.archives[paper.iterations] == (
        scored.archs if "archive" in left_out else archive
    )
    server = Server(setting, 1, tuple(client.info for client in clients))
    state = how.server_init(server)
    results = [
        Result(client.info, {}, reply.message, 1.0, 0)
        for client, (_, reply) in zip(clients, replies, strict=True)
    ]
    merged = how.aggregate(server, state, results).weights
    sent = [(one.client.examples, one.message.tensors) for one in results]
    for name, expected in mean_by_the_book(left_out, state.weights, sent):
        torch.testing.assert_close(merged[name].double(), expected, rtol=1e-5, atol=1e-6)


def _bred(population: Population, client: Client) -> list[Arch]:
    """Return the paper's Baseline: crossover and mutation, the first taken as they come."""
    return proposer("evolution").propose(Tiny(), population, 3, client.rng("propose/0"))


def test_a_generator_that_was_replaced_is_read_again(tmp_path: Path):
    from fedtailor.search.diffusion.encoder_networks import SMALL_FEATURES
    from fedtailor.search.diffusion.generator import save
    from tests.helpers.tiny_generator import generator

    file = Path(write_generator(tmp_path))
    source = algorithm_of(proposer="diffusion", generator=str(file)).source(Tiny())
    first = source.load_generator()
    assert source.load_generator() is first, "once per process"
    time.sleep(0.01)
    save(generator(Tiny(), SMALL_FEATURES, seed=1), file)
    assert source.load_generator() is not first
