"""What other programs have made: text, as it may reach a terminal, and files that they name."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def lines(text: str) -> str:
    """Without what is no text to be read, such as the controls of a terminal: a question mark stands in its place."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def line(text: str) -> str:
    """The same, and one line."""
    return lines(text).replace("\n", "?").replace("\t", "?")


def opened(path: str | Path) -> BinaryIO:
    """To be read. OSError for what is no file: a pipe would keep its reader waiting, a device may act when it is
    opened."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        mode = os.fstat(place).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        try:
            return open(f"/proc/self/fd/{place}", "rb")
        except FileNotFoundError:  # there is no /proc
            return open(path, "rb")
    finally:
        os.close(place)
