"""What the verbs of the command line share."""

import json
import sys
from typing import Annotated, Any, NoReturn

from cyclopts import Parameter

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="Print JSON for scripts.")]


def print_json(value: Any) -> None:
    """Print a value for scripts."""
    print(json.dumps(value, indent=1, ensure_ascii=False))


def fail(sentence: str, code: int) -> NoReturn:
    """End the program with a sentence that says what to do."""
    print(f"fedtailor: {sentence}", file=sys.stderr)
    sys.exit(code)


def warn(sentence: str) -> None:
    """Tell what a user should know, beside the results."""
    print(f"fedtailor: warning: {sentence}", file=sys.stderr)
