"""Runs as people ask for them, from Python or the command line: shown, then reported on."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedtailor.experiment import lifecycle, onboarding
from fedtailor.experiment.following import followed
from fedtailor.experiment.progress import RunProgress
from fedtailor.report.comparing import report_on
from fedtailor.runs.config import Config, as_config
from fedtailor.runs.create import default_path
from fedtailor.runs.folder import Run


def run(
    config: str | Path | Mapping[str, Any] | Config,
    out: str | Path | None = None,
    progress: bool | RunProgress | None = None,
    report: bool = True,
    **overrides: Any,
) -> Run:
    """Run an experiment, write its report and return its run folder.

    Args:
        config: a TOML file, a table of the same form, or a Config.
        out: the run folder; by default a new one below runs/.
        progress: whether to show how far the run is; by default in a terminal and in a notebook.
            An object to follow the run by, from another thread, is shown by whoever gives it.
        report: whether to write report.html and figures into the run folder.
        overrides: values that replace the config's: `seed=1, data={"alpha": 1.0}`.
    """
    made = as_config(config, overrides)
    path = Path(out) if out is not None else default_path(made)
    with _followed(progress, path) as state:
        return _end(lifecycle.run(made, path, state), report, state)


def resume(
    path: str | Path, progress: bool | RunProgress | None = None, report: bool = True
) -> Run:
    """Go on with a run that was interrupted, to the same result; a finished one stays as it is.

    Args:
        path: the run folder.
        progress: as of `run`.
        report: as of `run`.
    """
    with _followed(progress, Path(path)) as state:
        return _end(lifecycle.resume(path, state), report, state)


def onboard(
    path: str | Path,
    out: str | Path | None = None,
    progress: bool | RunProgress | None = None,
    report: bool = True,
    **overrides: Any,
) -> Run:
    """Find networks for clients that never took part in a run, and return the new run folder.

    Args:
        path: the run, finished or not; it is only read.
        out: the new run folder; by default one below the run's.
        progress: as of `run`.
        report: as of `run`.
        overrides: values that replace the run's: `rounds=10, data={"path": "mine.npz"}`.
    """
    target = Path(out) if out is not None else onboarding.default_path(path)
    with _followed(progress, target) as state:
        return _end(onboarding.onboard(path, target, state, **overrides), report, state)


@contextmanager
def _followed(progress: bool | RunProgress | None, path: Path) -> Iterator[RunProgress]:
    """Show how far a run is; if it is interrupted, the error says how to go on."""
    try:
        with followed(progress, path.name) as state:
            yield state
    except KeyboardInterrupt as error:
        if (path / "run.db").exists():
            error.add_note(f"fedtailor.resume({str(path)!r}) goes on with the run")
        raise


def _end(folder: Run, report: bool, progress: RunProgress) -> Run:
    """Write the report, where it is wanted."""
    if report:
        progress.doing, progress.done, progress.total = "writing the report", 0, 0
        report_on(folder)
    return folder
