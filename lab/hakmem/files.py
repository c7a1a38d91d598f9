"""Files that a command reads and writes. Whether they can be written is found out before it does anything else."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import click

from hakmem import extras
from hakmem.errors import LabError


def check(file: Path, given: str = "") -> None:
    """It can be written, or the command ends before anything is run, and names what was given for it. Nothing is opened
    or made for it: a link stays one, and who reads a pipe is not told of an end."""
    if str(file) == "-":
        return
    try:
        _look(file)
    except OSError as error:
        raise LabError(f"can't write {given or file}: {error.strerror}") from None


def expect_name(given: str, option: str) -> None:
    """LabError where standard output or a folder stands in place of a file's name."""
    if given == "-" or os.path.basename(given) in ("", ".", ".."):
        raise LabError(f"{option} {given or repr(given)}: expected the name of a file")


def _look(file: Path) -> None:
    """OSError when the file, or the one that it is a link to, can't be written."""
    try:
        mode = file.stat().st_mode
    except FileNotFoundError:
        folder = Path(os.path.realpath(file)).parent
        folder.stat()
        _allow(folder, os.W_OK | os.X_OK)
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    _allow(file, os.W_OK)


def _allow(path: Path, rights: int) -> None:
    if os.access(path, rights, effective_ids=True):
        return
    is_read_only = os.statvfs(path).f_flag & os.ST_RDONLY
    number = errno.EROFS if is_read_only else errno.EACCES
    raise OSError(number, os.strerror(number))


def _file(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        if value == Path():
            raise LabError(f"{option.opts[0]} '': expected the name of a file")
        if str(value).startswith("-") and not takes_output(value):
            raise LabError(f"{option.opts[0]} {value}: expected a file, or - for standard output")
        if takes_output(value) and any(isinstance(one, Path) and takes_output(one) for one in context.params.values()):
            raise LabError(f"{option.opts[0]} -: standard output is another option's already")
        if value in context.params.values() and (value.is_file() or not value.exists()):
            raise LabError(f"{option.opts[0]} {value}: that file is another option's already")
        check(value)
    return value


def _page(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        extras.expect("plots", option.opts[0])
    return _file(context, option, value)


# An option of a command that names a file to be written; PAGE: one with plots.
FILE: dict[str, Any] = {"type": click.Path(dir_okay=False, path_type=Path), "callback": _file, "metavar": "FILE"}
PAGE: dict[str, Any] = {**FILE, "callback": _page}


def _folder(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    if value is not None:
        if value.is_dir():
            raise LabError(f"can't write {value}: it is a directory already; expected the name of a new one")
        if value.exists() or value.is_symlink():
            raise LabError(f"can't write {value}: {os.strerror(errno.EEXIST)}")
        check(value)
    return value


# An option that names a folder to be made, with what the command writes in it.
FOLDER: dict[str, Any] = {"type": click.Path(path_type=Path), "callback": _folder, "metavar": "DIR"}


def json_option(of: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds --json, as argument json_file: where `of` is written."""
    return click.option("--json", "json_file", **FILE, help=f"{of}; - for standard output")


def content(file: Path, *beginnings: bytes) -> bytes | None:
    """None for a file that begins with none of these. Nothing more of such a one is read: a device has no end."""
    with open(file, "rb") as source:
        head = source.read(max(map(len, beginnings)))
        return head + source.read() if head.startswith(beginnings) else None


def takes_output(file: Path | None) -> bool:
    """Whether standard output is for what this option writes, and for nothing else."""
    return file is not None and str(file) == "-"


def output_of_command(*written: Path | None) -> TextIO | None:
    """Where a command writes that is run meanwhile: standard error, if standard output is for one of these."""
    return sys.stderr if any(map(takes_output, written)) else None


def write_json(json_file: Path | None, plain: Any) -> None:
    """Where it is asked for."""
    if json_file is not None:
        write(json_file, json.dumps(plain, indent=1, allow_nan=False) + "\n")


def write(file: Path, text: str) -> None:
    if takes_output(file):
        sys.stdout.write(text)
        return
    try:
        put(file, text.encode(errors="replace"))  # names that are no text
    except OSError as error:
        raise LabError(f"can't write {file}: {error.strerror}") from None


def put(file: Path, data: bytes) -> None:
    """All of it, or OSError: a file without room for it is left as it was, or not made. It is written in its place, so
    that it stays what it is: a link, a pipe, or somebody else's in a folder that can't be written."""
    is_new = not file.exists()
    try:
        with open(file, "wb", opener=_opened_uncut) as out:
            is_cut = stat.S_ISREG(os.fstat(out.fileno()).st_mode)
            if is_cut:
                _reserve(out.fileno(), len(data))
            out.write(data)
            if is_cut:
                out.truncate()
    except OSError as error:
        if is_new:
            with contextlib.suppress(OSError):
                os.unlink(os.path.realpath(file))
        raise OSError(error.errno, error.strerror, str(file)) from None


def _opened_uncut(path: str, flags: int) -> int:
    return os.open(path, flags & ~os.O_TRUNC, 0o666)


def _reserve(descriptor: int, size: int) -> None:
    """Room for so many bytes, of which those that are there have theirs."""
    before = os.fstat(descriptor).st_size
    if size > before:
        try:
            os.posix_fallocate(descriptor, before, size - before)
        except OSError:
            os.ftruncate(descriptor, before)
            raise
