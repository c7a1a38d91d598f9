"""hakmem placement: what other placements of blocks would save."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import files


@click.command()
@click.option("--policy", "names", multiple=True, metavar="NAME,...", help="these beside today's  [default: all]")
@click.option("--check", is_flag=True, help="also replay the trace on hakmem, and compare its peak with the model's")
@click.option("--json", "json_file", **files.FILE, help="the figures; - for standard output")
@click.argument("traces", nargs=-1, metavar="TRACE...")
def command(names: tuple[str, ...], check: bool, json_file: Path | None, traces: tuple[str, ...]) -> None:
    """Says how much memory a program's blocks would take if hakmem placed them in other ways, by a model, and how
    little they could take if the future were known.

    TRACE is the name of one that comes with hakmem (`hakmem replay --list`), or a file that `hakmem record` wrote.

    Exit status: 0; 1 when --check finds the model off by more than 5 %; 2 for what is no trace.
    """
    import json

    from hakmem import placement, replays

    if not traces:
        raise click.UsageError("no trace: expected a file, or a name that `hakmem replay --list` prints")
    policies = placement.choose(names)
    answers = []
    is_taken = json_file is not None and str(json_file) == "-"
    for case in replays.cases(traces, size="sanity"):
        found = placement.answer(case, policies, check=check)
        answers.append(found)
        if not is_taken:
            print(found.text() + "\n", flush=True)
    if json_file is not None:
        files.write(json_file, json.dumps([found.plain() for found in answers], indent=1) + "\n")
    placement.expect_agreement(answers)
