"""How learning rates rise and fall."""

import math

import pytest

from fedtailor.training.schedule import cosine, rise


def test_it_rises_to_the_whole_in_the_last_step_of_warming_up():
    assert [rise(step, 4) for step in range(6)] == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    assert rise(0, 0) == rise(0, 1) == 1.0


def test_it_falls_along_half_a_cosine():
    assert cosine(0) == 1.0 and cosine(1) == 0.0 and cosine(5, 10) == pytest.approx(0.5)
    assert cosine(0.3) == (1 + math.cos(math.pi * 0.3)) / 2
