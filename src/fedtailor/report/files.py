"""A report's pictures and numbers as files of their own."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedtailor.report.svg import Drawn, to_svg


def write_picture(folder: Path, key: str, drawn: Drawn | None, svgs: Sequence[str]) -> None:
    """Write a picture's panels and its table; what an earlier report had of it goes."""
    for old in (*folder.glob(f"{key}.*"), *folder.glob(f"{key}-[0-9]*.svg")):
        old.unlink()
    if drawn is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    for number, svg in enumerate(svgs, 1):
        name = f"{key}.svg" if number == 1 else f"{key}-{number}.svg"
        (folder / name).write_text(svg, encoding="utf-8")
    write_csv(folder / f"{key}.csv", drawn.columns, drawn.rows)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a table."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    path.write_text(text.getvalue(), encoding="utf-8")


def svgs_of(drawn: Drawn, called: Mapping[int, str]) -> list[str]:
    """Return the panels of a picture as SVG files, clients named as they are called."""
    return [to_svg(figure, called) for figure in drawn.panels]
