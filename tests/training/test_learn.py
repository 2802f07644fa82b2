import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.types import Augment, Client, Setting, Tensors
from fedtailor.data.batches import batch as rows_to_batch
from fedtailor.data.batches import epoch
from fedtailor.networks.initial import initial_weights
from fedtailor.networks.network import load, weights_of
from fedtailor.spaces.resnet18 import ResNet18
from fedtailor.training import learn

PLAIN = learn.Recipe(epochs=2, batch=16, lr=0.1, momentum=0.0)


def trained(client: Client, recipe: learn.Recipe, **how: Any) -> Tensors:
    network = learn.network(client, initial_weights(client.setting))
    learn.fit(client, network, recipe, lr=recipe.lr, **how)
    return network.weights()


def close(a: Tensors, b: Tensors) -> bool:
    return a.keys() == b.keys() and all(torch.allclose(a[n], b[n], atol=1e-5) for n in a)


def by_hand(client: Client, recipe: learn.Recipe, strength: float = 0.0) -> Tensors:
    """Train with torch.autograd.grad and the update rule written out, nothing shared."""
    start = initial_weights(client.setting)
    model = client.setting.space.build((), client.setting.task)
    load(model, start)
    rng, velocity = client.rng("train"), {n: torch.zeros_like(w) for n, w in start.items()}
    for _ in range(recipe.epochs):
        for rows in epoch(client.train, recipe.batch, rng):
            images, labels = rows_to_batch(client.train, rows, rng, "cpu")
            names, parameters = zip(*model.named_parameters(), strict=True)
            loss = F.cross_entropy(model(images), labels, label_smoothing=recipe.label_smoothing)
            for name, parameter in zip(names, parameters, strict=True):
                loss = loss + strength / 2 * (parameter - start[name]).square().sum()
            gradients = torch.autograd.grad(loss, parameters)
            norm = torch.cat([g.flatten() for g in gradients]).norm()
            scale = min(1.0, recipe.clip / (norm.item() + 1e-6)) if recipe.clip else 1.0
            with torch.no_grad():
                for name, parameter, gradient in zip(names, parameters, gradients, strict=True):
                    step = gradient * scale + recipe.weight_decay * parameter
                    velocity[name] = recipe.momentum * velocity[name] + step
                    parameter -= recipe.lr * velocity[name]
    return weights_of(model)


@pytest.mark.parametrize(
    "recipe",
    [
        PLAIN,
        replace(PLAIN, momentum=0.9, weight_decay=0.01),
        replace(PLAIN, clip=0.5),
        replace(PLAIN, label_smoothing=0.1, batch=7),
    ],
)
def test_training_is_the_rule_written_out(client: Client, recipe: learn.Recipe):
    assert close(trained(client, recipe), by_hand(client, recipe))


def pulled_to_the_start(client: Client, recipe: learn.Recipe, strength: float) -> Tensors:
    anchor = initial_weights(client.setting)
    network = learn.network(client, anchor)
    steps = learn.optimizer(network, recipe, recipe.lr)
    for batch in learn.batches(client, recipe.batch, epochs=recipe.epochs, purpose="train"):
        steps.zero_grad()
        network.loss(batch).backward()
        learn.pull(network, anchor, strength)
        learn.move(network, steps, recipe.clip)
    return network.weights()


def test_the_pull_is_the_gradient_of_half_the_squared_distance(client: Client):
    recipe = replace(PLAIN, momentum=0.9)
    pulled = pulled_to_the_start(client, recipe, 0.7)
    assert close(pulled, by_hand(client, recipe, strength=0.7))
    assert not close(pulled, trained(client, recipe))


def test_the_pull_never_touches_batch_norm_statistics(client: Client):
    """A pull so strong that weights stay; the statistics must move as without it."""
    resnet = Setting(client.setting.task, ResNet18(width=4), 10, 3)
    client = replace(client, setting=resnet)
    start = initial_weights(resnet)
    weights = pulled_to_the_start(client, replace(PLAIN, lr=1e-9), 1.0)
    free = trained(client, replace(PLAIN, lr=1e-9))
    assert not torch.equal(weights["norm.running_mean"], start["norm.running_mean"])
    assert torch.equal(weights["norm.running_mean"], free["norm.running_mean"])


def test_what_is_frozen_stands_still(client: Client):
    """Weight decay, momentum and statistics of the body must not move while the head trains."""
    resnet = Setting(client.setting.task, ResNet18(width=4), 10, 3)
    client = replace(client, setting=resnet)
    start = initial_weights(resnet)
    network = learn.network(client, start)
    recipe = replace(PLAIN, momentum=0.9, weight_decay=0.1)
    learn.fit(client, network, recipe, lr=0.1)  # leaves gradients behind
    before = network.weights()
    learn.fit(client, network.only(lambda name: name.startswith("head.")), recipe, lr=0.1)
    after = network.weights()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"head.weight", "head.bias"}


def test_a_network_handed_out_again_remembers_nothing(client: Client):
    first = trained(client, PLAIN)
    other = replace(client, round=7)
    trained(other, replace(PLAIN, lr=0.3))
    learn.network(client, first).module.requires_grad_(False).eval()
    assert all(
        torch.equal(a, b)
        for a, b in zip(first.values(), trained(client, PLAIN).values(), strict=True)
    )


def test_loss_that_is_not_finite_is_an_error(client: Client):
    with pytest.raises(FloatingPointError, match=r"lower algorithm\.lr"):
        trained(client, replace(PLAIN, lr=1e30))


def test_a_diverged_model_is_not_scored(client: Client):
    """Its outputs are no numbers, and argmax would call them class 0."""
    huge = {name: w * 1e30 for name, w in initial_weights(client.setting).items()}
    with pytest.raises(FloatingPointError, match="diverged"):
        learn.evaluate(learn.network(client, huge), client.test)


def test_adamw_trains(client: Client):
    network = learn.network(client, initial_weights(client.setting))
    recipe = learn.Recipe(epochs=60, optimizer="adamw", lr=0.01)
    learn.fit(client, network, recipe)
    assert learn.evaluate(network, client.train)["accuracy"] > 0.8


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [1, 1, 1, 1]),
        ("cosine", [1, (1 + math.sqrt(0.5)) / 2, 0.5, (1 - math.sqrt(0.5)) / 2]),
        ("step", [1, 1, 0.1, 0.01]),
    ],
)
def test_schedules(schedule: Any, rates: list[float]):
    recipe = learn.Recipe(lr=1.0, schedule=schedule)
    assert [recipe.rate(round, 4) for round in (1, 2, 3, 4)] == pytest.approx(rates)


def test_first_weights_hang_on_seed_and_name_only(client: Client):
    setting = client.setting
    first, again = initial_weights(setting), initial_weights(setting)
    assert all(torch.equal(first[n], again[n]) for n in first)
    first["head.bias"].fill_(9)
    assert initial_weights(setting)["head.bias"].abs().max() == 0
    wider = Setting(replace(setting.task, classes=20), setting.space, 10, 3)
    assert torch.equal(first["conv1.weight"], initial_weights(wider)["conv1.weight"])
    other = initial_weights(replace(setting, seed=4))
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])


def test_loading_takes_all_names_and_no_others(client: Client):
    model = client.setting.space.build((), client.setting.task)
    weights = initial_weights(client.setting)
    with pytest.raises(KeyError):
        load(model, {n: w for n, w in weights.items() if n != "head.bias"})
    with pytest.raises(KeyError, match="stranger"):
        load(model, weights | {"stranger": torch.zeros(1)})


def test_the_meter_counts_what_was_trained(client: Client):
    trained(client, PLAIN)
    from fedtailor.networks import cost

    setting = client.setting
    per_image = cost.training_macs(setting.space, (), setting.task)
    assert client.meter.macs == PLAIN.epochs * len(client.train) * per_image


def test_batches_of_other_examples_and_of_several_epochs(client: Client):
    """Every image once in an epoch, other orders in other epochs, the same by the same name."""
    drawn = list(learn.batches(client, 7, epochs=2, purpose="any", examples=client.val))
    again = list(learn.batches(client, 7, epochs=2, purpose="any", examples=client.val))
    wanted = client.val.labels[client.val.index].sort().values
    orders = []
    for number in (1, 2):
        labels = torch.cat([batch.labels for batch in drawn if batch.epoch == number])
        assert torch.equal(labels.sort().values, wanted)
        orders.append(torch.cat([batch.images for batch in drawn if batch.epoch == number]))
    assert not torch.equal(*orders)
    for one, same in zip(drawn, again, strict=True):
        assert torch.equal(one.images, same.images)
    other = next(learn.batches(client, 7, purpose="other", examples=client.val))
    assert not torch.equal(other.images, drawn[0].images)


def test_an_epoch_that_diverged_is_not_forgotten(client: Client):
    mean = learn.EpochMean("cpu")
    first, second = (next(learn.batches(client, 4, purpose="any")) for _ in range(2))
    mean.add(torch.tensor(math.inf), first)
    with pytest.raises(FloatingPointError):
        mean.add(torch.tensor(1.0), replace(second, epoch=2))


def test_joined_are_training_and_validation_images_augmented_alike(client: Client):
    augmented = replace(client, train=replace(client.train, augment=Augment(1, True)))
    found = learn.joined(augmented)
    rows = found.train.index.tolist()
    assert rows == sorted(client.train.index.tolist() + client.val.index.tolist())
    assert len(set(rows)) == len(client.train) + len(client.val)
    assert found.train.augment == Augment(1, True)
    assert len(found.val) == 0, "none is left to judge by"
    assert (found.test, found.info) == (client.test, client.info)
    assert learn.joined(found).train.index.tolist() == rows, "joined is joined"
    assert found.meter is client.meter, "what is trained is charged"
    assert augmented.train.index.tolist() == client.train.index.tolist(), "the client is as it was"
