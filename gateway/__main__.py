"""The command ``clawstream``, also ``python -m gateway``: Ctrl-C ends it quietly from the start."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # ``ExitCode.INTERRUPTED``, which is not imported yet


def main() -> None:
    """Entry point."""
    try:
        from gateway.cli import app  # takes a while on a small machine

        app()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
