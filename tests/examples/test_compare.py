"""The tables of results/, of runs whose numbers are known."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from examples.compare import main
from fedtailor.runs.schema import TIMING
from tests.helpers.sample_runs import edit, made_up

CLIENTS = 6
NOISE = np.array([3, -1, 2, -2, 1, -3]) / 100


def run_of(path: Path, tuned: float, trained: float, lost: int | None = None) -> Path:
    """Write a run in which client c has `tuned` + c %, and round 4's tests have all models.

    A client that is lost was never drawn: it has neither `trained` nor `kept`.
    """
    made_up(path, CLIENTS)
    edit(path, "DELETE FROM metric WHERE model = 'trained'")
    for client in range(CLIENTS):
        values = {"tuned": tuned + client / 100 + NOISE[client] * (tuned > 0.5)}
        if client != lost:
            values |= {"trained": trained, "kept": trained + 0.01}
        for model, value in values.items():
            sql = "INSERT INTO metric VALUES (4, ?, 'test', ?, 'accuracy', ?)"
            edit(path, sql, client, model, value)
    edit(path, """UPDATE event SET text = '["untuned", "kept", "tuned"]' WHERE kind = 'models'""")
    edit(path, TIMING)
    for part, seconds, macs in (("training", 2.0, 3e6), ("evaluation", 1.0, 5e6)):
        edit(path, "INSERT INTO timing VALUES (1, 1, ?, ?, ?)", part, seconds, macs)
    return path


def tables(text: str) -> list[list[dict[str, str]]]:
    """Read Markdown tables: of each its rows, by their heads."""
    found, lines = [], [line.strip("| ").split(" | ") for line in text.splitlines()]
    for at, line in enumerate(lines):
        if line[0] == "---":
            rows = []
            for row in lines[at + 1 :]:
                if row == [""]:
                    break
                rows.append(dict(zip(lines[at - 1], map(str.strip, row), strict=False)))
            found.append(rows)
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    return {
        "a0": run_of(folder / "a0", 0.40, 0.5),
        "b0": run_of(folder / "b0", 0.60, 0.6, lost=2),
        "c0": run_of(folder / "c0", 0.44, 0.5),
    }


def test_values_and_costs(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]):
    main([f"a={runs['a0']},{runs['c0']}", f"b={runs['b0']}"])
    reached, costs, _ = tables(capsys.readouterr().out)
    assert reached[0]["seeds"] == "2" and reached[0]["tuned"] == "44.5 ± 1.7 (42.0)"
    assert reached[0]["kept"] == "51.0 ± 0.0 (51.0)"
    assert reached[1]["trained"] == "60.0 ± 0.0 (60.0)"
    assert reached[0]["score"] == "50.0 ± 0.0 (50.0)", "what rows of architectures say"
    assert costs[0] | {
        "parameters, k": "1,000", "M trained": "3", "M evaluated": "5", "CPU s": "3.0"
    } == costs[0]  # fmt: skip
    assert costs[0]["MB up"] == "0.00" and costs[0]["modelled min"] == "0.7"


def test_differences_are_paired_by_client(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    """An interval is Student's; who has no value on either side is left out."""
    main([f"a={runs['a0']}", f"b={runs['b0']}", f"c={runs['c0']}", "--effect", "b=b/a,c"])
    differences = tables(capsys.readouterr().out)[2]
    assert [row["minus a"] for row in differences] == ["b", "c", "b"]
    error, free = stats.sem(100 * NOISE), CLIENTS - 1
    half, seen = (stats.t.ppf(p, free) * error for p in (0.975, 0.8))
    for row, mean in ((differences[0], 20), (differences[2], 18)):
        low, high = mean - half, mean + half
        assert row["tuned"] == f"{mean:+.1f} ({low:+.1f} to {high:+.1f}; {half + seen:.1f})"
    assert differences[0]["trained"].startswith("+10.0 (+10.0 to +10.0")
    assert differences[1]["tuned"].startswith("+4.0 (+4.0 to +4.0; 0.0")


def test_an_effect_of_nobody_is_refused_in_a_sentence(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main([f"a={runs['a0']}", f"b={runs['b0']}", "--effect", "x=a/c"])
    assert ended.value.code == 2
    assert "--effect x: no method is called c" in capsys.readouterr().err
