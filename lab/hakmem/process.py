"""Runs one command under one allocator, and believes no figure before takeover is proved.

Owns: the child's environment (LD_PRELOAD above all), its time limit, its figures, and the proof. LD_PRELOAD with a
path that doesn't exist prints one line, runs on with the C library's malloc and exits 0, so what was passed proves
nothing. A witness (lab/native/witness.c) is preloaded beside the allocator and writes down which file the malloc
family of the process is resolved to; that file must be the allocator's. The C library is preloaded by name as well
when it is the allocator, so that a program that brings another malloc as a shared library is measured on the C
library's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import math
import os
import re
import secrets
import select
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hakmem import native
from hakmem.allocators import OWN, Allocator
from hakmem.errors import LabError

# The caller's settings of hakmem, its peers and the C library. They reach every run, and every record says them.
SETTING = re.compile(r"^(HAKMEM_|MALLOC_|MIMALLOC_|TCMALLOC_|SCUDO_|SNMALLOC_|GLIBC_TUNABLES$|PYTHONMALLOC$)")
# Programs that do nothing but become another one or start others.
STARTERS = frozenset(
    "chroot chrt doas ionice nice nohup numactl prlimit runuser setpriv setsid stdbuf su sudo systemd-run taskset time "
    "timeout unshare xargs".split()
)
TUNABLES = "GLIBC_TUNABLES"  # a list with colons between, of which a later one counts
C_LIBRARY = re.compile(r"^(libc\.so\.6|libc-2\.\d+\.so|ld-musl-.*|libc\.so|libc\.musl-.*)$")


ENDS = (signal.SIGTERM, signal.SIGHUP)
ENDED_BY = (0, -signal.SIGTERM, 128 + signal.SIGTERM)  # statuses of a service that was asked to end
START_S = 10  # until launch has started the command
MOST_KEPT = 64 << 20  # bytes of each output
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
LEAST_ROOM = 1 << 20  # bytes for what a run says of itself
LOOK_S = 0.5  # at whether a command has ended that a tool goes on with
MOST_GENERATIONS = 100  # of processes that a run has left behind, to be ended
NO_FILE = (0, 0)
SEEN = re.compile(r"^seen (\d+) (\d+) (.+)$", re.MULTILINE)  # a line of launch's
LEAST_SHARE = 0.01  # of the time of a run, for what it started to be told


class TakeoverError(LabError):
    """The program ran, but not on the allocator that was asked for, or without saying so: its figures are worth
    nothing."""


class PolicyError(LabError):
    """The program ran, but not by the policy that was asked for: it is another program's."""


class RunError(LabError):
    """The command could not be started, or outlived its time limit."""


@dataclass(frozen=True)
class Process:
    """What one program of a run said of itself."""

    pid: int
    program: str
    malloc: str  # the file that malloc is resolved to
    peak_rss_bytes: int | None  # None: it did not exit in an orderly way
    end_rss_bytes: int | None
    threads: int | None = None  # alive at the end
    trimmed_rss_bytes: int | None = None  # None also: nobody asked for it, or the allocator can't be asked
    file: tuple[int, int] = NO_FILE  # device and inode of the program
    behind: str = ""  # the file of the malloc that is searched after what is preloaded; empty: there is none
    has_pools: bool = False  # Python's, beside malloc
    stack: int = 0  # where its stack began: its forks have the same, others not where addresses are random; 0: unknown


@dataclass(frozen=True)
class Run:
    """Figures of one run. CPU time and faults are the whole tree's, as far as it was waited for; the peak is that of
    the largest process, the mean over time that of the command's own."""

    pid: int
    status: int  # exit status, or -signal
    wall_s: float
    user_s: float
    system_s: float
    peak_rss_bytes: int
    minor_faults: int
    major_faults: int
    processes: tuple[Process, ...]
    stdout: bytes  # the first MOST_KEPT of what it printed there
    stderr: bytes
    mean_rss_bytes: int | None = None  # None: it was over before anybody had looked often enough
    sums: tuple[bytes, bytes] = (b"", b"")  # SHA-256 of all that it printed on either
    last_file: tuple[int, int] = NO_FILE  # device and inode of the program that it was when it was last looked at
    left_behind: bool = False  # processes of it went on when it had ended
    unproved: tuple[str, ...] = ()  # programs with a share in its time that left no proof of their allocator

    def root(self) -> Process | None:
        """The program that was started, the last one where it replaced itself by another."""
        own = [process for process in self.processes if process.pid == self.pid]
        return own[-1] if own else None

    def remarks(self, allocator: Allocator) -> tuple[str, ...]:
        """What its figures are not of, though a reader may think so."""
        children = (one for one in self.processes if one.pid != self.pid)
        others = {os.path.basename(one.program) for one in children if not is_allocator(one.malloc, allocator)}
        own = f"programs that it started ran on another malloc than what is compared: {', '.join(sorted(others))}"
        silent = self.without_proof("its share of the figures may be of another malloc than what is compared")
        left = "processes of it went on when it had ended: they were ended, and are in no figure"
        usual = {
            f"{os.path.basename(one.program)} is linked with {one.behind}: where nothing is preloaded, "
            f"that is its malloc, not glibc's"
            for one in self.processes
            if one.behind and _has_malloc_of(one.program, one.behind, is_c_librarys=allocator.library is None)
        }
        said = sorted({*usual, *self._beside_malloc()})
        return (
            *said,
            *([own] if others else []),
            *(silent if allocator.library is not None else ()),  # the C library is what they have anyway
            *([left] if self.left_behind else []),
        )

    def without_proof(self, consequence: str) -> tuple[str, ...]:
        """A remark for each program that left no proof, on what follows from that."""
        why = "left no proof of its malloc (static, setuid, or with another environment)"
        return tuple(f"{name}, which it started, {why}: {consequence}" for name in self.unproved)

    def _beside_malloc(self) -> Iterator[str]:
        """Allocators of its programs that no preload reaches."""
        from hakmem import elf

        for one in self.processes:
            others = [name for name in _private_allocators(one.program) if name != elf.PYTHONS_POOLS]
            for name in (*others, *([elf.PYTHONS_POOLS] if one.has_pools else [])):
                program = os.path.basename(one.program)
                yield f"{program} has {name} beside malloc: what it takes from there is not compared"

    def how_it_ended(self, name: str) -> str:
        """The command, what became of it, and the last that it said."""
        said = self.stderr.decode(errors="replace").strip().splitlines()
        return f"{name} {ending(self.status)}" + (f": {said[-1]}" if said else "")

    def digest(self) -> str:
        """Of all that it printed."""
        return hashlib.sha256(b"".join(self.sums)).hexdigest()[:16]


@functools.cache
def _private_allocators(program: str) -> tuple[str, ...]:
    """hakmem's crate, too, which has no malloc for programs that have it: a note says that it is there."""
    from hakmem import ctl, elf

    try:
        return (*elf.read(Path(program)).private_allocators, *(["hakmem"] if ctl.has_note(program) else []))
    except LabError:
        return ()


@functools.cache
def _has_malloc_of(program: str, library: str, is_c_librarys: bool) -> bool:
    """Whether a program has that library's malloc by itself, and not the C library's: it is searched before the C
    library. Where the C library is preloaded, it isn't in its place: then what the program asks for says it."""
    from hakmem import elf

    if C_LIBRARY.match(os.path.basename(library)):
        return False
    if not is_c_librarys:
        return True
    try:
        needed = [os.path.basename(name) for name in elf.read(Path(program)).needed]
    except LabError:
        return False
    before = needed[: next((place for place, name in enumerate(needed) if C_LIBRARY.match(name)), len(needed))]
    return os.path.basename(library) in before


def ending(status: int) -> str:
    """What became of a process: `status` is its exit status, or -signal."""
    return f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"


def caller_settings() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if SETTING.match(name)}


def c_library() -> Path | None:
    """The C library of this interpreter, which is that of every program it can preload into."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.partition("/")[2]
        if C_LIBRARY.match(os.path.basename(path)):
            return Path("/" + path)
    return None


def is_preloadable(path: Path) -> bool:
    return re.search(r"[ :]", str(path)) is None


def preloadable(path: Path) -> Path:
    """The same path. LabError when LD_PRELOAD can't hold it."""
    if not is_preloadable(path):
        raise LabError(f"LD_PRELOAD can't name a path with a space or a colon in it: {path}; move it")
    return path


@functools.cache
def _folder_of_links() -> tempfile.TemporaryDirectory[str]:
    """There as long as this process, as the links are what runs say of themselves."""
    folder = tempfile.TemporaryDirectory(prefix="hakmem-links-")
    os.chmod(folder.name, 0o755)  # a server may go on as somebody else
    return folder


@functools.cache
def linked(library: Path) -> Path:
    """The library's path or, where LD_PRELOAD can't hold that, a link to it."""
    if is_preloadable(library):
        return library
    folder = Path(_folder_of_links().name)
    link = preloadable(folder / f"{len(list(folder.iterdir()))}.so")
    link.symlink_to(library)
    return link


def preload_words(allocator: Allocator) -> list[str]:
    library = allocator.library or c_library()
    if library is None:
        return []
    if not library.is_file():
        raise LabError(f"the library of {allocator.name} is not there: {library}")
    return [str(linked(library.resolve()))]


def why_not_started(word: str) -> str:
    """Of a command that the search path doesn't have."""
    if os.path.isdir(word):
        return "a directory"
    if os.path.exists(word):
        return "not executable"
    return "no such file" if "/" in word else "command not found"


def expect_program(words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """RunError when a command can't be started, before anything is measured."""
    if not words:
        raise LabError("no command: expected `-- COMMAND [ARGUMENT...]`")
    search = (os.environ if environment is None else environment).get("PATH")
    if shutil.which(words[0], path=search) is None:
        raise RunError(f"{words[0] or repr('')}: {why_not_started(words[0])}")


def expect_command(words: Sequence[str]) -> None:
    """The same for a command of the user's; says so where he gives it input or libraries, which no run gets."""
    expect_program(words)
    if preloaded := os.environ.get("LD_PRELOAD"):
        print(f"hakmem: LD_PRELOAD={preloaded} is not passed on to what is run", file=sys.stderr)
    if _has_input():
        shell = shlex.join(["sh", "-c", f"{shlex.join(words)} < FILE"])
        print(
            f"hakmem: standard input is not passed on: each run has an empty one. To give it a file: {shell}",
            file=sys.stderr,
        )


def _has_input() -> bool:
    """Whether something waits to be read there. What is typed ahead is meant for whoever comes next."""
    waiting = array("i", [0])
    try:
        status = os.fstat(0)
        if stat.S_ISREG(status.st_mode):
            return status.st_size > os.lseek(0, 0, os.SEEK_CUR)
        fcntl.ioctl(0, termios.FIONREAD, waiting)
        return waiting[0] > 0 and not os.isatty(0)
    except OSError:  # closed, or of a kind that can't say
        return False


def run(
    command: Sequence[str],
    allocator: Allocator,
    settings: Mapping[str, str] | None = None,
    *,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    cwd: Path | None = None,
    drive: Callable[[int], None] | None = None,
    prove: bool = True,
    tool: Sequence[str] = (),
    before: Path | None = None,
) -> Run:
    """Runs `command` to its end. `environment` replaces the caller's; `settings` are added to either, tunables to its
    tunables. `drive` is
    called while it runs, with the number of its session: it talks to a server until the server ends. `tool` is a
    command that runs all of it, such as a profiler, and is not on the allocator itself. `before` is a library that is
    preloaded before the allocator and passes calls on to it; then the proof is that it is called. Standard input is
    empty.

    Raises RunError when it can't be started or outlives timeout_s, TakeoverError when the process ran on something
    else, PolicyError when HAKMEM_POLICY names a file for none of its programs, OSError when there is no room for its
    files. A status other than 0 is the caller's to judge: without a proof of takeover it stands before it in
    Run.status.
    """
    words = [str(word) for word in command]
    base = dict(os.environ if environment is None else environment)
    expect_program(words, base)
    folder = Path(tempfile.gettempdir(), f"hakmem-run-{secrets.token_hex(8)}")
    try:  # a signal may end this at any moment, also right after the folder is made
        folder.mkdir(0o700)
        own = {**allocator.settings, **(settings or {})}
        if base.get(TUNABLES) and TUNABLES in own:
            own[TUNABLES] = f"{base[TUNABLES]}:{own[TUNABLES]}"
        return _run_in(folder, words, allocator, {**base, **own}, timeout_s, cwd, drive, prove, tool, before)
    except LabError:
        expect_room(folder, LEAST_ROOM)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def expect_room(folder: Path, least: int) -> None:
    """OSError where the disk is full: then it is no fault of the command that it failed, or left no proof."""
    try:
        with open(folder / "room", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, least)
    except OSError as error:
        if error.errno in NO_ROOM:  # some file systems can't be asked
            raise


def _run_in(
    folder: Path,
    words: list[str],
    allocator: Allocator,
    environment: dict[str, str],
    timeout_s: float | None,
    cwd: Path | None,
    drive: Callable[[int], None] | None,
    prove: bool,
    tool: Sequence[str],
    before: Path | None,
) -> Run:
    result, witnesses = folder / "result", folder / "witnesses"
    witnesses.mkdir()
    result.touch()  # a tool may take its time until launch begins, or never get there
    if os.geteuid() == 0:  # a server may go on as somebody else
        folder.chmod(0o711)
        witnesses.chmod(0o1733)
    environment.pop("LD_PRELOAD", None)
    environment["ALLOCATOR_WITNESS"] = str(witnesses)
    first = [str(linked(before))] if before else []
    preload = ":".join([*first, *preload_words(allocator), str(linked(native.helper("witness.so")))])
    launch = [*tool, str(native.helper("launch")), str(result), preload, *words]
    child: subprocess.Popen[bytes] | None = None
    began: _Known | None = None
    left_behind = False
    with open(folder / "stdout", "wb") as stdout, open(folder / "stderr", "wb") as stderr:
        try:
            with interrupted_later():
                child = subprocess.Popen(
                    launch,
                    env=environment,
                    cwd=cwd,
                    stdin=subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
                began = _stat(child.pid)
            if drive is not None:
                drive(child.pid)
            if tool:
                left_behind = _wait_for_tool(child, began, witnesses, result, timeout_s)
            else:
                child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RunError(f"{words[0]} was ended after {timeout_s:g} s under {allocator.name}") from None
        finally:
            if child is not None:
                left_behind |= _end(child, began, witnesses)
    outputs = folder / "stdout", folder / "stderr"
    shown, printed = map(_beginning, outputs)
    if child.returncode != 0 or not result.stat().st_size:
        said = printed.decode(errors="replace").strip().splitlines()
        raise RunError(f"can't run {words[0]}: {said[-1] if said else f'launch ended with {child.returncode}'}")
    figures, _, seen = result.read_text(errors="replace").partition("\n")
    pid, status, wall_ns, user_us, system_us, peak_kib, minor, major, mean_kib, *file = map(int, figures.split())
    proved = tuple(read_witnesses(witnesses))
    done = Run(
        pid=pid,
        status=os.waitstatus_to_exitcode(status),
        wall_s=wall_ns / 1e9,
        user_s=user_us / 1e6,
        system_s=system_us / 1e6,
        peak_rss_bytes=peak_kib * 1024,
        minor_faults=minor,
        major_faults=major,
        processes=proved,
        stdout=shown,
        stderr=printed,
        mean_rss_bytes=mean_kib * 1024 or None,
        sums=(sum_of(outputs[0]), sum_of(outputs[1])),
        last_file=(file[0], file[1]),
        left_behind=left_behind,
        unproved=_unproved(seen, proved, wall_ns),
    )
    if prove and (done.status == 0 or done.root() is not None):
        prove_takeover(done, words[0], Allocator(allocator.name, before) if before else allocator)
        policy = environment.get("HAKMEM_POLICY", "")
        if allocator.name == OWN and policy not in ("", "none", "auto"):
            _prove_policy(done, words[0], Path(cwd or "", policy))
    return done


@contextlib.contextmanager
def interrupted_later() -> Iterator[None]:
    """What interrupts (Ctrl-C, say) does so at the end of it: half of it would be a process that is nobody's, say."""
    is_main = threading.current_thread() is threading.main_thread()
    ends = [one for one in (signal.SIGINT, *ENDS) if is_main and callable(signal.getsignal(one))]
    came: list[int] = []
    before = {number: signal.signal(number, lambda received, _: came.append(received)) for number in ends}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if came:
        os.kill(os.getpid(), came[0])


def _beginning(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_KEPT)


def sum_of(path: Path) -> bytes:
    """SHA-256 of a file of any size."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.digest()


@contextlib.contextmanager
def undisturbed() -> Iterator[list[int]]:
    """While it lasts, what a terminal sends to this process and its command (Ctrl-C) is the command's to decide on.
    Gives the signals that come. What this process ignores the command ignores, too."""
    came: list[int] = []
    own = [number for number in (signal.SIGINT, signal.SIGQUIT) if signal.getsignal(number) is not signal.SIG_IGN]
    handlers = {number: signal.signal(number, lambda received, _: came.append(received)) for number in own}
    try:
        yield came
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def attend(words: Sequence[str], environment: Mapping[str, str], file: Path | None = None) -> Attended:
    """Runs a command undisturbed on the caller's terminal. Who asks this process to end asks the command. `file` is the
    program."""
    with undisturbed() as came, passed_on(came) as to:
        child = started(words, environment, file)
        to(child)
        return Attended(child.pid, wait_for(child), came)


def wait_for(child: subprocess.Popen[bytes]) -> int:
    """As child.wait(), for who passes signals on: Python calls their handlers between two of its instructions, so one
    that came just before a wait in the kernel would be seen after it."""
    try:
        end = os.pidfd_open(child.pid)
    except OSError:  # an older kernel, or a sandbox
        return child.wait()
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    waits = select.poll()
    for one in (end, woken):
        waits.register(one, select.POLLIN)
    try:
        while (status := child.poll()) is None:
            waits.poll()
            with contextlib.suppress(BlockingIOError):
                os.read(woken, select.PIPE_BUF)
        return status
    finally:
        signal.set_wakeup_fd(before)
        for one in (end, woken, wake):
            os.close(one)


class GroupWitness:
    """A process in this one's group that takes no signal: what it has pending the whole group was sent, the
    command too. `timeout` signals its child and then its group, and a shell that ends signals groups only. Who sent a
    signal (si_pid) doesn't tell: a script may ask hakmem's process alone, from the same group."""

    SETTLE_S = 0.05  # from the first process of a group to the last, and between the two signals of timeout

    def __init__(self) -> None:
        self.pid = 0
        self.seen: dict[int, float] = {}  # when, by the monotonic clock
        self.other_end = -1
        self._start()

    def _start(self) -> None:
        reads, self.other_end = os.pipe2(os.O_CLOEXEC)
        actions = [(os.POSIX_SPAWN_DUP2, reads, 0), (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
        try:
            blocked = signal.valid_signals()  # Ctrl-C is for the command, too
            self.pid = os.posix_spawnp("cat", ["cat"], {}, file_actions=actions, setsigmask=blocked, setsigdef=ENDS)
        except OSError:  # no processes left, or a sandbox: then nobody tells, and each signal is passed on
            self.pid = 0
        finally:
            os.close(reads)

    def stop(self) -> None:
        """It ends with its input, too: with this process."""
        os.close(self.other_end)
        if self.pid != 0:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    def _pending(self) -> set[int]:
        try:
            status = Path(f"/proc/{self.pid}/status").read_text()
        except OSError:
            return set()
        found = re.search(r"^ShdPnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
        bits = int(found[1], 16) if found else 0
        return {number for number in ENDS if bits >> (number - 1) & 1}

    def saw(self, number: int) -> bool:
        """True when the signal that came just now was sent to the group. Another one may come while this one is looked
        at, and be looked at meanwhile: it finds what was seen, before the witness is replaced."""
        came = time.monotonic()
        while not self._saw_lately(number):
            if number in (pending := self._pending()):
                self.seen |= dict.fromkeys(pending, time.monotonic())
                self.stop()
                self._start()  # the next signal needs a witness that has none pending
            elif time.monotonic() - came > self.SETTLE_S:
                return False
            else:
                time.sleep(self.SETTLE_S / 10)
        return True

    def _saw_lately(self, number: int) -> bool:
        return time.monotonic() - self.seen.get(number, -math.inf) < 4 * self.SETTLE_S


@contextlib.contextmanager
def passed_on(came: list[int]) -> Iterator[Callable[[subprocess.Popen[bytes]], None]]:
    """Who asks this process to end asks the child that is named meanwhile, and has asked it if it came before; unless
    he has asked the child himself, with the whole group. What this process ignores (under nohup, say) the child
    ignores, too."""
    children: list[subprocess.Popen[bytes]] = []
    witness = GroupWitness()

    def has_it(child: subprocess.Popen[bytes], number: int) -> bool:
        try:
            is_of_group = os.getpgid(child.pid) == os.getpgrp()
        except ProcessLookupError:
            return True
        return is_of_group and witness.saw(number)

    def take(number: int, _: object) -> None:
        came.append(number)
        for child in children:
            if not has_it(child, number):
                child.send_signal(number)

    def name(child: subprocess.Popen[bytes]) -> None:
        children.append(child)
        for number in came:
            if number in ENDS:
                child.send_signal(number)

    own = [number for number in ENDS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, take) for number in own}
    try:
        yield name
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        witness.stop()


@dataclass(frozen=True)
class Attended:
    """A command that has ended."""

    pid: int
    status: int  # exit status, or -signal
    came: Sequence[int]  # signals that this process has had meanwhile

    @property
    def exit_status(self) -> int:
        """What a shell would say."""
        return self.status if self.status >= 0 else 128 - self.status

    @property
    def how(self) -> str:
        return ending(self.status)


def started(
    words: Sequence[str],
    environment: Mapping[str, str],
    file: Path | None,
    out: TextIO | None = None,
    first: Callable[[], None] | None = None,
) -> subprocess.Popen[bytes]:
    """On the caller's terminal, its output to `out` if that is given. The new process does `first` before it becomes
    the program. LabError when it can't be."""
    try:
        return subprocess.Popen(words, executable=file, env=dict(environment), stdout=out, preexec_fn=first)
    except OSError as error:
        raise LabError(f"{words[0]}: {error.strerror}") from None


# ---- Processes of a run ----------------------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Not so of one that has ended, and that nobody has waited for."""
    return _known(pid) is not None


def command_in(session: int) -> int | None:
    """The process that launch has started in a session; None while it has not."""
    found = _processes()
    for pid, one in found.items():
        parent = found.get(one.parent)
        if one.session == session and parent is not None and parent.name == "launch" and one.name != "launch":
            return pid
    return None


def await_command(session: int) -> int | None:
    """The process that launch starts in a session, once it is there; None where it has ended already."""
    deadline = time.monotonic() + START_S
    while (pid := command_in(session)) is None and is_alive(session):
        if time.monotonic() > deadline:
            raise RunError(f"the command has not started within {START_S} s")
        time.sleep(0.01)
    return pid


def tree(pid: int) -> list[int]:
    """A process and what it has started, and so on."""
    pids, found = [pid], _processes()
    for one in pids:
        pids += [child for child, its in found.items() if its.parent == one]
    return pids


def proportional_bytes(pids: Sequence[int]) -> float:
    """Resident memory; what several processes share counts once."""
    kib = 0
    for pid in pids:
        try:
            found = re.search(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        except OSError:
            continue  # it has ended, or doesn't let itself be looked at
        kib += int(found[1]) if found else 0
    if not kib:
        raise LabError("the processes are gone, or their memory can't be read")
    return kib * 1024.0


@dataclass(frozen=True)
class _Known:
    name: str
    state: str
    parent: int
    session: int
    start_ticks: int  # since the machine began


def _known(pid: int) -> _Known | None:
    """None when it has ended."""
    found = _stat(pid)
    return None if found is None or found.state in "ZX" else found


def _stat(pid: int) -> _Known | None:
    """None when somebody has waited for it."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            head, _, rest = file.read().rpartition(")")
    except OSError:
        return None
    state, parent, _, session, *more = rest.split()
    return _Known(head.partition("(")[2], state, int(parent), int(session), int(more[15]))


def _processes() -> dict[int, _Known]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return {pid: one for pid in pids if (one := _known(pid)) is not None}


def _wait_for_tool(
    child: subprocess.Popen[bytes], began: _Known | None, witnesses: Path, result: Path, timeout_s: float | None
) -> bool:
    """One that follows processes stays as long as any that the command has left behind: these are ended when launch
    has written its result. Whether there were any."""
    deadline = time.monotonic() + (math.inf if timeout_s is None else timeout_s)
    was_left = False
    while True:
        try:
            child.wait(min(LOOK_S, max(0, deadline - time.monotonic())))
            return was_left
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                raise
        if result.stat().st_size:
            left = _left(child, began, witnesses)
            stragglers = [pid for pid, one in left.items() if pid != child.pid and not _is_launch(one, child)]
            was_left |= bool(stragglers)
            _kill(stragglers)


def _is_launch(one: _Known, child: subprocess.Popen[bytes]) -> bool:
    return one.name == "launch" and one.parent == child.pid


def _left(child: subprocess.Popen[bytes], began: _Known | None, witnesses: Path) -> dict[int, _Known]:
    """Processes of a run: those of its session, in whatever process group, and those that have its variable, in
    whatever session. Of processes from before nothing is read."""
    first = began.start_ticks if began else 0
    mark = os.fsencode(f"ALLOCATOR_WITNESS={witnesses}")
    return {
        pid: one
        for pid, one in _processes().items()
        if one.session == child.pid or (one.start_ticks >= first and mark in _environment(pid))
    }


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)


def _end(child: subprocess.Popen[bytes], began: _Known | None, witnesses: Path) -> bool:
    """Ends what is left of a run, and says whether anything was: all of it if it failed, stragglers if not."""
    was_left = child.returncode is not None and bool(_left(child, began, witnesses))
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    for _ in range(MOST_GENERATIONS):  # what is killed may have started another just before
        left = _left(child, began, witnesses)
        _kill(left)
        if not left:
            break
    return was_left


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or is somebody else's


def read_witnesses(folder: Path) -> list[Process]:
    """In the order of pids and, within one, of programs. A process whose malloc and free disagree has malloc
    `mixed`."""
    found: list[Process] = []
    for start in sorted(folder.glob("*.start"), key=lambda path: [int(part) for part in path.stem.split(".")]):
        facts = dict(line.split(" ", 1) for line in start.read_text(errors="replace").splitlines() if " " in line)
        if not facts:
            continue  # it was ended just before it had said something
        files = {facts.get(name, "unknown") for name in ("malloc", "calloc", "realloc", "free")}
        malloc = files.pop() if len(files) == 1 and facts.get("owned") != "no" else "mixed"
        end = start.with_suffix(".end")
        said = dict(re.findall(r"^(\w+) (\d+)(?: KiB)?$", end.read_text(), re.MULTILINE)) if end.is_file() else {}
        in_bytes = {name: int(number) * 1024 for name, number in said.items()}
        found.append(
            Process(
                pid=int(start.stem.split(".")[0]),
                program=facts.get("program", "unknown"),
                malloc=malloc,
                peak_rss_bytes=in_bytes.get("peak"),
                end_rss_bytes=in_bytes.get("rss"),
                threads=int(said["threads"]) if "threads" in said else None,
                trimmed_rss_bytes=in_bytes.get("trimmed"),
                file=_file(facts.get("file", "")),
                behind=facts.get("behind", ""),
                has_pools="pools" in facts,
                stack=int(facts["stack"]) if facts.get("stack", "").isdigit() else 0,
            )
        )
    return found


def _unproved(seen: str, proved: Iterable[Process], wall_ns: int) -> tuple[str, ...]:
    """Programs that launch saw for a share of the run, in processes whose stack is none of a proof's. What was seen
    once may have ended before the witness was loaded."""
    stacks = {one.stack for one in proved} - {0}
    times: dict[str, list[int]] = {}
    for elapsed_ns, stack, path in SEEN.findall(seen):
        if int(stack) not in stacks:
            times.setdefault(os.path.basename(path), []).append(int(elapsed_ns))
    return tuple(sorted(name for name, own in times.items() if len(own) > 1 and sum(own) >= LEAST_SHARE * wall_ns))


def _file(said: str) -> tuple[int, int]:
    device, _, inode = said.partition(" ")
    return (int(device), int(inode)) if device.isdigit() and inode.isdigit() else NO_FILE


def is_allocator(file: str, allocator: Allocator) -> bool:
    """Whether the file that a process's malloc was resolved to is the allocator's."""
    if allocator.library is None:
        return C_LIBRARY.match(os.path.basename(file)) is not None
    return os.path.isabs(file) and os.path.realpath(file) == str(allocator.library.resolve())


def prove_takeover(done: Run, name: str, allocator: Allocator) -> None:
    root = done.root()
    if root is None:
        why = "a static or setuid program takes no LD_PRELOAD"
        raise TakeoverError(f"{name} left no proof of its allocator ({why}): no figure of it under {allocator.name}")
    own = [process for process in done.processes if process.pid == done.pid]
    for process in own:
        if not is_allocator(process.malloc, allocator):
            raise TakeoverError(f"{process.program} ran on malloc of {process.malloc}, not on {allocator.name}")
    if done.last_file not in (NO_FILE, *(process.file for process in own)):
        why = "a static or setuid one, or one that was started with another LD_PRELOAD"
        raise TakeoverError(
            f"{name} became a program without a proof of its allocator ({why}): no figure of it under {allocator.name}"
        )
    if os.path.basename(root.program) in STARTERS and len(own) == len(done.processes):
        ended = f"; {done.how_it_ended(name)}" if done.status else ""
        raise TakeoverError(
            f"{name} started no program that left a proof of its allocator: no figure under {allocator.name}{ended}"
        )


POLICY_OF = re.compile(r"^program (?:any|([0-9a-f]+))$", re.MULTILINE)


def _prove_policy(done: Run, name: str, policy: Path) -> None:
    """By the build id that is in it: the library says so, too, but to what the command writes its errors to."""
    from hakmem import elf

    try:
        found = POLICY_OF.search(policy.read_text(errors="replace"))
    except OSError as error:
        raise PolicyError(f"POLICY={policy}: {error.strerror}") from None
    if found is None or found[1] and found[1] not in {elf.build_id(Path(one.program)) for one in done.processes}:
        raise PolicyError(f"{name} does not take POLICY={policy}: it is made for another program")
