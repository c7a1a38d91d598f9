"""What placement costs: the calls of a trace on a model of hakmem, under several policies, beside what a packer would
need who knows the future. docs/placement.md is the reader's guide."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hakmem import allocators, calls, measure, packing, trace
from hakmem.calls import Call
from hakmem.errors import LabError, NegativeError
from hakmem.model.memory import Resident
from hakmem.model.policy import POLICIES, TODAY, Policy
from hakmem.model.program import Program
from hakmem.replays import ReplayCase
from hakmem.suite import BenchCase
from hakmem.trace import Kind, Trace, TraceError
from hakmem.words import amount, table

RUNS = 3  # of each replay that is measured
LOOKS = 1000  # at the memory of each
MOST_OFF = 0.05  # of the model, where it is checked


@dataclass(frozen=True)
class Check:
    """Peaks of looks, in bytes: at a replay on hakmem, without the replayer's own part, and at the model."""

    measured: int
    modelled: int

    @property
    def ratio(self) -> float:
        return self.modelled / self.measured


@dataclass(frozen=True)
class Answer:
    """About one trace."""

    trace: str
    call_count: int
    thread_count: int
    least: Resident
    hindsight: Resident
    policies: dict[Policy, Resident]  # today's first
    check: Check | None

    @property
    def today(self) -> Resident:
        return self.policies[TODAY]

    def plain(self) -> dict[str, Any]:
        rows = [
            {"name": policy.name, "does": policy.does, **_plain(resident)} for policy, resident in self.policies.items()
        ]
        return {
            "trace": self.trace,
            "calls": self.call_count,
            "threads": self.thread_count,
            "least": _plain(self.least),
            "hindsight": _plain(self.hindsight),
            "policies": rows,
            "check": self.check and {"measured_bytes": self.check.measured, "modelled_bytes": self.check.modelled},
        }

    def text(self) -> str:
        threads = "1 thread" if self.thread_count == 1 else f"{self.thread_count} threads"
        rows = [(f"{policy.name}: {policy.does}", resident) for policy, resident in self.policies.items()]
        rows += [("packed with hindsight", self.hindsight), ("the least that blocks need", self.least)]
        lines = [
            [
                name,
                amount(resident.peak, "B"),
                f"{resident.peak / self.today.peak:.3f}",
                amount(resident.end, "B"),
            ]
            for name, resident in rows
        ]
        text = f"{self.trace}: {self.call_count:,} calls, {threads}\n"
        text += table(["policy", "peak", "to today's", "at the end"], lines)
        if self.check:
            measured, modelled = amount(self.check.measured, "B"), amount(self.check.modelled, "B")
            text += f"\ncheck: at the most {measured} on hakmem in {LOOKS:,} looks, {modelled} in the model"
            text += f" ({self.check.ratio:.3f})"
        return text


def _plain(resident: Resident) -> dict[str, int]:
    return {"peak_bytes": resident.peak, "end_bytes": resident.end}


def choose(names: Iterable[str]) -> list[Policy]:
    """Policies by name, in the order of POLICIES, today's first; all without names."""
    wanted = {name.strip() for word in names for name in word.split(",")}
    known = {policy.name: policy for policy in POLICIES}
    for name in sorted(wanted - known.keys()):
        raise LabError(f"no policy {name!r}; there are {', '.join(known)}")
    return [policy for policy in POLICIES if not wanted or policy is TODAY or policy.name in wanted]


def answer(
    case: ReplayCase, policies: Sequence[Policy], *, check: bool, tell: Callable[[str], None] = lambda text: None
) -> Answer:
    recorded = trace.parse(case.file().read_bytes(), case.name)
    try:
        made = calls.of_trace(recorded)
    except TraceError as error:
        raise TraceError(f"{case.name}: {error}") from None
    peaks = {}
    for policy in policies:
        tell(f"placing {len(made):,} calls by {policy.name}")
        peaks[policy] = Program(policy).make(made)
    tell("packing blocks as if the future were known")
    least, hindsight = packing.least(made), packing.with_hindsight(made)
    if check:
        tell(f"replaying {case.name}")
    checked = _check(recorded, made) if check else None
    return Answer(case.name, len(made), recorded.thread_count, least, hindsight, peaks, checked)


def expect_agreement(answers: Iterable[Answer]) -> None:
    """NegativeError where the model of today's policy is too far from what was measured."""
    for found in answers:
        if found.check and abs(found.check.ratio - 1) > MOST_OFF:
            raise NegativeError(f"{found.trace}: the model is off by more than {MOST_OFF:.0%}")


# ---- Measuring ------------------------------------------------------------------------------------------------------


def _check(recorded: Trace, made: list[Call]) -> Check:
    """The replayer's own part, its threads' stacks, is what a replay of a block for each thread takes beyond the model
    of that."""
    smallest = trace.parse(_a_block_each(recorded.thread_count), "a block each")
    own = _measured(smallest, 1) - _modelled(calls.of_trace(smallest), 1)
    look_every = -(-recorded.event_count // LOOKS)
    return Check(_measured(recorded, look_every) - own, _modelled(made, look_every))


def _modelled(made: list[Call], look_every: int) -> int:
    """The witness of a run asks for a byte first and frees it. Where runs of pages lie then depends on that slab."""
    first, block = made[0].thread, max(call.block for call in made) + 1
    program = Program(TODAY)
    program.make([Call(first, 0, block, 1), Call(first, block, 0)])
    return program.make(made, look_every).peak


def _a_block_each(thread_count: int) -> bytes:
    """All of them alive at a time, with stacks and heaps of their own."""
    writer = trace.Writer()
    for thread in range(thread_count):
        writer.event(thread, Kind.MALLOC, thread + 1, 16)
    for thread in range(thread_count):
        writer.event(thread, Kind.FREE, thread + 1)
    return writer.finish(thread_count=thread_count)


def _measured(recorded: Trace, look_every: int) -> int:
    """The most anonymous memory at a look."""
    (variant,) = measure.variants(allocators.resolve(("hakmem",)))
    with tempfile.NamedTemporaryFile(prefix="hakmem-placement-", suffix=".trace") as file:
        file.write(trace.pack(recorded))
        file.flush()
        replay = BenchCase("replay", ("bench_replay", file.name, "1", str(look_every)))
        samples = [replay.run(variant).values for _ in range(RUNS)]
    if not all("anonymous_peak" in values for values in samples):
        raise LabError("this kernel doesn't tell how much memory is anonymous: --check can't be done here")
    return round(statistics.median(values["anonymous_peak"] for values in samples))
