"""hakmem explain: where a process's resident memory is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TextIO

import click

from hakmem import arguments, files
from hakmem.finite import FiniteRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--after", "seconds", type=FiniteRange(min=0), help="Explain the command so many seconds after.")
@arguments.settings_option
@files.json_option("What was measured")
@click.option("--markdown", "markdown_file", **files.FILE, help="Tables; - for standard output.")
@click.option("--html", "html_file", **files.PAGE, help="One self-contained page with plots.")
@click.argument("words", nargs=-1, required=True, metavar="PID | -- COMMAND...", type=arguments.WORDS)
def command(
    seconds: float | None,
    settings: tuple[str, ...],
    json_file: Path | None,
    markdown_file: Path | None,
    html_file: Path | None,
    words: tuple[str, ...],
) -> None:
    """Splits the resident memory of a process on hakmem into causes that add up.

    A running process is only read, not stopped; a command is run on hakmem and explained at its end, or after a while.
    What it writes goes to standard error where JSON or markdown takes standard output. That it failed, or which signal
    has killed it, is told; the exit status is 0 once it is explained.
    """
    import datetime
    import json
    import shlex

    from hakmem import explain, output

    pid = pid_of(words, seconds, settings)
    if pid is not None:
        found = explain.of_process(pid)
    else:
        out = files.output_of_command(json_file, markdown_file)
        found = explain.explanation(look_at_command(words, seconds, settings, out))
    date = f"{datetime.datetime.now(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"
    shown = explain.report(found, f"hakmem {shlex.join(['explain', *words])}", date)
    output.show(shown, markdown_file, html_file, (json_file, json.dumps(found.plain(), indent=1) + "\n"))


def pid_of(words: tuple[str, ...], seconds: float | None, settings: tuple[str, ...]) -> int | None:
    """None when the words are a command."""
    from hakmem.errors import LabError

    first, *rest = words
    if not first.isdecimal() or (rest and not rest[0].startswith("-")):
        return None
    if rest:
        raise LabError(f"options stand before PID: expected `{rest[0]} ... {first}`")
    if seconds is not None or settings:
        raise LabError("--after and --set are for commands, not for a running process")
    try:
        return int(first)
    except ValueError:  # Python reads so many digits and no more
        raise LabError(f"there is no process {first}") from None


def look_at_command(
    words: tuple[str, ...], seconds: float | None, settings: tuple[str, ...], out: TextIO | None, *options: str
) -> dict[str, Any]:
    """Runs a command on hakmem, and looks at it at its end, or after so many seconds. It writes to `out`, or where the
    caller does."""
    import os
    import sys

    from hakmem import explain, native, process, takeover
    from hakmem import settings as known_settings
    from hakmem.commands.run import callers_environment
    from hakmem.errors import InterruptedEarly, LabError

    library = native.library()
    environment = {**callers_environment(), **known_settings.parse(settings, library)}
    try:
        file, ready = takeover.prepare(words, library, environment, children=True)
    except takeover.CommandError as error:
        if len(words) > 1 or os.sep in words[0]:
            raise
        raise LabError(f"{error}, and no number of a process: expected PID, or -- COMMAND") from None
    del ready["ALLOCATOR_REQUIRED"]  # of this process, which doesn't become the command
    with process.undisturbed() as came, process.passed_on(came) as to:
        if seconds is not None:
            found = explain.look_after(seconds, file, words, ready, out, to, *options)
        else:
            try:
                found = explain.look_at_end(file, words, ready, out, to, *options)
            except LabError:
                if came:
                    raise InterruptedEarly(f"interrupted before {words[0]} could be explained") from None
                raise
    if found["ended"] != 0:
        print(f"hakmem: {words[0]} {process.ending(found['ended'])}", file=sys.stderr)
    if came and seconds is None:
        print(f"hakmem: interrupted: {words[0]} is explained as far as it came", file=sys.stderr)
    return found
