"""hakmem record: a command, and what it asked of its allocator, in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hakmem import arguments, files
from hakmem.finite import byte_range

if TYPE_CHECKING:
    from hakmem.trace import Trace

FILE = click.Path(dir_okay=False, path_type=Path)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-o", "output", type=FILE, metavar="FILE", help="packed if it ends in .xz  [default: PROGRAM.trace]")
@click.option(
    "--limit",
    callback=byte_range("64K", "4G"),
    metavar="SIZE",
    default="64M",
    show_default=True,
    help="of the file, before it is packed",
)
@click.option("--children", is_flag=True, help="also the processes that it starts, each in a file of its own")
@click.argument("words", nargs=-1, type=arguments.WORDS, metavar="-- COMMAND [ARGUMENT]...")
def command(output: Path | None, limit: int, children: bool, words: tuple[str, ...]) -> int:
    """Runs COMMAND and writes down every block it gets, resizes and gives back: in which thread, and in which order.

    Recorded is the program that COMMAND becomes, whatever allocator it runs on; a wrapper that starts others needs
    --children.
    When the file reaches its limit the recording ends, and COMMAND goes on. However COMMAND ends, the trace is good
    as far as it goes. `hakmem replay` replays it.

    Exit status: COMMAND's own, 128 + N when signal N killed it; 2 when nothing was recorded.
    """
    import sys

    from hakmem import recording
    from hakmem.words import amount

    if output:
        files.expect_name(str(output), "-o")
    default = Path(f"{Path(words[0]).name}.trace") if words else Path()
    done = recording.record(words, output or default, limit, children=children)
    for path, trace in done.traces.items():
        threads = "1 thread" if trace.thread_count == 1 else f"{trace.thread_count} threads"
        size = amount(path.stat().st_size, "B")
        print(f"hakmem: {path}: {trace.event_count:,} events of {threads}, {size}", file=sys.stderr)
        if trace.is_full:
            print(f"hakmem: {path}: {_why_full(trace, amount(limit, 'B'))}", file=sys.stderr)
    return done.exit_status


def _why_full(trace: Trace, limit: str) -> str:
    from hakmem.trace import FILE_SIZE, NO_ROOM

    if trace.flags & NO_ROOM:
        return "ends where the disk had no more room"
    if trace.flags & FILE_SIZE:
        return "reached the limit of a file's size; `ulimit -f` allows more"
    return f"reached its limit; --limit allows more than {limit}"
