"""Live progress on standard error: a bar on a terminal, a line per round elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hakmem import terminal
from hakmem.measure import Step


@contextmanager
def shown() -> Iterator[Callable[[Step], None]]:
    """Gives the callback for measure()."""
    if terminal.can_draw(sys.stderr):
        with _bar() as on_step:
            yield on_step
    else:
        last = -1

        def line(step: Step) -> None:
            nonlocal last
            if step.round != last:
                last = step.round
                what = f"round {step.round} of {step.rounds}" if step.round else "warm-up"
                print(f"hakmem: {what}", file=sys.stderr, flush=True)

        yield line


@contextmanager
def _bar() -> Iterator[Callable[[Step], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)

        def update(step: Step) -> None:
            when = f"round {step.round}/{step.rounds}" if step.round else "warm-up"
            text = f"{when}  {step.case[:40]} on {step.variant}"
            progress.update(task, description=text, completed=step.number - 1, total=step.count)

        yield update
