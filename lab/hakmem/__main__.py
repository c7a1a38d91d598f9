"""The way in: `hakmem`, `python -m hakmem`. Who asks a command to end (Ctrl-C, kill, a terminal that is closed) ends it
with one line, also while its modules are imported."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from types import FrameType

RETRY_S = 0.01
ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _come_again(number: int) -> None:
    time.sleep(RETRY_S)
    os.kill(os.getpid(), number)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Raises KeyboardInterrupt, but not within an import: Python loses it there, or makes another error of it. Then it
    comes when the import is done."""
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            _thread.start_new_thread(_come_again, (number,))  # no timer: that would go on in what `run` becomes
            return
        frame = frame.f_back
    raise KeyboardInterrupt


def main() -> None:
    ours = [number for number in ENDS if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)]
    try:
        for number in ours:
            signal.signal(number, interrupt)
        from hakmem import cli

        cli.main()
    except KeyboardInterrupt:
        print("hakmem: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)  # all is done but what Python does at its end


if __name__ == "__main__":
    main()
