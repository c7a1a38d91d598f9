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
from hakmem.measure import Sample, Variant

SUFFIX = f".trace{trace.PACKED}"
FULL_EVENTS = 20_000_000  # at least 10 M operations: a realloc is one, of two events
OF_THE_TRACE = frozenset({"calls", "turns", "live_peak", "tables"})  # figures that no allocator changes
FIGURES = ("heap_per_live",)  # that a report compares; a record has the others too


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
    """A trace, gone through so many times by bench_replay."""

    name: str
    file: Path  # not packed
    repeats: int
    same_output: bool = True

    @property
    def command(self) -> tuple[str, ...]:
        return ("bench_replay", self.name, str(self.repeats))

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        sample = suite.BenchCase(self.name, ("bench_replay", str(self.file), str(self.repeats))).run(variant)
        values = {name: of for name, of in sample.values.items() if name not in OF_THE_TRACE}
        values["peak_rss_bytes"] -= sample.values["tables"]  # a trace's are as large as the heap
        return replace(sample, values=values)


def cases(names: Iterable[str], size: str = "full") -> list[ReplayCase]:
    """Each name is a shipped trace's, or else a file's. A file that is no sound trace is an error."""
    known = shipped()
    found: list[ReplayCase] = []
    for number, name in enumerate(dict.fromkeys(names)):
        path = known.get(name) or Path(name)
        if not path.exists():
            raise trace.TraceError(f"{name}: no such file, and no trace of that name: there are {', '.join(known)}")
        data = trace.unpacked(path)
        event_count = trace.parse(data, name).event_count
        file = path.absolute()
        if path.suffix == trace.PACKED:
            file = _work() / f"{number}.trace"
            file.write_bytes(data)
        repeats = -(-FULL_EVENTS // max(1, event_count)) if size == "full" else 1
        found.append(ReplayCase(name, file, repeats))
    return found
