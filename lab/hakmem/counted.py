"""Cases as instruction counts: what a run executes in user mode, counted by valgrind's callgrind.

On a machine whose clock is noisy they decide what time can't: the same work gives the same count but for where things
lie in memory. They say nothing of the kernel, of caches, or of waiting, and a case has a count only if its work is
fixed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import profilers
from hakmem.errors import LabError
from hakmem.measure import Case, CommandCase, SameOutput, Sample, Variant
from hakmem.suite import CLOSING, BenchCase

FULL_SIZE = 1e8  # instructions: what comes before main is less than a hundredth


@dataclass(frozen=True)
class CountedCase:
    case: BenchCase | CommandCase

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def command(self) -> Sequence[str]:
        return self.case.command

    @property
    def same_output(self) -> SameOutput:
        return self.case.same_output

    def supports(self, variant: Variant) -> bool:
        return self.case.supports(variant)

    def run(self, variant: Variant) -> Sample:
        with tempfile.TemporaryDirectory(prefix="hakmem-counted-") as folder:
            found = profilers.count_instructions(self.command, variant.allocator, Path(folder), variant.settings)
        if found.run.status != 0:
            how = f"ended with {found.run.status}" if found.run.status > 0 else "was killed"
            raise LabError(f"{self.command[0]} {how} under callgrind")
        closing = CLOSING.search(found.run.stdout.decode(errors="replace"))
        total = float(sum(spot.count for spot in found.spots))
        digest = closing["checksum"] if closing else found.run.digest()
        return Sample({"instructions": total}, digest, full_size=total >= FULL_SIZE)


def counted(cases: Sequence[Case]) -> list[Case]:
    """The same cases, counted. LabError for one with a client, whose work is not one command's, and for one that goes
    on for a given time, whose work is another in each run."""
    profilers.choose("callgrind")
    made: list[Case] = []
    for case in cases:
        if not isinstance(case, BenchCase | CommandCase):
            raise LabError(f"{case.name}: its instructions can't be counted; benchmarks and commands have counts")
        if isinstance(case, BenchCase) and case.is_timed:
            raise LabError(f"{case.name}: it goes on for a given time, and the count of its instructions says nothing")
        made.append(CountedCase(case))
    return made
