"""The health check: everything runs once, under every profile, and is compared with the C library's run of the same.

Compared are exit status, checksum and everything printed that is no figure: hakmem adds no line of its own. Every
benchmark of the suite at sanity size, larson and remote frees at every thread count, programs that print nothing or
little, and, at full size, the memory that fragmentation leaves behind.

The quick form does all of it with the first profile, and what takes no second with the others. There fragmentation has
a bar that it passes today, and the check says how far that is from the goal.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hakmem import process, settings, suite
from hakmem.allocators import Allocator, glibc
from hakmem.errors import LabError
from hakmem.process import Run
from hakmem.suite import BenchCase

GROUPS = ("silence", "suite", "fragmentation", "threads")
QUICK_GROUPS = ("silence", "threads")
THREADS = (1, 2, 4, 16, 64)
TIMEOUT_S = 60
FRAGMENTATION = "bench_fragment_stress"
# Resident memory at its end, as a multiple of the pages that hold a live block.
FRAGMENTATION_GOAL = 1.5
FRAGMENTATION_TODAY = 2.5

# Programs that print what is known beforehand, on both outputs, and with a status of their own.
SILENT: tuple[tuple[str, ...], ...] = (
    ("true",),
    ("sort", __file__),
    ("ls", "-lR", str(Path(__file__).parent / "inputs")),
    ("sh", "-c", "echo out; echo err >&2; exit 3"),
    (sys.executable, "-c", "print(sum(len(str(number)) for number in range(100000)))"),
)


@dataclass(frozen=True)
class Profile:
    """A way to run hakmem that users are told of."""

    name: str
    settings: dict[str, str] = field(default_factory=dict)


# Of the settings that the library may have, those under which everything has to work as well.
ROWS = (
    Profile("default"),
    Profile("lazy purge", {"HAKMEM_LAZY_PURGE": "1"}),
    Profile("no controller", {"HAKMEM_ACE_ENABLED": "0"}),
    Profile("statistics", {"HAKMEM_STATS": "json:/dev/null"}),
)


@dataclass(frozen=True)
class Check:
    """What was looked at, and what is wrong with it: nothing if it passed. `short`: by what it is short of a goal."""

    profile: str
    group: str
    name: str
    wrong: str | None
    short: str | None
    seconds: float

    @property
    def passed(self) -> bool:
        return self.wrong is None


def profiles(library: Path) -> list[Profile]:
    """Those of the table whose setting the library has, then the named ones of HAKMEM_PROFILE."""
    known = settings.known(library)
    rows = [row for row in ROWS if all(name.removeprefix(settings.PREFIX) in known for name in row.settings)]
    return rows + [Profile(name, {"HAKMEM_PROFILE": name}) for name in _named(library, known)]


def _named(library: Path, known: Sequence[str]) -> list[str]:
    """The library says which names it takes when it is given one that it doesn't."""
    if "PROFILE" not in known:
        return []
    names: list[str] = []
    try:
        settings.parse(["PROFILE=?"], library)
    except LabError as error:
        for word in re.findall(r"[\w-]+", str(error).partition("expected")[2]):
            try:
                settings.parse([f"PROFILE={word}"], library)
                names.append(word)
            except LabError:
                continue
    if not names:
        raise LabError(f"{library} has a setting HAKMEM_PROFILE, and does not say which names it takes")
    return names


def benchmarks() -> list[tuple[str, BenchCase]]:
    """Group and case: the suite, fragmentation at full size, because its figure has a limit, then larson and remote at
    the thread counts that the suite leaves out."""
    found = [("suite", case) for case in suite.resolve(size="sanity") if case.words[0] != FRAGMENTATION]
    found += [("fragmentation", case) for case in suite.resolve() if case.words[0] == FRAGMENTATION]
    for count in THREADS:
        for words in (f"larson 0.1 8 1000 5000 10 4141 {count}", f"bench_remote {count} 0.1 64"):
            case = BenchCase(words.split()[0] + f", {count} threads", tuple(words.split()))
            if case.words not in {known.words for _, known in found}:
                found.append(("threads", case))
    return found


Outcome = tuple[str | None, str | None]  # what is wrong, by what it is short


class Examination:
    """All checks, one after the other; the C library's runs are made once."""

    def __init__(self, hakmem: Allocator, *, quick: bool = False, timeout_s: float = TIMEOUT_S) -> None:
        self.hakmem, self.is_quick, self.timeout_s = hakmem, quick, timeout_s
        self.expected: dict[tuple[str, ...], Run] = {}

    def run(self, profiles: Sequence[Profile], groups: Sequence[str] = GROUPS) -> Iterator[Check]:
        for profile in profiles:
            if self.is_quick and profile is not profiles[0]:
                groups = QUICK_GROUPS
            for words in SILENT if "silence" in groups else ():
                name = os.path.basename(words[0])
                yield self._timed(profile, "silence", name, partial(self._silence, profile, words))
            for group, case in benchmarks():
                if group in groups:
                    yield self._timed(profile, group, case.name, partial(self._benchmark, profile, case))

    def _timed(self, profile: Profile, group: str, name: str, check: Callable[[], Outcome]) -> Check:
        start = time.monotonic()
        try:
            wrong, short = check()
        except LabError as error:
            wrong, short = str(error), None
        return Check(profile.name, group, name, wrong, short, time.monotonic() - start)

    def _both(self, profile: Profile, words: Sequence[str]) -> tuple[Run, Run]:
        key = tuple(words)
        if key not in self.expected:
            self.expected[key] = process.run(words, glibc(), timeout_s=self.timeout_s)
        return self.expected[key], process.run(words, self.hakmem, profile.settings, timeout_s=self.timeout_s)

    def _silence(self, profile: Profile, words: Sequence[str]) -> Outcome:
        expected, found = self._both(profile, words)
        return different(expected, found, lambda printed: printed), None

    def _benchmark(self, profile: Profile, case: BenchCase) -> Outcome:
        expected, found = self._both(profile, case.command)
        if expected.status != 0:
            return f"fails on the C library too: it {_ending(expected)}", None
        limit = FRAGMENTATION_TODAY if self.is_quick else FRAGMENTATION_GOAL
        wrong = different(expected, found, without_figures) or wrong_figures(case, found, limit)
        return wrong, wrong_figures(case, found, FRAGMENTATION_GOAL) if wrong is None else None


def different(expected: Run, found: Run, comparable: Callable[[bytes], bytes]) -> str | None:
    """How a run differs from the C library's; None if it doesn't."""
    if found.status != expected.status:
        return f"it {_ending(found)}, on the C library it {_ending(expected)}"
    outputs = {"output": (found.stdout, expected.stdout), "error output": (found.stderr, expected.stderr)}
    for name, pair in outputs.items():
        ours, theirs = map(comparable, pair)
        if ours != theirs:
            return f"another {name} than on the C library: {_first_difference(ours, theirs)}"
    return None


def without_figures(printed: bytes) -> bytes:
    """What a benchmark prints, with its checksum, but without the figures, which differ from run to run."""
    lines = printed.decode(errors="replace").splitlines()
    kept = (line if line.startswith("checksum") else re.sub(r"-?\d[\d.e+]*", "N", line) for line in lines)
    return "\n".join(line for line in kept if not line.startswith("allocator")).encode()


def wrong_figures(case: BenchCase, found: Run, limit: float) -> str | None:
    """Of the benchmark whose figure has a limit."""
    if case.words[0] != FRAGMENTATION:
        return None
    figures = {match["name"]: float(match["value"]) for match in suite.FIGURE.finditer(found.stdout.decode())}
    if "over_limit_end" not in figures:
        return "printed no figure over_limit_end"
    if figures["over_limit_end"] > limit:
        return f"RSS at the end is {figures['over_limit_end']:.2f} x the page limit, more than {limit} x"
    return None


def _ending(run: Run) -> str:
    said = run.stderr.decode(errors="replace").strip().splitlines()
    return process.ending(run.status) + (f" ({said[-1]})" if said and run.status else "")


def _first_difference(ours: bytes, theirs: bytes) -> str:
    ours_lines, their_lines = ours.decode(errors="replace").splitlines(), theirs.decode(errors="replace").splitlines()
    for number in range(max(len(ours_lines), len(their_lines))):
        pair = [lines[number] if number < len(lines) else "nothing" for lines in (ours_lines, their_lines)]
        if pair[0] != pair[1]:
            return f"{pair[0]!r} for {pair[1]!r}"
    return "line ends"
