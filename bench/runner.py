"""Runs one benchmark program under one allocator, and believes no figure before takeover is proved.

Owns: the child's environment (LD_PRELOAD above all), its time limit, the reading of its closing lines (bench.h), and
the proof: the file that the child's own malloc and free were resolved to, which the child prints, is the one asked for.
LD_PRELOAD with a wrong path runs on with the system's allocator and exits 0, so a path that was passed proves nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class BenchError(Exception):
    """A run that must not be counted: failed, hung, or on another allocator than the one asked for."""


@dataclass(frozen=True)
class Run:
    command: list[str]
    preload: str | None
    allocator: str  # as the program itself found it
    operations_per_second: float
    seconds: float  # of the measured part
    wall_seconds: float  # of the process
    user_seconds: float
    system_seconds: float
    minor_faults: int
    peak_rss_bytes: int  # of the program itself: wait4's ru_maxrss counts what its parent had before exec, too
    checksum: str
    output: str

    @property
    def full_size(self) -> bool:
        """Long enough to be quoted: >= 1 s or >= 10 M operations."""
        return self.seconds >= 1 or self.operations_per_second * self.seconds >= 10e6


CLOSING = re.compile(
    r"^allocator (?P<allocator>.+)\n"
    r"peak (?P<peak>\d+) KiB\n"
    r"checksum (?P<checksum>0x[0-9a-f]{16})\n"
    r"Throughput = (?P<throughput>\d+) operations per second, relative time: (?P<seconds>[0-9.]+) s\.$",
    re.MULTILINE,
)


def settings() -> dict[str, str]:
    """The caller's HAKMEM_* settings: the only part of its environment that children inherit."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith("HAKMEM_")}


def child_environment(preload: Path | None, extra: Mapping[str, str]) -> dict[str, str]:
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **settings(), **extra}
    if preload is not None:
        if not preload.is_file():
            raise BenchError(f"no such library: {preload}")
        environment["LD_PRELOAD"] = str(preload.resolve())
    return environment


def prove_takeover(found: str, preload: Path | None) -> None:
    if preload is None:
        if not re.fullmatch(r"(libc\.so\.6|libc-2\.\d+\.so|ld-musl-.*|libc\.so)", Path(found).name):
            raise BenchError(f"malloc came from {found}, not from the C library")
    elif not os.path.isabs(found) or Path(found).resolve() != preload.resolve():
        raise BenchError(f"malloc came from {found}, not from {preload}")


def run_program(
    command: Sequence[str], preload: Path | None, extra: Mapping[str, str] | None = None, timeout_seconds: float = 120
) -> Run:
    """Runs it to the end, under `preload` or under the C library's allocator, and proves which."""
    words = [str(word) for word in command]
    start = time.monotonic()
    child = subprocess.Popen(
        words,
        env=child_environment(preload, extra or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    timer = threading.Timer(timeout_seconds, child.kill)
    timer.start()
    assert child.stdout is not None
    try:
        with child.stdout:
            output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    except BaseException:
        child.kill()
        raise
    finally:
        timed_out = not timer.is_alive()
        timer.cancel()
    wall_seconds = time.monotonic() - start
    if child.returncode != 0:
        why = f"was ended after {timeout_seconds:.0f} s" if timed_out else f"ended with {child.returncode}"
        raise BenchError(f"{' '.join(words)} (preload {preload}) {why}\n{output}")
    closing = CLOSING.search(output)
    if closing is None:
        raise BenchError(f"{' '.join(words)} (preload {preload}) printed no closing lines\n{output}")
    prove_takeover(closing["allocator"], preload)
    return Run(
        command=words,
        preload=str(preload.resolve()) if preload is not None else None,
        allocator=closing["allocator"],
        operations_per_second=float(closing["throughput"]),
        seconds=float(closing["seconds"]),
        wall_seconds=round(wall_seconds, 4),
        user_seconds=usage.ru_utime,
        system_seconds=usage.ru_stime,
        minor_faults=usage.ru_minflt,
        peak_rss_bytes=int(closing["peak"]) * 1024,
        checksum=closing["checksum"],
        output=output,
    )
