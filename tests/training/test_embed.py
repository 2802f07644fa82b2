"""Embeddings: what the classifier reads, of images as they are, in evaluation mode."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core import registry
from fedtailor.core.errors import UserError
from fedtailor.core.space import Task
from fedtailor.core.types import Augment, Client, Meter, Setting
from fedtailor.data.batches import batch
from fedtailor.networks import cost
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import Network, network_of
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import embed as module
from fedtailor.training import learn
from fedtailor.training.embed import embed, read_by_head


def resnet(meter: Meter | None = None) -> Network:
    """Return a network with batch norm whose maps are 2 x 2 where they are pooled."""
    setting = Setting(Task((1, 16, 16), 10), ResNet18(width=4), 10, 3)
    weights = initial_weights(setting)
    return network_of(setting.space, (), setting.task, weights, meter=meter)


def larger(client: Client) -> Client:
    """Give the client images of 16 x 16."""

    images = client.train.images.repeat_interleave(2, 2).repeat_interleave(2, 3)
    parts = {name: replace(getattr(client, name), images=images) for name in ("train", "val")}
    return replace(client, **parts)


def test_they_are_the_maps_mean_where_a_network_pools(client: Client):
    """A map of 2 x 2, not its corner and not all four places."""
    client, network = larger(client), resnet()
    found = embed(network, client.val)
    images, labels = batch(client.val, torch.arange(len(client.val)), None, "cpu")
    model = network.module.eval()
    with torch.no_grad():
        maps = model.get_submodule("blocks")(
            F.relu(model.get_submodule("norm")(model.get_submodule("stem")(images)))
        )
        assert maps.shape[1:] == (32, 2, 2)
        assert torch.allclose(found.features, maps.mean((2, 3)), atol=1e-6)
        assert torch.allclose(found.logits, model(images), atol=1e-6)
    assert torch.equal(found.labels, labels)
    assert found.features.shape == (len(client.val), 32)


@pytest.mark.parametrize("name", registry.names("space"))
def test_the_classifier_makes_the_logits_of_them_in_every_space(name: str):
    kind = registry.find("space", name)
    space, task = kind(**kind.presets.get("cpu", {})), Task((3, 32, 32), 5)
    for arch in {space.smallest(), space.middle()}:
        weights = initial_weights(Setting(task, space, 1, 0), arch)
        model = network_of(space, arch, task, weights).module.eval()
        images = torch.randn(3, *task.shape, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            features, logits = read_by_head(model, model, images)
            again = F.linear(features, weights["head.weight"], weights["head.bias"])
        assert features.dim() == 2 and logits.shape == (3, 5)
        assert torch.allclose(again, logits, atol=1e-5)


def test_the_mode_before_does_not_matter_and_statistics_stay(client: Client):
    client, network = larger(client), resnet()
    learn.fit(client, network, learn.Recipe(), lr=0.05)
    before = network.weights()
    network.module.eval()
    quiet = embed(network, client.train)
    network.train()
    found = embed(network, client.train)
    assert torch.equal(found.features, quiet.features)
    assert not network.module.training
    assert all(torch.equal(w, before[n]) for n, w in network.weights().items())


def test_images_are_never_augmented_nor_shuffled(client: Client):
    network = learn.network(client, initial_weights(client.setting))
    plain = embed(network, client.train)
    moved = replace(client.train, augment=Augment(crop=2, flip=True, cutout=3))
    assert torch.equal(embed(network, moved).features, plain.features)
    assert torch.equal(plain.labels, client.train.labels[client.train.index])


def test_many_images_are_the_same_as_few_at_a_time(client: Client, monkeypatch: pytest.MonkeyPatch):
    network = learn.network(client, initial_weights(client.setting))
    whole = embed(network, client.train)
    monkeypatch.setattr(module, "EVALUATION_BATCH", 7)
    parts = embed(network, client.train)
    assert torch.allclose(parts.features, whole.features, atol=1e-6)
    assert torch.equal(parts.labels, whole.labels) and len(whole.labels) == len(client.train)


def test_whoever_embeds_is_charged_a_forward_pass(client: Client):
    client, meter = larger(client), Meter()
    network = resnet(meter)
    embed(network, client.val)
    each = cost.forward_macs(network.space, (), network.task)
    assert meter.macs == each * len(client.val)


class Headed(nn.Module):
    """A body that gives its images' own map to some head."""

    def __init__(self, head: nn.Module) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(1, 4, 3, bias=False), head

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images)).flatten(1)


class Product(nn.Linear):
    """Pools and multiplies by hand."""

    def forward(self, input: Tensor) -> Tensor:
        return input.mean((2, 3)) @ self.weight.t() + self.bias


class Named(nn.Linear):
    """Pools and gives everything by name."""

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input=input.mean((2, 3)), weight=self.weight, bias=self.bias)


HEADS = {
    "convolution": lambda: nn.Sequential(nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1)),
    "two layers": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8),
                                        nn.ReLU(), nn.Linear(8, 3)),
    "norm first": lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.BatchNorm1d(4),
                                        nn.Linear(4, 3)),
    "product": lambda: Product(4, 3),
    "named": lambda: Named(4, 3),
}  # fmt: skip


@pytest.mark.parametrize("head", HEADS)
def test_what_the_first_layer_of_a_head_is_given(head: str):
    torch.manual_seed(0)
    model = Headed(HEADS[head]()).eval()
    images = torch.randn(5, 1, 8, 8)
    with torch.no_grad():
        features, logits = read_by_head(model, model, images)
        assert torch.allclose(features, model.body(images).mean((2, 3)), atol=1e-6)
        assert torch.equal(logits, model(images))


def test_a_head_that_reads_nothing_is_one_sentence():
    class Empty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(3))

        def forward(self, maps: Tensor) -> Tensor:
            return self.weight.exp()

    model = Headed(Empty())
    with pytest.raises(UserError, match=r"^space\.name: it cannot be told what the classifier"):
        read_by_head(model, lambda images: model.head(images), torch.zeros(2, 1, 8, 8))
