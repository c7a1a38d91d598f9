"""Who pins memory: resident pages that can't go back to the kernel, by the call sites of the blocks that hold them.

How much that is, is known exactly: hakmem's bitmaps tell of each page which blocks on it are in use. Whose blocks they
are is known for a part of the heap, in which samples lie as blocks do elsewhere (P6 of src/observe/profile.h). Each
page there stands for as many as its samples do, and all pages of a size of blocks for no more than there are. What no
sample stands for is unknown.

    held      a page on which a block in use lies; a large object holds its own pages
    pinned    bytes of held pages that are not in use: a page's are shared by its blocks, in equal parts
    trimmed   what giving all free memory back would free now: resident memory of the heap on pages without such a block
    returned  what becomes free for the kernel when all blocks of some sites are freed: pages that no other block holds
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from hakmem import pprof
from hakmem.profile import WEIGHT_ONE, Frame, frames_of
from hakmem.report.model import Report, Share, Shares, Table
from hakmem.symbols import Mapping as Mapped
from hakmem.symbols import Symbols, nameless
from hakmem.words import amount

if TYPE_CHECKING:  # the model takes its time to import, and most runs have no trace
    from hakmem.placement import Answer

SHOWN = 15  # sites
SHOWN_FRAMES = 3  # functions of a stack that make a site, the innermost first
LARGE = 0  # as a size of blocks: objects with pages of their own
UNKNOWN = Frame("", 0, "(unknown)")
PPROF_TYPES = (("pinned_space", "bytes"), ("held_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes"))

Plain: TypeAlias = dict[str, Any]
Stack: TypeAlias = tuple[Frame, ...]
Key: TypeAlias = tuple[tuple[str, str], ...]  # of a site: files and functions


@dataclass
class Figures:
    """Of a stack or a site; all but `samples` and sizes are estimates."""

    held: float = 0.0
    pinned: float = 0.0
    live_bytes: float = 0.0
    live_blocks: float = 0.0
    samples: int = 0
    sizes: set[int] = field(default_factory=set)  # of blocks, as asked for
    ages: list[tuple[int, float]] = field(default_factory=list)  # ms, and what has it

    def add(self, other: Figures) -> None:
        self.held += other.held
        self.pinned += other.pinned
        self.live_bytes += other.live_bytes
        self.live_blocks += other.live_blocks
        self.samples += other.samples
        self.sizes |= other.sizes
        self.ages += other.ages

    @property
    def median_age_s(self) -> float:
        half, seen = self.live_blocks / 2, 0.0
        for age_ms, weight in sorted(self.ages):
            seen += weight
            if seen >= half:
                return age_ms / 1000
        return 0.0


@dataclass(frozen=True)
class Site:
    key: Key
    figures: Figures
    returned: float  # by it alone
    returned_with: float  # by it and all that stand before it
    pinned_with: float  # by them, on pages that no other site holds


@dataclass(frozen=True)
class Pins:
    pid: int
    name: str
    hakmem: str  # its version
    resident: int
    held: int  # bytes of held pages
    live: int  # bytes of blocks on them
    trimmed: int
    interval_bytes: int  # from run to run of samples; 0: the sampler is off
    elapsed_s: float  # since it is on
    lost_samples: int
    pages: int  # of which it is known whose blocks hold them
    nameless: list[str]  # lines that tell which functions have no names, and why
    stacks: dict[Stack, Figures]
    holders: dict[frozenset[Key], float]  # bytes of pages by all that hold them; UNKNOWN's key for what isn't sampled
    pinned_by: dict[frozenset[Key], float]  # bytes of these pages that are not in use

    @property
    def pinned(self) -> int:
        return self.held - self.live

    @property
    def unknown_pinned(self) -> float:
        return max(self.pinned - sum(one.pinned for one in self.stacks.values()), 0.0)

    @property
    def unknown_held(self) -> float:
        return max(self.held - sum(one.held for one in self.stacks.values()), 0.0)

    def returned(self, keys: Iterable[Key]) -> float:
        """What freeing all blocks of these sites gives back."""
        return _of_subsets(self.holders, keys)

    def sites(self) -> list[Site]:
        """Those that pin most first."""
        sums: dict[Key, Figures] = defaultdict(Figures)
        for stack, figures in self.stacks.items():
            sums[key_of(stack)].add(figures)
        ordered = sorted(sums.items(), key=lambda item: (-item[1].pinned, -item[1].held, item[0]))
        before: list[Key] = []
        found = []
        for key, figures in ordered:
            before.append(key)
            alone, together = self.returned([key]), self.returned(before)
            found.append(Site(key, figures, alone, together, _of_subsets(self.pinned_by, before)))
        return found

    def plain(self) -> Plain:
        return {
            **{name: getattr(self, name) for name in ("pid", "name", "hakmem", "resident", "held", "live")},
            **{name: getattr(self, name) for name in ("pinned", "trimmed")},
            **{name: getattr(self, name) for name in ("interval_bytes", "elapsed_s", "lost_samples", "pages")},
            "unknown_held": round(self.unknown_held),
            "unknown_pinned": round(self.unknown_pinned),
            "sites": [
                {
                    "functions": [name for _, name in site.key],
                    "files": [module for module, _ in site.key],
                    "pinned": round(site.figures.pinned),
                    "held": round(site.figures.held),
                    "live": round(site.figures.live_bytes),
                    "blocks": round(site.figures.live_blocks),
                    "samples": site.figures.samples,
                    "sizes": [min(site.figures.sizes), max(site.figures.sizes)],
                    "median_age_s": site.figures.median_age_s,
                    "returned": round(site.returned),
                    "returned_with_those_before": round(site.returned_with),
                }
                for site in self.sites()
            ],
        }


def key_of(stack: Stack) -> Key:
    """Where a function of Python is among them, from the innermost of those on: the interpreter's own are alike."""
    first = next((i for i, frame in enumerate(stack) if frame.is_of_python), 0)
    return tuple((frame.module, frame.label) for frame in stack[first : first + SHOWN_FRAMES])


# ---- From samples to sites -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Block:
    """A sampled one that is in use."""

    start: int
    bytes: int  # of the block, of which `size` were asked for
    size: int
    stack: Stack
    weight: float
    born_ms: int
    resident: int

    def bytes_on(self, page: int, page_bytes: int) -> int:
        return min(self.start + self.bytes, page + page_bytes) - max(self.start, page)


@dataclass(frozen=True)
class _Page:
    """One that is held, or the pages of a large object."""

    bytes: int
    live: int
    class_bytes: int
    blocks: tuple[_Block, ...]
    strangers: int  # blocks that are not sampled
    weight: float


def pins(measured: Plain) -> Pins:
    """From what `explain --pins` says."""
    profile = measured["profile"] or {}
    began_ms = profile.get("runs_since_ms", 0)
    symbols = _symbols(measured)
    blocks = sorted(_blocks(symbols, profile), key=lambda block: block.start) if began_ms else []
    small = {row["block_bytes"] for row in measured["classes"]}
    pages = [*_pages(measured, [block for block in blocks if block.bytes in small]), *_large(blocks, small)]
    held, live = _totals(measured)
    scale = _scale(pages, lambda page: page.bytes, held)
    pinned = {size: held[size] - live[size] for size in held}
    pinned_scale = _scale(pages, lambda page: page.bytes - page.live, pinned)
    found = Pins(
        measured["pid"],
        measured["name"],
        measured["hakmem"],
        measured["resident"],
        sum(held.values()),
        sum(live.values()),
        _trimmed(measured["causes"], sum(held.values())),
        profile["interval_bytes"] if began_ms else 0,
        (profile["now_ms"] - began_ms) / 1000 if began_ms else 0.0,
        profile.get("lost_samples", 0),
        len(pages),
        nameless(symbols.strangers),
        defaultdict(Figures),
        defaultdict(float),
        defaultdict(float),
    )
    for page in pages:
        _share(found, page, page.weight * scale[page.class_bytes], page.weight * pinned_scale[page.class_bytes])
    for block in {block for page in pages for block in page.blocks}:
        class_bytes = block.bytes if block.bytes in small else LARGE
        weight = block.weight * scale[class_bytes]
        age_ms = profile["now_ms"] - block.born_ms
        found.stacks[block.stack].add(
            Figures(0, 0, block.bytes * weight, weight, 1, {block.size}, [(max(age_ms, 0), weight)])
        )
    return found


def _symbols(measured: Plain) -> Symbols:
    lines = measured["mappings"]
    return Symbols(
        [Mapped(row["start"], row["end"], row["offset"], row["name"], "x" in row["permissions"]) for row in lines],
        {row["name"]: row["build_id"] for row in lines if row.get("build_id")},
        f"/proc/{measured['pid']}/root",
    )


def _blocks(symbols: Symbols, profile: Plain) -> Iterator[_Block]:
    """Samples from before runs were begun lie where no others do, and say nothing of pages."""
    functions = {row["function"]: bytes(row["text"]).decode(errors="replace") for row in profile["functions"]}
    stacks = {row["site"]: frames_of(symbols, row["addresses"], functions) for row in profile["sites"]}
    for row in profile["samples"]:
        if row["born_ms"] >= profile["runs_since_ms"] and row["site"] in stacks:
            yield _Block(
                row["address"],
                row["block_bytes"],
                row["size"],
                stacks[row["site"]],
                row["weight"] / WEIGHT_ONE,
                row["born_ms"],
                row["resident"],
            )


def _pages(measured: Plain, blocks: Sequence[_Block]) -> Iterator[_Page]:
    """Held pages of which a block is sampled."""
    page_bytes = measured["page_bytes"]
    starts = [block.start for block in blocks]
    for row in measured["held"]:
        start, class_bytes = row["address"], row["block_bytes"]
        first = bisect_left(starts, start - class_bytes + 1)
        here = tuple(blocks[first : bisect_left(starts, start + page_bytes)])
        if here:
            strangers = max(row["live_blocks"] - len(here), 0)
            known = sum(block.bytes_on(start, page_bytes) for block in here)
            live = min(known + strangers * class_bytes, page_bytes)
            weight = sum(block.weight for block in here) / len(here)
            yield _Page(page_bytes, live, class_bytes, here, strangers, weight)


def _large(blocks: Sequence[_Block], small: set[int]) -> Iterator[_Page]:
    for block in blocks:
        if block.bytes not in small:
            yield _Page(block.resident, block.resident, LARGE, (block,), 0, block.weight)


def _totals(measured: Plain) -> tuple[dict[int, int], dict[int, int]]:
    """Bytes of held pages by size of blocks, and those of all blocks on them."""
    causes = measured["causes"]
    large = causes["live_runs"] + causes["live_mappings"]
    held, live = defaultdict(int, {LARGE: large}), defaultdict(int, {LARGE: large})
    for row in measured["classes"]:  # plain and sampled ones
        held[row["block_bytes"]] += row["held"]
        live[row["block_bytes"]] += row["live"]
    return held, live


def _trimmed(causes: dict[str, int], held: int) -> int:
    blocks = ("live_small", "live_runs", "live_mappings", "remainders", "free_blocks", "cached")
    others = ("kept_units", "dirty_units", "lazily_freed", "huge_bloat", "large_cache")
    return max(sum(causes[name] for name in blocks) - held, 0) + sum(causes[name] for name in others)


def _scale(pages: Iterable[_Page], measure: Callable[[_Page], int], totals: Mapping[int, int]) -> dict[int, float]:
    """By size of blocks: what makes pages stand for no more than there is."""
    estimated: dict[int, float] = defaultdict(float)
    for page in pages:
        estimated[page.class_bytes] += page.weight * measure(page)
    return {size: min(1.0, totals.get(size, 0) / total) if total else 1.0 for size, total in estimated.items()}


def _share(found: Pins, page: _Page, weight: float, pinned_weight: float) -> None:
    """Gives each of a page's blocks its part, and the page to all of its holders."""
    count = len(page.blocks) + page.strangers
    for block in page.blocks:
        figures = found.stacks[block.stack]
        figures.held += weight * page.bytes / count
        figures.pinned += pinned_weight * (page.bytes - page.live) / count
    holders = {key_of(block.stack) for block in page.blocks}
    if page.strangers:
        holders.add(key_of((UNKNOWN,)))
    found.holders[frozenset(holders)] += weight * page.bytes
    found.pinned_by[frozenset(holders)] += pinned_weight * (page.bytes - page.live)


def _of_subsets(sizes: Mapping[frozenset[Key], float], keys: Iterable[Key]) -> float:
    named = frozenset(keys)
    return sum(size for holders, size in sizes.items() if holders <= named)


# ---- To be shown -----------------------------------------------------------------------------------------------------


def words(key: Key) -> str:
    """The innermost function first."""
    return " < ".join(name[:40] for _, name in key) or "(no stack)"


def report(of: Pins, command: str, date: str = "", *elsewhere: Answer) -> Report:
    """With what a recorded run of it would take elsewhere, if there is one."""
    sites = of.sites()
    size, part = amount(of.pinned, "B"), of.pinned / of.held if of.held else 0.0
    covered = 1 - of.unknown_pinned / of.pinned if of.pinned else 1.0
    shares = [Share(words(site.key), site.figures.pinned, 0) for site in sites[:SHOWN] if site.figures.pinned >= 1]
    rest = sum(site.figures.pinned for site in sites[SHOWN:])
    shares += [Share("other sites", rest, 0)] if rest >= 1 else []
    rows = tuple(_row(site) for site in sites[:SHOWN])
    columns = ("call site", "pinned", "live", "blocks", "of bytes", "age", "freed, returns", "with those above")
    return Report(
        title=f"{of.name} (process {of.pid}) on hakmem {of.hakmem}: who pins its memory",
        command=command,
        sections=(
            Shares("pinned bytes", "B", of.pinned, (*shares, Share("unknown", of.unknown_pinned, 2)), _notes(of)),
            Table("call sites", columns, rows, TABLE_NOTES),
            Table("what would help", ("change", "returns"), tuple(_help(of, sites)), HELP_NOTES),
            *map(_placements, elsewhere),
        ),
        summary=(
            f"{amount(of.held, 'B')} of {amount(of.resident, 'B')} resident are pages with blocks in use: they can't"
            f" go back. {size} of them ({part:.0%}) are not in use: pinned.",
            f"It is known of {covered:.0%} of the pinned bytes whose blocks pin them.",
        ),
        date=date,
    )


TABLE_NOTES = (
    "Estimates, from samples. A page's pinned bytes are shared by its blocks. Age: the median of the blocks in use.",
    "Returned: pages that no block of another site holds, and large objects.",
)


HELP_NOTES = (
    "Giving back: `hakmem ctl PID purge`, or malloc_trim(0). Side by side: what these sites pin on pages that no other"
    " site holds. What other placements would save in a whole run: `--trace`, with a trace of it by `hakmem record`.",
)


def _help(of: Pins, sites: Sequence[Site]) -> Iterator[tuple[str, str]]:
    """For the first site, and for those that together pin nine tenths of what is known."""
    yield "giving all free memory back now", amount(of.trimmed, "B")
    known, seen, count = sum(site.figures.pinned for site in sites), 0.0, 0
    while count < len(sites) and seen < 0.9 * known:
        seen += sites[count].figures.pinned
        count += 1
    for first in sorted({min(count, 1), count} - {0}):
        name = "the first site's blocks" if first == 1 else f"the first {first} sites' blocks"
        last = sites[first - 1]
        yield f"freeing {name} earlier", amount(last.returned_with, "B")
        yield f"{name} side by side, on pages of their own", amount(last.pinned_with, "B")


def _placements(answer: Answer) -> Table:
    """Those that take less at the peak than today's, the best first, and what knows the future."""
    others = [(f"{policy.name}: {policy.does}", each.peak) for policy, each in answer.policies.items()]
    others.append(("packed with hindsight: by who knows when each block will be freed", answer.hindsight.peak))
    saved = sorted(
        ((answer.today.peak - peak, name) for name, peak in others if peak < answer.today.peak), reverse=True
    )
    title = f"what other placements would have saved at the peak, by {answer.trace}"
    rows = tuple((name, amount(size, "B")) for size, name in saved)
    note = f"By a model of hakmem, which takes {amount(answer.today.peak, 'B')} for the trace at its peak."
    return Table(title, ("placement", "saves"), rows, (note,))


def _row(site: Site) -> tuple[str, ...]:
    figures = site.figures
    least, most = min(figures.sizes), max(figures.sizes)
    return (
        words(site.key),
        amount(figures.pinned, "B"),
        amount(figures.live_bytes, "B"),
        f"{figures.live_blocks:,.0f}",
        f"{least:,}" if least == most else f"{least:,}-{most:,}",
        amount(figures.median_age_s, "s"),
        amount(site.returned, "B"),
        amount(site.returned_with, "B"),
    )


def _notes(of: Pins) -> tuple[str, ...]:
    if not of.interval_bytes and not of.elapsed_s:
        return (
            f"Nothing is sampled: `hakmem ctl {of.pid} pins on` begins, and blocks from before stay unknown;"
            " started with HAKMEM_PINS=1, or by `hakmem pins -- COMMAND`, a process is sampled from its start.",
        )
    state = f"one run per {amount(of.interval_bytes, 'B')}" if of.interval_bytes else "now off"
    notes = [
        f"Sampled for {amount(of.elapsed_s, 's')} ({state}); blocks from before are unknown. Pages and large objects of"
        f" which it is known whose they are: {of.pages:,}."
    ]
    if of.unknown_pinned > of.pinned / 2:
        notes.append(
            "Most is unknown. Blocks from before become fewer as the program frees them; a process that is started with"
            " HAKMEM_PINS=1 has none, and a smaller interval knows more of the others."
        )
    notes += of.nameless
    if of.lost_samples:
        notes.append(
            f"{of.lost_samples:,} samples were lost, and count as unknown: a larger interval has room for all."
        )
    return tuple(notes)


def encode(of: Pins) -> bytes:
    """For pprof."""
    return pprof.encode_rows(rows_of(of), PPROF_TYPES, "pinned_space", of.interval_bytes, of.elapsed_s, of.nameless)


def rows_of(of: Pins) -> list[pprof.Row]:
    rows = [
        pprof.Row(
            stack,
            (one.pinned, one.held, one.live_blocks, one.live_bytes),
            one.live_bytes / one.live_blocks if one.live_blocks else 0,
        )
        for stack, one in sorted(of.stacks.items(), key=lambda item: -item[1].pinned)
    ]
    return [*rows, pprof.Row((UNKNOWN,), (of.unknown_pinned, of.unknown_held, 0, 0), 0)]
