"""What a command would take under other allocators, from runs on the one that it is on now. docs/predict.md is the
reader's guide.

Three things are measured, interleaved in rounds: the command as it is, counted, and with its calls delayed by a known
time, which gives the share of a delay that reaches the clock on the wall (delays.py); and a replay of its calls under
each allocator. Where a replay takes longer by so much, the command is predicted to take longer by that share of it.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import Any

from hakmem import calls, delays, measure, native, packing, process, recording, replays, trace
from hakmem.allocators import Allocator
from hakmem.delays import COUNTED, PLAIN, Counts
from hakmem.errors import LabError
from hakmem.measure import Case, CommandCase, Measurement, Step, Variant
from hakmem.report.model import Report, Table
from hakmem.statistics import Interval
from hakmem.trace import Trace
from hakmem.words import amount, ratio

IDEAL = "ideal"
UNTOLD = "can't be told"
TRACE_LIMIT_BYTES = 64 << 20  # of each process's
COVERED = 0.95  # of all events that replays have; the smallest traces are left out
MOST_TRACES = 4
MISSED = 1.1  # times what was recorded, that was counted: beyond, traces lack calls, and that is said
LEAST_RATIO = 0.01  # a smaller one is none
RESAMPLES = 1000
LEAST_ROUNDS = 3  # and replays, for an interval: one says nothing of how far they scatter, two next to nothing
NORMAL_95 = 1.96
COLD = 1.5  # by how much a call's difference is larger in a program, whose own work empties caches, than in a replay
# Of the model, beyond what rounds scatter: half the width of an interval in logarithms, and more for each unit of
# predicted change. docs/decisions/0175 says from which programs.
ERROR_OF_TIME = (0.08, 0.5)
ERROR_OF_MEMORY = (0.015, 0.1)

OnStep = Callable[[Step], None]
Numbers = Sequence[int]  # of rounds
Values = Mapping[str, float]
Estimate = Callable[["Rounds", str, Numbers, Numbers], float | None]


@dataclass(frozen=True)
class Prediction:
    """For one allocator, as ratios to what the command takes now. None: it can't be told."""

    name: str
    time: Interval | None
    memory: Interval | None


@dataclass(frozen=True)
class Rounds:
    """What was measured."""

    program: Measurement  # of the command, under the variants of delays.py
    replayed: Measurement  # of its traces under all allocators, the incumbent first
    scale: float  # events of the command by those of the traces
    least_bytes: float | None  # that the blocks of the largest heap need at their peak; None: traces lack calls

    def values(self, variant: str, metric: str, rounds: Numbers) -> list[float]:
        """Of the command."""
        samples = self.program.samples[self.program.cases[0].name][variant]
        return [samples[number].values[metric] for number in rounds]

    def least(self, variant: str, metric: str, rounds: Numbers) -> float:
        """Of a time: other work on the machine only adds to it."""
        return min(self.values(variant, metric, rounds))


@dataclass(frozen=True)
class Answer:
    command: str
    incumbent: str
    counts: Counts
    rounds: Rounds
    notes: tuple[str, ...]

    @cached_property
    def predictions(self) -> list[Prediction]:
        return conclude(self.rounds)

    @cached_property
    def sensitivities(self) -> dict[str, float | None]:
        """By the kind of delay."""
        return shares(self.rounds, range(self.rounds.program.rounds))

    @property
    def wall_s(self) -> float:
        return self.rounds.least(PLAIN, "wall_s", range(self.rounds.program.rounds))

    @property
    def peak_rss_bytes(self) -> float:
        return statistics.median(self.rounds.values(PLAIN, "peak_rss_bytes", range(self.rounds.program.rounds)))

    def plain(self) -> dict[str, Any]:
        sizes = [{"bytes": size, "calls": of.count, "seconds": of.seconds} for size, of in self.counts.sizes.items()]
        return {
            "command": self.command,
            "incumbent": self.incumbent,
            "wall_s": self.wall_s,
            "peak_rss_bytes": self.peak_rss_bytes,
            "allocations": sizes,
            "frees": {"calls": self.counts.frees.count, "seconds": self.counts.frees.seconds},
            "first_touches": self.counts.pages,
            "sensitivities": self.sensitivities,
            "predictions": [
                {"allocator": of.name, "wall_s": _plain(of.time), "peak_rss_bytes": _plain(of.memory)}
                for of in self.predictions
            ],
            "notes": list(self.notes),
        }

    def report(self) -> Report:
        return Report(
            f"{self.command} on {self.incumbent}, and what is predicted for others",
            self.command,
            (self._predicted(), self._sensitive(), self._sizes()),
            summary=(f"Now: {amount(self.wall_s, 's')}, peak RSS {amount(self.peak_rss_bytes, 'B')}.",),
            notes=self.notes,
        )

    def _predicted(self) -> Table:
        rows = tuple((of.name, *map(_told, (of.time, of.memory))) for of in self.predictions)
        note = f"Ratios to {self.incumbent}; below 1 is less. In parentheses an interval that most such ratios lie in."
        ideal = f"{IDEAL}: calls take no time, and blocks lie packed as if they could be moved. It has no interval."
        return Table("predicted", ("allocator", "wall time", "peak RSS"), rows, (note, ideal))

    def _sensitive(self) -> Table:
        of = self.counts.values()
        rows = tuple(
            (name, f"{of[delays.EVENTS[name]]:,.0f}", UNTOLD if share is None else f"{share:.2f}")
            for name, share in self.sensitivities.items()
        )
        note = "How much of a delay of each call, or of each page that is handed out first, reaches the wall clock."
        return Table("sensitivity", ("delayed", "events", "arrives"), rows, (note,))

    def _sizes(self) -> Table:
        named = [(f"malloc to {size:,} B", of) for size, of in self.counts.sizes.items()]
        rows = tuple(
            (
                name,
                f"{of.count:,}",
                *(amount(of.seconds / one, "s") if of.seconds else "not timed" for one in (of.count, 1)),
            )
            for name, of in [*named, ("free", self.counts.frees)]
        )
        return Table("calls", ("", "calls", "each", "all"), rows)


def _told(of: Interval | None) -> str:
    return UNTOLD if of is None else ratio(of)


def _plain(of: Interval | None) -> dict[str, float | None] | None:
    if of is None:
        return None
    return {"estimate": of.estimate, **dict.fromkeys(("low", "high"))} if not of.is_bounded else dict(vars(of))


# ---- From rounds to predictions --------------------------------------------------------------------------------------


def shares(of: Rounds, rounds: Numbers) -> dict[str, float | None]:
    return {name: delays.sensitivity(of.program, name, rounds) for name in delays.DELAYED}


def _one(share: float | None) -> float:
    """What can't be told is taken to arrive in full."""
    return 1.0 if share is None else min(max(share, 0.0), 2.0)


def _time(of: Rounds, name: str, rounds: Numbers, replays_of: Numbers) -> float:
    """The ratio that is predicted from these rounds."""
    wall_s = of.least(PLAIN, "wall_s", rounds)
    known = {name: _one(share) for name, share in shares(of, rounds).items()}
    cost = {call: of.least(COUNTED, f"{call}_s", rounds) for call in ("malloc", "free")}
    if name == IDEAL:
        bound = min(1.0, of.least(PLAIN, "cpu_s", rounds) / (sum(cost.values()) or 1))  # calls are part of the run
        return 1 - bound * sum(min(1.0, known[call]) * cost[call] for call in cost) / wall_s
    of_calls = sum(known[call] * cost[call] for call in cost) / (sum(cost.values()) or 1)
    longer_s = 0.0
    for own, now in _replays(of, name, replays_of, "measured_s"):
        faults_s = (own["minor_faults"] - now["minor_faults"]) * now["system_s"] / now["minor_faults"]
        calls_s = own["measured_s"] - now["measured_s"] - faults_s
        longer_s += of_calls * COLD * calls_s + known["touch"] * faults_s
    return 1 + of.scale * longer_s / wall_s


def _memory(of: Rounds, name: str, rounds: Numbers, replays_of: Numbers) -> float | None:
    if of.least_bytes is None:
        return None
    now_bytes = statistics.median(of.values(PLAIN, "peak_rss_bytes", rounds))
    if name == IDEAL:
        first = of.replayed.variants[0].name
        heaps = [statistics.median(of.replayed.values(case.name, first, "heap_peak")) for case in of.replayed.cases]
        return 1 - max(0.0, max(heaps) - of.least_bytes) / now_bytes
    pairs = _replays(of, name, replays_of, "peak_rss_bytes")
    return 1 + max((own["peak_rss_bytes"] - now["peak_rss_bytes"] for own, now in pairs), key=abs) / now_bytes


def _replays(of: Rounds, name: str, rounds: Numbers, least: str) -> Iterator[tuple[Values, Values]]:
    """Of each trace what the replay with the least of that took, under an allocator and under the incumbent."""
    first = of.replayed.variants[0].name
    for samples in of.replayed.samples.values():
        own, now = ([samples[one][number].values for number in rounds] for one in (name, first))
        yield min(own, key=itemgetter(least)), min(now, key=itemgetter(least))


def conclude(of: Rounds) -> list[Prediction]:
    others = [variant.name for variant in of.replayed.variants[1:]]
    names = [one for one in others if all(samples[one] for samples in of.replayed.samples.values())]
    draw = random.Random(1)
    count, replay_count = of.program.rounds, of.replayed.rounds
    drawn = [
        (draw.choices(range(count), k=count), draw.choices(range(replay_count), k=replay_count))
        for _ in range(RESAMPLES)
    ]

    def interval(estimate: Estimate, name: str, error: tuple[float, float]) -> Interval | None:
        """It holds what the rounds scatter, by drawing rounds again (bootstrap), and what the model is off."""
        centre = estimate(of, name, range(count), range(replay_count))
        if centre is None or centre < LEAST_RATIO:
            return None
        # Nobody has measured the ideal, so nothing says how much it is off.
        if name == IDEAL or min(count, replay_count) < LEAST_ROUNDS:
            return Interval(centre, 0, math.inf)
        scatter = statistics.pstdev(one for numbers in drawn if (one := estimate(of, name, *numbers)) is not None)
        half = math.hypot(NORMAL_95 * scatter / centre, error[0] + error[1] * abs(math.log(centre)))
        return Interval(centre, centre * math.exp(-half), centre * math.exp(half))

    return [
        Prediction(name, interval(_time, name, ERROR_OF_TIME), interval(_memory, name, ERROR_OF_MEMORY))
        for name in [*names, IDEAL]
    ]


# ---- Measuring -------------------------------------------------------------------------------------------------------


def predict(
    words: Sequence[str],
    incumbent: Allocator,
    peers: Sequence[Allocator],
    *,
    rounds: int,
    replay_rounds: int,
    timeout_s: float | None = None,
    on_step: OnStep = lambda step: None,
    tell: Callable[[str], None] = lambda text: None,
) -> Answer:
    """Of the command, which is run on the incumbent alone."""
    process.expect_command(words)
    case = delays.DelayedCase(CommandCase(tuple(words), timeout_s))
    tell(f"counting the calls of {case.name}")
    pilot, counts = case.counted(Variant(COUNTED, incumbent))
    with tempfile.TemporaryDirectory(prefix="hakmem-predict-") as folder:
        tell(f"recording {counts.calls:,} calls")
        recorded = _record(case.case, incumbent, Path(folder))
        kept, event_count = _largest({path: of.event_count for path, of in recorded.items()})
        is_cut = any(recorded[path].is_full for path in kept) or counts.calls > MISSED * sum(
            of.event_count for of in recorded.values()
        )
        own = measure.variants([incumbent, *peers])
        tell(f"replaying {event_count:,} calls under {len(own)} allocators")
        replayed = _whole(replays.cases(map(str, kept), "sanity"), own, 1, replay_rounds, on_step)
        tell("packing blocks as if the future were known")
        peaks = [packing.least(calls.each(trace.read(path))).peak for path in kept if not is_cut]
    tell(f"running {case.name} with calls that wait")
    program = _whole([case], delays.variants(incumbent, pilot), 2, rounds, on_step)
    failures = [*program.failures, *replayed.failures]
    of = Rounds(program, replayed, max(1.0, counts.calls / event_count), max(peaks, default=None))
    notes = [*(f"{one.case} on {one.variant}: {one.reason}" for one in failures), *program.notes]
    return Answer(case.name, incumbent.name, counts, of, (*notes, *_lacks(of, counts.calls, event_count)))


def _lacks(of: Rounds, call_count: int, event_count: int) -> Iterator[str]:
    if of.least_bytes is None:
        yield f"Memory isn't predicted: the record ended before the command did, at {event_count:,} events."
    if of.scale > MISSED:
        replayed = f"of {call_count:,} calls {event_count:,} are replayed"
        yield f"Time is scaled: {replayed}, and what they differ by counts {of.scale:.1f} times."
    if min(of.program.rounds, of.replayed.rounds) < LEAST_ROUNDS:
        few = f"{of.program.rounds} rounds and {of.replayed.rounds} replays"
        yield f"No intervals: {few} don't tell how far they scatter. It takes {LEAST_ROUNDS} of each."


def _whole(
    cases: Sequence[Case], variants: Sequence[Variant], needed: int, rounds: int, on_step: OnStep
) -> Measurement:
    """All rounds: a prediction from fewer would have another width than was asked for. LabError where one of the first
    variants failed, so many as are needed: without their figures nothing is predicted."""
    done = measure.measure(cases, variants, rounds, warmup=0, on_step=on_step)
    done.expect_whole()
    names = [variant.name for variant in variants[:needed]]
    for failure in done.failures:
        if failure.variant in names:
            raise LabError(f"{failure.reason}, in round {failure.round}; a prediction needs all runs")
    return done


def _record(case: CommandCase, incumbent: Allocator, folder: Path) -> dict[Path, Trace]:
    """Traces of all processes of a run."""
    into = folder / "files"
    into.mkdir()
    for place in (folder, into):  # a server may go on as somebody else
        place.chmod(0o777)
    settings = {"HAK_RECORD": f"0:{TRACE_LIMIT_BYTES}:{into}"}
    run = process.run(case.command, incumbent, settings, timeout_s=case.timeout_s, before=native.helper("record.so"))
    case.expect_success(run)
    found = recording.collect(into, run.pid, folder / "made.trace", children=True)
    if not found:
        raise LabError(f"{case.command[0]} could not be recorded")
    return dict(found)


def _largest(event_counts: dict[Path, int]) -> tuple[list[Path], int]:
    """The fewest traces that cover the command, and how many events they have."""
    kept: list[Path] = []
    covered = 0
    for path, count in sorted(event_counts.items(), key=lambda item: -item[1]):
        if len(kept) == MOST_TRACES or covered >= COVERED * sum(event_counts.values()):
            break
        kept.append(path)
        covered += count
    return kept, covered
