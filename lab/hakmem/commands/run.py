"""hakmem run: a command on hakmem, or one line that says why not."""

from __future__ import annotations

import os
import signal
from typing import NoReturn

import click

from hakmem import arguments


@click.command(context_settings={"allow_interspersed_args": False})
@arguments.settings_option
@click.option("--profile", metavar="NAME", help="Where the knobs stand: short for --set PROFILE=NAME.")
@click.option("--children/--no-children", default=True, help="Whether the programs it starts run on hakmem too.")
@click.option("--secure", is_flag=True, help="On the secure build, which finds more misuse and takes more time.")
@click.option("--repeatable", is_flag=True, help="Two runs of a deterministic program do the same, to the page.")
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=arguments.WORDS)
def command(
    settings: tuple[str, ...],
    profile: str | None,
    children: bool,
    secure: bool,
    repeatable: bool,
    words: tuple[str, ...],
) -> NoReturn:
    """Runs a command on hakmem, in place of this process: its terminal, signals and exit status are its own.

    Refuses with one line and exit status 2 when the command's malloc would not be hakmem's. Scripts are followed to
    their interpreters. With --no-children a wrapper such as nice counts as the program.

    --repeatable is for benchmarks whose figures flip: addresses and seeds are fixed, hakmem has neither threads nor
    samples, and no clock decides.

    `time` and its like see the start of `hakmem run` itself, too: a tenth of a second, and 25 MB that are the peak of
    any smaller program. Put `hakmem run` before them: `hakmem run -- time COMMAND`.
    """
    from hakmem import native, takeover
    from hakmem import repeatable as fixed
    from hakmem import settings as known_settings
    from hakmem.errors import LabError

    library = native.secure_library() if secure else native.library()
    if profile is not None:
        settings = (*settings, f"PROFILE={profile}")
    environment = callers_environment()
    if repeatable:
        settings, environment = fixed.settings(settings, environment), {**fixed.SEEDS, **environment}
    environment |= known_settings.parse(settings, library)
    file, ready = takeover.prepare(words, library, environment, children=children)
    if repeatable:
        fixed.fix_layout()
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    try:
        os.execve(file, words, ready)
    except OSError as error:
        raise LabError(f"{words[0]}: {error.strerror}") from None


def callers_environment() -> dict[str, str]:
    """What this process was started with, but for what has no name: Python may have added a locale to its own."""
    with open("/proc/self/environ", "rb") as file:
        words = (os.fsdecode(word).partition("=") for word in file.read().split(b"\0"))
    return {name: value for name, equals, value in words if name and equals}
