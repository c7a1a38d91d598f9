"""What is run for a dossier: a command to its end, or a service with a client that loads it.

A round runs it three times under each contestant. The first run is observed: strace counts its system calls, and the
allocator is asked to give back what is free when it ends. The second starts cold: the files it begins with have been
dropped from the page cache. The third is the one whose time, memory and output are compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hakmem import process
from hakmem.errors import LabError
from hakmem.measure import SameOutput, Sample, Variant, values_of

TRIM = {"ALLOCATOR_WITNESS_TRIM": "1"}
LATENCY = "p99_s"
FEWEST_LATENCIES = 100  # of which one is the hundredth part
LOOK_S = 0.5  # at whether a service is still there
TICK_NS = 20_000_000  # of the kernel's clock for files, or longer
COARSE_TICK_NS = 1_000_000_000  # of file systems that keep whole seconds
END_S = 30  # until it has ended, once it was asked to


def strace_refusal() -> str | None:
    """Why system calls can't be counted here; None when they can."""
    if shutil.which("strace") is None:
        return "strace is not installed (Debian's package strace)"
    done = subprocess.run(["strace", "-f", "-c", "-o", os.devnull, "true"], capture_output=True, text=True)
    said = done.stderr.strip().splitlines()
    return None if done.returncode == 0 else f"strace does not work here: {said[-1] if said else done.returncode}"


def counted_calls(summary: str) -> float | None:
    """The sum that `strace -c` prints, with the decimal comma or point of the caller's locale."""
    found = re.search(r"^100[^\s\d]+00 +\S+ +(?:\S+ +)?(\d+) +(?:\d+ +)?total$", summary, re.MULTILINE)
    return float(found[1]) if found else None


def drop_from_cache(paths: Sequence[Path]) -> None:
    """What other processes have mapped stays."""
    for path in paths:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass  # a file system without a cache
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class DossierCase:
    """A command, or a service where there is a client."""

    command: tuple[str, ...]
    outputs: tuple[Path, ...] = ()
    client: tuple[str, ...] = ()
    idle_s: float = 0
    timeout_s: float | None = None
    counts_calls: bool = True
    goes_by_latency: bool = False  # then a run without it says nothing
    same_output: SameOutput = "nowhere"  # rule.py compares digests itself: a program may print something else each time

    @property
    def name(self) -> str:
        return shlex.join(self.command)

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        observed, found = self._observed(variant)
        drop_from_cache(self._first_files(variant))
        cold = self._run(variant)
        warm = self._run(variant, idle_s=self.idle_s)
        cold_s = cold.values.get("measured_s", cold.run.wall_s)
        values = {**values_of(warm.run), "cold_s": cold_s, **found, **warm.values}
        root = warm.run.root()
        if root is not None and root.threads is not None:
            values["threads"] = root.threads
        if self.client:
            del values["wall_s"]  # it idled
        digests = dict.fromkeys((observed.digest, cold.digest, warm.digest))
        is_full = values.get("measured_s", warm.run.wall_s) >= 1
        return Sample(values, " ".join(digests), is_full, remarks=warm.run.remarks(variant.allocator))

    def _observed(self, variant: Variant) -> tuple[_Ran, dict[str, float]]:
        """A run that is not timed, and what it was for."""
        values: dict[str, float] = {}
        with tempfile.TemporaryDirectory(prefix="hakmem-observed-") as folder:
            summary = Path(folder, "calls")
            tool = ["strace", "-f", "-c", "-o", str(summary)] if self.counts_calls else []
            ran = self._run(variant, settings=TRIM, tool=tool)
            calls = counted_calls(summary.read_text()) if self.counts_calls else None
        root = ran.run.root()
        if calls is not None:
            values["system_calls"] = calls
        if root is not None and root.trimmed_rss_bytes is not None:
            values["trimmed_rss_bytes"] = root.trimmed_rss_bytes
        return ran, values

    def _first_files(self, variant: Variant) -> list[Path]:
        program = shutil.which(self.command[0])
        words = [*([program] if program else []), *self.command[1:]]
        library = variant.allocator.library
        return [*(Path(word) for word in words if os.path.isfile(word)), *([library] if library else [])]

    def _run(
        self,
        variant: Variant,
        *,
        idle_s: float = 0,
        settings: dict[str, str] | None = None,
        tool: Sequence[str] = (),
    ) -> _Ran:
        told = _Told()
        drive: Callable[[int], None] | None = None
        if self.client:
            drive = lambda session: self._talk(session, idle_s, told)  # noqa: E731
        before = [_before_a_write(path) for path in self.outputs]
        run = process.run(
            self.command,
            variant.allocator,
            {**variant.settings, **(settings or {})},
            timeout_s=self.timeout_s,
            drive=drive,
            tool=tool,
        )
        if run.status not in (process.ENDED_BY if self.client else (0,)):
            raise LabError(run.how_it_ended(self.command[0]))
        if told.is_gone:
            raise LabError("the service was gone before it was asked to end")
        process.prove_takeover(run, self.command[0], variant.allocator)
        sums = [hashlib.sha256(told.answers).digest() if self.client else run.sums[0]]
        sums += [_written(path, state) for path, state in zip(self.outputs, before, strict=True)]
        digest = hashlib.sha256(b"".join(sums)).hexdigest()[:16]
        return _Ran(run, told.values, digest)

    def _talk(self, session: int, idle_s: float, told: _Told) -> None:
        """Loads the service, lets it idle, looks at its memory, and asks it to end."""
        server = process.await_command(session)
        if server is None:
            told.is_gone = True
            return
        try:
            self._load(server, idle_s, told)
        except LabError:
            if process.is_alive(server):
                raise
        told.is_gone = not process.is_alive(server)
        all_of_it = process.tree(server)
        if not told.is_gone:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server, signal.SIGTERM)
        _expect_end(all_of_it)

    def _load(self, server: int, idle_s: float, told: _Told) -> None:
        """Until the client has ended, or the service is gone."""
        start = time.monotonic()
        status, printed, said = self._served(server)
        told.values["measured_s"] = time.monotonic() - start
        if status != 0:
            lines = said.decode(errors="replace").strip().splitlines()
            raise LabError(f"the client {self.client[0]} failed: {lines[-1] if lines else status}")
        latencies, told.answers = read_latencies(printed)
        if len(latencies) >= FEWEST_LATENCIES:
            told.values[LATENCY] = percentile(latencies, 0.99)
        elif self.goes_by_latency:
            few = f"the client has printed {len(latencies)} latencies, and the rule goes by their 99th percentile"
            raise LabError(f"{few}: expected {FEWEST_LATENCIES} at least, or --by measured_s")
        time.sleep(idle_s)
        if idle_s:
            told.values["idle_bytes"] = process.proportional_bytes(process.tree(server))

    def _served(self, server: int) -> tuple[int, bytes, bytes]:
        """The client's exit status, and what it has printed on both outputs. LabError when it doesn't end in time, or
        when the service has ended: a client may wait for that forever."""
        deadline = time.monotonic() + (math.inf if self.timeout_s is None else self.timeout_s)
        pipe = subprocess.PIPE
        with subprocess.Popen(self.client, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as client:
            try:
                while True:
                    try:
                        printed, said = client.communicate(timeout=LOOK_S)
                        return client.returncode, printed, said
                    except subprocess.TimeoutExpired:
                        if time.monotonic() > deadline:
                            name, limit_s = self.client[0], self.timeout_s
                            raise LabError(f"the client {name} did not end within {limit_s:g} s") from None
                        if not process.is_alive(server):
                            raise LabError("the service has ended before its client") from None
            finally:
                client.kill()


@dataclass
class _Told:
    values: dict[str, float] = field(default_factory=dict)
    answers: bytes = b""
    is_gone: bool = False  # the service ended by itself


@dataclass(frozen=True)
class _Ran:
    run: process.Run
    values: dict[str, float]
    digest: str


def read_latencies(printed: bytes) -> tuple[list[float], bytes]:
    """A line that is a number is the latency of a request, in seconds; the others are what the service answered."""
    latencies: list[float] = []
    answers: list[bytes] = []
    for line in printed.splitlines(keepends=True):
        if re.fullmatch(rb"\s*\d+(?:\.\d*)?(?:[eE][-+]?\d+)?\s*", line) and math.isfinite(float(line)):
            latencies.append(float(line))
        else:
            answers.append(line)
    return latencies, b"".join(answers)


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that this share of them is not above (nearest rank)."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def _expect_end(pids: Sequence[int]) -> None:
    """Of a service, the first, and of what it has started: what outlives it has no figure, and may be all there is to
    it, where a script is what was started."""
    deadline = time.monotonic() + END_S
    while left := [pid for pid in pids if process.is_alive(pid)]:
        if time.monotonic() > deadline:
            what = "the service" if pids[0] in left else "what the service has started"
            hint = "" if pids[0] in left else "; does a script start it without exec?"
            raise LabError(f"{what} did not end within {END_S} s after SIGTERM{hint}")
        time.sleep(0.01)


@dataclass(frozen=True)
class _State:
    """Of a file: what every write changes."""

    inode: int
    changed_ns: int
    size: int


def _state(path: Path) -> _State | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return _State(found.st_ino, found.st_ctime_ns, found.st_size)


def _before_a_write(path: Path) -> _State | None:
    """A write from now on gets another time than the last one: the clock of the file system has moved on."""
    state = _state(path)
    if state is not None:
        tick_ns = COARSE_TICK_NS if state.changed_ns % COARSE_TICK_NS == 0 else TICK_NS
        while 0 <= time.time_ns() - state.changed_ns < tick_ns:
            time.sleep(0.001)
    return state


def _written(path: Path, before: _State | None) -> bytes:
    """Its SHA-256."""
    if path.exists() and not path.is_file():
        raise LabError(f"--output {path}: not a regular file")
    try:
        found = process.sum_of(path)
    except OSError as error:
        raise LabError(f"--output {path}: {error.strerror} after the run") from None
    if _state(path) == before:
        raise LabError(f"--output {path}: the run has not written it")
    return found
