"""hakmem pins: whose blocks hold the pages that a process can't give back."""

from __future__ import annotations

from pathlib import Path

import click

from hakmem import arguments, files
from hakmem.finite import INTERVAL, FiniteRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--after", "seconds", type=FiniteRange(min=0), help="Look at the command so many seconds after.")
@click.option("--interval", **INTERVAL, help="Bytes from run to run of samples, of a command.")
@arguments.settings_option
@click.option("--trace", metavar="TRACE", help="Also what other placements would have saved in a recorded run of it.")
@click.option("--json", "json_file", **files.FILE, help="What was found; - for standard output.")
@click.option("--markdown", "markdown_file", **files.FILE, help="Tables; - for standard output.")
@click.option("--html", "html_file", **files.PAGE, help="One self-contained page with plots.")
@click.option("--pprof", "pprof_file", **files.FILE, help="For pprof: the sample type pinned_space, and others.")
@click.argument("words", nargs=-1, required=True, metavar="PID | -- COMMAND...", type=arguments.WORDS)
def command(
    seconds: float | None,
    interval: int,
    settings: tuple[str, ...],
    trace: str | None,
    json_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
    pprof_file: Path | None,
    words: tuple[str, ...],
) -> None:
    """Splits the memory that a process can't give back by the call sites of the blocks that hold it.

    A page stays as long as a block on it is in use. How much memory is pinned that way is known of every process on
    hakmem; by whom, of one that is sampled: a command that this runs is, and another process since `hakmem ctl PID pins
    on`. A running process is only read, not stopped; a command is looked at when it ends, or after a while. What it
    writes goes to standard error where JSON or markdown takes standard output. That it failed is told, as by `hakmem
    explain`.

    TRACE is what `hakmem record` has written of such a run: a model of hakmem makes its calls with blocks in other
    places, which takes a minute or so for a million calls.
    """
    import datetime
    import json
    import shlex

    from hakmem import explain, extras, output
    from hakmem.commands.explain import look_at_command, pid_of

    extras.expect("profile", "hakmem pins")
    if pprof_file:
        files.expect_name(str(pprof_file), "--pprof")
    from hakmem import pins

    if trace:
        from hakmem import placement, replays

        (recorded,) = replays.cases([trace], size="sanity")  # refused before anything is looked at
    pid = pid_of(words, seconds, settings)
    if pid is not None:
        found = pins.pins(explain.look(pid, "--pins"))
    else:
        own = ("PINS=1", f"HEAP_PROFILE_INTERVAL={interval}")
        out = files.output_of_command(json_file, markdown_file)
        found = pins.pins(look_at_command(words, seconds, (*own, *settings), out, "--pins"))
    if pprof_file:
        files.put(pprof_file, pins.encode(found))
    elsewhere = [placement.answer(recorded, placement.choose(()), check=False)] if trace else []
    plain = found.plain() | {"placements": [each.plain() for each in elsewhere]}
    date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    shown = pins.report(found, f"hakmem {shlex.join(['pins', *words])}", date, *elsewhere)
    output.show(shown, markdown_file, html_file, (json_file, json.dumps(plain, indent=1) + "\n"))
