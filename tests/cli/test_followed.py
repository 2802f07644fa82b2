"""What is said when something that is followed ends early."""

from pathlib import Path

import pytest

from fedtailor.cli.run_verbs import followed


@pytest.mark.parametrize(
    ("again", "end"),
    [(None, "nothing was written that counts"), ("fedtailor sweep my.toml", "sweep my.toml")],
)
def test_a_stop_before_the_first_round(
    again: str | None, end: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A sweep's other runs may be there already, so that its command goes on."""
    with pytest.raises(SystemExit) as ended, followed(tmp_path / "run", again):
        raise KeyboardInterrupt
    assert ended.value.code == 130
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped before the first round" in said and said.endswith(end)
