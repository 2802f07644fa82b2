import subprocess
import sys
from pathlib import Path

import pytest

from fedtailor.cli.new_verb import write_new
from fedtailor.core.errors import UserError


def test_what_new_writes_passes_as_written(tmp_path: Path):
    for kind in ("algorithm", "space", "data"):
        write_new(kind, f"my-{kind}", tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    assert "class MyAlgorithm(" in (tmp_path / "my_algorithm.py").read_text()


def test_nothing_is_overwritten_and_names_are_checked(tmp_path: Path):
    (tmp_path / "test_mine.py").touch()
    with pytest.raises(UserError, match="is there already"):
        write_new("space", "mine", tmp_path)
    assert not (tmp_path / "mine.py").exists()
    for name in ("a b", "class", "1st"):
        with pytest.raises(UserError, match="cannot be a Python file's name"):
            write_new("data", name, tmp_path)
