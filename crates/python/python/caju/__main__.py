"""The `caju` command: `python -m caju` does the same."""

from __future__ import annotations

import signal
import sys


def main() -> int:
    """Runs the command to its exit code."""
    from . import _caju

    # The command is one long call: Python would only note Ctrl-C, and act on it when the call is over.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _caju.command(sys.argv)


if __name__ == "__main__":
    sys.exit(main())
