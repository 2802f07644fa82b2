"""The table of costs: parts of all runs, and what is not known left open."""

from typing import Any

from fedtailor.report.cost_table import cost_table
from fedtailor.report.tables import NOTHING, Cell


def spread(mean: float, std: float = 0.0) -> dict[str, float]:
    return {"mean": mean, "std": std}


def summary(once: float | None = None, **parts: tuple[float, float]) -> dict[str, Any]:
    """Return what the table reads of a summary, of parts by name."""
    return summary_of(parts, once)


def summary_of(parts: dict[str, tuple[float, float]], once: float | None = None) -> dict[str, Any]:
    """Return what the table reads of a summary: seconds and multiply-adds of each part."""
    each = {part: {"seconds": spread(s, 0.25), "macs": spread(m)} for part, (s, m) in parts.items()}
    total = [sum(values) for values in zip(*parts.values(), strict=True)]
    return {
        "cost": {
            "parts": each,
            "sum": {"seconds": spread(total[0], 0.5), "macs": spread(total[1], 1e5)},
            "server": {"parts": {}, "sum": {"seconds": spread(0.125)}},
            "bytes": {"down": spread(3e6), "up": spread(2e6), "once": once and spread(once)},
        }
    }


def cells(found: dict[str, Any] | None, run: int) -> dict[str, Cell]:
    assert found is not None
    return dict(zip(found["columns"], found["rows"][run][1], strict=True))


def test_a_single_part_is_the_sum():
    found = cost_table([summary(step=(2.0, 5e6))], ["fedavg"])
    assert found and found["rows"][0][0] == "fedavg"
    assert cells(found, 0) == {
        "CPU seconds": Cell("2.000", 2.0, "± 0.500"),
        "multiply-adds (M)": Cell("5.0", 5.0, "± 0.1"),
        "server's CPU seconds": Cell("0.125", 0.125, "± 0.000"),
        "MB down": Cell("3.000", 3.0, "± 0.000"),
        "MB up": Cell("2.000", 2.0, "± 0.000"),
    }


def test_runs_with_other_parts_stand_side_by_side():
    ours = summary(6e6, training=(2.0, 5e6), generation=(1.0, 0.0), evaluation=(0.5, 7e6))
    found = cost_table([ours, summary(step=(2.0, 0.0)), {"cost": None}], ["a", "b", "c"])
    first, second, third = (cells(found, run) for run in range(3))
    parts = ["training", "generation", "evaluation"]
    assert list(first)[:4] == [*parts, "CPU seconds"] and list(first)[-1] == "MB once"
    assert [first[part].value for part in parts] == [2.0, 1.0, 0.5]
    assert {second[part] for part in parts} == {NOTHING}, "its only part is the sum"
    assert second["CPU seconds"].value == 2.0
    assert first["training"].small == "± 0.250\n5.0 M"
    assert first["generation"].small == "± 0.250", "no network was charged"
    assert first["multiply-adds (M)"] == Cell("12.0", 12.0, "± 0.1")
    assert second["multiply-adds (M)"] is NOTHING, "nothing was charged"
    assert (first["MB once"].value, second["MB once"]) == (6.0, NOTHING)
    assert set(third.values()) == {NOTHING}


def test_parts_are_in_the_order_of_the_run_with_most_of_them():
    few, many = {"b": (1.0, 0.0), "d": (1.0, 0.0)}, dict.fromkeys("abc", (1.0, 0.0))
    found = cost_table([summary_of(few), summary_of(many)], ["few", "many"])
    assert found and found["columns"][:5] == ["a", "b", "c", "d", "CPU seconds"]


def test_without_times_there_is_no_table():
    assert cost_table([{"cost": None}, {"cost": None}], ["a", "b"]) is None
