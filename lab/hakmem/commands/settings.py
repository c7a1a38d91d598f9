"""hakmem settings: what can be set, as the library itself tells it."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files


@click.command()
@files.json_option("Settings and knobs")
@click.option("--markdown", "as_markdown", is_flag=True, help="Tables in Markdown, as in docs/settings.md.")
def command(json_file: Path | None, as_markdown: bool) -> None:
    """Lists the library's settings, which a program's environment holds as HAKMEM_NAME, and its knobs.

    What a program runs with is said by HAKMEM_HELP=1 in its environment.
    """
    from dataclasses import asdict

    from hakmem import native, settings

    library = native.library()
    if json_file:
        listed, knobs = ([asdict(one) for one in rows] for rows in (settings.listed(library), settings.knobs(library)))
        files.write_json(json_file, {"settings": listed, "knobs": knobs})
        if files.takes_output(json_file):
            return
    if as_markdown:
        print(settings.markdown(library), end="")
        return
    for one in settings.listed(library):
        print(f"{settings.PREFIX}{one.name}  [{one.default}]\n    {one.meaning}\n    values: {one.values}")
    print("\nKnobs, which HAKMEM_KNOBS sets:\n")
    for knob in settings.knobs(library):
        print(f"{knob.name}  [{knob.default}]\n    {knob.meaning}\n    values: {knob.lowest} to {knob.highest}")
