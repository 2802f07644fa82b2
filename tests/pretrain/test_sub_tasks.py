"""Sub-tasks: which there are, which images are theirs, and how networks are judged on them."""

from collections import Counter

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.types import Examples
from fedtailor.pretrain.sub_tasks import SubTask, TaskDraw, draw_tasks, hold_out, task_matrices

CLASSES, EACH = 30, 12
LABELS = torch.arange(CLASSES).repeat(EACH)
TRAINING = torch.arange(CLASSES).repeat_interleave(40)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def draw(number: int, seed: int = 0, **how: object) -> tuple[SubTask, ...]:
    return draw_tasks(LABELS, TRAINING, number, rng(seed), TaskDraw(**how))  # pyright: ignore[reportArgumentType]


def slow_accuracy(logits: torch.Tensor, labels: torch.Tensor, task: SubTask) -> float:
    """Go from image to image; of equal logits the first is the answer."""
    right = 0
    for image in task.images.tolist():
        answer = max(task.classes, key=lambda c: (float(logits[image, c]), -c))
        right += answer == int(labels[image])
    return right / len(task.images)


@pytest.mark.parametrize("rounded", [False, True], ids=["distinct", "with ties"])
def test_masked_accuracies_against_a_loop_over_images(rounded: bool):
    logits = torch.randn(len(LABELS), CLASSES, generator=torch.Generator().manual_seed(1))
    logits[torch.arange(len(LABELS)), LABELS] += 1.0
    logits = logits.round() if rounded else logits
    tasks = draw(60)
    found = task_matrices(LABELS, tasks, CLASSES).accuracies(logits)
    expected = [slow_accuracy(logits, LABELS, task) for task in tasks]
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, abs=1e-6)
    assert len(set(expected)) > 20


@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_likelihoods_against_a_loop_over_tasks(scale: float):
    """Also where probabilities are too small for floats, if they stay above exp(-80)."""
    logits = scale * torch.randn(len(LABELS), CLASSES, generator=torch.Generator().manual_seed(1))
    tasks = draw(40)
    marks = task_matrices(LABELS, tasks, CLASSES)
    found, halves = marks.likelihoods(logits)
    floored = logits - logits.amax(1, keepdim=True)
    floored = floored.clamp(min=-80).double()
    for task, value, parts in zip(tasks, found.tolist(), halves.tolist(), strict=True):
        classes = torch.tensor(task.classes)
        right = torch.searchsorted(classes, LABELS[task.images])
        logs = floored[task.images][:, classes].log_softmax(1)[torch.arange(len(right)), right]
        assert value == pytest.approx(float(logs.mean()), rel=1e-4)
        first = marks.first[task.images]
        for part, half in zip(parts, (first, ~first), strict=True):
            assert part == pytest.approx(float(logs[half].mean()) if half.any() else 0, rel=1e-4)


def test_halves_have_half_of_every_class():
    first = task_matrices(LABELS, draw(2), CLASSES).first
    for label in range(CLASSES):
        of_class = first[label == LABELS]
        assert int(of_class.sum()) == (len(of_class) + 1) // 2


def test_a_network_that_says_the_same_of_all_images_is_right_on_the_first_class_alone():
    tasks = draw(20, mixtures=0.0)
    found = task_matrices(LABELS, tasks, CLASSES).accuracies(torch.zeros(len(LABELS), CLASSES))
    assert found.tolist() == pytest.approx([1 / len(task.classes) for task in tasks])


def test_images_and_support_are_of_the_tasks_classes_in_the_same_proportions():
    for task in draw(300):
        images = Counter(LABELS[task.images].tolist())
        support = Counter(TRAINING[task.support].tolist())
        assert tuple(sorted(images)) == task.classes == tuple(sorted(set(task.classes)))
        assert support == {label: min(20, count) for label, count in images.items()}
        assert len(set(task.support.tolist())) == len(task.support)
        assert len(task.images) >= 100 and 2 <= len(task.classes) <= 20


def test_no_image_counts_again_before_all_others_of_its_class_count():
    uneven = 0
    for task in draw(200, mixtures=1.0):
        times = torch.bincount(task.images, minlength=len(LABELS))
        of_class = [times[label == LABELS] for label in task.classes]
        assert all(t.max() - t.min() <= 1 for t in of_class)
        sums = torch.stack([t.sum() for t in of_class])
        uneven += bool(sums.max() > 3 * sums.min())
    assert uneven > 100


def test_subsets_have_all_images_of_their_classes_equally_often():
    for task in draw(100, mixtures=0.0):
        times = torch.bincount(task.images, minlength=len(LABELS))
        mine = torch.isin(LABELS, torch.tensor(task.classes))
        assert times[mine].unique().numel() == 1 and not times[~mine].any()


def test_the_number_of_classes_is_log_uniform():
    """Half of the tasks have at most sqrt(2 x 21) classes, whose logarithm is in the middle."""
    sizes = np.array([len(task.classes) for task in draw(4000, mixtures=0.0)])
    assert sizes.min() == 2 and sizes.max() == 20
    for low, high in ((2, 3), (3, 5), (6, 10), (15, 21)):
        expected = np.log(high / low) / np.log(21 / 2)
        assert np.mean((sizes >= low) & (sizes < high)) == pytest.approx(expected, abs=0.03)


def test_proportions_are_those_of_a_dirichlet_distribution():
    """The variance of a share of k classes is (k - 1) / (k^2 (k alpha + 1))."""
    tasks = draw(1500, mixtures=1.0, fewest=10, most=10, alphas=(1.0, 1.0), least=1000)
    shares = [torch.bincount(LABELS[t.images], minlength=CLASSES) / len(t.images) for t in tasks]
    square = torch.stack(shares).pow(2).sum(1).mean().item()  # of absent classes it is 0
    assert square == pytest.approx(10 * (9 / (100 * 11) + 1 / 100), rel=0.03)


def test_the_same_draws_give_the_same_tasks_and_others_others():
    first, again, other = draw(5), draw(5), draw(5, seed=1)
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(a.support, b.support) for a, b in zip(first, again, strict=True))
    assert any(a.classes != b.classes for a, b in zip(first, other, strict=True))


def test_images_held_out_are_of_all_classes_and_never_support():
    labels = torch.arange(600) % 10
    whole = Examples(torch.zeros(600, 1, 2, 2), labels, torch.arange(100, 600), (0.0,), (1.0,))
    training, evaluation = hold_out(whole, 50, rng())
    assert torch.bincount(labels[evaluation.index]).tolist() == [5] * 10
    both = torch.cat([training.index, evaluation.index])
    assert torch.equal(both.sort().values, whole.index)
    of = [each.labels[each.index] for each in (evaluation, training)]
    for task in draw_tasks(of[0], of[1], 20, rng(1)):
        judged, shown = evaluation.index[task.images], training.index[task.support]
        assert not torch.isin(shown, judged).any()
        assert set(labels[judged].tolist()) == set(labels[shown].tolist()) == set(task.classes)


def test_classes_without_training_images_are_in_no_task():
    tasks = draw_tasks(LABELS, TRAINING[TRAINING % 2 == 0], 50, rng())
    assert all(label % 2 == 0 for task in tasks for label in task.classes)
    with pytest.raises(UserError, match="1 classes have both"):
        draw_tasks(LABELS, torch.zeros(5, dtype=torch.int64), 1, rng())


def test_no_task_can_have_fewer_classes_than_the_fewest():
    with pytest.raises(UserError, match=r"pretrain\.draw\.most: 3 classes at most, but 5"):
        draw(1, fewest=5, most=3)


def test_more_images_than_there_are_cannot_be_held_out():
    whole = Examples(torch.zeros(4, 1, 2, 2), torch.arange(4), torch.arange(4), (0.0,), (1.0,))
    with pytest.raises(UserError, match=r"pretrain\.images: 4 images"):
        hold_out(whole, 4, rng())
