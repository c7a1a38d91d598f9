"""Interleaved measurement: every case under every variant makes a round, so that what drifts on the machine drifts
for all.

The order of variants changes from round to round and from case to case, so that each comes after each other one equally
often: what a run leaves behind (pages that the kernel or the machine below it has to clear or not, a warm file) is
there for the next. A variant that fails a case is not asked again;
the others go on. Ctrl-C ends the measurement after the last whole round, whose figures are kept. Nothing here knows
what a case is: a command, a benchmark program, a server with its client. Nor where a round runs: a Place runs each of
them whole, on one machine, so that what two machines differ in stands on both sides of a ratio.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from hakmem import process, tree
from hakmem.allocators import SYSTEM, Allocator
from hakmem.errors import InterruptedEarly, LabError
from hakmem.processor_time import processor_time

if TYPE_CHECKING:  # msgspec is in the laboratory's environment only; tests of programs have no more than Python
    from hakmem.machine import Machine


@dataclass(frozen=True)
class Metric:
    """What a value is. Names of values in samples, series and records are the names of the table below."""

    name: str
    title: str
    unit: str
    less_is_better: bool = True


METRICS = {
    metric.name: metric
    for metric in (
        Metric("wall_s", "wall time", "s"),
        Metric("cpu_s", "CPU time", "s"),
        Metric("user_s", "CPU time in user mode", "s"),
        Metric("system_s", "CPU time in the kernel", "s"),
        Metric("peak_rss_bytes", "peak RSS", "B"),
        Metric("end_rss_bytes", "RSS of the first process at its end", "B"),
        Metric("idle_bytes", "memory after idling (PSS of all processes)", "B"),
        Metric("rest_anonymous_bytes", "anonymous memory after a rest (all processes)", "B"),
        Metric("peak_anonymous_bytes", "peak of anonymous memory (all processes)", "B"),
        Metric("mean_anonymous_bytes", "mean anonymous memory at work (all processes)", "B"),
        Metric("end_anonymous_bytes", "anonymous memory at the end of the work (all processes)", "B"),
        Metric("trimmed_rss_bytes", "RSS of the first process after a trim at its end", "B"),
        Metric("minor_faults", "page faults", "faults"),
        Metric("major_faults", "major page faults", "faults"),
        Metric("operations_per_s", "throughput", "1/s", less_is_better=False),
        Metric("instructions", "instructions in user mode", "instructions"),
        Metric("p99_s", "99th percentile of the latency", "s"),
        Metric("cold_s", "time from a cold start", "s"),
        Metric("threads", "threads of the first process at its end", "threads"),
        Metric("system_calls", "system calls", "calls"),
        Metric("measured_s", "time of the measured part", "s"),
        Metric("cost_ns", "CPU time of an operation", "ns"),
        Metric("cost_again_ns", "CPU time of an operation from the second visit on", "ns"),
        Metric("cost_first_ns", "CPU time of an operation in the first visit", "ns"),
        Metric("excursion_s", "time from a candidate's first period to its end", "s"),
        Metric("mean_rss_bytes", "mean RSS of the first process", "B"),
    )
}


LEAST_WORK = 0.1  # CPU time of a command, as a share of its time
CEILING = "ceiling"  # the variant that is no allocator to compare with: it shows how much of a case is the case


PRINTED = "printed the same"  # in a note on outputs that differ
VARYING = f"not every run {PRINTED}"

SameOutput = Literal["everywhere", "on a machine", "nowhere"]


@dataclass(frozen=True)
class Variant:
    """An allocator with settings of its own."""

    name: str
    allocator: Allocator
    settings: Mapping[str, str] = field(default_factory=dict)


def variants(allocators: Sequence[Allocator]) -> list[Variant]:
    """One of each, under names that differ: the second glibc is called `glibc #2`."""
    made: list[Variant] = []
    for allocator in allocators:
        count = sum(variant.allocator.name == allocator.name for variant in made)
        made.append(Variant(f"{allocator.name} #{count + 1}" if count else allocator.name, allocator))
    return made


def expect_baseline(wanted: str | None, among: Sequence[Variant]) -> None:
    """LabError before anything is run: no report could be made of it."""
    names = [variant.name for variant in among]
    if wanted is not None and wanted not in names:
        raise LabError(f"--baseline {wanted}: not among {', '.join(names)}")


@dataclass(frozen=True)
class Sample:
    """One run of one case under one variant. `values` has names of METRICS, and names of a benchmark's own figures,
    whose units stand in `units`."""

    values: Mapping[str, float]
    digest: str  # of what it printed or computed; equal for equal work
    full_size: bool  # >= 1 s or >= 10 M operations
    units: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()  # on what the values are of


class Case(Protocol):
    """Something that can be run under a variant. Raises LabError when that run can't count."""

    @property
    def name(self) -> str: ...

    @property
    def command(self) -> Sequence[str]: ...

    @property
    def same_output(self) -> SameOutput:
        """Where a digest that differs is a failure: a checksum's everywhere, a program's on a machine, as another one
        may have another version of it. Elsewhere it is worth a note."""
        ...

    def supports(self, variant: Variant) -> bool:
        """False: it is not run under this variant, which is no failure."""
        ...

    def run(self, variant: Variant) -> Sample: ...


@dataclass(frozen=True)
class Failure:
    case: str
    variant: str
    round: int  # from 1; 0 is the warm-up
    reason: str


@dataclass
class Measurement:
    cases: list[Case]
    variants: list[Variant]
    rounds: int = 0  # whole ones
    asked: int = 0  # so many were to be
    interrupted: bool = False  # somebody ended it, no machine was left, or there was no room
    no_room: OSError | None = None  # why it was interrupted; None: by one of the others
    blocks: list[str] = field(default_factory=list)  # the machine of each round
    machines: dict[str, Machine] = field(default_factory=dict)  # others than this: by name, before its first round
    load_at_end: tuple[float, float, float] = (0, 0, 0)
    others_busy: float | None = None  # how many processors others had, on average; None: unknown
    samples: dict[str, dict[str, list[Sample]]] = field(default_factory=dict)  # by case, by variant, by round
    failures: list[Failure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    tree: tuple[str | None, bool | None] = field(default_factory=lambda: tree.checked_out())  # at the beginning
    is_built: bool = field(default_factory=lambda: tree.is_built())  # from the tree, at the beginning
    hashes: dict[str, str | None] = field(default_factory=dict)  # of the variants' libraries, at the beginning

    def values(self, case: str, variant: str, metric: str) -> list[float]:
        """By round. Empty where a round has none: values of different rounds are not to be paired."""
        samples = self.samples[case][variant]
        return [sample.values[metric] for sample in samples] if all(metric in one.values for one in samples) else []

    def metrics(self) -> list[str]:
        """Those that any sample has, in the order of METRICS, then a benchmark's own."""
        seen = {
            name
            for by_variant in self.samples.values()
            for some in by_variant.values()
            for s in some
            for name in s.values
        }
        return [name for name in METRICS if name in seen] + sorted(seen - METRICS.keys())

    def expect_whole(self) -> None:
        """For who can't do with fewer rounds: raises what interrupted them."""
        if self.interrupted:
            raise self.no_room or KeyboardInterrupt

    def short_cases(self) -> list[str]:
        """Those of which a run was not of full size."""
        return [
            name
            for name, by_variant in self.samples.items()
            if not all(sample.full_size for samples in by_variant.values() for sample in samples)
        ]


@dataclass(frozen=True)
class Step:
    """Where a measurement is, before each run."""

    number: int  # of runs, from 1
    count: int
    round: int  # 0: warm-up
    rounds: int
    case: str
    variant: str


def values_of(run: process.Run, operations: float = 0) -> dict[str, float]:
    """A run's figures under their names in METRICS. `operations` are what it has done, if it did as many as it could in
    a given time: then its CPU time says nothing, but what one of them took does."""
    root = run.root()
    values: dict[str, float] = {
        "wall_s": run.wall_s,
        "cpu_s": run.user_s + run.system_s,
        "user_s": run.user_s,
        "system_s": run.system_s,
        "peak_rss_bytes": run.peak_rss_bytes,
        "minor_faults": run.minor_faults,
        "major_faults": run.major_faults,
    }
    if operations:
        values["cost_ns"] = values["cpu_s"] * 1e9 / operations
    if run.mean_rss_bytes is not None:
        values["mean_rss_bytes"] = run.mean_rss_bytes
    if root is not None and root.end_rss_bytes is not None:
        values["end_rss_bytes"] = root.end_rss_bytes
    return values


WAITED = (
    "it used the processor for less than a tenth of its time: if a server or a container that it did not start did the "
    "work, only the time shows that"
)


def waited(run: process.Run) -> bool:
    """Whether a run that lasted did next to nothing itself. Of a client nobody learns what its server would gain."""
    return run.wall_s >= 1 and run.user_s + run.system_s < LEAST_WORK * run.wall_s


@dataclass(frozen=True)
class CommandCase:
    """A command of the user's."""

    command: tuple[str, ...]
    timeout_s: float | None = None
    same_output: SameOutput = "nowhere"

    @property
    def name(self) -> str:
        return " ".join(self.command)

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        run = process.run(self.command, variant.allocator, variant.settings, timeout_s=self.timeout_s)
        self.expect_success(run)
        remarks = (*run.remarks(variant.allocator), *([WAITED] if waited(run) else []))
        return Sample(values_of(run), run.digest(), full_size=run.wall_s >= 1, remarks=remarks)

    def expect_success(self, run: process.Run) -> None:
        if run.status != 0:
            raise LabError(run.how_it_ended(self.command[0]))


def order_of(turn: int, count: int) -> list[int]:
    """The numbers below `count` in the order of this turn. In `count` turns, twice as many if it is odd, each is in
    each place and after each other one equally often: E. J. Williams, Experimental designs balanced for the estimation
    of residual effects of treatments (1949)."""
    zigzag = [(number + 1) // 2 if number % 2 else -number // 2 for number in range(count)]
    row = [(number + turn) % count for number in zigzag]
    return row[::-1] if count % 2 and turn % 2 else row


@dataclass(frozen=True)
class Turn:
    """A round that is to be run: every case under every variant."""

    number: int  # of the rounds that its machine runs, from 0: the order of the variants follows from it
    begun: int  # rounds that were begun before it, on all machines
    round: int  # from 1; 0: warm-up
    cases: Sequence[Case]
    variants: Sequence[Variant]
    left_out: frozenset[tuple[str, str]] = frozenset()  # cases with variants that have failed


@dataclass(frozen=True)
class Outcome:
    """Of a round, with what its machine was like after it, and, of another machine than this, before."""

    samples: list[tuple[str, str, Sample]]  # by case and variant
    failures: list[Failure]
    load_at_end: tuple[float, float, float]
    machine: Machine | None = None


class TurnInterrupted(KeyboardInterrupt):
    """Ctrl-C came amid a round. `outcome` has the cases that had run under all variants by then."""

    def __init__(self, turn: Turn, outcome: Outcome) -> None:
        super().__init__()
        self.turn, self.outcome = turn, outcome


OnRun = Callable[[Turn, int, str, str], None]  # before a run: its number within the round, the case, the variant


def run_turn(turn: Turn, on_run: OnRun = lambda turn, number, case, variant: None) -> Outcome:
    """On this machine. PolicyError ends it: with defaults in place of a policy nothing is compared."""
    samples: list[tuple[str, str, Sample]] = []
    failures: list[Failure] = []
    number = 0
    for index, case in enumerate(turn.cases):
        of_case: list[tuple[str, str, Sample]] = []
        for place in order_of(turn.number + index, len(turn.variants)):
            variant = turn.variants[place]
            number += 1
            if (case.name, variant.name) in turn.left_out or not case.supports(variant):
                continue
            try:
                on_run(turn, number, case.name, variant.name)
                of_case.append((case.name, variant.name, case.run(variant)))
            except process.PolicyError:
                raise
            except LabError as error:
                failures.append(Failure(case.name, variant.name, turn.round, str(error)))
            except KeyboardInterrupt:
                raise TurnInterrupted(turn, Outcome(samples, failures, os.getloadavg())) from None
        samples += of_case
    return Outcome(samples, failures, os.getloadavg())


@dataclass(frozen=True)
class Done:
    machine: str
    turn: Turn
    outcome: Outcome | None  # None: the machine was lost before the end of the round


class Place(Protocol):
    """Where rounds run: on this machine, or on others."""

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        """Whenever a machine is free, asks for the next round of the one of that name. Ends when there is none for any
        of them and all have come back."""
        ...


HERE = "here"


class Here:
    """One round after the other on this machine."""

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        while (turn := next_turn(HERE)) is not None:
            yield Done(HERE, turn, run_turn(turn, on_run))


def measure(
    cases: Sequence[Case],
    variants: Sequence[Variant],
    rounds: int,
    *,
    warmup: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
    place: Place | None = None,
    keeps_parts: bool = False,
) -> Measurement:
    """Runs every case under every variant `warmup` times uncounted on each machine, then `rounds` times in all. A round
    that is lost is run again. So is one of which nothing succeeds, and its machine is left out. At least one variant of
    one case must succeed in one whole round, else LabError. Where no machine is left, or this one has no room left,
    whole rounds are kept, as they are when it is asked to end. Where that is in the first one, `keeps_parts` keeps the
    cases that have run under all variants by then, or those of the warm-up if they are more."""
    result = Measurement(list(cases), list(variants), asked=rounds)
    result.hashes = {variant.name: variant.allocator.sha256() for variant in variants}
    result.samples = {case.name: {variant.name: [] for variant in variants} for case in cases}
    failed: set[tuple[str, str]] = set()
    own: Counter[str] = Counter()  # rounds that each machine has begun
    unable: dict[str, list[Failure]] = {}  # machines on which nothing of a round has succeeded, with what failed
    latest: tuple[Done, list[Failure]] | None = None  # the last whole round, with what failed in it for the first time
    begun = counted = 0
    parts: list[TurnInterrupted] = []  # what there is in place of a whole round

    def next_turn(name: str) -> Turn | None:
        nonlocal begun, counted
        is_warmup = own[name] < warmup
        if counted == rounds or name in unable:
            return None
        counted += not is_warmup
        turn = Turn(own[name], begun, 0 if is_warmup else counted, result.cases, result.variants, frozenset(failed))
        own[name] += 1
        begun += 1
        return turn

    def on_run(turn: Turn, number: int, case: str, variant: str) -> None:
        of_round = len(cases) * len(variants)
        count = (warmup * max(1, len(own)) + rounds) * of_round
        on_step(Step(turn.begun * of_round + number, count, turn.round, rounds, case, variant))

    def take_back(outcome: Outcome, failures: list[Failure]) -> None:
        """A round amid which something broke: what had succeeded until then has failed by that."""
        nonlocal counted, latest
        for failure in failures:
            failed.remove((failure.case, failure.variant))
            result.failures.remove(failure)
        for case, variant, _ in outcome.samples:
            result.samples[case][variant].pop()
        result.blocks.pop()
        result.rounds -= 1
        counted -= 1
        latest = None

    def keep_part(turn: Turn, outcome: Outcome) -> None:
        """Of the first round, in place of a whole one."""
        finished = {case for case, _, _ in outcome.samples}
        which = f"round {turn.round}" if turn.round else "the warm-up"
        result.notes.append(f"interrupted in {which}: {len(finished)} of {len(cases)} cases were finished, once each")
        result.cases = [case for case in cases if case.name in finished]
        result.samples = {name: runs for name, runs in result.samples.items() if name in finished}
        for case, variant, sample in outcome.samples:
            result.samples[case][variant].append(sample)
        result.failures += [failure for failure in outcome.failures if failure.case in finished]
        result.blocks.append(HERE)
        result.rounds = 1

    def take(done: Done) -> None:
        nonlocal counted, latest
        if done.outcome is None:
            counted -= done.turn.round > 0
            result.notes.append(f"a round was lost with the machine {done.machine}")
            return
        if done.outcome.failures and not done.outcome.samples:
            counted -= done.turn.round > 0
            unable[done.machine] = done.outcome.failures
            if latest and latest[0].machine == done.machine and latest[0].outcome and latest[1]:
                if all(result.samples[failure.case][failure.variant] for failure in latest[1]):
                    unable[done.machine] = [*latest[1], *done.outcome.failures]
                    take_back(latest[0].outcome, latest[1])
            if done.machine != HERE:
                result.notes.append(f"{done.machine} was left out: {done.outcome.failures[0].reason}")
            return
        if done.turn.round > 0 and done.turn.left_out - failed:  # it lacks what was taken back since it was begun
            counted -= 1
            return
        if done.outcome.machine:
            result.machines.setdefault(done.machine, done.outcome.machine)
        result.load_at_end = done.outcome.load_at_end
        first = [one for one in done.outcome.failures if (one.case, one.variant) not in failed]
        failed.update((one.case, one.variant) for one in first)
        result.failures += first
        if done.turn.round == 0:
            parts.append(TurnInterrupted(done.turn, done.outcome))
        else:
            latest = done, first
            for case_name, variant_name, sample in done.outcome.samples:
                result.samples[case_name][variant_name].append(sample)
            result.blocks.append(done.machine)
            result.rounds += 1

    start = processor_time() if place is None or isinstance(place, Here) else None
    try:
        for done in (place or Here()).run(next_turn, on_run):
            with process.interrupted_later():
                take(done)
        if result.rounds < rounds:
            result.failures += [failure for failures in unable.values() for failure in failures]
            why = "nothing of the next one has succeeded" if HERE in unable else "no machine was left"
            result.notes.append(f"{result.rounds} of {rounds} rounds: {why}")
            result.interrupted = HERE not in unable and result.rounds > 0
    except KeyboardInterrupt as end:
        result.interrupted = True
        if isinstance(end, TurnInterrupted):
            parts.append(end)
        most = max(parts, key=lambda part: len(part.outcome.samples), default=None)
        if keeps_parts and not result.rounds and most and most.outcome.samples:
            keep_part(most.turn, most.outcome)
    except OSError as error:
        if not result.rounds:
            raise
        result.interrupted, result.no_room = True, error
        result.notes.append(f"{result.rounds} of {rounds} rounds: {error.strerror or error}")
    if start and (finish := processor_time()):
        result.others_busy = finish.others_since(start)
    for case_name, variant_name in failed:  # what failed half-way has no figure
        result.samples[case_name][variant_name].clear()
    result.notes += _remarks(result)
    _compare_digests(result)
    if not any(some for by_variant in result.samples.values() for some in by_variant.values()):
        if result.interrupted:
            raise InterruptedEarly("interrupted before the first whole round; nothing to keep")
        raise LabError(_all_failed(result.failures))
    return result


def _all_failed(failures: Sequence[Failure]) -> str:
    """The first reason, with all to whom it applies: what fails under each is no fault of one."""
    if not failures:
        return "no machine has run a whole round; nothing to keep"
    first = failures[0]
    alike = [one.variant for one in failures if (one.case, one.reason) == (first.case, first.reason)]
    return f"{first.case} under {', '.join(alike)}: {first.reason}"


def _remarks(result: Measurement) -> list[str]:
    """Of all samples, each once."""
    found = (
        f"{case}: {remark}"
        for case, by_variant in result.samples.items()
        for samples in by_variant.values()
        for sample in samples
        for remark in sample.remarks
    )
    return list(dict.fromkeys(found))


def _compare_digests(result: Measurement) -> None:
    """Equal work has equal results under every allocator."""
    machines = list(dict.fromkeys(result.blocks))
    for case in result.cases:
        every = {
            name: list(zip(result.blocks, (sample.digest for sample in samples), strict=True))
            for name, samples in result.samples[case.name].items()
            if samples
        }
        everywhere = [digest for own in every.values() for _, digest in own]
        usual: set[str] = set()
        notes: list[str] = []
        for among in [machines] if case.same_output == "everywhere" else [[machine] for machine in machines]:
            left = {name: own for name, own in every.items() if result.samples[case.name][name]}
            found = {name: [one for one in own if one[0] in among] for name, own in left.items()}
            digests = {name: [digest for _, digest in own] for name, own in found.items()}
            if not any(digests.values()):
                continue
            expected = _usual(digests, everywhere)
            usual.add(expected)
            if {one for some in digests.values() for one in some} == {expected}:
                continue
            if case.same_output == "nowhere":
                notes.append(_printed(digests))
            else:
                _fail_the_odd(result, case.name, found, expected)
        if len(usual) > 1 and VARYING not in notes:
            notes.append(f"not every machine {PRINTED}")
        result.notes += [f"{case.name}: {note}" for note in dict.fromkeys(notes)]


def _usual(digests: Mapping[str, Sequence[str]], everywhere: Sequence[str]) -> str:
    """What the C library's runs computed is right; without them, what most did, here or else everywhere."""
    trusted = digests.get(SYSTEM) or [one for some in digests.values() for one in some]
    return max(dict.fromkeys(trusted), key=lambda one: (trusted.count(one), everywhere.count(one)))


def _fail_the_odd(
    result: Measurement, case: str, found: Mapping[str, Sequence[tuple[str, str]]], expected: str
) -> None:
    """`found` are machines with digests, by variant."""
    for name, of_variant in found.items():
        machine, odd = next((one for one in of_variant if one[1] != expected), ("", expected))
        if odd != expected:
            parts = zip(odd.split(), expected.split(), strict=False)
            differs = ", ".join(f"{own}, expected {theirs}" for own, theirs in parts if own != theirs)
            where = f" on {machine}" if len({*result.blocks}) > 1 else ""
            reason = f"its output{where} is not that of other runs: {differs}"
            result.failures.append(Failure(case, name, result.rounds, reason))
            result.samples[case][name].clear()


def _printed(digests: Mapping[str, Sequence[str]]) -> str:
    """What differs in what was printed. Where it is the variant that makes the difference, one of them may be wrong."""
    alike: dict[str, list[str]] = {}  # variants by what all their runs printed
    for name in sorted(digests, key=lambda name: name != SYSTEM):
        own = digests[name]
        if len(set(own)) > 1 or len(own) == 1:
            return VARYING
        if own:
            alike.setdefault(own[0], []).append(name)
    first, *others = (", ".join(names) for names in alike.values())
    return f"each run under {first} {PRINTED}" + "".join(f", each under {names} something else" for names in others)
