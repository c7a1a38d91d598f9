"""hakmem tune-log: what the controller of a process did."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files


@click.command()
@files.json_option("What is shown")
@click.option("--markdown", "markdown_file", **files.FILE, help="Tables; - for standard output.")
@click.option("--html", "html_file", **files.PAGE, help="One self-contained page with plots.")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path), metavar="STATISTICS")
def command(json_file: Path | None, markdown_file: Path | None, html_file: Path | None, file: Path) -> None:
    """Shows which knobs were turned, when, and on what evidence, and what that did to the costs.

    STATISTICS is what HAKMEM_STATS=json:FILE has written, at the end of a program or at a signal.
    """
    import datetime
    import json
    import shlex

    from hakmem import control, output

    date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    statistics = control.read(file)
    shown = control.report(statistics, f"hakmem {shlex.join(['tune-log', str(file)])}", date)
    output.show(shown, markdown_file, html_file, (json_file, json.dumps(statistics["control"], indent=1) + "\n"))
