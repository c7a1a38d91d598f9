"""What every measuring command does with its result: shows it, and keeps it where it is asked to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hakmem import ledger
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.report.model import Report


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json, --markdown, --html and --keep, as arguments json_file, markdown_file, html_file and keep."""
    file = click.Path(dir_okay=False, path_type=Path)
    for option in (
        click.option("--keep", metavar="NAME", help="keep the record in evidence/ as DATE-NAME.json"),
        click.option("--html", "html_file", type=file, metavar="FILE", help="one self-contained page with plots"),
        click.option("--markdown", "markdown_file", type=file, metavar="FILE", help="tables; - for standard output"),
        click.option("--json", "json_file", type=file, metavar="FILE", help="the record; - for standard output"),
    ):
        command = option(command)
    return command


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
    table
    goes to standard output unless JSON or markdown does."""
    kept: str | None = None
    if keep is not None:
        path = ledger.keep(renamed(record, keep))
        kept = path.stem
        print(f"hakmem: kept as {path}", file=sys.stderr)
    shown = report(kept)
    taken = False
    if json_file:
        taken |= _write(json_file, ledger.dump(record))
    if markdown_file:
        from hakmem.report import markdown

        taken |= _write(markdown_file, markdown.render(shown))
    if html_file:
        from hakmem.report import html

        taken |= _write(html_file, html.render(shown))
    if not taken:
        from hakmem.report import text

        text.write(shown, sys.stdout)


def renamed(record: Record, name: str) -> Record:
    """The record under the id DATE-NAME."""
    wanted = f"{record.date:%Y-%m-%d}-{name}"
    try:
        return Record.model_validate({**record.model_dump(), "id": wanted})
    except ValueError:
        raise LabError(f"--keep {name}: expected a name of small letters, digits and single hyphens") from None


def _write(file: Path, text: str) -> bool:
    """True when it went to standard output."""
    if str(file) == "-":
        sys.stdout.write(text)
        return True
    try:
        file.write_text(text)
    except OSError as error:
        raise LabError(f"can't write {file}: {error.strerror}") from None
    return False
