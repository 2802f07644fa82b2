"""FedRLNAS: one architecture for all clients, found by one policy on the server, then trained.

Paper: Yao et al. 2021, "Federated Model Search via Reinforcement Learning" (ICDCS); a rival in
Table 3 of PerFedRLNAS.

A run has three phases. In the first two each client trains a subnet of its own draw from the
policy, and subnets are averaged into a supernet; the policy learns in the second, by REINFORCE on
the clients' accuracies less a moving average of them. Then the most probable architecture is
trained from scratch by federated averaging.

Differs from the paper:
- accuracies that reward are of validation images;
- all phases are rounds of one run (`warmup`, `search_rounds`, and the rest), and the schedule of
  the learning rate begins anew with the last;
- batch-norm statistics are averaged with the weights, where the authors' code leaves them alone;
- after the run the model is fine-tuned by each client, as that of every method here.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from fedtailor.algorithms._base import Algorithm, mean_of
from fedtailor.algorithms._replies import Forms, Sent
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace
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
    Tensors,
    UsedArch,
)
from fedtailor.data.batches import batch_count
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_supernet, initial_weights
from fedtailor.networks.network import Network
from fedtailor.networks.store import cut, shapes
from fedtailor.search import genes
from fedtailor.search import policy as policies
from fedtailor.search.policy import Policies
from fedtailor.training import learn
from fedtailor.training.merge import Part, Rule, merge, weighed

ONE = 0  # the number of the only policy


@dataclass(frozen=True)
class Found:
    """The server's state: a supernet and its policy, then a network."""

    weights: Tensors  # of the supernet, or of the architecture once that is decided
    policy: Policies = field(default_factory=Policies)
    usual: float | None = None  # the moving average of accuracies
    arch: Arch | None = None  # what was found


@dataclass(frozen=True)
class FedRLNAS(Algorithm[Found, None]):
    """One policy draws all subnets; what it prefers is trained again."""

    searches: ClassVar[bool] = True

    finetune_epochs: Annotated[int, Ge(0)] = 10
    warmup: Annotated[int, Ge(0)] | None = None  # rounds before the policy learns; none: a tenth
    search_rounds: Annotated[int, Ge(0)] | None = None  # in which it does; none: four tenths
    merge: Rule = "fedavg"  # of subnets into the supernet, as in the authors' code
    policy_rule: policies.Rule = "adam"  # plain: along the gradient itself
    policy_lr: Annotated[float, Gt(0)] = 0.003  # its learning rate
    baseline_rate: Annotated[float, Interval(gt=0, le=1)] = 0.99  # of the moving average

    def sends(self) -> Forms:
        """Declare what leaves a client: what it trained, and how good a drawn subnet is."""
        what = "the weights and batch-norm statistics of a subnet or of the model, trained"
        told = "while subnets are drawn: its accuracy on the client's validation data"
        how_good = Sent("accuracy", "float", told, range=(0, 1), optional=True)
        return {"trained": (Sent("*", "tensor", what), how_good)}

    def check(self, setting: Setting) -> None:
        """Refuse phases that leave no round to train what is found."""
        if setting.rounds and self._last_search(setting) >= setting.rounds:
            raise UserError(
                f"algorithm.search_rounds: warm-up and search take {self._last_search(setting)} "
                f"rounds and leave none of {setting.rounds} to train what is found; raise rounds"
            )

    def server_init(self, server: Server) -> Found:
        """Start from the first supernet and an undecided policy."""
        return self._decided(server, Found(initial_supernet(server.setting, statistics=True)), 0)

    def client_init(self, client: Client) -> None:
        """Clients keep nothing."""
        return

    def configure(
        self, server: Server, state: Found, cohort: list[ClientInfo]
    ) -> dict[int, Message]:
        """Send each client a drawn subnet or, once it is found, everyone the same network."""
        if state.arch is not None:
            message = Message(state.weights, {"genes": list(state.arch)})
            return dict.fromkeys([info.id for info in cohort], message)
        space, found = server.setting.space, {}
        for info in cohort:
            drawn = policies.draw(space, _alphas(space, state), server.rng(f"policy/{info.id}"))
            message = _subnet(server.setting, state, drawn)
            found[info.id] = replace(message, info={**message.info, "searching": True})
        return found

    def train(self, client: Client, own: None, msg: Message) -> tuple[None, Reply]:
        """Train what was sent and, if it was drawn, say how good it is."""
        setting, searching = client.setting, "searching" in msg.info
        arch = setting.space.repair(tuple(msg.info["genes"]))
        network = learn.network(client, msg.tensors, arch)
        loss = learn.fit(client, network, self, lr=self._rate(client, searching))
        metrics = [Metric("train", "loss", loss)]
        if not searching:
            return None, Reply(Message(network.weights()), Log(tuple(metrics)))
        accuracy = learn.evaluate(network, client.val)["accuracy"]
        metrics.append(Metric("val", "accuracy", accuracy, "trained"))
        used = UsedArch(arch, accuracy, cost.prices(setting.space, arch, setting.task))
        reply = Message(network.weights(), {"accuracy": accuracy})
        return None, Reply(reply, Log(tuple(metrics), (used,)))

    def aggregate(self, server: Server, state: Found, results: Iterable[Result]) -> Found:
        """Average; while searching, let the policy learn, and decide when its rounds are over."""
        if state.arch is not None:
            return replace(state, weights=mean_of(state.weights, results, weighted=True))
        played: list[tuple[Arch, float]] = []

        def parts() -> Iterator[Part]:
            for result in results:
                told = result.message.info
                played.append((tuple(result.sent["genes"]), told["accuracy"]))
                examples = result.client.examples
                times = self.epochs * batch_count(examples, self.batch)
                yield weighed(self.merge, result.message.tensors, examples, float(times))

        state = replace(state, weights=merge(state.weights, parts()))
        learns = server.round > self._warmup(server.setting)
        state = self._learned(server.setting.space, state, played, learns)
        return self._decided(server, state, server.round)

    def serve(self, server: Server, state: Found, info: ClientInfo) -> Message:
        """Give a client the network or, before it is found, the most probable subnet."""
        if state.arch is not None:
            return super().serve(server, state, info)
        space = server.setting.space
        return _subnet(server.setting, state, policies.likeliest(space, _alphas(space, state)))

    def deploy(self, client: Client, own: None, msg: Message) -> Iterator[tuple[str, Network]]:
        """Use that network, then the same fine-tuned."""
        arch = client.setting.space.repair(tuple(msg.info["genes"]))
        return self.tune(client, learn.network(client, msg.tensors, arch))

    def first_like(self, server: Server, state: Found) -> Found:
        """Return the first supernet, or first weights of what another state has found."""
        setting = server.setting
        if state.arch is None or not genes.is_legal(setting.space, state.arch):
            return Found(initial_supernet(setting, statistics=True))
        return Found(initial_weights(setting, state.arch))

    def inspect(self, space: SearchSpace, state: Found) -> dict[str, Json]:
        """Tell the policy."""
        return {
            "choices": [{"name": c.name, "options": list(c.options)} for c in space.choices],
            "clients": {},
            "shared": policies.described(space, _alphas(space, state)),
        }

    def _warmup(self, setting: Setting) -> int:
        return round(0.1 * setting.rounds) if self.warmup is None else self.warmup

    def _last_search(self, setting: Setting) -> int:
        """Return the last round in which subnets are drawn."""
        given = self.search_rounds
        return self._warmup(setting) + (round(0.4 * setting.rounds) if given is None else given)

    def _rate(self, client: Client, searching: bool) -> float:
        """Return the learning rate: the schedule begins anew with the training of what is found."""
        last = self._last_search(client.setting)
        if searching:
            return self.rate(client.round, last)
        return self.rate(client.round - last, client.setting.rounds - last)

    def _learned(
        self, space: SearchSpace, state: Found, played: list[tuple[Arch, float]], learns: bool
    ) -> Found:
        """Return the policy after a step up the mean of the clients' gradients."""
        if not played:
            return state
        average = mean([accuracy for _, accuracy in played])
        usual = average if state.usual is None else state.usual
        alphas, policy = _alphas(space, state), state.policy
        if learns:
            pairs = [policies.reinforce(space, alphas, drawn, a - usual) for drawn, a in played]
            gradient = torch.stack([gradient for gradient, _ in pairs]).mean(0)
            moved = torch.stack([there for _, there in pairs]).any(0)
            policy = policies.ascend(
                policy, {ONE: gradient}, {ONE: moved}, self.policy_rule, self.policy_lr
            )
        return replace(state, policy=policy, usual=usual + self.baseline_rate * (average - usual))

    def _decided(self, server: Server, state: Found, done: int) -> Found:
        """Once the search is over, take the most probable architecture, with first weights."""
        setting = server.setting
        if done < self._last_search(setting):
            return state
        arch = policies.likeliest(setting.space, _alphas(setting.space, state))
        return replace(state, weights=initial_weights(setting, arch), arch=arch)


def _alphas(space: SearchSpace, state: Found) -> Tensor:
    return state.policy.row(ONE, sum(genes.option_counts(space)))


def _subnet(setting: Setting, state: Found, drawn: Arch) -> Message:
    arch = setting.space.repair(drawn)
    wanted = shapes(setting.space, arch, setting.task, statistics=True)
    return Message(cut(state.weights, wanted), {"genes": list(drawn)})
