"""The calls of a trace, as a replay makes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hakmem import trace
from hakmem.trace import Kind, Trace, TraceError
from hakmem.words import amount

MOST_LIVE_BYTES = 64 << 30


class Call(NamedTuple):
    """malloc has a block and no old one, free an old one only, realloc both. Blocks are numbered from 1; 0 is none."""

    thread: int
    old: int
    block: int
    size: int = 0
    alignment: int = 1


def of_trace(recorded: Trace) -> list[Call]:
    """In the recorded order."""
    calls = list(each(recorded))
    if not calls:
        raise TraceError("no calls in it")
    return calls


def each(recorded: Trace) -> Iterator[Call]:
    """The same one by one: a long trace has millions."""
    sizes: dict[int, int] = {}
    live = old = 0
    for thread, kind, block, operand in trace.numbered(recorded):
        if kind in (Kind.FREE, Kind.REALLOC):
            live -= sizes.pop(block)
            if kind == Kind.FREE:
                yield Call(thread, block, 0)
            else:
                old = block
            continue
        size, alignment = trace.size_and_alignment(kind, operand)
        sizes[block] = size
        live += size
        if live > MOST_LIVE_BYTES:
            raise TraceError(f"more than {amount(MOST_LIVE_BYTES, 'B')} alive at a time, too much to model")
        yield Call(thread, old, block, size, alignment)
        old = 0
