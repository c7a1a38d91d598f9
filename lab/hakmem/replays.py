"""Replays of traces as cases: a trace of the user's, or one that is shipped, under any allocator."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from hakmem import native, suite, trace, words
from hakmem.measure import SameOutput, Sample, Variant

SUFFIX = f".trace{trace.PACKED}"
FULL_EVENTS = 20_000_000  # at least 10 M operations: a realloc is one, of two events
# Figures that no allocator changes, and the one that the trace's tables are in.
OF_THE_TRACE = frozenset({"calls", "turns", "live_peak", "tables", "mean_rss_bytes"})
FIGURES = ("heap_per_live",)  # that a report compares; a record has the others too
LIFETIMES_OPERATIONS = {"full": 100_000_000, "sanity": 1_000_000}
LIFETIMES_FIGURES = ("rss_early", "rss_late", "rss_peak", "over_packed_late")


def shipped() -> dict[str, Path]:
    """The traces that come with hakmem, by name."""
    root = native.checkout()
    folder = root / "bench" / "traces" if root else native.BUNDLED / "traces"
    return {file.name.removesuffix(SUFFIX): file for file in sorted(folder.glob(f"*{SUFFIX}"))}


def listing() -> list[list[str]]:
    """Of each shipped trace what is told beside it."""
    rows = []
    for name, file in shipped().items():
        facts = json.loads(file.with_name(f"{name}.json").read_text())
        live = words.amount(facts["live_peak_bytes"], "B")
        rows.append([name, f"{facts['calls']:,}", str(facts["threads"]), live, facts["package"], facts["does"]])
    return rows


@lru_cache(maxsize=1)
def _work() -> Path:
    """A folder for traces that are packed, gone when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="hakmem-replays-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@dataclass(frozen=True)
class ReplayCase:
    """A trace, gone through by a program of the suite."""

    name: str
    source: str  # the name of a shipped trace, or a file of the machine that it runs on
    program: str
    arguments: tuple[str, ...]  # after the trace's
    same_output: SameOutput = "everywhere"

    @property
    def command(self) -> tuple[str, ...]:
        return (self.program, self.name, *self.arguments)

    def supports(self, variant: Variant) -> bool:
        return True

    def file(self) -> Path:
        """Not packed."""
        return _unpacked(self.source)[0]

    def run(self, variant: Variant) -> Sample:
        sample = suite.BenchCase(self.name, (self.program, str(self.file()), *self.arguments)).run(variant)
        values = {name: of for name, of in sample.values.items() if name not in OF_THE_TRACE}
        values["peak_rss_bytes"] -= sample.values["tables"]  # a trace's are as large as the heap
        return replace(sample, values=values)


@lru_cache
def _unpacked(source: str) -> tuple[Path, int]:
    """The file, not packed, of a sound trace; and how many events it has."""
    known = shipped()
    path = known.get(source) or Path(source)
    if not path.exists():
        raise trace.TraceError(f"{source}: no such file, and no trace of that name: there are {', '.join(known)}")
    data = trace.unpacked(path)
    event_count = trace.parse(data, source).event_count
    file = path.absolute()
    if data != file.read_bytes():
        file = _work() / f"{len(list(_work().iterdir()))}.trace"
        file.write_bytes(data)
    return file, event_count


def cases(names: Iterable[str], size: str = "full", *, lifetimes: bool = False) -> list[ReplayCase]:
    """Each name is a shipped trace's, or else a file's. A file that is no sound trace is an error. With `lifetimes`,
    bench_lifetimes makes a long run of the trace's blocks."""
    found: list[ReplayCase] = []
    for name in dict.fromkeys(names):
        source = name if name in shipped() else str(Path(name).absolute())
        _, event_count = _unpacked(source)
        if lifetimes:
            found.append(ReplayCase(name, source, "bench_lifetimes", (str(LIFETIMES_OPERATIONS[size]), "1")))
            continue
        repeats = -(-FULL_EVENTS // max(1, event_count)) if size == "full" else 1
        found.append(ReplayCase(name, source, "bench_replay", (str(repeats),)))
    return found
