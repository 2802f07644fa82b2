"""PerFedRLNAS: the server searches every client's architecture, by one policy for each.

Paper: Yao & Li 2024, "PerFedRLNAS: One-for-All Personalized Federated Neural Architecture Search".

The server keeps a supernet and a softmax policy per client. A client of the cohort gets a subnet
drawn by its policy, trains it and sends it back with its accuracy; the server averages every weight
over those who trained it, and rewards the policies (Eq. 8, with memory budgets Eq. 9).

Differs from the paper:
- rewards use validation accuracy; the paper's test accuracy is `accuracy = "test"`, which warns;
- policies climb the plain gradient; the authors' Adam (rate 0.5) is `policy_rule = "adam"`;
- batch norm, of which the paper says nothing: statistics are windows of the supernet like weights,
  and merged like them (`statistics = "merged"`); or they stay with the client (`"own"`): a subnet
  starts a round without any, and before it is deployed they are measured on the client's images;
- deployed is each policy's most probable architecture, for all clients; the paper's way, the drawn
  subnet after local training, is reported beside it as `trained`;
- an overflow counts as accuracy 0 in its own reward, not in the average of the others;
- options that the paper has not: `entropy`, `temperature`, `warmup`, `baseline`, `policy`,
  `overflow`.
The authors' code takes the average over the clients' best accuracies so far: `average = "best"`.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, Literal, Self

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from fedtailor.algorithms._base import Algorithm
from fedtailor.algorithms._replies import Forms, Sent
from fedtailor.core.space import Arch, SearchSpace
from fedtailor.core.stopwatch import Stopwatch
from fedtailor.core.sums import mean
from fedtailor.core.types import (
    Client,
    ClientInfo,
    Json,
    Log,
    Message,
    Metric,
    Reply,
    Result,
    Server,
    Setting,
    Spent,
    Tensors,
    UsedArch,
)
from fedtailor.data.batches import batch_count
from fedtailor.networks import cost, norms
from fedtailor.networks.initial import initial_supernet
from fedtailor.networks.network import Network
from fedtailor.networks.store import cut, shapes
from fedtailor.search import policy as policies
from fedtailor.search.policy import Policies, described
from fedtailor.search.reward import Past, Played, Rules, remember
from fedtailor.training import learn
from fedtailor.training.merge import Part, Rule, merge, weighed

SHARED = -1  # the number of the policy that all clients share


@dataclass(frozen=True)
class Searching:
    """The server's state: the supernet, the policies, and what they are judged by."""

    weights: Tensors
    policies: Policies = field(default_factory=Policies)
    past: dict[int, Past] = field(default_factory=dict)


@dataclass(frozen=True)
class PerFedRLNAS(Algorithm[Searching, None]):
    """One policy per client draws its subnets; accuracy and time reward it."""

    searches: ClassVar[bool] = True

    finetune_epochs: Annotated[int, Ge(0)] = 10
    merge: Rule = "count"  # the paper's; how much each client counts in the mean of a weight
    policy: Literal["personal", "shared", "both", "uniform"] = (
        "personal"  # one each; one for all; the sum of these two; none that learns
    )
    policy_rule: policies.Rule = "plain"  # along the gradient; adam: the authors' code
    policy_lr: Annotated[float, Gt(0)] = 3.0  # adam: 0.5 in the authors' code
    entropy: Annotated[float, Ge(0)] = 0.0  # weight of the policies' entropy beside the reward
    temperature: Annotated[float, Gt(0)] = 1.0  # of drawing: above 1 tries more
    warmup: Annotated[int, Ge(0)] = 0  # rounds before policies begin to learn
    accuracy: Literal["val", "test"] = "val"  # what rewards; test is the paper's, and warns
    average: Literal["latest", "best"] = "latest"  # of each client, in the average accuracy
    baseline: Literal["none", "own"] = "none"  # own: less the client's usual reward
    lambda_time: Annotated[float, Ge(0)] = 0.001  # per second over the round's fastest client
    lambda_memory: Annotated[float, Ge(0)] = 0.0  # of the share of memory used; Eq. 9 has 1
    overflow: Literal["flat", "graded"] = (
        "flat"  # share of memory above 1: counts as 1, or as it is
    )
    statistics: Literal["merged", "own"] = "merged"  # batch norm's: all clients', or each its own
    frozen: bool = False  # weights stand still, clients only test: how new clients are searched for

    def sends(self) -> Forms:
        """Declare what leaves a client: what it trained or tested, or that the device refused."""
        images = {"val": "validation", "test": "test"}[self.accuracy]
        told = f"its accuracy on the client's {images} data"
        how_good = Sent("accuracy", "float", told, range=(0, 1))
        share = "the share of the client's memory it took, where that is limited"
        fits = Sent("memory", "float", share, range=(0, 1), optional=True)
        beside = " and batch-norm statistics" if self.statistics == "merged" else ""
        weights = Sent("*", "tensor", f"the drawn subnet's parameters{beside} after local training")
        usual: Forms = (
            {"tested": (how_good, fits)} if self.frozen else {"trained": (weights, how_good, fits)}
        )
        nothing = Sent("accuracy", "float", "0: it does not fit into memory", range=(0, 0))
        over = Sent("memory", "float", share, range=(1, math.inf))
        return usual | {"refused": (nothing, over)}

    @property
    def doing(self) -> str:
        """Say what clients do in a round."""
        return "searching" if self.frozen else super().doing

    def warnings(self) -> tuple[str, ...]:
        """Say what makes results not comparable."""
        if self.accuracy == "val":
            return ()
        return (
            'algorithm.accuracy: "test" searches on the test data, as the paper does; '
            'test accuracies are then too high, and "val" is the honest choice',
        )

    def server_init(self, server: Server) -> Searching:
        """Start from the first supernet and undecided policies."""
        return Searching(initial_supernet(server.setting, self.statistics == "merged"))

    def client_init(self, client: Client) -> None:
        """Clients keep nothing."""
        return

    def configure(
        self, server: Server, state: Searching, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send each client a subnet drawn by its policy."""
        found = {}
        for info in cohort:
            rng = server.rng(f"policy/{info.id}")
            alphas = self.alphas(server.setting.space, state, info.id)
            drawn = policies.draw(server.setting.space, alphas, rng, self.temperature)
            found[info.id] = self._message(server.setting, state, drawn)
        return found

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        """Train the subnet if the device can, and say how good it is."""
        setting = client.setting
        arch = setting.space.repair(tuple(msg.info["genes"]))
        told: dict[str, Json] = {}
        watch, work = Stopwatch(client.meter), "evaluation" if self.frozen else "training"
        if client.info.budget.memory_mb is not None:
            told["memory"] = self.memory(setting, arch) / (client.info.budget.memory_mb * cost.MIB)
            if told["memory"] > 1:
                refused = UsedArch(arch, 0.0, {"memory": told["memory"]})
                log = Log(architectures=(refused,), times=(Spent(work, 0.0),))
                return None, Reply(Message(info={"accuracy": 0.0, **told}), log)
        metrics: list[Metric] = []
        own_statistics = self.statistics == "own"
        with watch.part(work):
            network = learn.network(client, msg.tensors, arch)
            if self.frozen and own_statistics:
                learn.recalibrate(network, client.train)
            elif not self.frozen:
                metrics = [Metric("train", "loss", learn.fit(client, network, self))]
                if own_statistics:
                    norms.settle(network.module)
        scored = self._scored(client, network, watch)
        metrics += [Metric(split, "accuracy", value, "trained") for split, value in scored.items()]
        told["accuracy"] = scored[self.accuracy]
        tensors = {} if self.frozen else network.weights(statistics=not own_statistics)
        prices = cost.prices(setting.space, arch, setting.task)
        log = Log(tuple(metrics), (UsedArch(arch, told["accuracy"], prices),), watch.times())
        return None, Reply(Message(tensors, told), log)

    def aggregate(self, server: Server, state: Searching, results: Iterable[Result]) -> Searching:
        """Average the subnets into the supernet, then let the policies learn."""
        played: list[Played] = []

        def parts() -> Iterator[Part]:
            for result in results:
                played.append(_played(result))
                if result.message.tensors:
                    examples = result.client.examples
                    times = self.epochs * batch_count(examples, self.batch)
                    yield weighed(self.merge, result.message.tensors, examples, float(times))

        weights = merge(state.weights, parts())
        best, graded = self.average == "best", self.overflow == "graded"
        rules = Rules(self.lambda_time, self.lambda_memory, best, graded)
        past = remember(server.round, state.past, played, rules)
        learned = state.policies
        if self.policy != "uniform" and server.round > self.warmup:
            learned = _learned(self, server.setting.space, state, past, played)
        return Searching(weights, learned, past)

    def serve(self, server: Server, state: Searching, info: ClientInfo) -> Message:
        """Give a client its policy's most probable architecture, of those its memory allows."""
        setting = server.setting
        arch = self.chosen(setting, state, info)
        return self._message(setting, state, arch)

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use that architecture, then the same fine-tuned."""
        arch = client.setting.space.repair(tuple(msg.info["genes"]))
        network = learn.network(client, msg.tensors, arch)
        if self.statistics == "own":
            learn.recalibrate(network, client.train)
        return self.tune(client, network)

    def alphas(self, space: SearchSpace, state: Searching, client: int) -> Tensor:
        """Return what a client's subnets are drawn by."""
        length = sum(len(choice.options) for choice in space.choices)
        rows = [state.policies.row(number, length) for number in _numbers(self.policy, client)]
        return torch.stack([torch.zeros(length, dtype=torch.float64), *rows]).sum(0)

    def chosen(self, setting: Setting, state: Searching, info: ClientInfo) -> Arch:
        """Return the architecture a client would deploy."""
        alphas = self.alphas(setting.space, state, info.id)
        if info.budget.memory_mb is None:
            return policies.likeliest(setting.space, alphas)
        limit = info.budget.memory_mb * cost.MIB
        return policies.likeliest_within(
            setting.space, alphas, lambda arch: self.memory(setting, arch), limit
        )

    def memory(self, setting: Setting, arch: Arch) -> int:
        """Return the bytes that training an architecture takes."""
        return cost.training_memory(setting.space, arch, setting.task, self.batch, self.optimizer)

    def for_newcomers(self) -> Self:
        """Search with the weights frozen, from the first round on."""
        return replace(self, frozen=True, warmup=0)

    def welcome(self, state: Searching) -> Searching:
        """Keep the supernet and the shared policy.

        Newcomers are also not to be measured by accuracies that others reached by training.
        """
        known = state.policies
        kept = [place for place, number in enumerate(known.numbers) if number == SHARED]
        shared = Policies((SHARED,) * len(kept), known.alphas[kept], known.moments[kept])
        return Searching(state.weights, shared)

    def observe(self, server: Server, state: Searching) -> dict[int, tuple[Metric, ...]]:
        """Tell each client's reward of this round, and how undecided its policy is."""
        found = {}
        for client, past in state.past.items():
            if past.round == server.round:
                alphas = self.alphas(server.setting.space, state, client)
                each = policies.entropies(server.setting.space, alphas, self.temperature)
                found[client] = (
                    Metric("server", "reward", past.reward),
                    Metric("server", "entropy", mean(each)),
                )
        return found

    def inspect(self, space: SearchSpace, state: Searching) -> dict[str, Json]:
        """Tell every policy that has learned something; clients without one are left out."""
        known = state.policies.numbers
        rows = {str(c): self.alphas(space, state, c) for c in sorted(known) if c != SHARED}
        found = super().inspect(space, state) | {
            "clients": {c: described(space, a, self.temperature) for c, a in rows.items()},
        }
        if SHARED in known:
            row = state.policies.row(SHARED, 0)
            found["shared"] = described(space, row, self.temperature)
        return found

    def _scored(self, client: Client, network: Network, watch: Stopwatch) -> dict[str, float]:
        """Test on both splits; only the one that is told is a cost, the other is for the log."""
        found = {}
        for split, examples in (("val", client.val), ("test", client.test)):
            told = split == self.accuracy
            with watch.part("evaluation") if told else nullcontext():
                found[split] = learn.evaluate(network, examples, charged=told)["accuracy"]
        return found

    def _message(self, setting: Setting, state: Searching, drawn: Arch) -> Message:
        arch = setting.space.repair(drawn)
        wanted = shapes(setting.space, arch, setting.task, self.statistics == "merged")
        return Message(cut(state.weights, wanted), {"genes": list(drawn)})


def _numbers(policy: str, client: int) -> tuple[int, ...]:
    """Return the policies that decide together on a client's subnets."""
    which = {"personal": (client,), "shared": (SHARED,), "uniform": ()}
    return which.get(policy, (client, SHARED))


def _learned(
    how: PerFedRLNAS,
    space: SearchSpace,
    state: Searching,
    past: dict[int, Past],
    played: list[Played],
) -> Policies:
    """Let every policy climb the gradients of the clients it drew for."""
    gradients: dict[int, Tensor] = {}
    moved: dict[int, Tensor] = {}
    for one in played:
        advantage = past[one.client].reward
        if how.baseline == "own":  # as it was before this reward, which would bias it
            before = state.past.get(one.client)
            advantage = advantage - before.usual if before else 0.0
        alphas = how.alphas(space, state, one.client)
        gradient, there = policies.reinforce(
            space, alphas, one.genes, advantage, how.temperature, how.entropy
        )
        for number in _numbers(how.policy, one.client):
            gradients[number] = gradients.get(number, 0.0) + gradient
            moved[number] = moved.get(number, torch.zeros_like(there)) | there
    return policies.ascend(state.policies, gradients, moved, how.policy_rule, how.policy_lr)


def _played(result: Result) -> Played:
    told = result.message.info
    drawn = tuple(result.sent["genes"])
    memory = told.get("memory", 0.0)
    return Played(result.client.id, drawn, told["accuracy"], result.seconds, memory)
