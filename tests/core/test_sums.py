from fedtailor.core.sums import mean


def test_floats_are_added_from_the_left():
    # what `sum` says of these depends on the version of Python: from 3.12 on, 1.0 and 2.0
    assert mean([0.1] * 10) == 0.9999999999999999 / 10
    assert mean([1.0, 1e100, 1.0, -1e100]) == 0.0


def test_the_mean_of_nothing_is_zero():
    assert mean([]) == 0.0
