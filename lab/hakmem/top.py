"""What processes on hakmem have and do, second by second: their own statistics, and the kernel's resident memory."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hakmem import ctl, foreign, words
from hakmem.errors import LabError

ANSWER_S = 1.0
MOST_CLASSES, MOST_THREADS = 16, 16
MISSES = ("refills", "flushes", "large_allocs", "large_frees")

# What is shown of the statistics (docs/statistics.schema.json): numbers, and lists of rows with numbers.
TOTALS = ("live_bytes", "free_bytes", "cached_bytes", "purged_bytes", "large_blocks", "large_bytes", "threads_left_out")
ROWS = {
    "classes": ("block_bytes", "slabs", "live", "free", "cached"),
    "threads": ("id", "heap", "cached_bytes", "remote_frees", *MISSES),
}


@dataclass(frozen=True)
class Sample:
    """A process at a moment."""

    pid: int
    name: str
    at: float
    resident: int
    stats: Mapping[str, Any]  # docs/statistics.schema.json; empty: it didn't answer
    why: str = ""  # in that case


def sample(pid: int) -> Sample:
    """LabError when there is no such process, or it is none that can be asked."""
    resident = _resident(pid)
    if resident is None:
        raise LabError(f"there is no process {pid}")
    stats = _parsed(ctl.ask(pid, "stats json", ANSWER_S))
    if stats is None:
        raise LabError(f"{ctl.title(pid)} answers with something else than statistics")
    return Sample(pid, _name(pid), time.monotonic(), resident, stats)


def _parsed(text: str) -> Mapping[str, Any] | None:
    """None when it is not what hakmem answers: the process could be anything."""
    try:
        stats = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not _has_numbers(stats, (*TOTALS, *MISSES)):
        return None
    for name, numbers in ROWS.items():
        rows = stats.get(name)
        if not isinstance(rows, list) or not all(_has_numbers(row, numbers) for row in rows):
            return None
    return stats if all(isinstance(row.get("name"), str) for row in stats["threads"]) else None


def _has_numbers(row: Any, names: Iterable[str]) -> bool:
    """Of 64 bits, as C has them."""
    return isinstance(row, dict) and all(isinstance(row.get(name), int) and 0 <= row[name] < 1 << 64 for name in names)


class Watcher:
    """Samples of all processes on hakmem that are the caller's; of root, everybody's."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], bool] = {}

    def samples(self) -> dict[int, Sample]:
        found = {}
        for pid in self._pids():
            try:
                found[pid] = sample(pid)
            except LabError as error:
                resident = _resident(pid)
                if resident is not None:
                    why = str(error).removeprefix(ctl.title(pid)).strip()
                    found[pid] = Sample(pid, _name(pid), time.monotonic(), resident, {}, why)
        return found

    def _pids(self) -> Iterator[int]:
        seen = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            pid = int(folder.name)
            with contextlib.suppress(OSError, IndexError):
                if os.geteuid() not in (0, folder.stat().st_uid):
                    continue
                started = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[19]
                key = pid, f"{started} {os.readlink(folder / 'exe')}"
                seen[key] = self._known[key] if key in self._known else ctl.is_on_hakmem(pid)
                if seen[key]:
                    yield pid
        self._known = seen


def _resident(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return foreign.line(Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip())
    return "?"


# ---- To be shown -----------------------------------------------------------------------------------------------------


def _size(value: float) -> str:
    return words.amount(value, "B")


def _rate(now: Mapping[str, Any], before: Mapping[str, Any] | None, names: tuple[str, ...], seconds: float) -> float:
    """By how much a sum of figures grows in a second."""
    if before is None or seconds <= 0:
        return 0.0
    return float(sum(now[name] - before[name] for name in names)) / seconds


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_size(abs(value))}/s" if abs(value) >= 1 else "0"


def _columns(table: Table, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def processes(now: Mapping[int, Sample], before: Mapping[int, Sample]) -> RenderableType:
    """One row each, the largest first."""
    table = _columns(
        Table(box=None, pad_edge=False),
        ("PID", "process"),
        ("RSS", "growth", "live", "free", "front caches", "given back", "misses", "threads"),
    )
    silent: list[str] = []
    for one in sorted(now.values(), key=lambda one: -one.resident):
        old = before.get(one.pid)
        seconds = one.at - old.at if old else 0.0
        growth = _signed((one.resident - old.resident) / seconds) if old and seconds > 0 else ""
        if not one.stats:
            table.add_row(str(one.pid), Text(one.name), _size(one.resident), growth)
            silent.append(f"{one.pid} {one.why}")
            continue
        stats, old_stats = one.stats, old.stats if old and old.stats else None
        table.add_row(
            str(one.pid),
            Text(one.name),
            _size(one.resident),
            growth,
            *(_size(stats[name]) for name in ("live_bytes", "free_bytes", "cached_bytes")),
            _size(_rate(stats, old_stats, ("purged_bytes",), seconds)) + "/s",
            f"{_rate(stats, old_stats, MISSES, seconds):,.0f}/s",
            str(len(stats["threads"]) + stats["threads_left_out"]),
        )
    if not now:
        return Text("No process of yours is on hakmem.")
    return Group(table, Text("\n".join(["", *silent]))) if silent else table


def process(now: Sample, before: Sample | None) -> RenderableType:
    """Totals, classes and threads on one page."""
    seconds = now.at - before.at if before else 0.0
    old = before.stats if before else None
    return Group(
        processes({now.pid: now}, {now.pid: before} if before else {}),
        Text(),
        _classes(now.stats),
        Text(),
        _threads(now.stats, old, seconds),
    )


def _classes(stats: Mapping[str, Any]) -> RenderableType:
    table = _columns(
        Table(box=None, pad_edge=False), (), ("blocks of", "slabs", "live", "free", "front caches", "live")
    )
    rows = sorted(stats["classes"], key=lambda row: -row["live"] * row["block_bytes"])
    for row in rows[:MOST_CLASSES]:
        table.add_row(
            _size(row["block_bytes"]),
            *(f"{row[name]:,}" for name in ("slabs", "live", "free", "cached")),
            _size(row["live"] * row["block_bytes"]),
        )
    large = f"{stats['large_blocks']:,}"
    table.add_row("large", "", large, "", "", _size(stats["large_bytes"]))
    return table


def _threads(stats: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> RenderableType:
    table = _columns(
        Table(box=None, pad_edge=False),
        ("thread", "name"),
        ("front cache", "refills", "flushes", "remote frees", "large"),
    )
    old = {row["heap"]: row for row in before["threads"]} if before else {}
    rows = sorted(stats["threads"], key=lambda row: -row["cached_bytes"])
    for row in rows[:MOST_THREADS]:
        rates = (("refills",), ("flushes",), ("remote_frees",), ("large_allocs", "large_frees"))
        table.add_row(
            str(row["id"]),
            Text(foreign.line(row["name"])),
            _size(row["cached_bytes"]),
            *(f"{_rate(row, old.get(row['heap']), names, seconds):,.0f}/s" for names in rates),
        )
    more = len(rows) - MOST_THREADS + int(stats["threads_left_out"])
    return Group(table, Text(f"and {more} threads more")) if more > 0 else table
