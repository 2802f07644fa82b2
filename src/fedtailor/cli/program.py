"""The program `fedtailor`: Ctrl-C is heard before the rest is imported, which takes a while."""

import sys

from fedtailor.cli.interrupts import hear_interrupts


def main() -> None:
    """Run the command line of this process; Ctrl-C is one sentence wherever it comes."""
    hear_interrupts()
    try:
        from fedtailor.cli import app

        app.main()
    except KeyboardInterrupt:
        print("fedtailor: stopped", file=sys.stderr)
        sys.exit(130)
