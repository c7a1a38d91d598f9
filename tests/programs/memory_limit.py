"""memory_limit.py: a program that is near its memory limit at any time lives on hakmem, in a real control group.

    memory_limit.py --lib LIBRARY --program bench_tight --threads tight_threads --hardly-touched hardly_touched [--peer LIBRARY]...

bench_tight is run without a limit, to count the pages that hold its live blocks; then with 1.25 to 1.5 times these as the limit
of a control group of its own: on hakmem, which must end and compute the same; on the C library's malloc and each peer, of which
one at least must be killed, or the limits would prove nothing. tight_threads, whose threads outrun whoever gives memory back, has a limit of half as much
again as its threads allocate. hardly_touched, which touches the first page of each of its blocks, lives with a limit that these pages are six sevenths of.
Exit status 77 where no control group can be made.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SKIPPED = 77
TIMEOUT_S = 1200
MIB = 1 << 20
LIMITS_PER_LIVE = (1.25, 1.35, 1.5)
PHASES = 9
THREADS, THREAD_BYTES = 4, 40 * MIB

LIMITS = {1: "memory.limit_in_bytes", 2: "memory.max"}
SWAP = {1: ("memory.memsw.limit_in_bytes", None), 2: ("memory.swap.max", "0")}
PEAKS = {1: "memory.max_usage_in_bytes", 2: "memory.peak"}


class Skip(Exception):
    """Why there is no control group to be had."""


class Failure(Exception):
    pass


def memory_groups() -> tuple[int, Path]:
    """Version and folder of this process's group in the hierarchy that has the memory controller."""
    version, group = 0, ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            version, group = 1, path
        elif not controllers and version == 0:
            version, group = 2, path
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, kinds = line.split(" - ")[0].split(), line.split(" - ")[1].split()
        if (kinds[0] == "cgroup" and "memory" in kinds[-1].split(",")) if version == 1 else kinds[0] == "cgroup2":
            below = Path(fields[4] + group)
            return version, below if below.is_dir() else Path(fields[4])
    raise Skip("no control groups of memory are mounted")


@contextmanager
def limited_group(limit_bytes: int) -> Iterator[tuple[int, Path]]:
    version, parent = memory_groups()
    folder = parent / f"hakmem-limit-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise Skip(f"no control group can be made in {parent}: {error.strerror}") from error
    try:
        try:
            (folder / LIMITS[version]).write_text(str(limit_bytes))
        except OSError as error:
            raise Skip(f"{folder} takes no limit: {error.strerror}") from error
        name, text = SWAP[version]
        if (folder / name).exists():
            (folder / name).write_text(text or str(limit_bytes))
        yield version, folder
    finally:
        for attempt in range(100):  # until what was killed is gone
            try:
                folder.rmdir()
                break
            except OSError:
                time.sleep(0.05 * (attempt > 0))


def run(program: list[str], library: Path | None, settings: dict[str, str], group: Path | None) -> tuple[int, str]:
    """Exit status, negative for a signal, and output. The program is in the group from its first instruction on."""
    variables = [f"{name}={value}" for name, value in settings.items()]
    variables += [f"LD_PRELOAD={library.resolve()}"] if library else []
    enter = f"echo $$ > {group}/cgroup.procs && " if group else ""
    command = ["sh", "-c", enter + 'exec env "$@"', "sh", *variables, *program]
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    if done.returncode not in (0, -signal.SIGKILL):
        raise Failure(f"exit status {done.returncode}: {done.stderr}")
    names_malloc = "bench" in Path(program[0]).name
    if done.returncode == 0 and library and names_malloc and str(library.resolve()) not in done.stdout:
        raise Failure(f"malloc is not that of {library}:\n{done.stdout}")
    return done.returncode, done.stdout


def found(pattern: str, output: str) -> str:
    match = re.search(pattern, output, re.MULTILINE)
    if match is None:
        raise Failure(f"no {pattern} in:\n{output}")
    return match[1]


def limited(title: str, program: list[str], library: Path | None, settings: dict[str, str], limit: int) -> str | None:
    """The checksum; None when the program was killed."""
    with limited_group(limit) as (version, group):
        status, output = run(program, library, settings, group)
        peak_file = group / PEAKS[version]
        peak = f"{int(peak_file.read_text()) / MIB:.1f}" if peak_file.exists() else "?"
    outcome = "ended" if status == 0 else "was killed"
    print(f"{title:28} {outcome}; {peak} of {limit / MIB:.1f} MiB used at most", flush=True)
    return found(r"^checksum (\S+)$", output) if status == 0 else None


def check_limits(program: list[str], library: Path, peers: list[Path], checksum: str, limits: list[int]) -> None:
    others: list[Path | None] = [None, *peers]
    killed = []
    for limit in limits:
        for title, settings in (("hakmem", {}), ("hakmem without its thread", {"HAKMEM_BACKGROUND": "0"}),
                                ("hakmem with huge pages", {"HAKMEM_THP": "on"})):
            if limited(title, program, library, settings, limit) != checksum:
                raise Failure(f"{title} was killed, or computed something else")
        killed += [limited(peer.name if peer else "C library", program, peer, {}, limit) is None for peer in others]
    if not any(killed):
        raise Failure("every allocator lives with these limits: they prove nothing")


def check(program: Path, library: Path, peers: list[Path], live_mib: int) -> None:
    command = [str(program), str(live_mib * MIB), str(PHASES), "1"]
    status, output = run([*command, "count"], library, {}, None)
    if status != 0:
        raise Failure("killed without a limit")
    checksum = found(r"^checksum (\S+)$", output)
    live = int(found(r"^figure live_peak (\d+) bytes$", output))
    resident = int(found(r"^peak (\d+) KiB$", output)) / 1024
    print(f"{live / MIB:.1f} MiB of live pages at the peak, {resident:.1f} MiB resident", flush=True)
    check_limits(command, library, peers, checksum, [int(live * factor) for factor in LIMITS_PER_LIVE])


def check_threads(program: Path, library: Path, peers: list[Path]) -> None:
    command = [str(program), str(THREADS), str(THREAD_BYTES)]
    status, output = run(command, None, {}, None)
    if status != 0:
        raise Failure("killed without a limit")
    print(f"{THREADS} threads of {THREAD_BYTES / MIB:.0f} MiB", flush=True)
    check_limits(command, library, peers, found(r"^checksum (\S+)$", output), [THREADS * THREAD_BYTES * 3 // 2])


def check_hardly_touched(program: Path, library: Path) -> None:
    """Blocks are of a size that hakmem has a class for, so that each begins in a page of its own, or nearly so."""
    for size, count in ((5 * 1024, 16384), (8 * 1024, 16384), (16 * 1024, 16384), (64 * 1024, 16384)):
        limit = count * 4096 * 7 // 6
        with limited_group(limit) as (_, group):
            status, output = run([str(program), str(size), str(count)], library, {}, group)
        expected = run([str(program), str(size), str(count)], None, {}, None)[1]
        print(f"{count} blocks of {size} bytes: {'ended' if status == 0 else 'was killed'}", flush=True)
        if status != 0 or output != expected:
            raise Failure(f"hakmem was killed at {limit / MIB:.1f} MiB for {count} blocks of {size} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--threads", type=Path, required=True)
    parser.add_argument("--hardly-touched", type=Path, required=True)
    parser.add_argument("--peer", type=Path, action="append", default=[])
    parser.add_argument("--live", metavar="MIB", type=int, action="append", help="sizes to try; default 16 and 160")
    arguments = parser.parse_args()
    try:
        peers = [peer for peer in arguments.peer if peer.is_file()]
        for live_mib in arguments.live or (16, 160):
            check(arguments.program, arguments.lib, peers, live_mib)
        check_threads(arguments.threads, arguments.lib, peers)
        check_hardly_touched(arguments.hardly_touched, arguments.lib)
    except Skip as reason:
        print(f"skipped: {reason}")
        return SKIPPED
    except (Failure, subprocess.TimeoutExpired) as failure:
        print(f"FAILED: {failure}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
