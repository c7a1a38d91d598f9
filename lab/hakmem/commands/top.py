"""hakmem top: a live view of processes on hakmem."""

from __future__ import annotations

import click

from hakmem.finite import FiniteRange


@click.command()
@click.option("--interval", "interval_s", type=FiniteRange(min=0.1), default=2.0, help="Seconds between looks.")
@click.argument("pid", type=click.IntRange(min=1), required=False)
def command(interval_s: float, pid: int | None) -> None:
    """Shows what your processes on hakmem have and do, or all of one: by size class and thread.

    Where standard output is no terminal it shows that once. Ctrl-C ends it.
    """
    import sys
    import time

    from rich.console import Console, RenderableType
    from rich.live import Live

    from hakmem import top

    watcher = top.Watcher()

    def look() -> dict[int, top.Sample]:
        return watcher.samples() if pid is None else {pid: top.sample(pid)}

    def show(now: dict[int, top.Sample], before: dict[int, top.Sample]) -> RenderableType:
        return top.processes(now, before) if pid is None else top.process(now[pid], before.get(pid))

    console = Console(file=sys.stdout) if sys.stdout.isatty() else Console(file=sys.stdout, width=160)
    before = look()
    if not console.is_terminal:
        time.sleep(interval_s)
        console.print(show(look(), before))
        return
    with Live(show(before, {}), console=console, screen=True, auto_refresh=False) as live:
        try:
            while True:
                time.sleep(interval_s)
                now = look()
                live.update(show(now, before), refresh=True)
                before = now
        except KeyboardInterrupt:
            pass
