"""Live progress on standard error: a bar on a terminal, a line per round elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hakmem import terminal
from hakmem.measure import Step

LEAST_TOLD_S = 5


def tell(text: str) -> None:
    """What begins now, where no rounds are counted."""
    print(f"hakmem: {text}", file=sys.stderr, flush=True)


@contextmanager
def shown() -> Iterator[Callable[[Step], None]]:
    """Gives the callback for measure()."""
    if terminal.can_draw(sys.stderr):
        with _bar() as on_step:
            yield on_step
    else:
        last, start = -1, time.monotonic()

        def line(step: Step) -> None:
            nonlocal last
            if step.round != last:
                last = step.round
                what = f"round {step.round} of {step.rounds}" if step.round else "warm-up"
                print(f"hakmem: {what}{_left(step, time.monotonic() - start)}", file=sys.stderr, flush=True)

        yield line


def _left(step: Step, taken_s: float) -> str:
    """How long it takes, by what it took until here; told where that is worth a word."""
    left_s = taken_s / max(1, step.number - 1) * (step.count - step.number + 1)
    if step.number == 1 or left_s < LEAST_TOLD_S:
        return ""
    return f", about {left_s:.0f} s to go" if left_s < 100 else f", about {left_s / 60:.0f} min to go"


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
