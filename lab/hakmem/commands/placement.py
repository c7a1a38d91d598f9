"""hakmem placement: what other placements of blocks would save."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import arguments, files


@click.command()
@click.option("--policy", "names", multiple=True, metavar="NAME,...", help="these beside today's  [default: all]")
@click.option("--check", is_flag=True, help="also replay the trace on hakmem, and compare its peak with the model's")
@files.json_option("the figures")
@click.argument("traces", nargs=-1, metavar="TRACE...", type=arguments.TRACES)
def command(names: tuple[str, ...], check: bool, json_file: Path | None, traces: tuple[str, ...]) -> None:
    """Says how much memory a program's blocks would take if hakmem placed them in other ways, by a model, and how
    little they could take if the future were known.

    TRACE is the name of one that comes with hakmem (`hakmem replay --list`), or a file that `hakmem record` wrote.

    Exit status: 0; 1 when --check finds the model off by more than 5 %; 2 for what is no trace.
    """
    from hakmem import native, placement, progress, replays

    if not traces:
        raise click.UsageError("no trace: expected a file, or a name that `hakmem replay --list` prints")
    if check:
        native.expect_programs()
    policies = placement.choose(names)
    answers = []
    for case in replays.cases(traces, size="sanity"):
        found = placement.answer(case, policies, check=check, tell=progress.tell)
        answers.append(found)
        if not files.takes_output(json_file):
            print(found.text() + "\n", flush=True)
    files.write_json(json_file, [found.plain() for found in answers])
    placement.expect_agreement(answers)
