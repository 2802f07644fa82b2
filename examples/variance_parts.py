"""What of a table of accuracies is due to architectures, to clients, and to the pair of both.

A table has two halves: accuracies on two disjoint halves of each client's images, (2,
architectures, clients). Chance is another in each half, so products of halves hold none of it:
variances are averages of such products, and may be negative where there is nothing.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Parts:
    """Standard deviations in the table's unit; 0 where a variance came out negative."""

    architecture: float
    client: float
    both: float  # architecture x client
    both_low: float  # its 95 % interval over clients
    both_high: float
    chance: float  # of one entry of one half
    smallest: float  # the deviation of architecture x client that would just be told from 0


@dataclass(frozen=True)
class Gain:
    """A difference, its 95 % interval over clients, and half its width: what could be seen."""

    mean: float
    low: float
    high: float

    @property
    def half(self) -> float:
        """Half the interval's width."""
        return (self.high - self.low) / 2

    def __str__(self) -> str:
        return f"{self.mean:+.2f} ({self.low:+.2f} to {self.high:+.2f})"


def parts_of(halves: np.ndarray) -> Parts:
    """Return where a table's variance comes from."""
    _, archs, clients = halves.shape
    rows, columns = halves.mean(2, keepdims=True), halves.mean(1, keepdims=True)
    total = halves.mean((1, 2), keepdims=True)
    left = halves - rows - columns + total
    freedom = (archs - 1) * (clients - 1) / clients
    each = left[0].T @ left[1]  # clients by clients; the diagonal is each client's own
    own = np.diag(each) / freedom
    both = interval(own)
    noise = ((left[0] - left[1]) ** 2).sum() / (2 * (archs - 1) * (clients - 1))
    arch = _product(rows[..., 0] - total[..., 0]) / (archs - 1) - both.mean / clients
    client = _product(columns[:, 0] - total[:, 0]) / (clients - 1) - both.mean / archs
    deviations = [float(np.sqrt(max(0.0, v))) for v in (arch, client, both.mean)]
    bounds = [float(np.sqrt(max(0.0, v))) for v in (both.low, both.high)]
    return Parts(*deviations, *bounds, float(np.sqrt(noise)), float(np.sqrt(both.half)))


def _product(deviations: np.ndarray) -> float:
    return float((deviations[0] * deviations[1]).sum())


def interval(values: np.ndarray) -> Gain:
    """Return a mean over clients with Student's 95 % interval."""
    mean = float(values.mean())
    half = float(stats.sem(values) * stats.t.ppf(0.975, len(values) - 1))
    return Gain(mean, mean - half, mean + half)


def personal_gain(halves: np.ndarray, allowed: np.ndarray | None = None) -> Gain:
    """Return what one's own best architecture has over the best for all, chosen on the other half.

    Args:
        halves: the accuracies.
        allowed: (architectures, clients): which each client may use; the best for all is then the
            best on average of those that it may use. None: all.
    """
    gained = [
        test[_own_best(choose, allowed), np.arange(test.shape[1])]
        - test[_common_best(choose, allowed), np.arange(test.shape[1])]
        for choose, test in (halves, halves[::-1])
    ]
    return interval(np.mean(gained, 0))


def budget_gain(halves: np.ndarray, allowed: np.ndarray) -> Gain:
    """Return what the best on average within one's own budget has over the best that fits all."""
    for_all = np.broadcast_to(allowed.all(1, keepdims=True), allowed.shape)
    gained = [
        test[_common_best(choose, allowed), np.arange(test.shape[1])]
        - test[_common_best(choose, for_all), np.arange(test.shape[1])]
        for choose, test in (halves, halves[::-1])
    ]
    return interval(np.mean(gained, 0))


def _own_best(choose: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    return (choose if allowed is None else np.where(allowed, choose, -np.inf)).argmax(0)


def _common_best(choose: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    means = np.broadcast_to(choose.mean(1, keepdims=True), choose.shape)
    return _own_best(means, allowed)


def shrunk_gain(halves: np.ndarray) -> Gain:
    """Return the gain of the best choice from one half, which follows chance as little as it can.

    What is a client's own counts as far as the halves agree on it.
    """
    parts, gained = parts_of(halves), []
    share = parts.both**2 / max(parts.both**2 + parts.chance**2, 1e-12)
    for choose, test in (halves, halves[::-1]):
        mean = choose.mean(1, keepdims=True)
        own = choose - mean - (choose - mean).mean(0)
        best, common = (mean + share * own).argmax(0), int(mean.argmax())
        gained.append(test[best, np.arange(test.shape[1])] - test[common])
    return interval(np.mean(gained, 0))


def perfect_gain(halves: np.ndarray, draws: int = 200) -> float:
    """Return what a choice without any error would gain, if chance were normal.

    True accuracies are drawn from what the halves say of them: an architecture's mean, and its
    deviation for each client as far as the halves agree on those of this architecture. Bad
    networks may deviate far more than good ones, from which alone anybody would choose. Where
    chance is as large as deviations, the answer is rather too high than too low.
    """
    chance, rng = max(parts_of(halves).chance ** 2, 1e-12), np.random.default_rng(0)
    weights = np.ones(halves.shape[1])
    for _ in range(5):  # a client's mean must not follow the networks that deviate most
        columns = np.average(halves, 1, weights)[:, None]
        left = halves - columns
        left = left - left.mean(2, keepdims=True)
        own = _own_variances(left)
        weights = 1 / (own + chance)
    means = (halves - columns).mean((0, 2))
    error = chance / (2 * halves.shape[2])
    means = means.mean() + (means - means.mean()) * (1 - min(1.0, error / max(means.var(), 1e-12)))
    own, chance = own[:, None], chance / 2
    known = left.mean(0) * own / (own + chance)
    unknown = np.sqrt(own * chance / (own + chance))
    true = means[:, None] + known + unknown * rng.normal(size=(draws, *known.shape))
    return float((true.max(1).mean(1) - true.mean(2).max(1)).mean())


def _own_variances(left: np.ndarray) -> np.ndarray:
    """Return how much each architecture deviates by client, as far as clients agree on it."""
    each = left[0] * left[1]
    even, odd = each[:, ::2].mean(1), each[:, 1::2].mean(1)
    share = float(np.cov(even, odd)[0, 1]) / max(float(each.mean(1).var(ddof=1)), 1e-12)
    common = each.mean()
    shrunk = common + min(1.0, max(0.0, share)) * (each.mean(1) - common)
    return np.maximum(0.0, shrunk) / (1 - 1 / each.shape[1])
