"""What `fedtailor ls` says of a method."""

import pytest

from fedtailor.algorithms.fedavg import FedAvg
from fedtailor.cli import listing
from fedtailor.cli.app import main


@pytest.mark.parametrize("text", [None, "A method of one line.", "A method.\n\nNo paper at all."])
def test_a_method_need_not_name_a_paper(
    text: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    module = listing.inspect.getmodule(FedAvg)
    monkeypatch.setattr(module, "__doc__", text)
    with pytest.raises(SystemExit) as ended:
        main(["ls", "algorithms"])
    assert ended.value.code == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if " fedavg " in line)
    assert "Leaves a client: " in line and "[" not in line
