"""Heap profiles: what libhakmem wrote, with names; sums over sites; the difference of two.

The format is told by src/observe/profile.h: a head of names and numbers, a line per size class with what was counted, a
line `figures` with the names of what each site sums up, a line per site, a line per function of a Python program, a
line per file's build id, and the map of the process's memory.

Allocations, what is live, and the peak are counted. What a site has is an estimate from samples, with its standard
error: each allocation is sampled with a probability that is known, and counts for as many as that (Horvitz and
Thompson's estimator); docs/decisions/0031-heap-profile.md has its variance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Mapped
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem import files, native
from hakmem.errors import LabError
from hakmem.symbols import Mapping, Symbols, nameless

FIRST_LINE = "hakmem heap profile 3"
RECORDS = ("class", "site", "function", "build_id")  # of these there are many
WEIGHT_ONE = 1024
VARIANCE_UNIT = 64**2  # bytes^2
LOOKS, LEAST_LOOK_BYTES = 128, 64 << 10  # a thread looks for the peak after it has allocated so much of it
LEAST_STEP = 16  # from one size of block to the next; of large ones, an eighth,
LARGEST_APART = 1024  # and above this, sizes up to the double may share blocks of one size
LEAST_SAMPLES = 4  # of a row: with fewer its error is more than half of it

# A place in a function of Python, as src/observe/profile.h has it (P8): these bits, the function, the line.
IN_PYTHON, IS_INNERMOST = 1 << 63, 1 << 62
LINE_BITS, FUNCTION_BITS = 24, 38
LOOP = "_PyEval_EvalFrameDefault"  # of the interpreter: each call runs a function of Python, and those that it calls

UNLOADED = "(unloaded library)"

LIFETIMES = ("below_10ms", "below_100ms", "below_1s", "below_10s", "below_100s", "later")

# Functions that stand between a program and the allocator, where it is linked into the program.
OWN_NAMES = frozenset(
    "malloc calloc realloc reallocarray aligned_alloc memalign posix_memalign valloc pvalloc __libc_malloc"
    " __libc_calloc __libc_realloc __libc_memalign".split()
)
LINKED_IN_NAMES = frozenset(  # of hakmem's own functions, in a program that has no library of hakmem's
    "alloc_metered alloc_missed meter_large calloc_missed move_block move_missed resize_large new_throwing new_array"
    " new_nothrow new_array_nothrow new_aligned_throwing new_array_aligned new_aligned_nothrow"
    " new_array_aligned_nothrow new_failed".split()
)


@dataclass(frozen=True)
class Frame:
    module: str
    offset: int  # in the file: the same in every run
    name: str
    address: int = field(compare=False, default=0)
    mapping: Mapping | None = field(compare=False, default=None, repr=False)
    line: int | None = None  # of source, in a function of Python: its module is the path of the file; 0: unknown

    @property
    def is_of_python(self) -> bool:
        return self.line is not None

    @property
    def label(self) -> str:
        return f"{self.name} ({Path(self.module).name}:{self.line})" if self.line and self.module else self.name


@dataclass(frozen=True)
class Figures:
    """What is known of a site, or of several. Numbers of allocations and bytes are estimates."""

    live_bytes: float = 0
    live_count: float = 0
    total_bytes: float = 0
    total_count: float = 0
    live_block_bytes: float = 0
    samples: int = 0
    live_samples: int = 0
    least_size: int = 0
    largest_size: int = 0
    freed_ms: float = 0  # of lifetimes, in sum
    lifetimes: tuple[float, ...] = (0,) * len(LIFETIMES)
    peak_bytes: float = 0  # live when all sites together had most
    peak_count: float = 0
    temporary_bytes: float = 0  # freed by their thread before its next few allocations
    temporary_count: float = 0
    live_variance: float = 0  # of the estimates, in bytes^2
    total_variance: float = 0
    peak_variance: float = 0

    @property
    def live_error(self) -> float:
        """Standard errors, in bytes."""
        return math.sqrt(self.live_variance)

    @property
    def total_error(self) -> float:
        return math.sqrt(self.total_variance)

    @property
    def temporary_error(self) -> float:
        """As if temporaries varied as all allocations do."""
        share = abs(self.temporary_bytes / self.total_bytes) if self.total_bytes else 0
        return self.total_error * math.sqrt(min(share, 1))

    @property
    def peak_error(self) -> float:
        return math.sqrt(self.peak_variance)

    def __add__(self, other: Figures) -> Figures:
        return Figures(
            self.live_bytes + other.live_bytes,
            self.live_count + other.live_count,
            self.total_bytes + other.total_bytes,
            self.total_count + other.total_count,
            self.live_block_bytes + other.live_block_bytes,
            self.samples + other.samples,
            self.live_samples + other.live_samples,
            min(filter(None, (self.least_size, other.least_size)), default=0),
            max(self.largest_size, other.largest_size),
            self.freed_ms + other.freed_ms,
            tuple(a + b for a, b in zip(self.lifetimes, other.lifetimes, strict=True)),
            self.peak_bytes + other.peak_bytes,
            self.peak_count + other.peak_count,
            self.temporary_bytes + other.temporary_bytes,
            self.temporary_count + other.temporary_count,
            self.live_variance + other.live_variance,
            self.total_variance + other.total_variance,
            self.peak_variance + other.peak_variance,
        )

    def minus(self, other: Figures, shares_samples: bool = False) -> Figures:
        """Two dumps of one process share the samples of the first: what it had in all varies no more. What is live has
        changed by what was freed and what is new since, or is as uncertain as both, if that is less."""
        total = self.total_variance + other.total_variance
        live = self.live_variance + other.live_variance
        if shares_samples:
            total = max(self.total_variance - other.total_variance, 0)
            freed = self.total_variance - self.live_variance - other.total_variance + other.live_variance
            live = min(live, total + max(freed, 0))
        return Figures(
            self.live_bytes - other.live_bytes,
            self.live_count - other.live_count,
            self.total_bytes - other.total_bytes,
            self.total_count - other.total_count,
            self.live_block_bytes - other.live_block_bytes,
            self.samples + other.samples,
            self.live_samples + other.live_samples,
            *((self.least_size, self.largest_size) if self.largest_size else (other.least_size, other.largest_size)),
            peak_bytes=self.peak_bytes - other.peak_bytes,
            peak_count=self.peak_count - other.peak_count,
            temporary_bytes=self.temporary_bytes - other.temporary_bytes,
            temporary_count=self.temporary_count - other.temporary_count,
            live_variance=live,
            total_variance=total,
            peak_variance=self.peak_variance + other.peak_variance,
        )

    @property
    def mean_size(self) -> float:
        return self.total_bytes / self.total_count if self.total_count else 0

    @property
    def mean_lifetime_s(self) -> float | None:
        """Of the blocks that were freed."""
        freed = sum(self.lifetimes)
        return self.freed_ms / freed / 1000 if freed > 0 else None


@dataclass(frozen=True)
class Site:
    frames: tuple[Frame, ...]  # the innermost first
    figures: Figures


@dataclass(frozen=True)
class Amount:
    """Blocks, which are counted, and the bytes that were asked for: their mean size is known from samples."""

    count: float = 0
    bytes: float = 0
    variance: float = 0  # of the bytes, at most: of what samples tell
    bound: float = 0  # what the bytes may be off by besides, where no sample tells: all of it to the same side, perhaps

    @property
    def error(self) -> float:
        """The standard error of the bytes, at most."""
        return math.sqrt(self.variance) + self.bound

    def __add__(self, other: Amount) -> Amount:
        return self._with(self.count + other.count, self.bytes + other.bytes, other)

    def minus(self, other: Amount) -> Amount:
        return self._with(self.count - other.count, self.bytes - other.bytes, other)

    def _with(self, count: float, bytes_: float, other: Amount) -> Amount:
        return Amount(count, bytes_, self.variance + other.variance, self.bound + other.bound)

    def times(self, factor: float) -> Amount:
        return Amount(self.count * factor, self.bytes * factor, self.variance * factor**2, self.bound * abs(factor))

    def missing(self, bytes_: float) -> Amount:
        """So many may have been missed besides."""
        return replace(self, variance=self.variance + bytes_**2)


@dataclass(frozen=True)
class Sizes:
    """Samples of one size of block: what was asked for in all, of what was freed, and of what was live at the peak."""

    block_bytes: int
    chance: float  # of a block, to be sampled
    weight: int = 0
    bytes: int = 0
    freed_weight: int = 0
    freed_bytes: int = 0
    peak_weight: int = 0
    peak_bytes: int = 0
    unsampled: float = 0  # live blocks of unknown sizes, at most: from before the profile, or from while it was off
    peak_unsampled: float = 0  # the same at the peak

    def minus(self, other: Sizes) -> Sizes:
        return replace(
            self,
            weight=self.weight - other.weight,
            bytes=self.bytes - other.bytes,
            freed_weight=self.freed_weight - other.freed_weight,
            freed_bytes=self.freed_bytes - other.freed_bytes,
        )

    def of_all(self, count: int) -> Amount:
        return self._amount(count, self.weight, self.bytes)

    def of_freed(self, count: int) -> Amount:
        return self._amount(count, self.freed_weight, self.freed_bytes)

    def of_live(self, count: int) -> Amount:
        weight, size = self.weight - self.freed_weight, self.bytes - self.freed_bytes
        return self._with_unsampled(count, weight, size, self.unsampled)

    def of_peak(self, count: int) -> Amount:
        return self._with_unsampled(count, self.peak_weight, self.peak_bytes, self.peak_unsampled)

    def of_unsampled(self, count: float) -> Amount:
        """Blocks that may all have been asked for with one size, which may be any."""
        least, highest = self._bounds
        return Amount(count, count * self._middle, bound=count * (highest - least) / 2)

    def _with_unsampled(self, count: int, weight: int, size: int, most: float) -> Amount:
        """What samples don't stand for is unsampled, as far as there can be so much."""
        stands_for = weight / WEIGHT_ONE
        unsampled = min(max(count - stands_for, 0), most)
        found = self._amount(count - unsampled, weight, size) + self.of_unsampled(unsampled)
        if 0 < unsampled < count:  # how many there are of either is an estimate
            apart = (size * WEIGHT_ONE / weight if weight > 0 else self._mean) - self._middle
            found = replace(found, variance=found.variance + stands_for * (1 / self.chance - 1) * apart**2)
        return replace(found, count=count)

    @property
    def _bounds(self) -> tuple[int, int]:
        """More than the first, up to the second was asked for."""
        highest = self.block_bytes
        return highest // 2 if highest > LARGEST_APART else highest - max(LEAST_STEP, highest // 8), highest

    @property
    def _middle(self) -> float:
        return sum(self._bounds) / 2

    @property
    def _mean(self) -> float:
        return self.bytes * WEIGHT_ONE / self.weight if self.weight > 0 else self._middle

    def _amount(self, count: float, weight: int, size: int) -> Amount:
        """So many blocks. Their mean size is that of their samples, and of one more, which is as all are on average.
        Sizes between a and b whose mean is m vary by (m - a) (b - m) at most (Bhatia and Davis), with m as if one more
        sample were in the middle: few that are alike don't tell that all are."""
        if self.weight <= 0:  # none at any time
            return self.of_unsampled(count)
        least, highest = self._bounds
        samples = weight / WEIGHT_ONE * self.chance
        mean = (size * self.chance + self._mean) / (samples + 1)
        likely = (samples * mean + self._middle) / (samples + 1)
        variance = max(likely - least, 0) * max(highest - likely, 0) / (samples + 1)
        return Amount(count, count * mean, count**2 * variance)


@dataclass(frozen=True)
class Counted:
    """Blocks of one size, or of all: counted, not sampled. Their bytes follow from the sizes that samples have."""

    block_bytes: int  # 0: large objects, or all
    total: Amount = Amount()
    live: Amount = Amount()
    peak: Amount = Amount()
    sizes: Sizes | None = None  # None: bytes are counted, too

    def __add__(self, other: Counted) -> Counted:
        return Counted(0, self.total + other.total, self.live + other.live, self.peak + other.peak)

    def minus(self, other: Counted, shares_samples: bool = False) -> Counted:
        """What two dumps of one process share is as uncertain in both: the difference is what was allocated and what
        was freed between them. Not so where blocks are live that no sample can stand for."""
        total, live = self.total.minus(other.total), self.live.minus(other.live)
        if shares_samples and self.sizes and other.sizes and not self.sizes.unsampled + other.sizes.unsampled:
            between = self.sizes.minus(other.sizes)
            total = between.of_all(round(total.count))
            changed = total.minus(between.of_freed(round(total.count - live.count)))
            live = min(live, changed, key=lambda one: one.error)
        return Counted(self.block_bytes, total, live, self.peak.minus(other.peak))


@dataclass(frozen=True)
class Profile:
    name: str
    process: int
    interval_bytes: int
    elapsed_s: float
    lost_samples: int
    sites: tuple[Site, ...]
    program: str
    classes: tuple[Counted, ...]  # by size of block
    began: Amount = Amount()  # live when the profile was last switched on, and not sampled
    peak_s: float = 0  # when its sizes were counted last
    most: Amount = Amount()  # as high as any look has found the heap; its blocks are those of the last count
    peak_missed_bytes: float = 0  # that may have come and gone at the peak, of any size, since then
    strangers: tuple[str, ...] = ()  # modules that are other files here than those that ran
    without_python: str = ""  # why a Python program has no functions of Python; empty: it has, or is none
    is_difference: bool = False
    identity: str = ""  # another one in each process, but for forked children
    off_s: float = 0  # for how long it was switched off
    is_off: bool = False  # when it was written
    in_runs: bool = False  # samples were taken for `pins`, which takes many in a row
    is_whole: bool = True

    @property
    def peak(self) -> Amount:
        return self.counted.peak.missing(self.peak_missed_bytes)

    @property
    def began_before(self) -> bool:
        """The program had memory worth a word when the profile was switched on."""
        return not self.is_difference and self.began.bytes > self.counted.peak.bytes / 100

    @property
    def remarks(self) -> list[str]:
        """What a reader has to know of it."""
        said = []
        if self.is_off:
            said.append(
                "the profile was off when it was written: live is of then, the rest of until it was switched off"
            )
        elif self.off_s:
            said.append(f"the profile was off for {self.off_s:,.1f} s in between: what was allocated then is missing")
        if self.in_runs:
            said.append("samples came in runs, as `pins` takes them: errors of functions are larger than they say")
        if not self.is_whole:
            said.append("the file is cut off: names may be missing")
        elif any(frame.name == UNLOADED for site in self.sites for frame in site.frames):
            said.append("a library was unloaded: to see names, keep it (RTLD_NODELETE) while you profile")
        return said

    @property
    def counted(self) -> Counted:
        """Of all sizes."""
        return replace(sum(self.classes, Counted(0)), peak=self.most)

    @property
    def nameless(self) -> list[str]:
        """Lines that tell which functions have no names, and why."""
        python = f"functions of Python have no names: {self.without_python}"
        return [*nameless(self.strangers), *([python] if self.without_python else [])]

    @property
    def total(self) -> Figures:
        """Of all sites: estimates."""
        return sum((site.figures for site in self.sites), Figures())


def read(path: Path) -> Profile:
    """Raises LabError for what is no profile."""
    try:
        data = files.content(path, FIRST_LINE.encode())
        if data is None and path.is_file() and path.stat().st_size == 0:
            raise LabError(f"{path}: empty: its process could not write it")
        return parse(data.decode(errors="replace") if data else "", path.name)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, IndexError, OverflowError):
        raise LabError(f"{path}: a damaged heap profile, or of another version") from None


def parse(text: str, name: str, root: str = "") -> Profile:
    """Below `root` are the process's files, if they are not those of the same paths here."""
    lines = text.split("\n")  # and at nothing else: names of functions are in it
    if not lines or lines[0] != FIRST_LINE:
        is_other = bool(lines) and lines[0].startswith(FIRST_LINE.rpartition(" ")[0])
        why = "of another version of hakmem" if is_other else "not a heap profile of hakmem"
        raise LabError(f"{name}: {why}: it does not begin with {FIRST_LINE!r}")
    end = lines.index("maps")
    head = {words[0]: words[1:] for words in (line.split() for line in lines[1:end]) if words[0] not in RECORDS}
    classes, began = _classes(head, [line.split()[1:] for line in lines[1:end] if line.startswith("class ")])
    most, noted = int(head["most_bytes"][0]), int(head["noted_bytes"][0])
    peak = sum(classes, Counted(0)).peak
    mappings = [mapping for mapping in map(Mapping.parse, lines[end + 1 :]) if mapping]
    ids = dict(line.split()[1:] for line in lines[1:end] if line.startswith("build_id "))
    known = {mapping.path: ids[start] for mapping in mappings if (start := f"{mapping.start:x}") in ids}
    symbols = Symbols(mappings, known, root)
    functions = dict(_function(line) for line in lines[1:end] if line.startswith("function "))
    sites: dict[tuple[Frame, ...], Figures] = defaultdict(Figures)
    for line in lines[1:end]:
        if line.startswith("site "):
            numbers, _, addresses = line[5:].partition(":")
            raw = dict(zip(head["figures"], map(int, numbers.split()), strict=True))
            stack = [int(word, 16) for word in addresses.split()]
            sites[frames_of(symbols, stack, functions)] += _figures(raw)
    return Profile(
        name,
        int(head["process"][0]),
        int(head["interval_bytes"][0]),
        int(head["elapsed_ms"][0]) / 1000,
        int(head["lost_samples"][0]),
        tuple(Site(frames, figures) for frames, figures in sites.items()),
        peak_s=int(head.get("peak_ms", ["0"])[0]) / 1000,
        strangers=tuple(sorted(symbols.strangers)),
        without_python=" ".join(head.get("without_python", [])),
        program=next((mapping.module for mapping in mappings if mapping.path), name),  # it lies lowest
        most=replace(peak.times(max(most / noted, 1) if noted > 0 else 1), count=peak.count),
        peak_missed_bytes=max(most - noted, 0) + max(most / LOOKS, LEAST_LOOK_BYTES),
        classes=classes,
        began=began,
        identity=" ".join(head.get("identity", [])),
        off_s=int(head.get("off_ms", ["0"])[0]) / 1000,
        is_off="is_off" in head,
        in_runs="had_runs" in head,
        is_whole=lines[-2:] == ["end", ""],
    )


def _classes(head: Mapped[str, Sequence[str]], rows: Iterable[Sequence[str]]) -> tuple[tuple[Counted, ...], Amount]:
    """With what was live when the profile was switched on, and not sampled."""
    large_total, large_memory, large_live, large_peak = map(int, head["large"])
    asked = large_total / large_memory if large_memory else 1  # of what large objects have in pages
    found, interval = [], max(int(head["interval_bytes"][0]), 1)
    page_bytes, began = int(head["page_bytes"][0]), Amount()
    for row in rows:
        block_bytes, total, live, peak, *samples, unsampled, peak_unsampled = map(int, row)
        if block_bytes == 0:
            amounts = (
                Amount(total, large_total),
                _large(live, large_live, asked, page_bytes),
                _large(peak, large_peak, asked, page_bytes),
            )
            found.append(Counted(0, *amounts))
            began += _large(unsampled, int(head["unsampled_large_bytes"][0]), asked, page_bytes)
            continue
        chance = -math.expm1(-block_bytes / interval)
        weight, size, freed_weight, freed_size, peak_weight, peak_size = samples
        sizes = Sizes(block_bytes, chance, weight, size, freed_weight, freed_size, peak_weight, peak_size)
        sizes = replace(sizes, unsampled=math.inf if "is_off" in head else unsampled, peak_unsampled=peak_unsampled)
        found.append(Counted(block_bytes, sizes.of_all(total), sizes.of_live(live), sizes.of_peak(peak), sizes))
        began += sizes.of_unsampled(unsampled)
    return tuple(found), began


def _large(count: int, memory: int, asked: float, page_bytes: int) -> Amount:
    """Of large objects their memory is counted, in pages; what was asked for is as of all of them, and less than a page
    less for each. The error is half of what it may be off by."""
    least = max(memory - count * page_bytes, 0)
    bytes_ = min(max(memory * asked, least), memory)
    return Amount(count, bytes_, (max(memory - bytes_, bytes_ - least) / 2) ** 2)


def _figures(raw: dict[str, int]) -> Figures:
    variance = raw.get("variance", 0)
    return Figures(
        raw["bytes"] - raw["freed_bytes"],
        (raw["weight"] - raw["freed_weight"]) / WEIGHT_ONE,
        raw["bytes"],
        raw["weight"] / WEIGHT_ONE,
        raw["block_bytes"] - raw["freed_block_bytes"],
        raw["samples"],
        raw["samples"] - raw["freed_samples"],
        raw["least_size"],
        raw["largest_size"],
        raw["freed_ms"] / WEIGHT_ONE,
        tuple(raw[f"freed_{name}"] / WEIGHT_ONE for name in LIFETIMES),
        raw.get("peak_bytes", 0),
        raw.get("peak_weight", 0) / WEIGHT_ONE,
        raw.get("temporary_bytes", 0),
        raw.get("temporary_weight", 0) / WEIGHT_ONE,
        (variance - raw.get("freed_variance", 0)) * VARIANCE_UNIT,
        variance * VARIANCE_UNIT,
        raw.get("peak_variance", 0) * VARIANCE_UNIT,
    )


def _function(line: str) -> tuple[int, str]:
    _, number, text = line.split(" ", 2)
    return int(number, 16), text


def frames_of(symbols: Symbols, stack: Sequence[int], functions: Mapped[int, str] = {}) -> tuple[Frame, ...]:
    """Functions of Python stand in place of the interpreter's loop that runs them. `functions` are names and files of
    those that stacks have; without any, what the loop runs is not told."""
    calls = _native_frames(symbols, (word for word in stack if not word & IN_PYTHON))
    runs: list[list[Frame]] = []
    for word in stack:
        if word & IN_PYTHON and functions:
            if word & IS_INNERMOST or not runs:
                runs.append([])
            runs[-1].append(_python_frame(word, functions))
    return _merged(calls, runs)


def _native_frames(symbols: Symbols, addresses: Iterable[int]) -> list[Frame]:
    """Without the allocator's own, and up to the first address that is no code: there the chain led astray. Such ones
    right behind the allocator's are a library's that is gone."""
    frames: list[Frame] = []
    gone = [Frame("", 0, UNLOADED)]
    is_linked_in = not any(mapping.module.startswith(native.LIBRARIES) for mapping in symbols.mappings)
    for returns_to in addresses:
        address = returns_to - 1  # in the call, not behind it
        mapping = symbols.mapping(address)
        if mapping is None:
            if frames not in ([], gone):
                break
            frames = [*gone]
            continue
        name = symbols.name(mapping, address)
        is_own = mapping.module.startswith(native.LIBRARIES) or name in OWN_NAMES or name.startswith("operator new")
        is_own = is_own or (is_linked_in and (name.startswith("hak_") or name.partition(".")[0] in LINKED_IN_NAMES))
        if frames or not is_own:
            frames.append(Frame(mapping.module, address - mapping.start + mapping.offset, name, address, mapping))
    return [] if frames == gone else frames


def _python_frame(word: int, functions: Mapped[int, str]) -> Frame:
    function, line = word >> LINE_BITS & ((1 << FUNCTION_BITS) - 1), word & ((1 << LINE_BITS) - 1)
    name, _, file = functions.get(function, "(unknown function of Python)").partition("\t")
    return Frame(file, line, name, line=line)


def _merged(calls: Iterable[Frame], runs: Iterable[list[Frame]]) -> tuple[Frame, ...]:
    """Runs that no call of the loop is there for, as in an interpreter without symbols, come last."""
    left = iter(runs)
    frames: list[Frame] = []
    for frame in calls:
        run = next(left, None) if frame.name.partition(".")[0] == LOOP else None
        frames += run or [frame]
    return (*frames, *(frame for run in left for frame in run))


def difference(before: Profile, after: Profile) -> Profile:
    """What `after` has more, site by site; sites are the same when their functions' places in files are."""
    same = before.process == after.process and before.identity == after.identity != ""
    if same and after.elapsed_s < before.elapsed_s:
        raise LabError(f"{after.name} is older than {before.name}: expected --diff BEFORE AFTER")
    sites: dict[tuple[Frame, ...], Figures] = defaultdict(Figures)
    for site in after.sites:
        sites[site.frames] += site.figures
    for site in before.sites:
        sites[site.frames] = sites[site.frames].minus(site.figures, shares_samples=same)
    return Profile(
        f"{after.name} minus {before.name}",
        after.process,
        after.interval_bytes,
        after.elapsed_s - before.elapsed_s,
        before.lost_samples + after.lost_samples,
        tuple(Site(frames, figures) for frames, figures in sites.items()),
        after.program,
        _less(after.classes, before.classes, same),
        most=after.most.minus(before.most),
        peak_missed_bytes=math.hypot(before.peak_missed_bytes, after.peak_missed_bytes),
        strangers=tuple(sorted({*before.strangers, *after.strangers})),
        without_python=after.without_python or before.without_python,
        is_difference=True,
        off_s=after.off_s - before.off_s if same else before.off_s + after.off_s,
        is_off=before.is_off or after.is_off,
        in_runs=before.in_runs or after.in_runs,
        is_whole=before.is_whole and after.is_whole,
    )


def _less(after: Iterable[Counted], before: Iterable[Counted], shares_samples: bool) -> tuple[Counted, ...]:
    found = {one.block_bytes: one for one in after}
    for one in before:
        found[one.block_bytes] = found.get(one.block_bytes, Counted(one.block_bytes)).minus(one, shares_samples)
    return tuple(found[size] for size in sorted(found))


def owner(site: Site) -> Frame | None:
    """The function that has called the allocator: in a Python program its own, not the interpreter's."""
    return next((frame for frame in site.frames if frame.line is not None), next(iter(site.frames), None))


def by_function(profile: Profile) -> list[tuple[Frame | None, Figures]]:
    """Sites with the same owner, of Python's functions at the same line; those with most live bytes first."""
    sums: dict[tuple[str, str], Figures] = defaultdict(Figures)
    shown: dict[tuple[str, str], Frame] = {}
    for site in profile.sites:
        frame = owner(site)
        key = (frame.module, frame.label) if frame else ("", "")
        sums[key] += site.figures
        if frame:
            shown[key] = frame
    found = [(shown.get(key), figures) for key, figures in sums.items()]
    return sorted(found, key=lambda item: (-abs(item[1].live_bytes), -abs(item[1].total_bytes)))


def plain(profile: Profile) -> dict[str, object]:
    """As JSON: what was counted, and what functions have by estimate, with standard errors."""
    counted, total, missed = profile.counted, profile.total, profile.peak_missed_bytes
    return {
        "program": profile.program,
        "process": profile.process,
        "is_difference": profile.is_difference,
        "interval_bytes": profile.interval_bytes,
        "elapsed_s": profile.elapsed_s,
        "samples": total.samples,
        "lost_samples": profile.lost_samples,
        "remarks": profile.remarks,
        "live_when_it_began": _plain_amount(profile.began),
        "peak_after_s": profile.peak_s,
        "counted": _plain_counts(counted, missed),
        "by_block_size": [
            {"block_bytes": one.block_bytes or None, **_plain_counts(one, missed)} for one in profile.classes
        ],
        "functions": [_plain_row(frame, found) for frame, found in by_function(profile)],
    }


def _plain_counts(counted: Counted, missed_bytes: float) -> dict[str, dict[str, int]]:
    """The error of the peak has what may have been missed of it."""
    peak = counted.peak.missing(missed_bytes)
    amounts = {"in_all": counted.total, "live": counted.live, "at_the_peak": peak}
    return {name: _plain_amount(one) for name, one in amounts.items()}


def _plain_amount(one: Amount) -> dict[str, int]:
    return {"blocks": round(one.count), "bytes": round(one.bytes), "bytes_error": round(one.error)}


def _plain_row(frame: Frame | None, found: Figures) -> dict[str, object]:
    return {
        "function": frame.name if frame else None,
        "file": frame.module if frame else None,
        "line": frame.line if frame else None,
        "samples": found.samples,
        **{
            f"{name}_{what}": round(getattr(found, f"{name}_{what}"))
            for name in ("live", "total", "peak")
            for what in ("bytes", "error", "count")
        },
        "temporary_bytes": round(found.temporary_bytes),
        "temporary_count": round(found.temporary_count),
    }


def with_samples(rows: Iterable[tuple[Frame | None, Figures]]) -> tuple[list[tuple[Frame | None, Figures]], Figures]:
    """Those that have enough samples to be told from chance, or of which all allocations were sampled; and the sum of
    the others."""
    kept, noise = [], Figures()
    for frame, found in rows:
        if found.samples >= LEAST_SAMPLES or 2 * found.total_error <= abs(found.total_bytes):
            kept.append((frame, found))
        else:
            noise += found
    return kept, noise
