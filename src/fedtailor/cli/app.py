"""The command line, put together of its verbs. What is slow to import is imported by the verb."""

import sqlite3
import sys

from cyclopts import App, CycloptsError, UnusedCliTokensError

import fedtailor
from fedtailor.cli.common import fail
from fedtailor.cli.comparison_verbs import compare
from fedtailor.cli.export_verbs import export, predict
from fedtailor.cli.generator_verbs import generate, pretrain
from fedtailor.cli.look_verbs import cp, ls, report, show
from fedtailor.cli.new_verb import new
from fedtailor.cli.repeat_verbs import rerun, sweep
from fedtailor.cli.run_verbs import demo, gain, onboard, plan, resume, run
from fedtailor.cli.watch_verb import watch
from fedtailor.core.errors import UserError

app = App(
    name="fedtailor",
    version=fedtailor.__version__,
    suppress_keyboard_interrupt=False,  # main says a sentence
    help="""Personalized federated learning: every client its own network.

Begin with `fedtailor demo`, then `fedtailor cp quickstart my.toml`, `fedtailor plan my.toml` and
`fedtailor run my.toml`. A run can be stopped at any moment and resumed to the same result.""",
)
VERBS = (
    demo, ls, cp, plan, run, resume, watch, rerun, sweep, onboard, gain, show, report, compare,
    export, predict, pretrain, generate, new,
)  # fmt: skip
for verb in VERBS:
    app.command(verb)
app.register_install_completion_command()


def main(words: list[str] | None = None) -> None:
    """Run the command line; whatever the user can mend is one sentence and exit code 2."""
    try:
        app(words, exit_on_error=False, print_error=False)
    except UnusedCliTokensError as error:
        fail(
            f"{' '.join(error.unused_tokens or ())}: more than this verb takes (fedtailor --help)",
            2,
        )
    except CycloptsError as error:
        fail(f"{' '.join(str(error).split())} (fedtailor --help)", 2)
    except UserError as error:
        fail(str(error), 2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except (OSError, sqlite3.Error) as error:
        fail(f"{error}; nothing that was committed is lost", 2)
