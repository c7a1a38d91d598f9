"""Files that a command writes. Whether they can be written is found out before it does anything else."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from hakmem.errors import LabError


def check(file: Path) -> None:
    """It can be written, or the command ends before anything is run. A file that is there stays as it is."""
    if str(file) == "-":
        return
    try:
        was_there = file.exists()
        file.open("a").close()
        if not was_there:
            file.unlink()
    except OSError as error:
        raise LabError(f"can't write {file}: {error.strerror}") from None


def _file(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        check(value)
    return value


# An option of a command that names a file to be written.
FILE: dict[str, Any] = {"type": click.Path(dir_okay=False, path_type=Path), "callback": _file, "metavar": "FILE"}


def write(file: Path, text: str) -> bool:
    """True when it went to standard output."""
    if str(file) == "-":
        sys.stdout.write(text)
        return True
    try:
        file.write_text(text)
    except OSError as error:
        raise LabError(f"can't write {file}: {error.strerror}") from None
    return False
