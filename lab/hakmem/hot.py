"""Where the time of a command goes: its hot functions by layer, kernel and user mode, page faults, cache misses.

A share of a profile is not yet an opportunity: what is spent in a layer may be what the program asked for.
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hakmem import process, profilers
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.process import C_LIBRARY, Run
from hakmem.profilers import EVENTS, Choice, Recording, Spot

Layer = Literal["allocator", "program", "libc", "kernel"]
LAYERS: tuple[Layer, ...] = ("allocator", "program", "libc", "kernel")

HOT = 0.02  # of the whole
FEW_SAMPLES = 300  # fewer make shares of some per cent a matter of chance
LEAST_CPU_S = 0.1  # the kernel tells its own time from the program's by ticks of up to 10 ms, of which less has few

LIBC_FILE = re.compile(r"^(ld-linux.*|ld64\.so.*|lib(m|pthread|dl|rt)\.so\..*|\[vdso\])$")
LIBC_MALLOC = re.compile(
    r"^(__GI_)*(__libc_)?(malloc|calloc|realloc|c?free|memalign|aligned_alloc|posix_memalign|p?valloc)\b"
    r"|^(_int|_mid|tcache|malloc|arena|ptmalloc)_|^(sysmalloc|systrim|unlink_chunk|heap_trim|new_heap)"
    r"|^(__default_)?morecore|^(mremap|munmap)_chunk"
)

ADDRESS = re.compile(r"(0x)?[0-9a-f]{8,}$|\?\?\?$")  # what the tools call a function without a symbol
NAMELESS = "(without symbols)"


@dataclass(frozen=True)
class Function:
    layer: Layer
    module: str
    name: str
    share: float


@dataclass(frozen=True)
class Profile:
    command: list[str]
    allocator: str
    tool: str
    why: str
    unit: str  # samples or instructions
    total: int
    layers: dict[Layer, float]
    functions: list[Function]  # of at least 2 %, the hottest first
    wall_s: float
    user_s: float
    system_s: float
    peak_rss_bytes: int
    minor_faults: int
    major_faults: int
    events: dict[str, float]
    cannot_count: list[str]
    cannot_count_why: str
    notes: list[str]

    @property
    def cpu_s(self) -> float:
        return self.user_s + self.system_s

    @property
    def kernel_share(self) -> float | None:
        """Of CPU time; None where that is too little to be split."""
        return _kernel_share(self.user_s, self.system_s)


def _kernel_share(user_s: float, system_s: float) -> float | None:
    return system_s / (user_s + system_s) if user_s + system_s >= LEAST_CPU_S else None


def layer_of(spot: Spot, allocator: Allocator) -> Layer:
    if spot.in_kernel:
        return "kernel"
    if allocator.library and spot.module == allocator.library.name:
        return "allocator"
    if C_LIBRARY.match(spot.module):
        return "allocator" if allocator.library is None and LIBC_MALLOC.match(spot.function) else "libc"
    return "libc" if LIBC_FILE.match(spot.module) else "program"


def profile(command: Sequence[str], allocator: Allocator, wanted: str | None = None) -> Profile:
    """Runs the command twice: under the profiler, and once more for the figures that it would distort."""
    process.expect_command(command)
    choice = profilers.choose(wanted)
    with tempfile.TemporaryDirectory(prefix="hakmem-hot-") as name:
        folder = Path(name)
        events: dict[str, float] = {}
        if choice.perf_refusal is None:
            run, events = profilers.count_events(command, allocator, folder)
        else:
            run = process.run(command, allocator)
        record = profilers.sample if choice.name == "perf" else profilers.count_instructions
        recording = record(command, allocator, folder)
    for one in (run, recording.run):
        if one.status < 0:
            raise LabError(f"{command[0]} {process.ending(one.status)}")
    return summarize(list(command), allocator, choice, recording, run, events)


def summarize(
    command: list[str],
    allocator: Allocator,
    choice: Choice,
    recording: Recording,
    run: Run,
    events: dict[str, float],
) -> Profile:
    spots = _named(recording.spots)
    total = sum(spot.count for spot in spots)
    if total == 0:
        raise LabError(f"{command[0]} ended before {choice.name} saw anything of it; give it more work")
    layers: Counter[Layer] = Counter()
    for spot in spots:
        layers[layer_of(spot, allocator)] += spot.count
    hot = sorted((spot for spot in spots if spot.count >= HOT * total), key=lambda spot: -spot.count)
    return Profile(
        command=command,
        allocator=allocator.name,
        tool=choice.name,
        why=choice.why,
        unit=recording.unit,
        total=total,
        layers={layer: layers[layer] / total for layer in LAYERS},
        functions=[Function(layer_of(s, allocator), s.module, s.function, s.count / total) for s in hot],
        wall_s=run.wall_s,
        user_s=run.user_s,
        system_s=run.system_s,
        peak_rss_bytes=run.peak_rss_bytes,
        minor_faults=run.minor_faults,
        major_faults=run.major_faults,
        events=events,
        cannot_count=[title for event, title in EVENTS.items() if event not in events],
        cannot_count_why=f"perf does not work here: {choice.perf_refusal}"
        if choice.perf_refusal
        else "no counter here",
        notes=list(_notes(command[0], choice, spots, run, total)),
    )


def _named(spots: list[Spot]) -> list[Spot]:
    """With one function in place of all those of a file that have an address for a name."""
    counts: Counter[Spot] = Counter()
    for spot in spots:
        function = NAMELESS if ADDRESS.match(spot.function) else spot.function
        counts[Spot(spot.module, function, 0, spot.in_kernel)] += spot.count
    return [replace(spot, count=count) for spot, count in counts.items()]


def _notes(name: str, choice: Choice, spots: list[Spot], run: Run, total: int) -> list[str]:
    notes = []
    if run.status != 0:
        notes.append(f"{name} {process.ending(run.status)}")
    if choice.name == "callgrind":
        notes.append("callgrind counts instructions in user mode: the kernel has no share, and cache misses no weight")
    else:
        if total < FEW_SAMPLES:
            notes.append(f"few samples ({total}): shares are rough; give the command more work")
        if (_kernel_share(run.user_s, run.system_s) or 0) > 0.05 and not any(spot.in_kernel for spot in spots):
            notes.append("the kernel's share is hidden: as root, or with kernel.perf_event_paranoid=1, it shows")
    for spot in spots:
        if spot.function == NAMELESS and spot.count >= HOT * total and not spot.in_kernel:
            notes.append(f"{spot.count / total:.0%} is in {spot.module} without symbols: install its debug symbols")
    return notes
