"""Radial bases: smoothed as leaving out one point after another finds best."""

from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RBFInterpolator
from scipy.spatial.distance import cdist

from fedtailor.core.space import Arch
from fedtailor.search import genes, radial
from fedtailor.search.radial import Coding
from fedtailor.search.ridge import solve
from fedtailor.search.surrogate import fit
from tests.search.test_surrogate import SPACE, sample, smooth


def left_out(archs: list[Arch], scores: np.ndarray, coding: Coding, smoothing: float) -> float:
    """Return the error of scipy's bases at points that they were not fitted through."""
    rows = genes.integers(SPACE, archs).astype(float)
    rows = (rows - rows.min(0)) / (rows.max(0) - rows.min(0))
    form: dict[str, Any] = {"kernel": "cubic", "degree": 1}
    if coding == "options":
        rows, form = genes.one_hot(SPACE, archs).double().numpy(), {"kernel": "linear", "degree": 0}
    missed = []
    for out in range(len(archs)):
        keep = np.arange(len(archs)) != out
        model = RBFInterpolator(rows[keep], scores[keep], smoothing=smoothing, **form)
        missed.append(float(model(rows[[out]])[0] - scores[out]))
    return float(np.mean(np.square(missed)))


@pytest.mark.parametrize(("coding", "kind"), [("integers", "cubic"), ("options", "linear")])
@pytest.mark.parametrize("noise", [0.0, 0.1, 1.0])
def test_bases_are_smoothed_as_leaving_one_out_finds_best(
    coding: Coding, kind: radial.Shape, noise: float
):
    archs = sample(75)
    scores = smooth(SPACE, archs) + noise * np.random.default_rng(2).normal(size=75)
    scores /= np.abs(scores).max()
    errors = {each: left_out(archs, scores, coding, each) for each in radial.SMOOTHINGS}
    best = min(errors, key=lambda each: errors[each])
    model = fit(SPACE, archs, scores.tolist(), coding=coding)
    assert model.kind == kind and model.smoothing == best
    points = radial._columns(SPACE, archs, coding, kind)(archs)
    distances, terms = cdist(points, points), radial._tail(points)
    terms, kernel = (terms, distances**3) if kind == "cubic" else (terms[:, :1], -distances)
    for each, error in errors.items():
        assert solve(kernel, terms, scores, [each]).error == pytest.approx(error, rel=1e-4)
    plain = fit(SPACE, archs, scores.tolist(), coding=coding, smoothing=best)
    held = sample(20, 1)
    assert plain.smoothing == best and np.array_equal(plain.predict(held), model.predict(held))


def test_noise_is_smoothed():
    archs, held = sample(135), sample(300, 99)
    scores = (smooth(SPACE, archs) + np.random.default_rng(0).normal(0, 1, 135)).tolist()
    chosen, followed = (
        fit(SPACE, archs, scores, coding="options", smoothing=each) for each in (None, 1e-6)
    )
    missed, usual = (
        np.square(each.predict(held) - smooth(SPACE, held)).mean() for each in (chosen, followed)
    )
    assert chosen.smoothing > 0.1 and missed < usual / 2
    raw = fit(SPACE, archs, smooth(SPACE, archs).tolist(), coding="raw", smoothing=10)
    assert raw.kind == "raw" and raw.smoothing == 0
