"""The verb that compares runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fedtailor.cli.common import AsJson, print_json
from fedtailor.core.errors import UserError

if TYPE_CHECKING:
    from fedtailor.runs.comparison import Group


def compare(
    *paths: str,
    to: str | None = None,
    effect: Annotated[list[str] | None, Parameter(negative="")] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, Parameter(name="--csv", negative="")] = False,
    as_latex: Annotated[bool, Parameter(name="--latex", negative="")] = False,
) -> None:
    """Compare runs: accuracies, differences with their intervals, and costs.

    Runs that differ by their seed only are one method. Differences are paired: of each client its
    mean over the seeds, minus the same client's by the method that is compared with; the interval
    is Student's 95 % over clients. For example:

    fedtailor compare runs/* --to fedavg

    fedtailor compare mid=runs/avg-0,runs/avg-1 rl=runs/rl-0,runs/rl-1 --csv

    Args:
        paths: run folders, or NAME=RUN,RUN to name a method and its runs by hand.
        to: the method that the others are compared with, or one of its folders; else the first.
        effect: NAME=METHODS/OTHERS, such as share=a,b/c,d: means of methods, minus means of others.
        as_json: print JSON for scripts.
        as_csv: print all numbers as CSV.
        as_latex: print a table for a paper.
    """
    from fedtailor.report import comparison_text
    from fedtailor.runs.comparison_table import compare as compared

    if not paths:
        raise UserError("compare: name run folders, such as runs/a runs/b")
    if as_json + as_csv + as_latex > 1:
        raise UserError("compare: choose one of --json, --csv and --latex")
    wanted = dict(_pair(word, "effect") for word in effect or ())
    table = compared(_groups(paths), to, wanted)
    if as_json:
        print_json(asdict(table))
    elif as_csv:
        print(comparison_text.csv_text(table), end="")
    else:
        print(comparison_text.latex(table) if as_latex else "\n".join(comparison_text.lines(table)))


def _groups(words: tuple[str, ...]) -> "list[Group]":
    """Read runs, grouped by hand or by their settings."""
    from fedtailor.runs.comparison import Group, groups
    from fedtailor.runs.folder import Run

    by_hand = [word for word in words if "=" in word and not Path(word).is_dir()]
    if by_hand and len(by_hand) < len(words):
        raise UserError("compare: name all methods by hand (NAME=RUN,RUN), or none")
    if not by_hand:
        return groups([Run(path) for path in words])
    named = [_pair(word, "compare") for word in by_hand]
    return [Group(name, tuple(Run(path) for path in paths.split(","))) for name, paths in named]


def _pair(word: str, what: str) -> tuple[str, str]:
    name, equals, rest = word.partition("=")
    if not name or not equals or not rest:
        raise UserError(f"{what}: {word!r} must be NAME=...")
    return name, rest
