"""What can be shown where output goes."""

from __future__ import annotations

import os
from typing import TextIO

WITHOUT_A_CURSOR = ("dumb", "unknown")  # as Emacs' shell and some of CI call themselves; rich draws nothing there


def can_draw(output: TextIO) -> bool:
    """Whether it is a terminal on which what was shown can be replaced."""
    return output.isatty() and os.environ.get("TERM", "").lower() not in WITHOUT_A_CURSOR
