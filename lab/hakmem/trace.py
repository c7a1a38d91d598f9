"""Traces: what a program asked of its allocator. bench/trace.h is the format, this module its reader in Python.

A trace is recorded by lab/native/record.c, completed here (what a thread did not fill, a program that was killed could
not close) and replayed by bench/bench_replay.c. A packed trace is the same, compressed, with blocks named by their
numbers in place of their addresses: one to keep.
"""

from __future__ import annotations

import heapq
import lzma
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from hakmem import files
from hakmem.errors import LabError

MAGIC = b"haktrace"
XZ = b"\xfd7zXZ"
VERSION = 1
CHUNK_BYTES = 4096
FULL, FILE_SIZE, NO_ROOM = 1, 2, 4  # of the header's flags
HEADER = struct.Struct("<8sIIIIII")  # magic, checksum, version, pid, flags, chunks, threads
CHUNK = struct.Struct("<IIQHH")  # checksum, thread, ticket, bytes, events
PAYLOAD_BYTES = CHUNK_BYTES - CHUNK.size
KIND_BITS = 3
SHIFT_BITS = 6
EVENT_BYTES_MAX = 20

PACKED = ".xz"  # the suffix of packed traces


class TraceError(LabError):
    """A file that is no trace, or a damaged one."""


class Kind(IntEnum):
    TURN = 1
    MALLOC = 2
    CALLOC = 3
    ALIGNED = 4
    FREE = 5
    REALLOC = 6
    REALLOCATED = 7


class Event(NamedTuple):
    """Something that a thread did in the turn with this ticket."""

    ticket: int
    thread: int
    kind: int
    name: int
    operand: int


class Chunk(NamedTuple):
    thread: int
    ticket: int
    event_count: int
    payload: bytes


@dataclass(frozen=True)
class Trace:
    pid: int
    flags: int  # why the recording ended before the program did: bench/trace.h
    thread_count: int
    command: tuple[str, ...]
    chunks: tuple[Chunk, ...]

    @property
    def is_full(self) -> bool:
        return bool(self.flags & FULL)

    @property
    def event_count(self) -> int:
        return sum(chunk.event_count for chunk in self.chunks)

    def events(self) -> Iterator[Event]:
        """In the order in which they happened, without TURN, which the tickets tell."""
        by_thread: dict[int, list[Chunk]] = {}
        for chunk in self.chunks:
            by_thread.setdefault(chunk.thread, []).append(chunk)
        return heapq.merge(*map(_of_thread, by_thread.values()), key=itemgetter(0))


def size_and_alignment(kind: int, operand: int) -> tuple[int, int]:
    if kind != Kind.ALIGNED:
        return operand, 1
    return operand >> SHIFT_BITS, 1 << (operand & (1 << SHIFT_BITS) - 1)


def _of_thread(chunks: Iterable[Chunk]) -> Iterator[Event]:
    for chunk in chunks:
        thread, ticket, name = chunk.thread, chunk.ticket, 0
        integers = _integers(chunk.payload)
        for first in integers:
            second = next(integers, None)
            kind = first & (1 << KIND_BITS) - 1
            if second is None or kind == 0:
                raise TraceError(f"an event of thread {thread} that makes no sense")
            if kind == Kind.TURN:
                ticket += second
            else:
                name += second >> 1 ^ -(second & 1)
                yield Event(ticket, thread, kind, name, first >> KIND_BITS)


def _integers(code: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in code:
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            yield value
            value = shift = 0
        else:
            shift += 7


# ---- Files ----------------------------------------------------------------------------------------------------------


def _checksum(memory: bytes | bytearray) -> int:
    return zlib.adler32(memory) or 1


def complete(path: Path) -> bytes | None:
    """The trace in a file of the recorder's, however its program ended. None: the program has not asked for anything.
    The file stays as it is: a process that outlives the recording still writes into it."""
    with open(path, "rb") as file:
        head = file.read(CHUNK_BYTES)
        chunk_count = HEADER.unpack_from(head)[5] if len(head) == CHUNK_BYTES else 0
        return _completed(head + file.read(chunk_count * CHUNK_BYTES)) if chunk_count else None


def _completed(given: bytes) -> bytes:
    """With the checksums that the recorder leaves to others, and without the room behind its last chunk."""
    data = bytearray(given[: (1 + HEADER.unpack_from(given)[5]) * CHUNK_BYTES])
    for start in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        if data[start : start + 4] == bytes(4):
            data[start : start + 4] = _checksum(data[start + 4 : start + CHUNK_BYTES]).to_bytes(4, "little")
    data[8:12] = _checksum(data[12:CHUNK_BYTES]).to_bytes(4, "little")
    return bytes(data)


def read(path: Path) -> Trace:
    """A trace, packed or not."""
    return parse(unpacked(path), str(path))


def unpacked(path: Path) -> bytes:
    """The bytes of a trace, decompressed where it is packed, and completed where `hakmem record` could not do so."""
    try:
        data = files.content(path, MAGIC, XZ) or b""
        if data.startswith(XZ):
            return lzma.decompress(data)
        is_whole = len(data) < CHUNK_BYTES or HEADER.unpack_from(data)[1] != 0 or HEADER.unpack_from(data)[5] == 0
        return data if is_whole else _completed(data)
    except lzma.LZMAError as error:
        raise TraceError(f"{path}: its compression is damaged ({error})") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from None


def parse(data: bytes, name: str) -> Trace:
    if not data.startswith(MAGIC):
        raise TraceError(f"{name}: not a trace, which `hakmem record` writes")
    if len(data) < CHUNK_BYTES:
        raise TraceError(f"{name}: cut short within its header")
    _, checksum, version, pid, flags, chunk_count, thread_count = HEADER.unpack_from(data)
    expected = (1 + chunk_count) * CHUNK_BYTES
    if version != VERSION:
        raise TraceError(f"{name}: a trace of format {version}; this hakmem reads format {VERSION}")
    if checksum == 0:
        raise TraceError(f"{name}: nothing was recorded in it")
    if checksum != _checksum(data[12:CHUNK_BYTES]):
        raise TraceError(f"{name}: damaged: its header does not have its checksum")
    if len(data) != expected:
        raise TraceError(f"{name}: cut short or with something added: {len(data)} bytes, expected {expected}")
    command = data[HEADER.size : CHUNK_BYTES].rstrip(b"\0").decode(errors="replace").split("\0")
    chunks: list[Chunk] = []
    for start in range(CHUNK_BYTES, len(data), CHUNK_BYTES):
        chunk = data[start : start + CHUNK_BYTES]
        checksum, thread, ticket, length, event_count = CHUNK.unpack_from(chunk)
        if checksum != _checksum(chunk[4:]) or thread >= thread_count or length > PAYLOAD_BYTES:
            raise TraceError(f"{name}: damaged: chunk {start // CHUNK_BYTES} does not have its checksum")
        chunks.append(Chunk(thread, ticket, event_count, chunk[CHUNK.size : CHUNK.size + length]))
    return Trace(pid, flags, thread_count, tuple(command), tuple(chunks))


# ---- Writing --------------------------------------------------------------------------------------------------------


class Writer:
    """Puts events into the form of a file, in the order in which they are given."""

    def __init__(self) -> None:
        self.chunks = bytearray()
        self.threads: dict[int, _Thread] = {}
        self.latest: int | None = None
        self.ticket = 0

    def event(self, thread: int, kind: int, name: int, operand: int = 0) -> None:
        if thread not in self.threads:
            self.threads[thread] = _Thread(thread, self.chunks)
        writer = self.threads[thread]
        if thread != self.latest:
            self.latest = thread
            self.ticket += 1
            writer.turn(self.ticket)
        writer.event(kind, name, operand)

    def finish(self, *, pid: int = 0, flags: int = 0, thread_count: int, command: Iterable[str] = ()) -> bytes:
        for writer in self.threads.values():
            writer.close()
        words = b"".join(word.encode() + b"\0" for word in command)[: CHUNK_BYTES - HEADER.size - 1]
        chunk_count = len(self.chunks) // CHUNK_BYTES
        header = HEADER.pack(MAGIC, 0, VERSION, pid, flags, chunk_count, thread_count) + words
        rest = header.ljust(CHUNK_BYTES, b"\0")[12:]
        return MAGIC + _checksum(rest).to_bytes(4, "little") + rest + self.chunks


class _Thread:
    """Fills the chunks of a thread one after another."""

    def __init__(self, number: int, file: bytearray) -> None:
        self.number, self.file = number, file
        self.ticket = 0
        self._begin()

    def _begin(self) -> None:
        self.first_ticket = self.ticket
        self.name = 0
        self.event_count = 0
        self.payload = bytearray()

    def turn(self, ticket: int) -> None:
        self._make_room()
        self._put(Kind.TURN, ticket - self.ticket)
        self.ticket = ticket

    def event(self, kind: int, name: int, operand: int) -> None:
        self._make_room()
        difference = name - self.name
        self._put(operand << KIND_BITS | kind, difference << 1 if difference >= 0 else ~(difference << 1))
        self.name = name
        self.event_count += 1

    def _make_room(self) -> None:
        if len(self.payload) > PAYLOAD_BYTES - EVENT_BYTES_MAX:
            self.close()

    def _put(self, *integers: int) -> None:
        for value in integers:
            while value >= 0x80:
                self.payload.append(value & 0x7F | 0x80)
                value >>= 7
            self.payload.append(value)

    def close(self) -> None:
        head = CHUNK.pack(0, self.number, self.first_ticket, len(self.payload), self.event_count)
        rest = (head + self.payload).ljust(CHUNK_BYTES, b"\0")[4:]
        self.file += _checksum(rest).to_bytes(4, "little") + rest
        self._begin()


def numbered(trace: Trace) -> Iterator[tuple[int, int, int, int]]:
    """Thread, kind, name and operand of each event, with the n-th block named n. A REALLOC and its REALLOCATED follow
    each other. What was freed but never seen is left out; what must have been freed unseen, because its address came
    again, is freed there."""
    numbers: dict[int, int] = {}  # by name in `trace`
    reallocs: dict[int, tuple[int, int]] = {}  # of threads that are in one: the name and the number that it began with
    block_count = 0
    for _, thread, kind, name, operand in trace.events():
        if kind in (Kind.FREE, Kind.REALLOC):
            number = numbers.pop(name, None)
            if number and kind == Kind.FREE:
                yield thread, Kind.FREE, number, 0
            elif number:
                reallocs[thread] = name, number
            continue
        before, number = reallocs.pop(thread, (0, 0)) if kind == Kind.REALLOCATED else (0, 0)
        if name == 0:
            if number:
                numbers[before] = number
            continue
        if name in numbers:
            yield thread, Kind.FREE, numbers[name], 0
        if number:
            yield thread, Kind.REALLOC, number, 0
        block_count += 1
        numbers[name] = block_count
        yield thread, kind, block_count, operand


def pack(trace: Trace) -> bytes:
    """The same trace, before compression, with numbered blocks."""
    writer = Writer()
    for event in numbered(trace):
        writer.event(*event)
    return writer.finish(pid=trace.pid, flags=trace.flags, thread_count=trace.thread_count, command=trace.command)


def compress(data: bytes) -> bytes:
    return lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)
