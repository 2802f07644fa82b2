"""Tables for people."""

from typing import Any

from fedtailor.cli.terminal import cost_lines, summary_lines
from fedtailor.runs.folder import Run
from fedtailor.runs.record import RoundRecord
from fedtailor.runs.summary import summarise
from tests.helpers.sample_runs import made_up


def both(seconds: float, macs: float = 0.0) -> dict[str, Any]:
    return {"seconds": {"mean": seconds, "std": 0.5}, "macs": {"mean": macs, "std": 1e6}}


COST = {
    "client_rounds": 60,
    "parts": {"training": both(12.745, 2e9), "evaluation": both(0.156)},
    "sum": both(12.901, 2e9),
    "server": {"parts": {"configure": both(0.01), "aggregate": both(0.2)}},
    "bytes": {"down": {"mean": 3e6, "std": 0.0}, "up": {"mean": 2e6, "std": 1e3}, "once": None},
}


def test_costs_in_a_few_lines():
    assert cost_lines(COST) == [
        "cost            of a client's round, mean of 60 ± deviation",
        "  training      12.745 ± 0.500 s of a CPU, 2,000.0 ± 1.0 M multiply-adds",
        "  evaluation     0.156 ± 0.500 s of a CPU",
        "  sum           12.901 ± 0.500 s of a CPU, 2,000.0 ± 1.0 M multiply-adds",
        "  sent          3.000 ± 0.000 MB down, 2.000 ± 0.001 MB up",
        "server          0.010 ± 0.500 s configure, 0.200 ± 0.500 s aggregate",
    ]
    assert cost_lines(None) == []
    alone = COST | {"parts": {"step": both(1.0)}, "sum": both(1.0)}
    assert not any("sum" in line for line in cost_lines(alone)), "it is that of the only part"


def test_what_is_sent_once_is_told(tmp_path: Any):
    made: Run = made_up(tmp_path / "run")
    assert "MB once" not in "\n".join(summary_lines(summarise(made)))
    record = RoundRecord(1)
    record.message(0, "once", 7_000_000)
    made.append(record)
    text = "\n".join(summary_lines(summarise(made)))
    assert "0.0 MB up, 0.0 MB down, 7.0 MB once" in text
    once = {"mean": 7e6, "std": 0.0}
    (sent,) = [
        line
        for line in cost_lines(COST | {"bytes": COST["bytes"] | {"once": once}})
        if "sent" in line
    ]
    assert sent.endswith(", 7.000 ± 0.000 MB once")
