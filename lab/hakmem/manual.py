"""The manual's pages: hakmem(1) from what the commands say of themselves, hakmem(3) from the header, hakmem(7) from
what the library says.

    python -m hakmem.manual FOLDER

writes man1/hakmem.1, man3/hakmem.3 and man7/hakmem.7 there. docs/man of the repository has them as they are now.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from hakmem import cli, native, settings
from hakmem.errors import LabError

VERBATIM = "\b\n"  # begins a paragraph whose lines click leaves as they are

Lines = Iterator[str]


def _text(words: str) -> str:
    """Nothing in it is markup."""
    escaped = words.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


def _title(name: str, section: int, purpose: str) -> Lines:
    """Without date and version: a page is the same until what it says changes."""
    yield f'.TH {name.upper()} {section} "" "{name}"'
    yield ".SH NAME"
    yield f"{name} \\- {_text(purpose)}"


def _paragraphs(help_text: str | None) -> Lines:
    for paragraph in inspect.cleandoc(help_text or "").split("\n\n"):
        yield ".PP"
        if paragraph.startswith(VERBATIM):
            yield ".nf"
            yield from map(_text, paragraph.removeprefix(VERBATIM).splitlines())
            yield ".fi"
        else:
            yield _text(" ".join(paragraph.split()))


def _list(rows: Iterable[tuple[str, str]]) -> Lines:
    for what, meaning in rows:
        yield ".TP"
        yield f"\\fB{_text(what)}\\fR"
        yield _text(meaning)


def _options(context: click.Context) -> Lines:
    options = (one for one in context.command.get_params(context) if isinstance(one, click.Option))
    yield from _list(record for option in options if (record := option.get_help_record(context)))


def _command(context: click.Context) -> Lines:
    yield f".SS {_text(' '.join([context.command_path, *context.command.collect_usage_pieces(context)]))}"
    yield from _paragraphs(context.command.help)
    yield from _options(context)


def commands() -> str:
    """hakmem(1)"""
    group = click.Context(cli.cli, info_name="hakmem", **cli.cli.context_settings)
    lines = [
        *_title("hakmem", 1, "runs programs on a malloc that gives memory back, and compares allocators"),
        ".SH SYNOPSIS",
        f"\\fBhakmem\\fR {_text(' '.join(cli.cli.collect_usage_pieces(group)))}",
        ".SH DESCRIPTION",
        *_paragraphs(cli.cli.help),
        ".SH OPTIONS",
        *_options(group),
        ".SH COMMANDS",
    ]
    for name in cli.cli.list_commands(group):
        command = cli.cli.get_command(group, name)
        assert command is not None
        lines += _command(click.Context(command, info_name=name, parent=group))
    lines += [".SH EXIT STATUS", *_list(cli.EXIT_STATUS.items())]
    lines += [".SH SEE ALSO", "\\fBhakmem\\fR(3), \\fBhakmem\\fR(7)"]
    return "\n".join(lines) + "\n"


def library() -> str:
    """hakmem(7)"""
    file = native.library()
    listed = ((f"{settings.PREFIX}{one.name}={one.default}", one) for one in settings.listed(file))
    lines = [
        *_title("hakmem", 7, "settings of the malloc hakmem"),
        ".SH DESCRIPTION",
        "A program that runs on hakmem reads these variables of its environment when it starts.",
        "Each is shown with its default, and with the values that it takes.",
        "\\fBHAKMEM_HELP=1\\fR lists them with what the program runs with.",
        ".SH SETTINGS",
        *_list((what, f"{one.meaning}; values: {one.values}") for what, one in listed),
        ".SH KNOBS",
        "Numbers that \\fBHAKMEM_KNOBS\\fR sets, as NAME=VALUE with colons between, and that",
        "\\fBhakmem ctl\\fR changes in a running process.",
        *_list(
            (f"{one.name}={one.default}", f"{one.meaning}; values: {one.lowest} to {one.highest}")
            for one in settings.knobs(file)
        ),
        ".SH SEE ALSO",
        "\\fBhakmem\\fR(1), \\fBhakmem\\fR(3)",
    ]
    return "\n".join(lines) + "\n"


SECTION = re.compile(r"^/\* ---- (.+?) -+ \*/$", re.MULTILINE)
COMMENT = re.compile(r"/\*(.*?)\*/\n", re.DOTALL)  # above declarations
ATTRIBUTES = re.compile(r" __attribute__\(\(.*\)\)")


def _verbatim(lines: Iterable[str]) -> Lines:
    yield ".PP"
    yield ".nf"
    yield from map(_text, lines)
    yield ".fi"


def _comment(words: str) -> Lines:
    """Its paragraphs, the items of its lists (behind two blanks), and code (behind four)."""
    lines = [line.strip().removeprefix("*").removeprefix(" ").rstrip() for line in words.splitlines()]
    for paragraph in "\n".join(lines).strip("\n").split("\n\n"):
        if paragraph.startswith("    "):
            yield from _verbatim(paragraph.splitlines())
            continue
        before, *items = re.split(r"\n? +- ", paragraph)
        *rest, last = items or [""]
        item, _, after = re.sub(r"\n {2,}", " ", last).partition("\n")
        for mark, text in ((".PP", before), *((".IP \\(bu 2", one) for one in (*rest, item)), (".PP", after)):
            if text:
                yield mark
                yield _text(" ".join(text.split()))


def interface() -> str:
    """hakmem(3)"""
    root = native.checkout()
    if root is None:
        raise LabError("hakmem(3) is made from the header in a tree of the source")
    header = (root / "include" / "hakmem" / "hakmem.h").read_text()
    _, *parts = SECTION.split(header.partition("#ifdef __cplusplus\n}")[0])
    lines = [
        *_title("hakmem", 3, "functions of the malloc hakmem"),
        ".SH SYNOPSIS",
        *_verbatim(["#include <hakmem/hakmem.h>", "", "cc program.c -lhakmem"]),
        ".SH DESCRIPTION",
        "malloc(3) and its kin are hakmem's own in a program that runs on it. These functions are there besides.",
    ]
    for title, body in zip(parts[::2], parts[1::2], strict=True):
        lines.append(f".SH {_text(title.upper())}")
        for group in body.strip("\n").split("\n\n"):
            comment = COMMENT.match(group)
            declarations = group[comment.end() :] if comment else group
            lines += _verbatim(ATTRIBUTES.sub("", declarations).replace("HAK_API ", "").splitlines())
            lines += _comment(comment[1]) if comment else []
    lines += [".SH SEE ALSO", "\\fBhakmem\\fR(1), \\fBhakmem\\fR(7), \\fBmalloc\\fR(3)"]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    for section, page in ((1, commands()), (3, interface()), (7, library())):
        path = folder / f"man{section}" / f"hakmem.{section}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
