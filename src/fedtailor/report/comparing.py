"""Runs beside one another, from Python."""

from dataclasses import dataclass
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.report.comparison_text import lines
from fedtailor.report.page import default_page, figures_of, write_report
from fedtailor.runs import comparison_table
from fedtailor.runs.comparison import groups
from fedtailor.runs.comparison_table import Table
from fedtailor.runs.folder import Run


@dataclass(frozen=True, repr=False)
class Comparison(Table):
    """Methods beside one another, which show themselves as `fedtailor compare` does."""

    def __repr__(self) -> str:
        """Return tables for people."""
        return "\n".join(lines(self))

    def _repr_markdown_(self) -> str:
        """Return the same for a notebook, which draws the tables."""
        return repr(self)


def compare(*runs: str | Path | Run, to: str | None = None) -> Comparison:
    """Compare runs: accuracies, paired differences with their intervals, and costs.

    Args:
        runs: those that differ by their seed only are one method.
        to: the method that the others are compared with, or one of its folders; else the first.
    """
    if not runs:
        raise UserError("compare: give at least one run")
    return Comparison(**vars(comparison_table.compare(groups(opened(runs)), to)))


def report_on(
    *runs: str | Path | Run, out: str | Path | None = None, reach: float | None = None
) -> Path:
    """Write the report of a run, or one page that compares several; return the page.

    Args:
        runs: a run given twice counts once; seeds of one setting are put together.
        out: the page; by default report.html in the folder of one run, and for several a new
            compare-....html in the current folder. Its figures go beside it.
        reach: an accuracy; the page then tells how long each run took to reach it.
    """
    every = opened(runs)
    page = Path(out) if out is not None else default_page([run.path for run in every])
    if page.is_dir():
        raise UserError(f"out: {page} is a folder; name a page, such as {page}/report.html")
    return write_report(every, page, figures_of(page), reach)


def opened(runs: tuple[str | Path | Run, ...]) -> list[Run]:
    """Open the run folders that are not open yet."""
    return [run if isinstance(run, Run) else Run(run) for run in runs]
