"""kNN-Per, step by step: by hand, against scikit-learn, and every trap of published code."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor, nn

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.algorithms.knnper import KNNPer, Memory, Remembering, mix
from fedtailor.core.errors import UserError
from fedtailor.core.space import Arch, SearchSpace, Task
from fedtailor.core.types import Augment, Client, Message, Setting
from fedtailor.data.batches import batch
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network
from fedtailor.runs.config import make_config
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import learn
from fedtailor.training.embed import Embedded


def drawn(*shape: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def embedded(features: Tensor, logits: Tensor, labels: list[int]) -> Embedded:
    return Embedded(features, logits, torch.tensor(labels))


def kernel(dimensions: int, scale: float = 1.0) -> Any:
    """Return scikit-learn's way to weigh by distance."""
    return lambda distances: np.exp(-(distances**2) / (scale * dimensions))


def all_of(client: Client, *splits: str) -> tuple[Tensor, Tensor]:
    """Return all images and labels of some splits, as they are."""
    found = []
    for split in splits:
        some = getattr(client, split)
        found.append(batch(some, torch.arange(len(some)), None, "cpu"))
    images, labels = zip(*found, strict=True)
    return torch.cat(images), torch.cat(labels)


def trained(client: Client, **fields: Any) -> tuple[KNNPer, Message]:
    """Return an algorithm, and what the server would send after a round of this client alone."""
    how = KNNPer(**fields)
    _, reply = how.train(client, None, Message(initial_weights(client.setting)))
    return how, Message(reply.message.tensors)


def deployed(how: KNNPer, client: Client, message: Message) -> Network:
    """Return the network that counts."""
    models = list(how.deploy(client, None, message))
    assert models[0][0] == "untuned" and models[-1][0] == "remembering"
    return models[-1][1]


def buffers(network: Network) -> dict[str, Tensor]:
    return {n: w for n, w in network.weights().items() if not n.startswith("network.")}


# The answer of a memory

HAND = Memory(
    torch.tensor([[0.0, 2.0], [0.0, 0.0], [1.0, 0.0]]),
    torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]),
)


def test_two_neighbours_by_hand():
    """Squared distances 0, 1 and 4 in two dimensions: weights 1, exp(-1/2) and exp(-2)."""
    found = HAND.answer(torch.zeros(1, 2), 2, 1.0)[0].tolist()
    whole = 1 + math.exp(-0.5)
    assert found == pytest.approx([1 / whole, math.exp(-0.5) / whole, 0])
    found = HAND.answer(torch.zeros(1, 2), 3, 4.0)[0].tolist()
    near, far = math.exp(-1 / 8), math.exp(-4 / 8)
    whole = 1 + near + far
    assert found == pytest.approx([1 / whole, (near + far) / whole, 0])
    assert HAND.answer(torch.zeros(1, 2), 1, 1.0).tolist() == [[1, 0, 0]]


def test_probabilities_are_mixed_by_hand():
    near, model = torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.1, 0.3, 0.6]])
    assert mix(near, model, 0.25).exp()[0].tolist() == pytest.approx([0.2, 0.35, 0.45])
    assert mix(near, model, 0.0).exp()[0].tolist() == pytest.approx([0.1, 0.3, 0.6])
    assert mix(near, model, 1.0)[0, :2].exp().tolist() == pytest.approx([0.5, 0.5])
    assert math.isfinite(mix(near, model, 1.0)[0, 2].item()), "its loss is large, not infinite"


@pytest.mark.parametrize("k", [1, 4, 11])
@pytest.mark.parametrize("scale", [0.3, 1.0])
def test_answers_are_those_of_scikit_learn(k: int, scale: float):
    stored, asked, labels = drawn(60, 7), drawn(25, 7, seed=1), np.arange(60) % 5
    eye = torch.eye(5, dtype=torch.float64)
    found = Memory(stored, eye[torch.from_numpy(labels)]).answer(asked, k, scale)
    theirs = KNeighborsClassifier(k, weights=kernel(7, scale)).fit(stored.numpy(), labels)
    assert np.allclose(found.numpy(), theirs.predict_proba(asked.numpy()), atol=1e-12)


def test_neighbours_are_those_of_scikit_learn(client: Client):
    """Of real embeddings: with a class for each image the answer tells who was heard."""
    network = learn.network(client, initial_weights(client.setting))
    train, val = learn.embed(network, client.train), learn.embed(network, client.val)
    found = Memory(train.features, torch.eye(len(train.labels))).answer(val.features, 6, 1.0)
    theirs = NearestNeighbors(n_neighbors=6).fit(train.features.numpy())
    _, which = theirs.kneighbors(val.features.numpy())
    heard = [set(np.flatnonzero(row)) for row in found.numpy()]
    assert heard == [set(row) for row in which]


def test_far_neighbours_are_heard_too():
    """Their weights alone would all be zero, and a sum of zeros divides nothing."""
    memory = Memory(1e3 + drawn(5, 3).float(), torch.eye(5))
    found = memory.answer(torch.zeros(2, 3), 5, 1.0)
    assert found.sum(1).tolist() == pytest.approx([1, 1])


def test_equally_far_ones_are_heard_in_their_order():
    memory = Memory(torch.ones(4, 2), torch.eye(4))
    assert memory.answer(torch.zeros(1, 2), 2, 1.0)[0].tolist() == pytest.approx([0.5, 0.5, 0, 0])


def test_more_neighbours_than_images_are_all_images():
    asked = drawn(4, 2).float()
    assert torch.equal(HAND.answer(asked, 10, 1.0), HAND.answer(asked, 3, 1.0))


# The choice


def brute(how: KNNPer, train: Embedded, val: Embedded) -> tuple[int, float]:
    """Choose by scikit-learn's answers, every pair written out."""
    stored, labels = train.features.numpy(), train.labels.numpy()
    table: dict[tuple[int, float], tuple[float, float]] = {}
    for k in how.neighbours:
        k = min(k, len(labels))
        weights = kernel(stored.shape[1], how.scale)
        theirs = KNeighborsClassifier(k, weights=weights).fit(stored, labels)
        near = np.zeros(val.logits.shape)
        near[:, theirs.classes_] = theirs.predict_proba(val.features.numpy())
        raised = np.exp(val.logits.double().numpy())
        model = raised / raised.sum(1, keepdims=True)
        for share in how.shares:
            both = share * near + (1 - share) * model
            truth = val.labels.numpy()
            right = float((both.argmax(1) == truth).sum())
            chance = np.maximum(both[np.arange(len(truth)), truth], 1e-38)
            table.setdefault((k, share), (right, float(np.log(chance).mean())))
    return max(table, key=lambda pair: table[pair])


@pytest.mark.parametrize("seed", range(6))
def test_the_choice_is_the_best_of_all_pairs(seed: int):
    labels = torch.randint(3, (55,), generator=torch.Generator().manual_seed(seed))
    centres = 1.5 * drawn(3, 4, seed=seed + 100)
    features = centres[labels] + drawn(55, 4, seed=seed)
    logits = drawn(55, 3, seed=seed + 200) + 1.2 * torch.eye(3, dtype=torch.float64)[labels]
    train = Embedded(features[:30], logits[:30], labels[:30])
    val = Embedded(features[30:], logits[30:], labels[30:])
    how = KNNPer(neighbours=(1, 3, 7, 50))
    assert how.choose(Memory.of(train), val) == brute(how, train, val)


def test_of_equals_the_likelier_is_chosen_and_then_the_first():
    """All are right or all wrong alike; memory is surer than the model, or just as sure."""
    logits = torch.tensor([[1.0, 0.0]])
    memory = Memory(torch.zeros(2, 2), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    val = embedded(torch.zeros(1, 2), logits, [0])
    assert KNNPer(shares=(0.0, 0.5, 1.0, 0.7)).choose(memory, val) == (1, 1.0)
    alike = Memory(torch.zeros(2, 2), logits.softmax(1).repeat(2, 1))
    assert KNNPer(neighbours=(2, 1), shares=(0.3, 0.0)).choose(alike, val) == (2, 0.3)


def test_k_is_capped_by_the_images_that_there_are():
    memory, val = HAND, embedded(torch.zeros(1, 2), torch.zeros(1, 3), [1])
    assert KNNPer(neighbours=(100,), shares=(1.0,)).choose(memory, val) == (3, 1.0)


# What a client deploys


def test_it_is_the_mixture_of_both_by_probabilities_not_logits(client: Client):
    """Everything anew: embeddings by a hook, neighbours by scikit-learn, softmax by hand."""
    how, message = trained(client, neighbours=(5,), shares=(0.4,), epochs=3, lr=0.1)
    network = deployed(how, client, message)
    plain = learn.network(client, message.tensors).module.eval()
    seen: list[Tensor] = []
    plain.get_submodule("head").register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    (images, labels), (asked, _) = all_of(client, "train", "val"), all_of(client, "test")
    with torch.no_grad():
        plain(images)
        logits = plain(asked).double().numpy()
        found = network(asked).double().exp().numpy()
    stored, here = (features.double().numpy() for features in seen)
    theirs = KNeighborsClassifier(5, weights=kernel(16)).fit(stored, labels.numpy())
    near = np.zeros_like(logits)
    near[:, theirs.classes_] = theirs.predict_proba(here)
    raised = np.exp(logits)
    wanted = 0.4 * near + 0.6 * raised / raised.sum(1, keepdims=True)
    assert np.allclose(found, wanted, atol=1e-5)
    assert found.sum(1) == pytest.approx(np.ones(len(found)), abs=1e-5)


def test_the_choice_is_made_before_validation_images_are_remembered(client: Client):
    """Remembered, they would be their own nearest neighbours, and memory always right."""
    noise = torch.randint(10, client.train.labels.shape, generator=torch.Generator().manual_seed(0))
    client = replace(
        client, **{s: replace(getattr(client, s), labels=noise) for s in ("train", "val")}
    )
    how, message = trained(client, epochs=0)
    network = learn.network(client, message.tensors)
    train, val = learn.embed(network, client.train), learn.embed(network, client.val)
    chosen = buffers(deployed(how, client, message))
    k, share = brute(how, train, val)
    assert (chosen["k"].item(), chosen["share"].item()) == (k, pytest.approx(share))
    cheat = how.choose(Memory.of(train, val), val)
    assert cheat == (1, 1.0) != (k, share)


def test_validation_images_join_the_memory_after_the_choice(client: Client):
    how, message = trained(client)
    found = buffers(deployed(how, client, message))
    network = learn.network(client, message.tensors)
    parts = [learn.embed(network, some) for some in (client.train, client.val)]
    assert torch.equal(found["features"], torch.cat([part.features for part in parts]))
    labels = torch.cat([part.labels for part in parts])
    assert torch.equal(found["labels"].argmax(1), labels) and (found["labels"].sum(1) == 1).all()
    assert len(labels) == len(client.train) + len(client.val)


def test_test_images_choose_nothing(client: Client):
    how, message = trained(client)
    wrong = replace(client.test, labels=(client.test.labels + 1) % 10)
    usual = deployed(how, client, message).weights()
    for other in (replace(client, test=wrong), replace(client, test=client.val)):
        found = deployed(how, other, message).weights()
        assert all(torch.equal(found[n], w) for n, w in usual.items())


def test_validation_images_are_never_trained_on(client: Client):
    how, message = trained(client, epochs=2, finetune_epochs=2)
    other = replace(client, val=client.test)
    _, again = trained(other, epochs=2, finetune_epochs=2)
    assert all(torch.equal(again.tensors[n], w) for n, w in message.tensors.items())
    one, two = (deployed(how, who, message).weights() for who in (client, other))
    assert all(torch.equal(one[n], two[n]) for n in one if n.startswith("network."))


def test_what_is_remembered_is_neither_augmented_nor_of_train_mode(client: Client):
    """Tuned just before, a network with batch norm is in training mode."""
    setting = Setting(Task((1, 8, 8), 10), ResNet18(width=4), 10, 3)
    moved = replace(client.train, augment=Augment(crop=2, flip=True))
    client = replace(client, setting=setting, train=moved)
    how, message = trained(client, finetune_epochs=1, epochs=2)
    network = deployed(how, client, message)
    weights = network.weights()
    inner = {n.removeprefix("network."): w for n, w in weights.items() if n.startswith("network.")}
    assert any(not torch.equal(w, message.tensors[n]) for n, w in inner.items()), "tuned"
    fresh = learn.network(client, inner)
    fresh.module.eval()
    quiet = [learn.embed(fresh, replace(some, augment=Augment()))
             for some in (client.train, client.val)]  # fmt: skip
    assert torch.equal(weights["features"], torch.cat([part.features for part in quiet]))


def test_the_smallest_client_there_can_be(client: Client):
    """Two images to train on, one to choose by: k is 1 or 2, and three images are remembered."""
    few = {"train": 2, "val": 1}
    parts = {
        split: replace(getattr(client, split), index=getattr(client, split).index[:count])
        for split, count in few.items()
    }
    small = replace(client, **parts)
    how, message = trained(small, neighbours=(7, 10))
    network = deployed(how, small, message)
    assert buffers(network)["k"] == 2 and len(buffers(network)["features"]) == 3
    assert math.isfinite(learn.evaluate(network, client.test)["loss"])


def test_a_share_of_nothing_is_the_global_model(client: Client):
    how, message = trained(client, shares=(0.0,))
    images, _ = all_of(client, "test")
    plain = learn.network(client, message.tensors)
    plain.module.eval()
    with torch.no_grad():
        alone = plain(images).log_softmax(1)
        assert torch.allclose(deployed(how, client, message)(images), alone, atol=1e-4)


def test_memory_alone_has_a_finite_loss(client: Client):
    """A class that no neighbour has gets no probability, and may be the true one."""
    how, message = trained(client, shares=(1.0,), neighbours=(1,))
    scores = learn.evaluate(deployed(how, client, message), client.test)
    assert scores["accuracy"] < 1 and 10 < scores["loss"] < 100


def test_untuned_is_the_global_model_and_tuning_comes_before_memory(client: Client):
    how, message = trained(client, finetune_epochs=1)
    labels = []
    for label, network in how.deploy(client, None, message):
        labels.append((label, how.knows_val(label)))
        if label == "untuned":
            assert all(torch.equal(w, message.tensors[n]) for n, w in network.weights().items())
    assert labels == [("untuned", False), ("tuned", False), ("remembering", True)]
    assert [
        label for label, _ in replace(how, finetune_epochs=0).deploy(client, None, message)
    ] == [
        "untuned",
        "remembering",
    ]


def test_clients_train_what_fedavg_trains(client: Client):
    fields: dict[str, Any] = {"epochs": 2, "lr": 0.1}
    _, message = trained(client, **fields)
    _, reply = FedAvg(**fields).train(client, None, Message(initial_weights(client.setting)))
    assert all(torch.equal(reply.message.tensors[n], w) for n, w in message.tensors.items())
    assert KNNPer().sends() == FedAvg().sends()


def test_what_is_deployed_is_all_in_its_weights(client: Client):
    """Memory, k, share and scale too: whoever has the file can answer as it does."""
    how, message = trained(client, scale=2.0)
    network = deployed(how, client, message)
    state = network.weights()
    inner = {n.removeprefix("network."): w for n, w in state.items() if n.startswith("network.")}
    assert inner.keys() == message.tensors.keys()
    assert state.keys() - {f"network.{n}" for n in inner} == {
        "features", "labels", "k", "share", "scale",
    }  # fmt: skip
    memory = Memory(state["features"], state["labels"])
    numbers = int(state["k"]), state["share"].item(), state["scale"].item()
    again = Remembering(learn.network(client, inner).module, memory, *numbers).eval()
    images, _ = all_of(client, "test")
    with torch.no_grad():
        assert torch.allclose(again(images), network(images), atol=1e-6)


def test_nobody_is_given_the_module_while_it_remembers(client: Client):
    how, message = trained(client)
    network = deployed(how, client, message)
    before = network.weights()
    other = learn.network(client, {n: torch.zeros_like(w) for n, w in message.tensors.items()})
    assert other.module is not network.module.get_submodule("network")
    assert all(torch.equal(network.weights()[n], w) for n, w in before.items())


@dataclass(frozen=True)
class Silent(SearchSpace):
    """A network whose classifier does not look."""

    def build(self, arch: Arch, task: Task) -> nn.Module:
        return Blind()


class Blind(nn.Module):
    """Says the same of all images."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(1, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head.bias.exp().expand(len(images), -1)


def test_a_head_that_cannot_be_read_is_refused_before_anything_is_written(client: Client):
    KNNPer().check(client.setting)
    with pytest.raises(UserError, match=r"^space\.name: it cannot be told"):
        KNNPer().check(replace(client.setting, space=Silent()))


@pytest.mark.parametrize(
    ("field", "value"),
    [("neighbours", []), ("neighbours", [0]), ("shares", []), ("shares", [1.5]), ("scale", 0)],
)
def test_options_out_of_range_are_one_sentence(field: str, value: Any):
    with pytest.raises(UserError, match=rf"^algorithm\.{field}"):
        make_config({"algorithm": {"name": "knnper", field: value}})
