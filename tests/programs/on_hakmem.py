"""What the tests of this folder share: the laboratory's way of running a command with proof of takeover.

Only modules of the laboratory that need the standard library alone are used here.
"""

from __future__ import annotations

import re
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab"))
from hakmem import process, programs
from hakmem.allocators import Allocator
from hakmem.errors import LabError

SKIPPED = 77  # CTest's word for it
GLIBC = Allocator("glibc", None)

__all__ = ["GLIBC", "SKIPPED", "Allocator", "Failure", "LabError", "count", "ending", "hakmem", "process", "programs"]


class Failure(LabError):
    """What hakmem does otherwise than glibc."""


def hakmem(library: Path) -> Allocator:
    if not library.is_file():
        raise LabError(f"no library at {library}: ./dev build makes it")
    return Allocator("hakmem", library.resolve())


def ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else re.sub('s?$', 's', noun)}"
