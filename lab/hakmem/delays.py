"""What a command's calls of malloc cost it: how many there are and how long they take, by size; and how much of a delay
of known length reaches the clock on the wall. lab/native/delay.c counts, times and delays."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path

from hakmem import native, process
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import CommandCase, Measurement, SameOutput, Sample, Variant, values_of

# As in delay.c.
CLASSES = 48
CLOCK_READS = 1000
LINE_WORDS = -(-(3 * (CLASSES + 1) + 2) // 8) * 8
HEAD_WORDS = 8

PLAIN, COUNTED = "plain", "counted"
DELAYED = ("malloc", "free", "touch")
EVENTS = {"malloc": "allocations", "free": "frees", "touch": "pages"}  # that each is a delay of
UNITS = {"allocations": "calls", "frees": "calls", "pages": "pages", "waited_s": "s", "malloc_s": "s", "free_s": "s"}
SHARE = 0.15  # of the time that it takes without, that a delay is to add
SHORTEST_NS, LONGEST_NS = 50, 1_000_000  # of a delay
LEAST_SHARE = 0.02  # of the time, added by a delay; less tells nothing of how much of it arrives
LEAST_ARRIVES, MOST_ARRIVES = -0.2, 1.5  # of a delay; beyond, rounds differ by other things than the delay


@dataclass(frozen=True)
class Tally:
    count: int
    seconds: float  # that all of them took, from those that were timed


@dataclass(frozen=True)
class Counts:
    """Of all processes of a run."""

    sizes: Mapping[int, Tally]  # by the largest size of a class
    frees: Tally
    pages: int  # that were handed out for the first time
    waited_s: float

    @property
    def allocations(self) -> int:
        return sum(of.count for of in self.sizes.values())

    @property
    def calls(self) -> int:
        return self.allocations + self.frees.count

    def values(self) -> dict[str, float]:
        return {
            "allocations": self.allocations,
            "frees": self.frees.count,
            "pages": self.pages,
            "waited_s": self.waited_s,
            "malloc_s": sum(of.seconds for of in self.sizes.values()),
            "free_s": self.frees.seconds,
        }


def read(data: bytes) -> Counts | None:
    """From the file of delay.c; None where it has not been used."""
    words = struct.unpack(f"<{len(data) // 8}Q", data)
    if not words or words[0] == 0:
        return None
    lines = zip(*[iter(words[HEAD_WORDS:])] * LINE_WORDS, strict=True)
    sums = [sum(column) for column in zip(*lines, strict=True)]
    clock_s = words[1] / CLOCK_READS / 1e9

    def tally(place: int) -> Tally:
        count, timed_count, timed_ns = sums[place : place + 3]
        mean_s = max(0.0, timed_ns / 1e9 / timed_count - clock_s) if timed_count else 0.0
        return Tally(count, count * mean_s)

    sizes = {1 << number: tally(3 * number) for number in range(CLASSES)}
    last = 3 * (CLASSES + 1)
    return Counts(
        {size: of for size, of in sizes.items() if of.count},
        tally(3 * CLASSES),
        sums[last],
        sums[last + 1] / 1e9,
    )


@dataclass(frozen=True)
class DelayedCase:
    """A command, as it is under the variant PLAIN; under others counted, and delayed by as many nanoseconds as their
    settings say."""

    case: CommandCase
    same_output: SameOutput = "nowhere"

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def command(self) -> Sequence[str]:
        return self.case.command

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        return self.case.run(variant) if variant.name == PLAIN else self.counted(variant)[0]

    def counted(self, variant: Variant) -> tuple[Sample, Counts]:
        with tempfile.NamedTemporaryFile(prefix="hakmem-delays-") as file:
            Path(file.name).chmod(0o666)  # a server may go on as somebody else
            delays = ":".join(variant.settings.get(name, "0") for name in DELAYED)
            run = process.run(
                self.command,
                variant.allocator,
                {"HAK_DELAY": f"{delays}:{file.name}"},
                timeout_s=self.case.timeout_s,
                before=native.helper("delay.so"),
            )
            found = read(Path(file.name).read_bytes())
        self.case.expect_success(run)
        if found is None:
            raise LabError(f"{self.command[0]} asked its allocator for nothing, or has no address space left to count")
        values = {**values_of(run), **found.values()}
        unseen = run.without_proof("its calls are not counted")
        return Sample(values, run.digest(), full_size=run.wall_s >= 1, units=UNITS, remarks=unseen), found


def variants(allocator: Allocator, pilot: Sample) -> list[Variant]:
    """Of a command that ran like that when it was counted. A delay is as long as adds a share to its time."""
    made = [Variant(PLAIN, allocator), Variant(COUNTED, allocator)]
    for name in DELAYED:
        count = pilot.values[EVENTS[name]]
        if count:
            delay_ns = SHARE * pilot.values["wall_s"] / count * 1e9
            bounded = round(min(max(delay_ns, SHORTEST_NS), LONGEST_NS))
            made.append(Variant(name, allocator, {name: str(bounded)}))
    return made


def sensitivity(of: Measurement, name: str, rounds: Sequence[int]) -> float | None:
    """The share of a delay that reaches the clock on the wall, from the fastest of these rounds. None where it
    can't be told: the delay was too short beside the whole time, or the rounds differ by more than it can explain."""
    by_variant = of.samples[of.cases[0].name]
    if not by_variant.get(name):
        return None
    slow, counted = (
        min((by_variant[one][number].values for number in rounds), key=itemgetter("wall_s")) for one in (name, COUNTED)
    )
    waited_s = slow["waited_s"] - counted["waited_s"]
    if waited_s < LEAST_SHARE * counted["wall_s"]:
        return None
    share = (slow["wall_s"] - counted["wall_s"]) / waited_s
    return share if LEAST_ARRIVES <= share <= MOST_ARRIVES else None
