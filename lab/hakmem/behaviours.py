"""Behaviours of bench/bench_switching.c as cases: what an operation costs in processor time, the mean and the peak of
resident memory, once a behaviour goes on as it began. They mean something on a machine that has other work, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from hakmem.errors import LabError
from hakmem.measure import SameOutput, Sample, Variant
from hakmem.suite import BenchCase

NAMES = ("hot", "bulk", "handover", "buffers", "growing", "idle")
SECONDS = 0.5  # of a visit: two make a run of full size
VISITS = 2  # the first one touches memory for the first time, and is not looked at


@dataclass(frozen=True)
class BehaviourCase:
    name: str
    seconds: float = SECONDS
    same_output: SameOutput = "everywhere"

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise LabError(f"no behaviour {self.name!r}; there are {', '.join(NAMES)}")

    @property
    def case(self) -> BenchCase:
        return BenchCase(self.name, ("bench_switching", f"{self.seconds:g}", str(VISITS), "1", self.name))

    @property
    def command(self) -> tuple[str, ...]:
        return self.case.command

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        found = self.case.run(variant)
        last = f"{self.name}_{VISITS}"
        figures = {"cost_ns": "cost", "mean_rss_bytes": "rss", "peak_rss_bytes": "peak"}
        values = {name: found.values[f"{figure}_{last}"] for name, figure in figures.items()}
        return Sample(values, found.digest, found.full_size)
