"""What processes on hakmem have and do, second by second: their own statistics, and the kernel's resident memory."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hakmem import ctl, explain, foreign, words
from hakmem.errors import LabError

ANSWER_S = 1.0
STARTS_S = 5.0  # a program that has run so long has mapped its allocator
CAUSES = {"live_bytes": "live blocks", "free_bytes": "free blocks in slabs", "cached_bytes": "front caches"}
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
    why: str = ""  # in that case, and what of these figures is resident, as explain reads it
    outside: Mapping[str, int] = field(default_factory=dict)

    def figure(self, name: str) -> int | None:
        found: int | None = self.stats.get(name, self.outside.get(name))
        return found


def sample(pid: int) -> Sample:
    """LabError when there is no such process, or it is none that can be asked."""
    ctl.expect_processes()
    resident = resident_of(pid)
    if resident is None:
        raise LabError(f"there is no process {pid}")
    stats = _parsed(ctl.ask(pid, "stats json", ANSWER_S))
    if stats is None:
        raise LabError(f"{ctl.title(pid)} answers with something else than statistics")
    return Sample(pid, name_of(pid), time.monotonic(), resident, stats)


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
        # When each program was first seen, and whether it is on hakmem: None while its linker may not have got to that.
        self._known: dict[tuple[str, ...], tuple[float, bool | None]] = {}
        # What was read from outside, and how much was resident then: of a process at rest it is read once.
        self._read: dict[int, tuple[int, Mapping[str, int]]] = {}

    def samples(self) -> dict[int, Sample]:
        found = {}
        for pid in self.pids():
            try:
                found[pid] = sample(pid)
            except LabError as error:
                resident = resident_of(pid)
                if resident is not None:
                    why = str(error).removeprefix(ctl.title(pid)).strip()
                    seen = self._from_outside(pid, resident)
                    found[pid] = Sample(pid, name_of(pid), time.monotonic(), resident, {}, why, seen)
        self._read = {pid: read for pid, read in self._read.items() if pid in found}
        return found

    def _from_outside(self, pid: int, resident: int) -> Mapping[str, int]:
        """Nothing where it may not be read, or is gone."""
        before, figures = self._read.get(pid, (None, {}))
        if before != resident:
            figures = {}
            with contextlib.suppress(LabError):
                found = explain.of_process(pid)
                figures = {name: found.bytes_of(cause) for name, cause in CAUSES.items()}
            self._read[pid] = resident, figures
        return figures

    def pids(self) -> Iterator[int]:
        ctl.expect_processes()
        seen = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal():
                continue
            pid = int(folder.name)
            with contextlib.suppress(OSError, IndexError):
                if os.geteuid() not in (0, folder.stat().st_uid):
                    continue
                key = folder.name, *_program(folder)
                first, is_on = self._known.get(key, (time.monotonic(), None))
                if is_on is None:
                    is_on = ctl.is_on_hakmem(pid) or (None if time.monotonic() - first < STARTS_S else False)
                seen[key] = first, is_on
                if is_on:
                    yield pid
        self._known = seen


def _program(folder: Path) -> list[str]:
    """What is another one after each exec, of the same file, too: when the process began, and where the program's
    arguments and environment lie. Some sandboxes say 0 of these; the program's file is another one there, too."""
    words = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return [words[19], *words[45:49], os.readlink(folder / "exe")]


def resident_of(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):
        return None


def name_of(pid: int) -> str:
    with contextlib.suppress(OSError):
        return foreign.line(Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip())
    return "?"


# ---- To be shown -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Screen:
    """Room for lines; where output is no terminal, for all of them."""

    columns: int = 1000
    lines: int = 1000


@dataclass(frozen=True)
class Column:
    title: str
    key: str  # that sorts by it
    value: Callable[[Sample, Sample | None], float | None]  # None: not known
    show: Callable[[float], str]


def _size(value: float) -> str:
    """Three figures, and K, M, G of 1024."""
    for shift, unit in ((40, "T"), (30, "G"), (20, "M"), (10, "K")):
        if value >= 1 << shift:
            return f"{words.figures(value / (1 << shift))}{unit}"
    return f"{value:.0f}"


def _signed(value: float) -> str:
    return f"{'-' if value < 0 else '+'}{_size(abs(value))}/s" if abs(value) >= 1 else "0"


def _seconds(now: Sample, before: Sample | None) -> float:
    return now.at - before.at if before else 0.0


def _stat(name: str) -> Callable[[Sample, Sample | None], float | None]:
    return lambda now, before: now.figure(name)


def _growth(now: Sample, before: Sample | None) -> float | None:
    seconds = _seconds(now, before)
    return (now.resident - before.resident) / seconds if before and seconds > 0 else None


def _rate(now: Mapping[str, Any], before: Mapping[str, Any] | None, names: Iterable[str], seconds: float) -> float:
    """By how much a sum of figures grows in a second."""
    if not before or seconds <= 0:
        return 0.0
    return float(sum(now[name] - before[name] for name in names)) / seconds


def _rate_of(*names: str) -> Callable[[Sample, Sample | None], float | None]:
    def value(now: Sample, before: Sample | None) -> float | None:
        return _rate(now.stats, before.stats if before else None, names, _seconds(now, before)) if now.stats else None

    return value


def _thread_count(now: Sample, before: Sample | None) -> float | None:
    return len(now.stats["threads"]) + int(now.stats["threads_left_out"]) if now.stats else None


# The first four fit everywhere; the last are left out where there is no room.
COLUMNS = (
    Column("PID", "p", lambda now, before: now.pid, lambda value: f"{value:.0f}"),
    Column("RSS", "r", lambda now, before: now.resident, _size),
    Column("growth", "g", _growth, _signed),
    Column("live", "l", _stat("live_bytes"), _size),
    Column("free", "f", _stat("free_bytes"), _size),
    Column("caches", "c", _stat("cached_bytes"), _size),
    Column("misses", "m", _rate_of(*MISSES), lambda value: f"{value:,.0f}/s"),
    Column("threads", "t", _thread_count, lambda value: f"{value:.0f}"),
    Column("given back", "b", _rate_of("purged_bytes"), lambda value: f"{_size(value)}/s"),
)
SORTED = "r"  # unless told
PID, NAME = 7, 15  # columns that they have: the kernel's longest
KNOWN_OF_ALL = 3  # columns that need no answer


def processes(
    now: Mapping[int, Sample], before: Mapping[int, Sample], key: str = SORTED, screen: Screen | None = None
) -> list[str]:
    """A line each, under a head: the largest first, but for process ids."""
    screen = screen or Screen()
    if not now:
        return ["No process of yours is on hakmem."]
    by = next(column for column in COLUMNS if column.key == key)

    def place(one: Sample) -> float:
        value = by.value(one, before.get(one.pid))
        return math.inf if value is None else value if by.title == "PID" else -value

    rows = sorted(now.values(), key=place)
    cells = {one.pid: _cells(one, before.get(one.pid)) for one in rows}
    widths = [PID]
    for number, column in enumerate(COLUMNS[1:], 1):
        widths.append(max(len(column.title), *(len(line[number]) for line in cells.values())))
    while len(widths) > KNOWN_OF_ALL and NAME + sum(widths) + len(widths) > screen.columns:
        widths.pop()
    head = _line([column.title for column in COLUMNS], "process", widths)
    lines = [_line(cells[one.pid], one.name, widths, "" if one.outside else one.why) for one in rows]
    if count := sum(bool(one.outside) for one in rows):
        note = f"{count} don't answer: read from outside, what is resident; `hakmem top PID` says why."
        return [*_cut([head, *lines], replace(screen, lines=screen.lines - 1)), *_cut([note], screen)]
    return _cut([head, *lines], screen)


def _cells(now: Sample, before: Sample | None) -> list[str]:
    values = [(column, column.value(now, before)) for column in COLUMNS]
    return ["" if value is None else column.show(value) for column, value in values]


def _line(cells: Sequence[str], name: str, widths: Sequence[int], why: str = "") -> str:
    """`why` stands in place of what isn't known."""
    if why:
        cells = cells[:KNOWN_OF_ALL]
    shown = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=False)]
    return " ".join([cells[0].rjust(PID), name[:NAME].ljust(NAME), *shown, *([f" {why}"] if why else [])]).rstrip()


def _cut(lines: Sequence[str], screen: Screen) -> list[str]:
    """To the screen; the last line then says how many are not shown."""
    if len(lines) > screen.lines:
        left = max(screen.lines - 1, 0)
        lines = [*lines[:left], f"and {len(lines) - left} more"]
    return [
        line if len(line) <= screen.columns else f"{line[: screen.columns - 1]}\N{HORIZONTAL ELLIPSIS}"
        for line in lines
    ]


def process(now: Sample, before: Sample | None, screen: Screen | None = None) -> list[str]:
    """Totals, classes and threads on one page."""
    screen = screen or Screen()
    total = processes({now.pid: now}, {now.pid: before} if before else {}, screen=screen)
    classes = _classes(now.stats)
    threads = _threads(now.stats, before.stats if before else None, _seconds(now, before))
    room = screen.lines - len(total) - 2
    most = max(room // 2, room - len(threads))
    classes = _cut(classes, Screen(screen.columns, most))
    return [*total, "", *classes, "", *_cut(threads, Screen(screen.columns, room - len(classes)))]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return words.table(head, rows).splitlines()


def _classes(stats: Mapping[str, Any]) -> list[str]:
    """Those with the most live bytes first."""
    rows = [["large", "", f"{stats['large_blocks']:,}", "", "", _size(stats["large_bytes"])]]
    for row in sorted(stats["classes"], key=lambda row: -row["live"] * row["block_bytes"]):
        counts = (f"{row[name]:,}" for name in ("slabs", "live", "free", "cached"))
        rows.append([_size(row["block_bytes"]), *counts, _size(row["live"] * row["block_bytes"])])
    return _table(["blocks of", "slabs", "live", "free", "caches", "live bytes"], rows)


def _threads(stats: Mapping[str, Any], before: Mapping[str, Any] | None, seconds: float) -> list[str]:
    """Those with the largest caches first."""
    old = {row["heap"]: row for row in before["threads"]} if before else {}
    rows = []
    for row in sorted(stats["threads"], key=lambda row: -row["cached_bytes"]):
        rates = (("refills",), ("flushes",), ("remote_frees",), ("large_allocs", "large_frees"))
        shown = (f"{_rate(row, old.get(row['heap']), names, seconds):,.0f}/s" for names in rates)
        rows.append([f"{row['id']} {foreign.line(row['name'])}", _size(row["cached_bytes"]), *shown])
    lines = _table(["thread", "cache", "refills", "flushes", "remote frees", "large"], rows)
    return [*lines, *([f"and {stats['threads_left_out']} more"] if stats["threads_left_out"] else [])]
