"""Asks a process on hakmem something while it runs, by the pipes of its control thread (src/os/channel.h).

The pipes have no name. They are opened by way of /proc, so the kernel decides who may: the process's own user and root,
whatever containers are between. One asks at a time: who does holds a lock on the answer's pipe. Root may open more than
the process may, and any thread may have the name of hakmem's: so only a pipe of the process's own is opened.

A process with one thread has no control thread. Who may write into its memory wishes for one: the process sees that
when it next asks for memory that its cache doesn't have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import pwd
import re
import secrets
import select
import stat
import struct
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from hakmem import foreign
from hakmem.errors import LabError

THREAD = "hakmem-ctl"
REQUEST_READ, REQUEST_WRITE, ANSWER_READ = 10, 11, 12
MOST_REQUEST_BYTES = 200  # with what goes before it, it fits in HAK_REQUEST_BYTES of src/front/requests.h
TIMEOUT_S = 10.0
NOTE = b"\x07\0\0\0\x08\0\0\0\x31\x6b\x61\x68hakmem\0"  # src/observe/landmarks.h
WISH_AT = 24  # in the landmarks
NO_WISH = struct.pack("=Q", 0x687369776D6B6168)  # src/os/channel.h
WISHED = struct.pack("=Q", 0x687369776D6B6169)
MOST_ANSWER_BYTES = 64 << 20
MOST_NOTES_BYTES = 1 << 16
PART_BYTES = 56  # of a program header
SOON_S = 0.5  # an answer that comes by then needs no word of why it doesn't


class AskError(LabError):
    """The process gave no answer; the message says why."""


# ---- What the kernel says of a process -------------------------------------------------------------------------------


def title(pid: int) -> str:
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip()
        return f"process {pid} ({foreign.line(name)})"
    except OSError:
        return f"process {pid}"


def expect_processes() -> None:
    """LabError where the kernel shows none."""
    if not os.path.exists("/proc/self"):
        raise LabError("there is no /proc here, so no process can be found")


def state(pid: int) -> str:
    """R, S, D, T and so on, as in /proc/PID/stat; empty when there is no such process."""
    expect_processes()
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def memory_map(pid: int) -> str:
    """The lines of /proc/PID/maps, or of a thread that is left where the first one has ended."""
    try:
        lines, tasks = "", Path(f"/proc/{pid}/task").glob("*/maps")
        while not lines and (file := next(tasks, None)):
            lines = file.read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        lines = ""
    except OSError as error:
        raise AskError(f"{title(pid)}: its memory map can't be read: {error.strerror}") from None
    if not lines:
        raise AskError(f"{title(pid)} ended before its memory map was read")
    return lines


def with_memory_map(dump: str, pid: int) -> str:
    """A heap profile that the process has dumped, as it writes one itself."""
    return f"{dump}{memory_map(pid)}end\n"


def is_on_hakmem(pid: int) -> bool:
    """Whether a file it has mapped as code has hakmem's note. OSError when its memory map can't be read."""
    looks: set[tuple[str, ...]] = {(f"/proc/{pid}/exe",)}
    for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
        found = re.match(r"(\S+) ..x. \S+ (\w+):(\w+) ([1-9]\d*)\s+(/.*)", line)
        if found and re.search(r"/libhakmem(-secure)?\.so[^/]* \(deleted\)$", found[5]):
            return True  # replaced by another version since
        if found:
            device = os.makedev(int(found[2], 16), int(found[3], 16))
            looks.add(_places(pid, found[1], found[5], (device, int(found[4]))))
    return any(has_note(place) for places in looks for place in places)


def _places(pid: int, span: str, path: str, identity: tuple[int, int]) -> tuple[str, ...]:
    """Where a file that a process has mapped may be opened: a process that has changed its root, or whose folder is
    covered by a mount, has mapped another file than the one of that path below its root."""
    own, ours = f"/proc/{pid}/root{path}", path
    if _is(own, identity) or not _is(ours, identity):
        ours = own  # also where a file system says two devices of a file
    return f"/proc/{pid}/map_files/{span}", ours


def _is(path: str, identity: tuple[int, int]) -> bool:
    with contextlib.suppress(OSError):
        found = os.stat(path)
        return (found.st_dev, found.st_ino) == identity
    return False


def has_note(path: str) -> bool:
    """Whether the file has hakmem in it."""
    with contextlib.suppress(OSError), foreign.opened(path) as file:
        read = partial(_read_file, file)
        return any(NOTE in read(one.offset, min(one.size, MOST_NOTES_BYTES)) for one in _parts(read, 0) if one.is_notes)
    return False


def _setting(pid: int, name: str) -> str | None:
    with contextlib.suppress(OSError):
        for variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            if variable.startswith(f"HAKMEM_{name}=".encode()):
                return variable.decode(errors="replace").partition("=")[2]
    return None


def _denied(pid: int) -> str:
    with contextlib.suppress(OSError):
        owner = os.stat(f"/proc/{pid}").st_uid
        if owner == os.geteuid():
            return "can't be looked into by you: it has more rights, or forbids it"
        with contextlib.suppress(KeyError):
            return f"belongs to {pwd.getpwuid(owner).pw_name}: only that user and root may ask it"
        return f"belongs to user {owner}: only that user and root may ask it"
    return "has ended"


def _why_not(pid: int) -> str:
    """Why a process is never asked; empty when it may be."""
    try:
        return "" if is_on_hakmem(pid) else "is not on hakmem"
    except PermissionError:
        return _denied(pid)
    except OSError:
        return "has ended"


def _why_never(pid: int) -> str:
    """Why a process on hakmem without a control thread will not get one; empty when it might."""
    has = "is on hakmem, but has no control thread: "
    for name in ("CTL", "BACKGROUND"):
        if _setting(pid, name) == "0":
            return f"{has}it was started with HAKMEM_{name}=0"
    if tuple(map(int, platform.release().split(".")[:2])) < (5, 9):
        return f"{has}that takes Linux 5.9"
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return "has ended"
    if re.search(r"^Seccomp:\s*[12]$", status, re.MULTILINE):
        return f"{has}its system calls are filtered, so it must be started with HAKMEM_CTL=1"
    return ""


# ---- Wishing for a control thread ------------------------------------------------------------------------------------

NONE_UNASKED = (
    "hakmem has no thread in it; started with HAKMEM_CTL=1 it has one, a forked child of it when it asks for memory"
)

FEW = "at most one of its threads has asked for memory, or its heap is small"

AT_REST = "`hakmem explain PID` reads from outside where its memory is; --timeout SECONDS waits until it works again"


def _wished_channel(pid: int, who: str, deadline: float, waits: bool, say: Callable[[str], None]) -> Path:
    """The channel of a process that has none yet. It is there when the process has next missed: one that sleeps is
    waited for only if `waits`."""
    sleeps = False
    try:
        with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
            places = [place for base in library_bases(pid) if (place := _wish_place(memory, base))]
            said, look_at, switches = False, time.monotonic() + SOON_S, _switches(pid)
            try:  # an interruption may come once the wish is written
                if not _change(memory, places, NO_WISH, WISHED):
                    raise AskError(f"{who}: {FEW}: {NONE_UNASKED}")
                while time.monotonic() < deadline and not sleeps:
                    channel = find_channel(pid)
                    if channel is not None:
                        return channel
                    if look_at <= time.monotonic():
                        before, switches = switches, _switches(pid)
                        sleeps = not waits and switches == before and not _has_thread(pid)  # which looks later
                        if not said and not sleeps:
                            reason = f"{who}: {FEW}, or it wraps malloc"
                            say(f"{reason}: waiting until it asks for memory that its cache doesn't have")
                            said = True
                        look_at = time.monotonic() + SOON_S
                    time.sleep(0.01)
                    if not _change(memory, places, NO_WISH, WISHED):  # again: another who waits may have taken it back
                        raise ProcessLookupError
            finally:
                _change(memory, places, WISHED, NO_WISH)
    except PermissionError:
        raise AskError(
            f"{who}: {FEW}, and it can't be made to start a thread of hakmem's by you: {NONE_UNASKED}"
        ) from None
    except OSError:
        raise AskError(f"{who} ended before it answered") from None
    if sleeps:
        raise AskError(f"{who} sleeps, and hakmem has no thread in it to answer: {AT_REST}")
    if _has_thread(pid):
        raise AskError(f"{who}: hakmem's thread in it has opened no channel: perhaps it has no descriptors left")
    raise AskError(
        f"{who}: {FEW}, or it wraps malloc, and it asked for none that its cache doesn't have: {NONE_UNASKED}"
    )


def _of_threads(pid: int, file: str) -> list[str]:
    """What a file of each thread says."""
    texts = []
    for path in sorted(Path(f"/proc/{pid}/task").glob(f"*/{file}")):
        with contextlib.suppress(OSError):  # it has ended
            texts.append(path.read_text(errors="replace"))
    return texts


def _has_thread(pid: int) -> bool:
    """One of hakmem's."""
    return any(name.strip() in ("hakmem", THREAD) for name in _of_threads(pid, "comm"))


def _switches(pid: int) -> list[str]:
    """How often each thread was given a processor, or gave it back: a number that stays while all of them sleep."""
    texts = "".join(_of_threads(pid, "status"))
    return re.findall(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)$", texts, re.MULTILINE)


def _change(memory: BinaryIO, places: list[int], before: bytes, after: bytes) -> bool:
    """Words of the process's memory, where they are `before`. False when none was, and none is as it was to become."""
    words = [_read(memory, place, len(before)) for place in places]  # once: others change them, and back, meanwhile
    for place, word in zip(places, words, strict=True):
        if word == before:
            memory.seek(place)
            memory.write(after)
    return before in words or after in words


def _read(memory: BinaryIO, address: int, size: int) -> bytes:
    with contextlib.suppress(OSError, OverflowError, ValueError):
        memory.seek(address)
        return memory.read(size)
    return b""


def _read_file(file: BinaryIO, place: int, size: int) -> bytes:
    with contextlib.suppress(OSError, OverflowError):
        return os.pread(file.fileno(), size, place)
    return b""


def library_bases(pid: int) -> list[int]:
    """Where files begin that are mapped with their headers, and for this process alone: what is shared may be a
    device."""
    lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    return [int(line.partition("-")[0], 16) for line in lines if re.match(r"\S+ r..p 0+ \S+ [1-9]\d*\s+/", line)]


def _wish_place(memory: BinaryIO, base: int) -> int | None:
    """The address of the word that is to be written, if what is mapped there is hakmem's file."""
    landmarks = landmarks_of(memory, base)
    place = b"" if landmarks is None else _read(memory, landmarks + WISH_AT, 8)
    return int(struct.unpack("=Q", place)[0]) if len(place) == 8 else None


def landmarks_of(memory: BinaryIO, base: int) -> int | None:
    """The address of the landmarks, if what is mapped there is hakmem's file."""
    parts = _parts(partial(_read, memory), base)
    begins = next((part.address for part in parts if part.kind == 1 and part.offset == 0), None)
    for part in parts:
        if not part.is_notes or begins is None:
            continue
        start = base - begins + part.address
        found = _read(memory, start, min(part.size, MOST_NOTES_BYTES)).find(NOTE)
        distance = _read(memory, start + found + 20, 8)
        if found < 0 or len(distance) < 8:
            continue
        return int(start + found + 20 + struct.unpack("=q", distance)[0])
    return None


class _Part(NamedTuple):
    """A program header of an ELF file."""

    kind: int
    flags: int
    offset: int
    address: int
    physical_address: int
    size: int

    @property
    def is_notes(self) -> bool:
        return self.kind == 4


def _parts(read: Callable[[int, int], bytes], base: int) -> list[_Part]:
    """Of what `read`, which is given a place and a size, finds at `base`: none when that is no file of 64 bits."""
    head = read(base, 64)
    if not head.startswith(b"\x7fELF\x02") or len(head) < 64:
        return []
    at, size, count = struct.unpack_from("=Q", head, 32)[0], *struct.unpack_from("=HH", head, 54)
    table = read(base + at, size * count) if size == PART_BYTES else b""
    return [_Part(*struct.unpack_from("=IIQQQQ", table, i)) for i in range(0, len(table) - PART_BYTES + 1, PART_BYTES)]


# ---- Asking ----------------------------------------------------------------------------------------------------------


def find_channel(pid: int) -> Path | None:
    """The folder of its control thread's descriptors."""
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                if (task / "comm").read_text(errors="replace").rstrip("\n") == THREAD:
                    return task / "fd"
    return None


def ask(pid: int, request: str, timeout_s: float | None = None, say: Callable[[str], None] | None = None) -> str:
    """The answer's text. AskError when there is none, LabError when it is no. With `say`, a process without a control
    thread is made to start one, and what is waited for is said."""
    if len(request.encode()) > MOST_REQUEST_BYTES:
        raise AskError(f"a request has at most {MOST_REQUEST_BYTES} bytes, and this one {len(request.encode())}")
    deadline = time.monotonic() + (TIMEOUT_S if timeout_s is None else timeout_s)
    now = state(pid)
    if not now:
        raise AskError(f"there is no process {pid}")
    who = title(pid)
    if now in "ZX":
        raise AskError(f"{who} has ended")
    if why := _why_not(pid):
        raise AskError(f"{who} {why}")
    channel = find_channel(pid)
    if channel is None and (why := _why_never(pid)):
        raise AskError(f"{who} {why}")
    if now in "Tt":
        raise AskError(f"{who} is stopped and can't answer; kill -CONT {pid} lets it go on")
    if channel is None:
        if say is None:
            raise AskError(f"{who}: {FEW}: {NONE_UNASKED}")
        channel = _wished_channel(pid, who, deadline, timeout_s is not None, say)
    try:
        with contextlib.ExitStack() as stack:
            answers = _open_pipe(stack, pid, channel, ANSWER_READ, os.O_RDONLY)
            requests = _open_pipe(stack, pid, channel, REQUEST_WRITE, os.O_WRONLY)
            _lock(answers, deadline, who)
            return _exchange(pid, answers, requests, channel, request, deadline)
    except PermissionError:
        raise AskError(f"{who} {_denied(pid)}") from None
    except (FileNotFoundError, ProcessLookupError, BrokenPipeError):
        raise AskError(f"{who} ended before it answered") from None
    except OSError as error:
        raise AskError(f"{who} can't be asked: {error.strerror}") from None


def _open(stack: contextlib.ExitStack, path: str | Path, flags: int) -> int:
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


def _open_pipe(stack: contextlib.ExitStack, pid: int, channel: Path, number: int, flags: int) -> int:
    """Opens a pipe of the process once more: the one that was looked at, whatever the process does meanwhile."""
    owner = os.stat(f"/proc/{pid}").st_uid
    place = _open(stack, channel / str(number), os.O_PATH)
    if not _is_own_pipe(place, owner, channel, number):
        raise AskError(f"{title(pid)} has a thread named {THREAD} that is not hakmem's")
    return _open(stack, f"/proc/self/fd/{place}", flags)


def _is_own_pipe(place: int, owner: int, channel: Path, number: int) -> bool:
    """Whether it is a pipe without a name that the process could open itself for reading and writing: it is its user's,
    or, where it has changed its user since, it has both of its ends."""
    found = os.fstat(place)
    if not stat.S_ISFIFO(found.st_mode) or found.st_dev != _device_of_pipes():
        return False
    return found.st_uid == owner or _has_both_ends(place, channel, number)


def _device_of_pipes() -> int:
    """All pipes without a name are on it, and nothing else."""
    ends = os.pipe()
    try:
        return os.fstat(ends[0]).st_dev
    finally:
        for end in ends:
            os.close(end)


def _has_both_ends(place: int, channel: Path, number: int) -> bool:
    """Its read end has an even number, its write end the next. Before Linux 5.14 the kernel can't be asked that."""
    file = _fields(Path(f"/proc/self/fdinfo/{place}"))
    for end, mode in ((number & ~1, os.O_RDONLY), (number | 1, os.O_WRONLY)):
        other = _fields(channel.parent / "fdinfo" / str(end))
        if "ino" not in other or any(file[name] != other[name] for name in ("mnt_id", "ino")):
            return False
        if int(other["flags"], 8) & os.O_ACCMODE != mode:
            return False
    return True


def _fields(file: Path) -> dict[str, str]:
    return dict(re.findall(r"^(\w+):\s*(\w+)$", file.read_text(), re.MULTILINE))


def _lock(answers: int, deadline: float, who: str) -> None:
    while True:
        try:
            return fcntl.flock(answers, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise AskError(f"{who} is being asked by somebody else all the time") from None
            time.sleep(0.01)


def _exchange(pid: int, answers: int, requests: int, channel: Path, request: str, deadline: float) -> str:
    who = title(pid)
    for _ in _pieces(answers, 0):
        pass  # what another has left
    mark = secrets.token_hex(8)
    try:
        os.write(requests, f"{mark} {_filters(channel)} {request}\n".encode())
    except BlockingIOError:
        raise AskError(f"{who} does not answer: requests before this one wait, too") from None
    answer = _answer(answers, mark, deadline, who)
    if answer is not None:
        verdict, _, body = answer.decode(errors="replace").partition("\n")
        if verdict == "ok":
            return body
        raise LabError(foreign.line(verdict.removeprefix("error: ")))
    if not _is_open(answers):
        raise BrokenPipeError
    raise AskError(f"{who} did not answer in time; {_take_back(pid, channel, mark)}")


def _answer(answers: int, mark: str, deadline: float, who: str) -> bytes | None:
    """What stands between the mark and the end."""
    begin, got = f"\n{mark} ".encode(), bytearray(b"\n")
    has_begun = False
    for piece in _pieces(answers, deadline):
        got += piece
        if not has_begun:
            before, found, _ = got.partition(begin)
            has_begun = bool(found)
            del got[: len(before + found) if found else -len(begin)]
        if has_begun and got.endswith(b"\nend\n"):
            return bytes(got.removesuffix(b"end\n"))
        if len(got) > MOST_ANSWER_BYTES:
            raise AskError(f"{who} answers without an end")
    return None


def _filters(channel: Path) -> int:
    """How many filters the control thread's system calls are under: if there are more than at its start, it must not
    answer, and can't find that out itself."""
    status = (channel.parent / "status").read_text(errors="replace")
    found = re.search(r"^Seccomp_filters:\s*(\d+)$", status, re.MULTILINE)
    return int(found[1]) if found else 0


def _pieces(descriptor: int, deadline: float) -> Iterator[bytes]:
    """What comes until the deadline, or until nobody can write any more. After the deadline, what is there."""
    left = 1.0
    while left > 0:
        left = deadline - time.monotonic()
        if not select.select([descriptor], [], [], max(0.0, left))[0]:
            return
        with contextlib.suppress(BlockingIOError):  # somebody else has read it
            piece = os.read(descriptor, 1 << 16)
            if not piece:
                return
            yield piece


def _is_open(answers: int) -> bool:
    waiting = select.poll()
    waiting.register(answers, select.POLLIN)
    return not any(events & select.POLLHUP for _, events in waiting.poll(0))


def _take_back(pid: int, channel: Path, mark: str) -> str:
    with contextlib.suppress(OSError, AskError), contextlib.ExitStack() as stack:
        own_end = _open_pipe(stack, pid, channel, REQUEST_READ, os.O_RDONLY)
        if mark.encode() in b"".join(_pieces(own_end, 0)):
            return "the request has been taken back"
    return "the request may still be carried out"
