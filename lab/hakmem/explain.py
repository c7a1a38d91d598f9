"""Where a process's resident memory is: what lab/native/explain.c measured, in causes that add up.

Each cause is measured for itself. What is missing in their sum, or too much, is a line of its own: unknown.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO, TypeAlias

from hakmem import foreign, native, process
from hakmem.errors import LabError
from hakmem.report.model import Report, Share, Shares, Table
from hakmem.words import amount

MOST_UNKNOWN = 0.02  # of resident memory; beyond that the explanation is none
MOST_PARTS = 6  # of a cause that are named
BEGIN_S = 10.0  # that a command may take until it is on hakmem
NOT_OURS = "does not run on hakmem"  # as lab/native/explain_heap.c says it
PR_SET_PTRACER = 0x59616D61
_C = ctypes.CDLL(None)

Plain: TypeAlias = dict[str, Any]
Part: TypeAlias = tuple[str, int]

# What hakmem's bytes are there for: a cause, and what makes it up, as the native program names it.
OWN: dict[str, tuple[tuple[str, str], ...]] = {
    "live blocks": (
        ("live_small", "in slabs"),
        ("live_runs", "page runs"),
        ("live_mappings", "own mappings"),
    ),
    "rounding behind blocks": (("remainders", ""),),
    "free blocks in slabs": (("free_blocks", ""),),
    "front caches": (("cached", ""),),
    "empty slabs kept by threads": (("kept_units", ""),),
    "awaiting purge": (("dirty_units", ""),),
    "lazily freed": (("lazily_freed", ""),),
    "changing hands": (
        ("given_back", "given back meanwhile"),
        ("in_hand", "being taken or given back"),
    ),
    "huge-page bloat": (("huge_bloat", ""),),
    "large cache": (("large_cache", ""),),
    "metadata": (("metadata", ""),),
}

STACKS, PROGRAM, FILES, OTHER = "stacks", "program and libraries", "files and shared memory", "other mappings"
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Cause:
    name: str
    bytes: int
    is_own: bool  # hakmem's
    parts: tuple[Part, ...] = ()  # the largest first; some of it may be in none


@dataclass(frozen=True)
class Explanation:
    pid: int
    name: str
    hakmem: str  # its version
    resident: int
    causes: tuple[Cause, ...]
    classes: tuple[Plain, ...]
    notes: tuple[str, ...]

    @property
    def unknown(self) -> int:
        """Less than 0 when the causes are more than there is: the process went on while it was looked at."""
        return self.resident - sum(cause.bytes for cause in self.causes)

    @property
    def error(self) -> float:
        """What is unknown as a share of all."""
        return abs(self.unknown) / self.resident if self.resident else 0.0

    def bytes_of(self, name: str) -> int:
        return next(cause.bytes for cause in self.causes if cause.name == name)

    def plain(self) -> Plain:
        return {**asdict(self), UNKNOWN: self.unknown}


# ---- Measuring -------------------------------------------------------------------------------------------------------


def of_process(pid: int) -> Explanation:
    return explanation(look(pid))


def look(pid: int, *options: str, timeout_s: float | None = None) -> Plain:
    """Of a running process, which isn't stopped for it: what the native program says with these options, which
    `explanation` reads. A terminal's Ctrl-C does not reach the helper."""
    call = [str(native.helper("explain")), *options, str(pid)]
    try:
        done = subprocess.run(call, capture_output=True, start_new_session=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise LabError(f"process {pid} can't be looked at within {timeout_s:g} s") from None
    _check(done.returncode, done.stderr)
    return _parsed(done.stdout)


def look_at_end(
    file: Path,
    words: Sequence[str],
    environment: Mapping[str, str],
    out: TextIO | None,
    to: Callable[[subprocess.Popen[bytes]], None],
    *options: str,
) -> Plain:
    """Runs a program, and looks at it when it is about to end. Its input and errors are the caller's, and its output,
    unless that goes to `out`. `to` is told of the helper, which passes on what asks it to end. `ended` is what becomes
    of the program: its exit status, or -signal."""
    ready = dict(environment)
    preload = ready.pop("LD_PRELOAD", "")
    with tempfile.TemporaryDirectory(prefix="hakmem-explain-") as folder:
        result, complaint = Path(folder, "result"), Path(folder, "complaint")
        complaint.touch()
        places = ["--at-end", str(result), str(complaint), preload, str(file)]
        call = [str(native.helper("explain")), *options, *places, *words]
        with process.started(call, ready, None, out) as child:
            to(child)
            status = process.wait_for(child)
        room = f": is there room in {folder}, and may a file be as large (ulimit -f)?"
        _check(status, complaint.read_bytes(), room)
        return _parsed(result.read_bytes())


def look_after(
    seconds: float,
    file: Path,
    words: Sequence[str],
    environment: Mapping[str, str],
    out: TextIO | None,
    to: Callable[[subprocess.Popen[bytes]], None],
    *options: str,
) -> Plain:
    """Starts a program, tells `to` of it, looks at it after a while, and lets it go on to its end. That it can't be
    looked at is said before. `ended` is what became of it: its exit status, or -signal."""
    with process.started(words, environment, file, out, partial(_let_read, os.getpid())) as child:
        to(child)
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            found = None
            try:
                found = _look_once_begun(child, *options)
            except LabError as error:
                print(f"hakmem: {error}", file=sys.stderr)
            finally:
                status = process.wait_for(child)
            if found is None:
                raise LabError(f"{file.name} has ended, and was not looked at") from None
            return {**found, "ended": status}
    raise LabError(f"{file.name} {process.ending(child.returncode)} before the {seconds:g} s were over")


def _look_once_begun(child: subprocess.Popen[bytes], *options: str) -> Plain:
    """On a busy machine a program may need longer than it was given until its libraries are loaded."""
    deadline = time.monotonic() + BEGIN_S
    while True:
        try:
            return look(child.pid, *options)
        except LabError as error:
            if NOT_OURS not in str(error) or time.monotonic() > deadline or child.poll() is not None:
                raise
        time.sleep(0.02)


def _let_read(reader: int) -> None:
    """The process `reader`, and what it starts, may read this process, and the program that it becomes, where Yama
    allows that to ancestors only (kernel.yama.ptrace_scope 1); elsewhere it is no call at all."""
    _C.prctl(PR_SET_PTRACER, ctypes.c_ulong(reader), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0))


def _check(status: int, complaint: bytes, guess: str = "") -> None:
    """`guess`: why it has said nothing, where it didn't."""
    if status != 0:
        said = os.fsdecode(complaint).strip().splitlines()
        raise LabError(foreign.line(said[-1]) if said else f"what reads the process {process.ending(status)}{guess}")


def _parsed(text: bytes) -> Plain:
    """Names of processes, threads and mappings are the programs' own."""
    found: Plain = json.loads(text.decode(errors="replace"), object_hook=_as_shown)
    return found


def _as_shown(row: Plain) -> Plain:
    return {key: foreign.line(value) if isinstance(value, str) else value for key, value in row.items()}


# ---- From bytes to causes --------------------------------------------------------------------------------------------


def explanation(measured: Plain) -> Explanation:
    return Explanation(
        pid=measured["pid"],
        name=measured["name"],
        hakmem=measured["hakmem"],
        resident=measured["resident"],
        causes=(*_own_causes(measured), *_foreign_causes(measured)),
        classes=tuple(_by_size(measured["classes"])),
        notes=tuple(_notes(measured)),
    )


def _by_size(classes: Iterable[Plain]) -> Iterator[Plain]:
    """Blocks that the heap profile has sampled lie in slabs of their own: they count with the others of their size."""
    sums: dict[int, Counter[str]] = defaultdict(Counter)
    for row in classes:
        sums[row["block_bytes"]].update({name: count for name, count in row.items() if name != "block_bytes"})
    for size, counts in sorted(sums.items()):
        yield {"block_bytes": size, **counts}


def _own_causes(measured: Plain) -> Iterator[Cause]:
    bytes_of: dict[str, int] = measured["causes"]
    for name, made_of in OWN.items():
        parts = [(said, bytes_of[key]) for key, said in made_of if said]
        if name == "front caches":
            parts = _by_thread(measured, "cached")
        elif name == "empty slabs kept by threads":
            parts = _by_thread(measured, "kept_units")
        yield Cause(name, sum(bytes_of[key] for key, _ in made_of), True, _largest(parts))


def _by_thread(measured: Plain, key: str) -> list[Part]:
    names = {thread["id"]: thread["name"] for thread in measured["threads"]}
    parts: dict[str, int] = defaultdict(int)
    for heap in measured["heaps"]:
        thread = heap["thread"]
        if not heap["has_thread"]:
            parts["no thread"] += heap[key]
        else:
            parts[f"thread {thread} {names.get(thread, '(ended)')}"] += heap[key]
    return list(parts.items())


def _foreign_causes(measured: Plain) -> Iterator[Cause]:
    parts: dict[str, dict[str, int]] = {kind: defaultdict(int) for kind in (STACKS, PROGRAM, FILES, OTHER)}
    for mapping, kind, name in _kinds(measured["mappings"], measured["threads"]):
        parts[kind][name] += mapping["foreign"]
    for kind, named in parts.items():
        yield Cause(kind, sum(named.values()), False, _largest(named.items()))


def _kinds(mappings: Sequence[Plain], threads: Sequence[Plain]) -> Iterator[tuple[Plain, str, str]]:
    """Each mapping, what it is, and a name to sum it under."""
    with_code = {mapping["name"] for mapping in mappings if mapping["inode"] and "x" in mapping["permissions"]}
    pointers = {thread["stack_pointer"]: thread["name"] for thread in threads if thread["stack_pointer"]}
    before: Plain = {"end": 0, "name": "", "inode": 0}
    for mapping in mappings:
        name: str = mapping["name"]
        owner = next((own for at, own in pointers.items() if mapping["start"] <= at < mapping["end"]), None)
        if mapping["inode"]:
            is_program = name in with_code and not mapping["permissions"].endswith("s")
            yield mapping, PROGRAM if is_program else FILES, name
        elif name.startswith("[stack") or "stack" in name or owner is not None:
            yield mapping, STACKS, name if name.startswith("[stack") else f"of {owner}" if owner else name
        elif not name and before["name"] in with_code and before["end"] == mapping["start"]:
            yield mapping, PROGRAM, before["name"]  # variables of the file before it
        elif name in ("[vdso]", "[vvar]", "[vvar_vclock]", "[vsyscall]"):
            yield mapping, PROGRAM, name
        else:
            yield mapping, OTHER, name or "without a name"
        before = mapping


def _largest(parts: Iterable[Part]) -> tuple[Part, ...]:
    ordered = sorted((part for part in parts if part[1]), key=lambda part: (-part[1], part[0]))
    rest = sum(size for _, size in ordered[MOST_PARTS:])
    return (*ordered[:MOST_PARTS], *([("the rest", rest)] if rest else []))


def _notes(measured: Plain) -> Iterator[str]:
    most = amount(measured["rounding_most"], "B")
    yield (
        "Rounding inside blocks is not known, because explain doesn't read what was asked for: "
        f"it is a part of live blocks, at most {most} by their sizes, and more where blocks have an alignment or"
        " realloc has shrunk them."
    )
    if not measured["sees_huge_pages"]:
        yield (
            "This kernel is older than 6.7: huge pages are those that hakmem asked for and that have all their "
            "memory, and pages of zeros count as memory."
        )
    if measured["copies"] > 1:
        yield f"The process has {measured['copies']} copies of hakmem; this is their sum."


# ---- To be shown -----------------------------------------------------------------------------------------------------

MOST_SIZES = 10
COUNTS = ("slabs", "live_blocks", "live", "free", "cached")


def _sizes(classes: Sequence[Plain]) -> Iterator[tuple[str, ...]]:
    """A row for each of the sizes with most live bytes, and one for the others together."""
    ordered = sorted(classes, key=lambda one: -one["live"])
    shown, others = ordered[:MOST_SIZES], ordered[MOST_SIZES:]
    for one in shown:
        yield (amount(one["block_bytes"], "B"), *_cells(one))
    if others:
        yield (
            f"{len(others)} other size{'s' * (len(others) > 1)}",
            *_cells({name: sum(one[name] for one in others) for name in COUNTS}),
        )


def _cells(one: Plain) -> tuple[str, ...]:
    return tuple(f"{one[name]:,}" if name in COUNTS[:2] else amount(one[name], "B") for name in COUNTS)


def report(of: Explanation, command: str, date: str = "") -> Report:
    shares = [Share(one.name, one.bytes, 0 if one.is_own else 1, one.parts) for one in of.causes if one.bytes]
    unknown = Share(UNKNOWN, of.unknown, 2)
    size = amount(of.resident, "B")
    summary = [f"{size} resident; {of.error:.2%} of it is unknown"]
    if of.error > MOST_UNKNOWN:
        summary.append("That is more than it should be: the process changed while it was looked at. Try again.")
    columns = ("blocks of", "slabs", "live blocks", "live", "free", "in front caches")
    note = "Those with most live bytes first. Resident bytes, but for the first three columns; --json has each size."
    return Report(
        title=f"{of.name} (process {of.pid}) on hakmem {of.hakmem}",
        command=command,
        sections=(
            Shares("resident memory", "B", of.resident, (*shares, unknown), of.notes),
            Table("blocks by size", columns, tuple(_sizes(of.classes)), (note,)),
        ),
        summary=tuple(summary),
        date=date,
    )
