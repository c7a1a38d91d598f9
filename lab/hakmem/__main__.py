"""The way in: `hakmem`, `python -m hakmem`. Ctrl-C ends a command with one line also while its modules are imported."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    try:
        from hakmem import cli

        cli.main()
    except (KeyboardInterrupt, RuntimeError) as error:
        from hakmem.errors import is_interrupt

        if not is_interrupt(error):
            raise
        print("hakmem: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but what Python does at its end


if __name__ == "__main__":
    main()
