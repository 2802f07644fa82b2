"""Where pictures stand on the page."""

from typing import Any

from fedtailor.report.pictures.catalogue import _placed


def placed(*sizes: tuple[str, float]) -> list[tuple[Any, Any]]:
    """Place pictures of these widths and heights; tell which stand in which order, and how."""
    entries = [{"key": k, "place": p, "height": h} for k, (p, h) in enumerate(sizes)]
    return [(entry["key"], entry["place"]) for entry in _placed(entries)]


def test_pictures_of_a_height_stand_side_by_side():
    low, high, wide = ("half", 3.0), ("half", 8.0), ("full", 3.0)
    found = placed(low, high, wide, low, high)
    assert found == [(0, "half"), (3, "half"), (1, "half"), (4, "half"), (2, "full")]


def test_a_picture_alone_stands_beside_its_text_and_none_comes_from_far():
    low, high = ("half", 3.0), ("half", 8.0)
    assert placed(low) == [(0, "alone")]
    assert [key for key, _ in placed(low, high, high, high, low)] == [0, 1, 2, 3, 4]
