"""What every measuring command does with its result: shows it, and keeps it where it is asked to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from hakmem import files, ledger
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.report.model import Report


def record_name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Checked before anything is measured."""
    if value is not None and not re.match(ledger.ID, f"2000-01-01-{value}"):
        raise LabError(f"--keep {value}: expected a name of small letters, digits and single hyphens")
    if value is not None:
        folder = ledger.folder()
        files.check(folder / f"{value}.json" if folder.exists() else folder)
    return value


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json, --markdown, --html and --keep, as arguments json_file, markdown_file, html_file and keep."""
    for option in (
        click.option(
            "--keep", metavar="NAME", callback=record_name, help="keep the record: evidence/DATE-NAME-DIGEST.json"
        ),
        click.option("--html", "html_file", **files.PAGE, help="one self-contained page with plots"),
        click.option("--markdown", "markdown_file", **files.FILE, help="tables; - for standard output"),
        click.option("--json", "json_file", **files.FILE, help="the record; - for standard output"),
    ):
        command = option(command)
    return command


def keep_as(name: str, record: Record) -> str:
    """Into the ledger; its id."""
    path = ledger.keep(msgspec.structs.replace(record, id=f"{record.date:%Y-%m-%d}-{name}"))
    print(f"hakmem: kept as {path}", file=sys.stderr)
    return path.stem


def finish(
    record: Record,
    report: Callable[[str | None], Report],
    *,
    json_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
    keep: str | None,
) -> None:
    """Writes all that was asked for, the record first. `report` is called with the id of the kept record or None. The
    table goes to standard output unless JSON or markdown does."""
    kept: str | None = None
    not_kept: LabError | None = None
    if keep is not None:
        try:
            kept = keep_as(keep, record)
        except LabError as error:  # what was measured is shown all the same
            not_kept = error
    show(report(kept), markdown_file, html_file, plain=(json_file, ledger.dump(record)))
    if not_kept:
        raise not_kept


def show(
    shown: Report, markdown_file: Path | None, html_file: Path | None, plain: tuple[Path | None, str] = (None, "")
) -> None:
    """Writes the report in the forms asked for, and what it was made from (`plain`); as text when none of these went to
    standard output, whatever becomes of the others. A form that can't be written is told when the others are."""
    forms: list[tuple[Path, Callable[[], str]]] = []
    if plain[0]:
        forms.append((plain[0], lambda: plain[1]))
    if markdown_file:
        forms.append((markdown_file, lambda: _markdown(shown)))
    if html_file:
        forms.append((html_file, lambda: _html(shown)))
    taken, not_written = False, None
    try:
        for file, made in forms:
            try:
                text = made()
                taken |= files.takes_output(file)  # also when it breaks off there
                files.write(file, text)
            except LabError as error:
                not_written = not_written or error
    finally:
        if not taken:
            from hakmem.report import text as table

            table.write(shown, sys.stdout)
    if not_written:
        raise not_written


def _markdown(shown: Report) -> str:
    from hakmem.report import markdown

    return markdown.render(shown)


def _html(shown: Report) -> str:
    """What it takes to draw is loaded when what was measured is written: that can fail for reasons of its own."""
    from hakmem.report import html

    return html.render(shown)
