"""The command line: `hakmem COMMAND`. Errors become one line and an exit status."""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import click

from hakmem import foreign
from hakmem.errors import LabError

# What the help text says, in its order. Each is a module of hakmem.commands that has a click.Command called `command`.
GROUPS = {
    "Run programs": {
        "run": "run a command on hakmem, or say why that can't be",
        "doctor": "say what would stop or hurt hakmem here",
        "settings": "list what can be set, with defaults and values",
        "learn": "run a command, and write down what the controller has learned",
        "sweep": "find the best fixed setting of the knobs for a program",
    },
    "Compare allocators": {
        "compare": "run a command under several allocators and compare",
        "services": "ten services: their memory at work and at rest, under each allocator",
        "demo": "programs you know on glibc and on hakmem, side by side",
        "ab": "decide between two settings or two builds",
        "predict": "what other allocators would do for a command, unrun",
        "hot": "where a command's time goes: functions, kernel, faults",
        "record": "write a trace of a command's calls of malloc",
        "replay": "replay a trace under any allocator",
        "placement": "what other placements of a trace's blocks would save",
        "peers": "fetch, build and list the allocators to compare with",
    },
    "Find memory": {
        "explain": "where a process's resident memory is: causes that add up",
        "pins": "whose blocks hold the pages that can't go back",
        "profile": "who allocates: a heap profile for pprof, and a flame graph",
    },
    "In production": {
        "ctl": "ask and steer a running process: statistics, purge, knobs",
        "top": "a live view of processes on hakmem",
        "serve": "statistics and profiles of processes, for tools that pull",
        "fleet": "what a setting does on part of many hosts",
        "tune-log": "what the controller did in a process, and why",
    },
    "For hakmem's own development": {
        "bench": "run the benchmark suite, or some of it",
        "baseline": "hakmem and glibc on the suite, with the machine's facts",
        "bisect": "find the commit that made a benchmark slower",
        "moments": "real programs explained at work: how much stays unknown",
        "adapt": "what the controller is worth while a program runs",
        "claims": "check that a record stands behind every figure in the documents",
        "health": "run everything once, at every setting",
        "ready": "the production-readiness table",
    },
}
COMMANDS = {name: says for group in GROUPS.values() for name, says in group.items()}

# Of commands that don't say otherwise.
EXIT_STATUS = {
    "0": "done",
    "1": "the answer is no: a check failed, a bar was missed",
    "2": "bad input or a missing piece",
    "70": "an error of these commands themselves",
    "130": "interrupted, by Ctrl-C, SIGTERM or SIGHUP",
}


class LazyGroup(click.Group):
    """Imports a command's module when it is asked for: statistics and plots are slow to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"hakmem.commands.{cmd_name.replace('-', '_')}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            near = difflib.get_close_matches(args[0], COMMANDS, 1)
            raise LabError(
                f"no command {args[0]!r}: " + (f"did you mean {near[0]}?" if near else "`hakmem --help` lists them")
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(map(len, COMMANDS))
        for title, group in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(widest), says) for name, says in group.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Click would drop the status that a command returns, and begin a line before it tells of Ctrl-C."""
        try:
            status = super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.Abort from None
        if isinstance(status, int) and status:
            ctx.exit(status)
        return status


def _version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from importlib import metadata

    from hakmem import native, tree

    commit, is_clean = tree.checked_out()
    of_tree = "" if commit is None else f", commit {commit[:12]}{'' if is_clean else ', changed since'}"
    library = native.library()
    print(f"hakmem {metadata.version('hakmem')}{of_tree}")
    print(f"libhakmem {native.version(library)}, {library}")
    context.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "-V",
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the versions of these commands and of the library, and where that is.",
)
def cli() -> None:
    """Runs programs on hakmem, compares allocators on your own command, and keeps evidence for every figure."""


def _have_a_home() -> None:
    """Of a user whom only a number names it is the root of all, as containers have it: much else asks for one."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = "/"


def _nowhere() -> TextIO:
    """In place of what is closed. What is run finds it closed."""
    return open(os.devnull, "w")


def main(arguments: Sequence[str] | None = None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    if sys.stderr is None:
        sys.stderr = _nowhere()
    if sys.stdout is None:
        if "run" not in words[:1]:  # what runs may not need it
            print("hakmem: standard output is closed", file=sys.stderr)
            sys.exit(2)
        sys.stdout = _nowhere()
    _have_a_home()
    if words[:1] == ["help"]:
        arguments = [*words[1:], "--help"]
    status: Any = 0
    for output in (sys.stdout, sys.stderr):
        if isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")  # names that are no text
    try:
        status = cli.main(
            args=None if arguments is None else list(arguments), prog_name="hakmem", standalone_mode=False
        )
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        status = 2
    except (KeyboardInterrupt, Exception) as error:
        line, why = _told(error)
        status = why if line else status or why  # who interrupts may have ended the reader, too
        if line:
            print(f"hakmem: {foreign.line(line)}", file=sys.stderr)
    _drop_output()
    sys.exit(status if isinstance(status, int) else 0)


def _told(error: BaseException) -> tuple[str, int]:
    """The line that tells of it, and the exit status."""
    if isinstance(error, KeyboardInterrupt | click.Abort):
        return "interrupted", 130
    if isinstance(error, LabError):
        return str(error), error.exit_status
    if isinstance(error, click.ClickException):
        return error.format_message(), 2
    if isinstance(error, OSError):
        why = error.strerror or str(error)
        if error.filename is not None:
            return f"{error.filename}: {why}", 2
        if error.errno == errno.EPIPE:
            return "", 1  # who has read the output has enough of it
        if error.errno in (errno.ENOSPC, errno.EIO):
            return f"can't write the output: {why}", 1
        return ("the working directory is gone" if _is_nowhere() else why), 2
    if isinstance(error, MemoryError):
        return "there is not enough memory", 2
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{os.path.basename(place.filename)}:{place.lineno}"
    return f"an error of its own, please report it: {type(error).__name__} at {where}: {error}", 70


def _is_nowhere() -> bool:
    try:
        os.getcwd()
    except OSError:
        return True
    return False


def _drop_output() -> None:
    """Python writes what is left of it at its end, and would complain of what can't be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
