"""Asks a process on hakmem something while it runs, by the pipes of its control thread (src/os/channel.h).

The pipes have no name. They are opened by way of /proc, so the kernel decides who may: the process's own user and root,
whatever containers are between. One asks at a time: who does holds a lock on the answer's pipe.

A process with one thread has no control thread. Who may write into its memory wishes for one: the process sees that
when it next asks for memory that its cache doesn't have.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import platform
import pwd
import re
import secrets
import select
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from hakmem.errors import LabError

THREAD = "hakmem-ctl"
REQUEST_READ, REQUEST_WRITE, ANSWER_READ = 10, 11, 12
MOST_REQUEST_BYTES = 200  # with what goes before it, it fits in HAK_REQUEST_BYTES of src/front/requests.h
TIMEOUT_S = 10.0
NOTE = b"\x07\0\0\0\x08\0\0\0\x31\x6b\x61\x68hakmem\0"  # src/observe/landmarks.h
WISH_AT = 24  # in the landmarks
NO_WISH = struct.pack("=Q", 0x687369776D6B6168)  # src/os/channel.h
WISHED = struct.pack("=Q", 0x687369776D6B6169)
SOON_S = 0.5  # an answer that comes by then needs no word of why it doesn't


class AskError(LabError):
    """The process gave no answer; the message says why."""


# ---- What the kernel says of a process -------------------------------------------------------------------------------


def title(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip()
        return f"process {pid} ({name})"
    except OSError:
        return f"process {pid}"


def state(pid: int) -> str:
    """R, S, D, T and so on, as in /proc/PID/stat; empty when there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_on_hakmem(pid: int) -> bool:
    """Whether a file it has mapped as code holds hakmem's note. OSError when its memory map can't be read."""
    files = {f"/proc/{pid}/exe"}
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        found = re.match(r"\S+ ..x. \S+ \S+ [1-9]\d*\s+(/.*)", line)
        if found:
            files.add(f"/proc/{pid}/root{found[1]}")
    return any(_has_note(file) for file in files)


def _has_note(file: str) -> bool:
    with contextlib.suppress(OSError, ValueError), open(file, "rb") as opened:
        with mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as content:
            return content.find(NOTE) >= 0
    return False


def _setting(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(f"HAKMEM_{name}=".encode()):
                return variable.decode(errors="replace").partition("=")[2]
    return None


def _denied(pid: int) -> str:
    owner = os.stat(f"/proc/{pid}").st_uid
    if owner != os.geteuid():
        with contextlib.suppress(KeyError):
            return f"belongs to {pwd.getpwuid(owner).pw_name}: only that user and root may ask it"
        return f"belongs to user {owner}: only that user and root may ask it"
    return "can't be looked into by you"


def _why_never(pid: int) -> str:
    """Why a process without a control thread will not get one; empty when it might."""
    try:
        if not is_on_hakmem(pid):
            return "is not on hakmem"
    except PermissionError:
        return _denied(pid)
    except OSError:
        return "has ended"
    has = "is on hakmem, but has no control thread: "
    for name in ("CTL", "BACKGROUND"):
        if _setting(pid, name) == "0":
            return f"{has}it was started with HAKMEM_{name}=0"
    if tuple(map(int, platform.release().split(".")[:2])) < (5, 9):
        return f"{has}that takes Linux 5.9"
    if re.search(r"^Seccomp:\s*[12]$", Path(f"/proc/{pid}/status").read_text(errors="replace"), re.MULTILINE):
        return f"{has}its system calls are filtered, so it must be started with HAKMEM_CTL=1"
    return ""


# ---- Wishing for a control thread ------------------------------------------------------------------------------------

NONE_UNASKED = (
    "hakmem has no thread in it; started with HAKMEM_CTL=1 it has one, a forked child of it when it asks for memory"
)


def _wished_channel(pid: int, who: str, deadline: float, say: Callable[[str], None]) -> Path:
    """The channel of a process that has none yet. It is there when the process has next missed."""
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            places = [place for base in library_bases(pid) if (place := _wish_place(memory, base))]
            if not any([_replace(memory, place, NO_WISH, WISHED) for place in places]):
                raise AskError(f"{who} has one thread, or is small: {NONE_UNASKED}")
            said_at = time.monotonic() + SOON_S
            while time.monotonic() < deadline:
                channel = find_channel(pid)
                if channel is not None:
                    return channel
                if said_at <= time.monotonic():
                    said_at = deadline
                    say(f"{who} has one thread: waiting until it asks for memory that its cache doesn't have")
                time.sleep(0.01)
            for place in places:
                _replace(memory, place, WISHED, NO_WISH)
    except PermissionError:
        raise AskError(
            f"{who} has one thread, or is small, and can't be made to start one by you: {NONE_UNASKED}"
        ) from None
    except OSError:
        raise AskError(f"{who} ended before it answered") from None
    raise AskError(f"{who} has one thread and asked for no memory meanwhile: {NONE_UNASKED}")


def _replace(memory: BinaryIO, place: int, before: bytes, after: bytes) -> bool:
    """In the process's memory. False, and nothing is written, when something else is there."""
    if _read(memory, place, len(before)) != before:
        return False
    memory.seek(place)
    return memory.write(after) == len(after)


def _read(memory: BinaryIO, address: int, size: int) -> bytes:
    with contextlib.suppress(OSError, OverflowError, ValueError):
        memory.seek(address)
        return memory.read(size)
    return b""


def library_bases(pid: int) -> list[int]:
    """Where files begin that are mapped with their headers."""
    lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    return [int(line.partition("-")[0], 16) for line in lines if re.match(r"\S+ r\S+ 0+ \S+ [1-9]\d*\s+/", line)]


def _wish_place(memory: BinaryIO, base: int) -> int | None:
    """The address of the word that is to be written, if what is mapped there is hakmem's file."""
    landmarks = landmarks_of(memory, base)
    place = b"" if landmarks is None else _read(memory, landmarks + WISH_AT, 8)
    return int(struct.unpack("=Q", place)[0]) if len(place) == 8 else None


def landmarks_of(memory: BinaryIO, base: int) -> int | None:
    """The address of the landmarks, if what is mapped there is hakmem's file."""
    head = _read(memory, base, 64)
    if not head.startswith(b"\x7fELF\x02") or len(head) < 64:
        return None
    at, size, count = struct.unpack_from("=Q", head, 32)[0], *struct.unpack_from("=HH", head, 54)
    table = _read(memory, base + at, size * count)
    parts = [struct.unpack_from("=IIQQQQ", table, i) for i in range(0, len(table) - 55, max(size, 56))]
    loaded = [part[3] for part in parts if part[0] == 1 and part[2] == 0]
    for kind, _, _, address, _, length in parts:
        if kind != 4 or not loaded:
            continue
        start = base - loaded[0] + address
        found = _read(memory, start, min(length, 1 << 16)).find(NOTE)
        distance = _read(memory, start + found + 20, 8)
        if found < 0 or len(distance) < 8:
            continue
        return int(start + found + 20 + struct.unpack("=q", distance)[0])
    return None


# ---- Asking ----------------------------------------------------------------------------------------------------------


def find_channel(pid: int) -> Path | None:
    """The folder of its control thread's descriptors."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text(errors="replace").rstrip("\n") == THREAD:
                    return task / "fd"
    return None


def ask(pid: int, request: str, timeout_s: float = TIMEOUT_S, say: Callable[[str], None] | None = None) -> str:
    """The answer's text. AskError when there is none, LabError when it is no. With `say`, a process without a control
    thread is made to start one, and what is waited for is said."""
    if len(request.encode()) > MOST_REQUEST_BYTES:
        raise AskError(f"a request has at most {MOST_REQUEST_BYTES} bytes, and this one {len(request.encode())}")
    deadline = time.monotonic() + timeout_s
    now = state(pid)
    if not now:
        raise AskError(f"there is no process {pid}")
    who = title(pid)
    if now in "ZX":
        raise AskError(f"{who} has ended")
    channel = find_channel(pid)
    if channel is None and (why := _why_never(pid)):
        raise AskError(f"{who} {why}")
    if now in "Tt":
        raise AskError(f"{who} is stopped and can't answer; kill -CONT {pid} lets it go on")
    if channel is None:
        if say is None:
            raise AskError(f"{who} has one thread, or is small: {NONE_UNASKED}")
        channel = _wished_channel(pid, who, deadline, say)
    try:
        with contextlib.ExitStack() as stack:
            answers = _open(stack, channel / str(ANSWER_READ), os.O_RDONLY)
            requests = _open(stack, channel / str(REQUEST_WRITE), os.O_WRONLY)
            _lock(answers, deadline, who)
            return _exchange(answers, requests, channel, request, deadline, who)
    except PermissionError:
        raise AskError(f"{who} {_denied(pid)}") from None
    except (FileNotFoundError, ProcessLookupError, BrokenPipeError):
        raise AskError(f"{who} ended before it answered") from None


def _open(stack: contextlib.ExitStack, path: Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _lock(answers: int, deadline: float, who: str) -> None:
    while True:
        try:
            return fcntl.flock(answers, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise AskError(f"{who} is being asked by somebody else all the time") from None
            time.sleep(0.01)


def _exchange(answers: int, requests: int, channel: Path, request: str, deadline: float, who: str) -> str:
    for _ in _pieces(answers, 0):
        pass  # what another has left
    mark = secrets.token_hex(8)
    try:
        os.write(requests, f"{mark} {_filters(channel)} {request}\n".encode())
    except BlockingIOError:
        raise AskError(f"{who} does not answer: requests before this one wait, too") from None
    got = b""
    for piece in _pieces(answers, deadline):
        got += piece
        begun = re.search(rb"(?:^|\n)" + mark.encode() + b" ", got)
        if begun and got.endswith(b"\nend\n"):
            verdict, _, body = got[begun.end() :].decode(errors="replace").partition("\n")
            if verdict == "ok":
                return body.removesuffix("end\n")
            raise LabError(verdict.removeprefix("error: "))
    if not _is_open(answers):
        raise BrokenPipeError
    raise AskError(f"{who} did not answer in time; {_take_back(channel, mark)}")


def _filters(channel: Path) -> int:
    """How many filters the control thread's system calls are under: if there are more than at its start, it must not
    answer, and can't find that out itself."""
    status = (channel.parent / "status").read_text(errors="replace")
    found = re.search(r"^Seccomp_filters:\s*(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _pieces(descriptor: int, deadline: float) -> Iterator[bytes]:
    """What comes until the deadline, or until nobody can write any more."""
    while True:
        left = max(0.0, deadline - time.monotonic())
        if not select.select([descriptor], [], [], left)[0]:
            return
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            return
        yield piece


def _is_open(answers: int) -> bool:
    waiting = select.poll()
    waiting.register(answers, select.POLLIN)
    return not any(events & select.POLLHUP for _, events in waiting.poll(0))


def _take_back(channel: Path, mark: str) -> str:
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        own_end = _open(stack, channel / str(REQUEST_READ), os.O_RDONLY)
        if mark.encode() in b"".join(_pieces(own_end, 0)):
            return "the request has been taken back"
    return "the request may still be carried out"
