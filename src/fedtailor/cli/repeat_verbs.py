"""The verbs that do runs again: rerun and sweep."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fedtailor.cli import run_verbs
from fedtailor.cli.common import fail, warn


def rerun(path: Path, /, *, out: Path | None = None) -> None:
    """Do a finished run once more from its config, and tell whether the same comes out.

    Every state, metric and architecture is compared by digests; if they differ, the first
    difference is named, and the exit code is 1.

    Args:
        path: the run folder; it is only read.
        out: the new run folder; by default RUN-again. One that was stopped is gone on with.
    """
    from fedtailor.experiment import rerunning
    from fedtailor.runs.summary import digest

    target = out or rerunning.default_path(path)
    again = f"fedtailor rerun {path} --out {target}"
    with run_verbs.followed(target, again) as progress:
        new, difference = rerunning.rerun(path, target, progress)
    if difference is not None:
        fail(f"{target} is not what {path} is; the first difference: {difference}", 1)
    print(f"the same to the bit: digest {digest(new)[:16]} ({target})")


def sweep(
    file: Path,
    /,
    *overrides: str,
    out: Annotated[Path | None, Parameter(help="Where the run folders go.")] = None,
) -> None:
    """Run every combination of some values, one run folder each, and compare them.

    Asked for again, it goes on where it was stopped. For example:

    fedtailor sweep my.toml seed=0,1,2 algorithm.name=fedavg,ditto

    Args:
        file: the config.
        overrides: key=value,value; of one value, it is the same for all runs.
        out: where the run folders go; by default runs/ and the config's name, followed by -sweep.
    """
    from fedtailor.experiment import sweeping
    from fedtailor.report.comparing import compare

    folder = out or Path("runs") / f"{file.stem}-sweep"
    planned = sweeping.plan_sweep(file, overrides, folder)
    for text in dict.fromkeys(text for config in planned.values() for text in config.warnings()):
        warn(text)
    again = f"fedtailor sweep {' '.join(map(str, (file, *overrides)))} --out {folder}"
    runs = []
    for number, (path, config) in enumerate(planned.items(), start=1):
        print(f"run {number} of {len(planned)}: {path}", flush=True)
        with run_verbs.followed(path, again) as progress:
            runs.append(sweeping.go_on(path, config, progress))
    print(compare(*runs))
