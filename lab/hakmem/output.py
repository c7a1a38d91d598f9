"""What every measuring command does with its result: shows it, and keeps it where it is asked to."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from hakmem import ledger
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.report.model import Report


def _name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Checked before anything is measured."""
    if value is not None and not re.match(ledger.ID, f"2000-01-01-{value}"):
        raise LabError(f"--keep {value}: expected a name of small letters, digits and single hyphens")
    return value


def _file(context: click.Context, option: click.Parameter, value: Path | None) -> Path | None:
    """Can be written, or the command ends before anything is measured. A file that is there stays as it is."""
    if value is not None and str(value) != "-":
        was_there = value.exists()
        try:
            value.open("a").close()
            if not was_there:
                value.unlink()
        except OSError as error:
            raise LabError(f"can't write {value}: {error.strerror}") from None
    return value


def options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json, --markdown, --html and --keep, as arguments json_file, markdown_file, html_file and keep."""
    file: dict[str, Any] = {"type": click.Path(dir_okay=False, path_type=Path), "callback": _file, "metavar": "FILE"}
    for option in (
        click.option("--keep", metavar="NAME", callback=_name, help="keep the record in evidence/ as DATE-NAME.json"),
        click.option("--html", "html_file", **file, help="one self-contained page with plots"),
        click.option("--markdown", "markdown_file", **file, help="tables; - for standard output"),
        click.option("--json", "json_file", **file, help="the record; - for standard output"),
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
    table goes to standard output unless JSON or markdown does."""
    kept: str | None = None
    not_kept: LabError | None = None
    if keep is not None:
        try:
            path = ledger.keep(record.model_copy(update={"id": f"{record.date:%Y-%m-%d}-{keep}"}))
            kept = path.stem
            print(f"hakmem: kept as {path}", file=sys.stderr)
        except LabError as error:  # what was measured is shown all the same
            not_kept = error
    show(report(kept), markdown_file, html_file, plain=(json_file, ledger.dump(record)))
    if not_kept:
        raise not_kept


def show(
    shown: Report, markdown_file: Path | None, html_file: Path | None, plain: tuple[Path | None, str] = (None, "")
) -> None:
    """Writes the report in the forms asked for, and what it was made from (`plain`); as text when none of these went to
    standard output."""
    json_file, text = plain
    taken = json_file is not None and write(json_file, text)
    if markdown_file:
        from hakmem.report import markdown

        taken |= write(markdown_file, markdown.render(shown))
    if html_file:
        from hakmem.report import html

        taken |= write(html_file, html.render(shown))
    if not taken:
        from hakmem.report import text as table

        table.write(shown, sys.stdout)


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
