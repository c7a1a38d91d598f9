"""hakmem claims: no figure without a record."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files
from hakmem.errors import LabError


@click.command()
@click.option("--write", is_flag=True, help="put what the records say between the markers")
@files.json_option("the findings")
def command(write: bool, json_file: Path | None) -> int:
    """Checks that a record of evidence/ stands behind every figure in the Markdown files, and that it says the same;
    that comments, other text and messages of commits have none; and that records are as they were kept.

    One line for each finding, FILE:LINE: what is wrong. docs/claims.md tells how figures are written. What git's
    history says is looked at in a clone that has it.

    Exit status: 0 without findings, 1 with some.
    """
    from hakmem import claims, native

    root = native.checkout()
    if root is None:
        raise LabError("claims checks the documents of a checkout of hakmem, and this is an installed package")
    here = native.checkout_around(Path.cwd())
    if here not in (None, root):
        raise LabError(
            f"this command checks {root}, from which it was installed, not {here}: type ./dev lab claims there"
        )
    if here is None:
        click.echo(f"hakmem: what is checked is {root}, from which this command was installed", err=True)
    for name in claims.write(root) if write else []:
        click.echo(f"hakmem: wrote {name}", err=True)
    missing = claims.history_of(root).missing()
    if missing:
        click.echo(f"hakmem: git's history was not looked at: {missing}", err=True)
    findings = claims.audit(root)
    files.write_json(json_file, [{"file": one.path, "line": one.line, "message": one.message} for one in findings])
    if not files.takes_output(json_file):
        for finding in findings:
            print(finding)
    return 1 if findings else 0
