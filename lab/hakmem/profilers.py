"""The tools that tell where a command's time goes, and what they print: perf samples, callgrind counts.

perf is asked for its clock event, which needs no hardware counters. callgrind runs on an emulated processor: slow, the
same on every machine, blind to the kernel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import native, process
from hakmem.allocators import Allocator
from hakmem.errors import LabError

PACKAGES = "Debian's linux-perf (Ubuntu: linux-tools-generic) or valgrind"
RECORD = ("perf", "record", "-q", "-N", "-e", "cpu-clock")
SAMPLES_PER_S = 997  # a prime: in step with nothing
EVENTS = {
    "instructions": "instructions",
    "L1-dcache-load-misses": "misses of the L1 data cache",
    "dTLB-load-misses": "misses of the data TLB",
}
NOT_THE_COMMAND = {"launch", "perf", "perf-exec"}  # as the kernel calls what runs before the command does


@dataclass(frozen=True)
class Spot:
    """A function, and how much of the command was spent in it itself."""

    module: str  # base name of the file it is in
    function: str
    count: int
    in_kernel: bool = False


@dataclass(frozen=True)
class Recording:
    unit: str
    spots: list[Spot]
    run: process.Run


@dataclass(frozen=True)
class Choice:
    name: str  # perf or callgrind
    why: str
    perf_refusal: str | None


def choose(wanted: str | None = None) -> Choice:
    """The tool that is wanted, or perf where it works, or callgrind."""
    refusal = perf_refusal()
    has_valgrind = shutil.which("valgrind") is not None
    if wanted == "perf" and refusal:
        raise LabError(f"perf does not work here: {refusal}")
    if wanted == "callgrind" and not has_valgrind:
        raise LabError("valgrind is not installed: install Debian's package valgrind")
    if wanted:
        return Choice(wanted, "asked for", refusal)
    if not refusal:
        return Choice("perf", "it works here, and the command runs at its own speed", None)
    if has_valgrind:
        return Choice("callgrind", f"perf does not work here: {refusal}", refusal)
    raise LabError(f"no profiler works here (perf: {refusal}; valgrind: not installed): install {PACKAGES}")


def perf_refusal() -> str | None:
    """Why perf can't record here; None when it can."""
    if shutil.which("perf") is None:
        return "not installed"
    with tempfile.TemporaryDirectory(prefix="hakmem-perf-") as folder:
        done = subprocess.run([*RECORD, "-o", f"{folder}/data", "--", "true"], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    said = [line.strip() for line in done.stderr.splitlines() if line.strip(" :\t")]
    return said[-1] if said else f"exit status {done.returncode}"


# ---- perf ------------------------------------------------------------------------------------------------------------


def sample(command: Sequence[str], allocator: Allocator, folder: Path) -> Recording:
    data = folder / "perf.data"
    tool = [*RECORD, "-F", str(SAMPLES_PER_S), "-o", str(data), "--"]
    run = process.run(command, allocator, tool=tool)
    spots = parse_report(_report(data, "--sort", "comm,dso,sym"))
    if allocator.library:  # its own names: one function is malloc and operator new, free and operator delete
        name = allocator.library.name
        own = _report(data, "--no-demangle", "--dsos", name, "--sort", "comm,sym")
        spots = [spot for spot in spots if spot.module != name] + parse_report(own, module=name)
    return Recording("samples", spots, run)


def _report(data: Path, *options: str) -> str:
    words = ["perf", "report", "-q", "-i", str(data), "--stdio", "--no-children", "-n", "-t", "\t", *options]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise LabError(f"perf report failed: {(done.stderr.strip() or 'no reason given').splitlines()[-1]}")
    return done.stdout


def parse_report(text: str, module: str | None = None) -> list[Spot]:
    """Lines `share, samples, command, module, [.] function`; without the module where there is only one."""
    counts: Counter[tuple[str, str, bool]] = Counter()
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if line.startswith("#") or len(cells) < (4 if module else 5) or cells[2] in NOT_THE_COMMAND:
            continue
        found = re.match(r"\[(.)\] (.*)", cells[-1])
        if found and cells[1].isdigit():
            counts[module or cells[3], found[2], found[1] in "kg"] += int(cells[1])
    return [Spot(name, function, count, in_kernel) for (name, function, in_kernel), count in counts.items()]


def count_events(command: Sequence[str], allocator: Allocator, folder: Path) -> tuple[process.Run, dict[str, float]]:
    """Runs the command; those of EVENTS that this machine can count."""
    output = folder / "perf.stat"
    tool = ["perf", "stat", "-x", ";", "-o", str(output), "-e", ",".join(EVENTS), "--"]
    run = process.run(command, allocator, tool=tool)
    return run, parse_stat(output.read_text())


def parse_stat(text: str) -> dict[str, float]:
    """Lines `value;unit;event;...`; an event that can't be counted has words for a value."""
    found = {}
    for line in text.splitlines():
        cells = line.split(";")
        if len(cells) > 2 and re.fullmatch(r"[0-9.]+", cells[0]):
            found[cells[2].removesuffix(":u")] = float(cells[0])
    return found


# ---- callgrind -------------------------------------------------------------------------------------------------------


def count_instructions(
    command: Sequence[str], allocator: Allocator, folder: Path, settings: Mapping[str, str] | None = None
) -> Recording:
    output = f"--callgrind-out-file={folder}/%p.callgrind"
    tool = ["valgrind", "--quiet", "--tool=callgrind", "--trace-children=yes", output]
    run = process.run(command, allocator, settings, tool=tool)
    counts: Counter[tuple[str, str]] = Counter()
    for file in sorted(folder.glob("*.callgrind*")):
        text = file.read_text(errors="replace")
        if not re.search(rf"^cmd: +{re.escape(str(native.helper('launch')))} ", text, re.MULTILINE):
            counts += parse_callgrind(text.splitlines())
    spots = [Spot(Path(module).name, function, count) for (module, function), count in counts.items()]
    return Recording("instructions", spots, run)


_NAME = re.compile(r"(c?)(ob|fn)=\((\d+)\)(?: (.*))?$")


def parse_callgrind(lines: Iterable[str]) -> Counter[tuple[str, str]]:
    """Instructions of each function itself, by object and function. The format is that of Callgrind's manual: a name
    gets a number where it first appears, and the line after `calls=` has the cost of what was called."""
    names: dict[tuple[str, str], str] = {}
    here = {"ob": "???", "fn": "???"}
    positions, of_callee = 1, False
    counts: Counter[tuple[str, str]] = Counter()
    for line in lines:
        named = _NAME.match(line)
        if named:
            called, kind, number, name = named.groups()
            name = names.setdefault((kind, number), name or "???")
            if not called:
                here[kind] = name
        elif line.startswith("positions:"):
            positions = len(line.split()) - 1
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            words = line.split()
            if not of_callee and len(words) > positions:
                counts[here["ob"], re.sub(r"'\d+$", "", here["fn"])] += int(words[positions])
            of_callee = False
    return counts
