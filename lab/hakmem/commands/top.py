"""hakmem top: a live view of processes on hakmem."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hakmem import arguments, files
from hakmem.finite import FiniteRange

if TYPE_CHECKING:
    from hakmem import top

    Look = Callable[[], dict[int, top.Sample]]

HELP = "q ends; {keys} sort, by {by} now"


@click.command()
@click.option("--interval", "interval_s", type=FiniteRange(min=0.1), default=2.0, help="Seconds between looks.")
@files.json_option("What they answer, once")
@click.argument("pid", type=arguments.PID, required=False)
def command(interval_s: float, json_file: Path | None, pid: int | None) -> None:
    """Shows what your processes on hakmem have and do, a line each, or all of one: by size class and thread.

    \b
    RSS         resident memory, and its growth in a second
    live, free  blocks in use, and free ones in slabs
    caches      free blocks in the caches of threads
    misses      calls that a thread's cache could not serve
    given back  memory that went back to the kernel

    A process that doesn't answer, because hakmem has no thread in it, is shown as `hakmem explain` sees it, from
    outside: what is resident. Where its PID is given, you are told why instead.

    The key that a column's name begins with sorts by it (b: given back); q or Ctrl-C ends. Where standard output is no
    terminal, or one that can't be drawn on (TERM=dumb), it shows all that once.
    """
    import sys
    import time

    from hakmem import terminal, top

    watcher = top.Watcher()

    def look() -> dict[int, top.Sample]:
        return watcher.samples() if pid is None else {pid: top.sample(pid)}

    def lines(
        now: dict[int, top.Sample], before: dict[int, top.Sample], key: str, screen: top.Screen | None = None
    ) -> list[str]:
        if pid is None:
            return top.processes(now, before, key, screen)
        return top.process(now[pid], before.get(pid), screen)

    before = look()
    files.write_json(json_file, [_plain(one) for one in before.values()] if json_file else None)
    if files.takes_output(json_file):
        return
    if not terminal.can_draw(sys.stdout):
        time.sleep(interval_s)
        print("\n".join(lines(look(), before, top.SORTED)))
        return
    with contextlib.suppress(KeyboardInterrupt):
        _live(look, lines, interval_s, before)


def _plain(one: top.Sample) -> dict[str, Any]:
    known = {"pid": one.pid, "name": one.name, "resident": one.resident}
    return {**known, "statistics": one.stats, "why": one.why, "outside": one.outside}


def _live(look: Look, lines: Callable[..., list[str]], interval_s: float, now: dict[int, top.Sample]) -> None:
    """Until q is pressed."""
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from hakmem import top

    titles = {column.key: column.title for column in top.COLUMNS}
    console, by = Console(), top.SORTED
    before: dict[int, top.Sample] = {}
    with _keys() as pressed, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            body = lines(now, before, by, top.Screen(console.width, console.height - 2))
            foot = HELP.format(keys=" ".join(titles), by=titles[by])
            live.update(Text("\n".join([*body, "", foot]), no_wrap=True, overflow="crop"), refresh=True)
            key = pressed(interval_s)
            if key == "q":
                return
            by = key if key in titles else by
            if not key:
                before, now = now, look()


def _waits(seconds: float) -> str:
    import time

    time.sleep(seconds)
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Gives what waits so many seconds for a key, and returns it, or nothing."""
    import os
    import select
    import sys
    import termios
    import tty

    if sys.stdin is None or not sys.stdin.isatty():
        yield _waits
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def pressed(seconds: float) -> str:
        ready = select.select([terminal], [], [], seconds)[0]
        return os.read(terminal, 1).decode(errors="replace") if ready else ""

    tty.setcbreak(terminal)
    try:
        yield pressed
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
