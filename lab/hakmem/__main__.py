"""The way in: `hakmem`, `python -m hakmem`. Ctrl-C ends a command with one line also while its modules are imported."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from types import FrameType

RETRY_S = 0.01


def _come_again() -> None:
    time.sleep(RETRY_S)
    os.kill(os.getpid(), signal.SIGINT)


def interrupt(signal_number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but not within an import: Python loses it there, or makes another error of it. Then it
    comes when the import is done."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _thread.start_new_thread(_come_again, ())  # no timer: that would go on in what `run` becomes
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        from hakmem import cli

        cli.main()
    except KeyboardInterrupt:
        print("hakmem: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done but what Python does at its end


if __name__ == "__main__":
    main()
