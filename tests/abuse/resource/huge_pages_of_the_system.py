"""huge_pages_of_the_system.py: however the system gives huge pages, small programs stay small, and what is freed goes back.

    huge_pages_of_the_system.py --lib LIBRARY --bench FOLDER --program burst

Sets transparent_hugepage/enabled, and the sizes below 2 MiB that Linux 6.8 and later know, for some seconds each, and has the
kernel look for memory to make huge pages of all the time; and puts back what was there, however the test ends. Without the
right to do so, it is skipped. Programs of FOLDER that use a few MiB must have the peak RSS and the page faults that they have
where huge pages are given when they are asked for, and a tenth more at most. After a burst of 512 MiB, or of many threads, most
of it freed, no more may stay resident than there, and the system must have the rest available: what was given back of a huge
page that the kernel keeps whole is neither resident nor available. At rest the bursts of bursts.py hold what they hold there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

SKIPPED = 77
FOLDER = Path("/sys/kernel/mm/transparent_hugepage")
ENABLED = FOLDER / "enabled"
PAUSE = FOLDER / "khugepaged/scan_sleep_millisecs"
SHORT_PAUSE = "100"
SIZES = sorted(FOLDER.glob("hugepages-*/enabled"))  # 2 MiB among them, which goes by ENABLED
USUAL = ("madvise", "never")  # huge pages, and those of smaller sizes
OTHERS = (("always", "never"), ("never", "never"), ("always", "always"), ("madvise", "madvise"))
SMALL = (
    "bench_random_mixed 1000000 400 1",
    "bench_random_mixed 1000000 8192 1",
    "bench_tiny_hot 1000000 64",
    "bench_mid_large 20000 40 1",
)
RUNS = 5
BURSTS = ("bench_idle_burst 4 536870912 95 8 trim", "bench_idle_burst 64 67108864 95 8 trim")
SMALL_LIMIT, BURST_LIMIT = 1.10, 1.03
MOMENTS = ("8s", "trimmed")
AVAILABLE_ALLOWANCE_MIB = 64  # other processes live, too
ATTEMPTS = 5


def current(file: Path) -> str:
    text = file.read_text()
    found = re.search(r"\[(\S+)\]", text)
    return found[1] if found else text.strip()


def wanted(whole: str, small: str) -> dict[Path, str]:
    sizes = {file: "inherit" if file.parent.name == "hugepages-2048kB" else small for file in SIZES}
    return {ENABLED: whole, PAUSE: SHORT_PAUSE} | sizes


def write(values: dict[Path, str]) -> None:
    for file, value in values.items():
        file.write_text(value)


def put_back_at_the_end(values: dict[Path, str]) -> int:
    """A process that nobody knows of sets all when this one is gone, or closes the descriptor."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() != 0:
            os._exit(0)
        os.close(write_end)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in range(3):
            os.dup2(null, descriptor)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.read(read_end, 1)
        write(values)
        os._exit(0)
    os.close(read_end)
    os.waitpid(child, 0)
    return write_end


@contextlib.contextmanager
def huge_pages(whole: str, small: str) -> Iterator[None]:
    before = {file: current(file) for file in wanted(whole, small)}
    descriptor = put_back_at_the_end(before)
    try:
        write(wanted(whole, small))
        print(f"huge pages: {whole}; smaller sizes: {small}", flush=True)
        yield
    finally:
        write(before)
        os.close(descriptor)


def run(words: str, arguments: argparse.Namespace) -> tuple[str, int]:
    """What the program says, and its page faults."""
    program, *rest = words.split()
    library = arguments.lib.resolve()
    done = subprocess.Popen([arguments.bench / program, *rest], stdout=subprocess.PIPE, env={"LD_PRELOAD": str(library)})
    assert done.stdout
    output = done.stdout.read().decode()
    _, status, usage = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    allocator = re.search(r"^allocator (.+)$", output, re.MULTILINE)
    if done.returncode != 0 or not allocator or Path(allocator[1]).resolve() != library:
        raise SystemExit(f"{words}: exit status {done.returncode}\n{output}")
    return output, usage.ru_minflt


def small_figures(words: str, arguments: argparse.Namespace) -> tuple[float, float]:
    """Medians of peak RSS in KiB and of page faults."""
    runs = [run(words, arguments) for _ in range(RUNS)]
    peaks = [int(re.search(r"^peak (\d+) KiB$", output, re.MULTILINE)[1]) for output, _ in runs]
    return statistics.median(peaks), statistics.median(faults for _, faults in runs)


def compare_small(words: str, before: tuple[float, float], after: tuple[float, float]) -> bool:
    kept = all(now <= SMALL_LIMIT * then for then, now in zip(before, after))
    print(f"{words}: peak {after[0]:.0f} KiB, {after[1]:.0f} faults; usually {before[0]:.0f} KiB, "
          f"{before[1]:.0f} faults: {'kept' if kept else 'BROKEN'}", flush=True)
    return kept


def burst(words: str, arguments: argparse.Namespace) -> dict[str, float]:
    """Figures of a burst; those of bytes in MiB."""
    output, _ = run(words, arguments)
    found = re.findall(r"^figure (\S+) (\S+) (\S+)$", output, re.MULTILINE)
    figures = {name: float(value) / ((1 << 20) if unit == "bytes" else 1) for name, value, unit in found}
    for moment in MOMENTS:
        figures[f"missing_{moment}"] = figures["available_before"] - figures[f"available_{moment}"]
    print(f"{words}: " + "; ".join(
        f"{moment}: {figures[f'over_limit_{moment}']:.3f} x the limit of {figures['page_limit']:.1f} MiB, and the system has "
        f"{figures[f'missing_{moment}']:.0f} MiB less" for moment in MOMENTS), flush=True)
    return figures


def compare_bursts(words: str, before: dict[str, float], arguments: argparse.Namespace) -> bool:
    for _ in range(ATTEMPTS):
        after = burst(words, arguments)
        if any(after[f"over_limit_{moment}"] > BURST_LIMIT * before[f"over_limit_{moment}"] for moment in MOMENTS):
            return False
        if all(after[f"missing_{moment}"] <= after[f"rss_{moment}"] + AVAILABLE_ALLOWANCE_MIB for moment in MOMENTS):
            return True
        time.sleep(1)  # perhaps it was somebody else
    return False


def rests(arguments: argparse.Namespace) -> bool:
    bursts = Path(__file__).with_name("bursts.py")
    command = [sys.executable, bursts, "--lib", arguments.lib, "--program", arguments.program]
    return subprocess.run(command, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    arguments = parser.parse_args()
    if not os.access(ENABLED, os.R_OK | os.W_OK):
        print(f"skipped: {ENABLED} can't be written by this user")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with huge_pages(*USUAL):
        before = {words: small_figures(words, arguments) for words in SMALL}
        limits = {words: burst(words, arguments) for words in BURSTS}
    kept = []
    for system in OTHERS:
        if SIZES or system[1] == "never":
            with huge_pages(*system):
                kept += [compare_small(words, before[words], small_figures(words, arguments)) for words in SMALL]
                kept += [compare_bursts(words, limits[words], arguments) for words in BURSTS]
                kept.append(rests(arguments))
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
