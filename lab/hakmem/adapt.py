"""What the controller is worth while a program runs: four measurements by programs that go on working.

Switching: bench_switching visits its behaviours in turn. The oracle knows each behaviour's best fixed setting and has
it in force from the first moment of a visit: in each behaviour it is the run, in the same round, that had this setting
all the time. Excursion: a candidate is forced on the controller, which must roll it back; the same command without
that says what it has cost. Policy: a behaviour from a policy's first second on, beside one that has learned for long.
Elo: services, real programs, and what becomes of the values that are rated by matches.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hakmem import behaviours, comparison, control, ctl, process, programs, sweep, words
from hakmem.allocators import hakmem
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.measure import Case, CommandCase, Measurement, SameOutput, Sample, Variant, values_of
from hakmem.report.model import Comparison, Report, Table
from hakmem.suite import BenchCase

ADAPTIVE, ORACLE = "adaptive", "oracle"
ALL, AGAIN, MEMORY, PEAK = "cost_ns", "cost_again_ns", "mean_rss_bytes", "peak_rss_bytes"
FIRST = "cost_first_ns"


# The controller acts in the background thread, which a program with one thread has only if it is asked for. What is
# compared with it has the thread, too.
THREAD = {"HAKMEM_BACKGROUND": "1"}


def adaptive(settings: Mapping[str, str]) -> Variant:
    return Variant(ADAPTIVE, hakmem(), {"HAKMEM_ACE_ENABLED": "1", "HAKMEM_POLICY": "none", **THREAD, **settings})


# ---- Switching -------------------------------------------------------------------------------------------------------


def switching(seconds: float, visits: int, seed: int = 1) -> BenchCase:
    arguments = (f"{seconds:g}", str(visits), str(seed))
    return BenchCase("switching", ("bench_switching", *arguments), timeout_s=int(60 + 12 * seconds * visits))


def fixed(name: str, values: Mapping[str, int]) -> Variant:
    variant = sweep.fixed(name, values)
    return replace(variant, settings={**THREAD, **variant.settings})


def best_of(assignments: Sequence[str]) -> dict[str, Variant]:
    """From words like idle=bin_budget_share=1:held_slabs=64: the fixed setting that is best for a behaviour. All others
    have the default."""
    best = dict.fromkeys(behaviours.NAMES, fixed(sweep.DEFAULT, {}))
    for word in assignments:
        name, _, values = word.partition("=")
        pairs = [value.partition("=") for value in values.split(":")]
        if name not in best or not all(knob and value.isdecimal() for knob, _, value in pairs):
            raise LabError(f"{word!r}: expected BEHAVIOUR=KNOB=NUMBER[:KNOB=NUMBER...]")
        best[name] = fixed(values, {knob: int(value) for knob, _, value in pairs})
    return best


def by_behaviour(done: Measurement, best: Mapping[str, Variant], visits: int) -> Measurement:
    """The same runs with a case for each behaviour, and the oracle among the variants."""
    words_of = [case.words for case in done.cases if isinstance(case, BenchCase)][0]
    [samples] = done.samples.values()
    oracle = Variant(ORACLE, hakmem())
    made = replace(done, cases=[BenchCase(name, words_of) for name in best], variants=[*done.variants, oracle])
    made.samples = {}
    for name, variant in best.items():
        parts = {each.name: [_part(sample, name, visits) for sample in samples[each.name]] for each in done.variants}
        made.samples[name] = {**parts, ORACLE: list(parts[variant.name])}
    made.failures = [replace(failure, case=name) for failure in done.failures for name in best]
    made.notes = [*done.notes, *(f"oracle in {name}: {variant.name}" for name, variant in best.items())]
    return made


def _part(sample: Sample, name: str, visits: int) -> Sample:
    costs, resident, peaks = (
        [sample.values[f"{figure}_{name}_{visit}"] for visit in range(1, visits + 1)]
        for figure in ("cost", "rss", "peak")
    )
    values = {ALL: _mean(costs), MEMORY: _mean(resident), PEAK: max(peaks)}
    if visits > 1:
        values[AGAIN] = _mean(costs[1:])
    return Sample(values, sample.digest, sample.full_size)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


SAID = {ALL: "CPU time", AGAIN: "CPU time from the second visit on", MEMORY: "mean RSS", PEAK: "peak RSS"}


def switching_report(record: Record, kept: str | None = None) -> Report:
    base = comparison.report(record, "adapt", baseline=ORACLE, primary=ALL, metrics=(AGAIN, MEMORY, PEAK), kept=kept)
    said = {comparison.metric(record, metric).title: what for metric, what in SAID.items()}
    summary = tuple(
        f"{entry.name}: {words.ratio(entry.ratio)} of the oracle's {said[section.title]}, over the behaviours"
        for section in base.sections
        if isinstance(section, Comparison) and section.mean
        for entry in section.mean.entries
        if entry.ratio and all(case.entry(entry.name).ratio for case in section.cases)
    )
    return replace(base, summary=summary)


# ---- Excursion -------------------------------------------------------------------------------------------------------

TRIED, ALONE = "tried", "left alone"
EXCURSION = "excursion_s"
MOST_S, POLL_S = 300.0, 0.05


@dataclass(frozen=True, kw_only=True)
class ExcursionCase(CommandCase):
    """A command that does the same work in every run. Under the variant TRIED the assignment is forced on its
    controller, and must be rolled back before the command ends."""

    assignment: str

    def run(self, variant: Variant) -> Sample:
        found: dict[str, float] = {}
        problem: list[LabError] = []

        def drive(_: int) -> None:
            if variant.name != TRIED:
                return
            try:
                found[EXCURSION] = excursion_s(_served_child(), self.assignment)
            except LabError as error:
                problem.append(error)

        run = process.run(self.command, variant.allocator, variant.settings, drive=drive)
        if problem:
            raise problem[0]
        self.expect_success(run)
        return Sample({**values_of(run), **found}, "", full_size=run.wall_s >= 1)


def excursion_variants(settings: Mapping[str, str]) -> list[Variant]:
    served = {"HAKMEM_ACE_ENABLED": "1", "HAKMEM_CTL": "1", **settings}
    return [Variant(name, hakmem(), served) for name in (ALONE, TRIED)]


def excursion_s(pid: int, assignment: str) -> float:
    """Has the controller of a process try it, and waits until it is rolled back: seconds from the first time it was in
    force to the last. LabError when it is kept, or given up."""
    knob = assignment.partition("=")[0]
    deadline = time.monotonic() + MOST_S
    before = _state(pid)
    first: list[Mapping[str, Any]] = []  # of which only the last ones are told later
    ctl.ask(pid, f"try {assignment}")
    while len(own := _trial(_state(pid), knob, before["switches"])) == 0 or own[-1]["why"] == "canary":
        first = first or own[:1]
        if time.monotonic() >= deadline:
            raise LabError(f"{assignment} goes on being tried")
        time.sleep(POLL_S)
    if own[-1]["why"] == "keep":
        raise LabError(f"{assignment} was kept")
    if own[-1]["why"] == "end":
        raise LabError(f"{assignment} is not tried any more: {knob} was given a value")
    return float(own[-1]["ms"] - (first or own)[0]["ms"]) / 1000


def _trial(state: control.Statistics, knob: str, before: int) -> list[Mapping[str, Any]]:
    """Its switches after the first so many, up to the end of the trial."""
    events = state["events"][max(0, len(state["events"]) - (state["switches"] - before)) :]
    whys = ("canary", "keep", "roll back", "end")
    own = [event for event in events if event["knob"] == knob and event["why"] in whys]
    ends = [at for at, event in enumerate(own) if event["why"] != "canary"]
    return own[: ends[0] + 1] if ends else own


def _state(pid: int) -> control.Statistics:
    found: control.Statistics = json.loads(ctl.ask(pid, "stats json"))["control"]
    return found


def _served_child() -> int:
    """The descendant that answers."""
    deadline = time.monotonic() + ctl.TIMEOUT_S
    while True:
        for pid in _descendants("self"):
            if ctl.find_channel(pid):
                return pid
        if time.monotonic() >= deadline:
            raise LabError("the command has no control thread")
        time.sleep(POLL_S)


def _descendants(pid: int | str) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                yield int(child)
                yield from _descendants(int(child))


def excursion_report(record: Record, kept: str | None = None) -> Report:
    base = comparison.report(
        record, "adapt", baseline=ALONE, primary="cpu_s", metrics=("wall_s", PEAK, MEMORY), kept=kept
    )
    longest = [max(record.values(case, TRIED, EXCURSION), default=0) for case in record.cases]
    lines = tuple(f"The candidate was rolled back after at most {seconds:.2f} s." for seconds in longest if seconds)
    return replace(base, summary=(*lines, *base.summary))


# ---- Policy ----------------------------------------------------------------------------------------------------------

LEARNED, FOLLOWED = "learned", "policy"
SHORT_VISITS = 2


@dataclass(frozen=True)
class LearningCase:
    """A behaviour, in visits one after the other: many of them under LEARNED, which stays as it is at the end; two
    under any other variant, whose first one begins with the process."""

    name: str
    seconds: float
    visits: int
    policy: str = ""  # what FOLLOWED starts on, wherever it runs
    same_output: SameOutput = "nowhere"

    def _case(self, visits: int) -> BenchCase:
        arguments = (f"{self.seconds:g}", str(visits), "1", self.name)
        return BenchCase(self.name, ("bench_switching", *arguments), timeout_s=int(60 + 2 * self.seconds * visits))

    @property
    def command(self) -> Sequence[str]:
        return self._case(self.visits).command

    @property
    def ages(self) -> str:
        return (
            f"but for the first visit's, figures are of visit {self.visits} under {LEARNED}, and of visit "
            f"{SHORT_VISITS} under the others: so the processes are not of one age"
        )

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        visits = self.visits if variant.name == LEARNED else SHORT_VISITS
        with tempfile.NamedTemporaryFile("w", prefix="hakmem-policy-") as file:
            file.write(self.policy)
            file.flush()
            policy = {"HAKMEM_POLICY": file.name} if variant.name == FOLLOWED else {}
            found = self._case(visits).run(replace(variant, settings={**variant.settings, **policy}))
        figures = {ALL: "cost", MEMORY: "rss", PEAK: "peak"}
        values = {name: found.values[f"{figure}_{self.name}_{visits}"] for name, figure in figures.items()}
        if visits == SHORT_VISITS:
            values[FIRST] = found.values[f"cost_{self.name}_1"]
        return Sample(values, "", found.full_size)


def learn_policy(case: LearningCase, settings: Mapping[str, str]) -> tuple[str, str]:
    """Runs it once. The policy, which is for the program on any machine; and what was learned, in words."""
    with tempfile.TemporaryDirectory(prefix="hakmem-policy-") as folder:
        written = Path(folder) / "statistics"
        case.run(Variant(LEARNED, hakmem(), {**THREAD, **settings, "HAKMEM_STATS": f"json:{written}"}))
        text = control.policy(control.read(written), any_program=True)
    kept = [line.removeprefix("evidence ") for line in text.splitlines() if " keep " in line]
    return text, f"the policy comes from: {'; '.join(kept) or 'nothing that was kept'}"


def policy_variants(settings: Mapping[str, str]) -> list[Variant]:
    return [
        Variant(sweep.DEFAULT, hakmem(), {**THREAD, **settings, sweep.FIXED: "0"}),
        Variant(FOLLOWED, hakmem(), {**THREAD, **settings}),
        Variant(LEARNED, hakmem(), {**THREAD, **settings, sweep.FIXED: "1"}),
    ]


def policy_report(record: Record, kept: str | None = None) -> Report:
    return comparison.report(
        record, "adapt", baseline=sweep.DEFAULT, primary=ALL, metrics=(FIRST, MEMORY, PEAK), kept=kept
    )


# ---- Elo -------------------------------------------------------------------------------------------------------------

RATED = ("run_limit_bytes", "decay_ms")
SETTLED, MATCHES, DECIDED, LEFT = "settled_s", "matches", "decided_s", "left"


@dataclass
class EloCase(programs.ProgramCase):
    """A service that is kept busy; where the controller may act, with what has become of values rated by matches."""

    def run(self, variant: Variant) -> Sample:
        with tempfile.TemporaryDirectory(prefix="hakmem-elo-") as folder:
            written = Path(folder) / "statistics"
            sample = super().run(replace(variant, settings={**variant.settings, "HAKMEM_STATS": f"json:{written}"}))
            found = rated(control.read(written)) if variant.name == ADAPTIVE else {}
        units = {name: "s" if name.startswith((SETTLED, DECIDED)) else "" for name in found}
        return replace(sample, values={**sample.values, **found}, units={**sample.units, **units})


def elo_cases(names: Sequence[str], seconds: float) -> list[Case]:
    """All of them where none is named. LabError for one that there is not, or that is not installed."""
    known = {program.name: program for program in programs.SERVICES}
    for name in names:
        if name not in known:
            raise LabError(f"no service {name!r}; there are {', '.join(known)}")
    ready, missing = programs.cases(known[name] for name in names or known)
    if missing:
        raise LabError(f"{missing[0].name}: Debian's package {missing[0].package} is not installed")
    return [EloCase(case.program, case.paths, seconds=seconds) for case in ready]


def elo_variants(settings: Mapping[str, str]) -> list[Variant]:
    """Both as a program has them that nothing is set for, but these."""
    own = {"HAKMEM_POLICY": "none", **settings}
    return [Variant(sweep.DEFAULT, hakmem(), {**own, sweep.FIXED: "0"}), Variant(ADAPTIVE, hakmem(), own)]


def rated(statistics: control.Statistics) -> dict[str, float]:
    """When the first round was over. Of each rated knob: the matches, the value that it was left with, and when a trial
    of it first came to an end. Times are 0 where it wasn't, and where none did."""
    told = statistics["control"]
    found: dict[str, float] = {SETTLED: told["settled_ms"] / 1000}
    for knob in RATED:
        chosen = [row["chosen"] for row in told["tried"] if row["knob"] == knob]
        played = sum(row["matches"] for row in told["strategies"] if row["knob"] == knob) / 2
        decided = [row["decided_ms"] / 1000 for row in told["prospects"] if row["knob"] == knob]
        found |= {f"{MATCHES}_{knob}": played, f"{LEFT}_{knob}": [*chosen, told["knobs"][knob]][0]}
        found |= {f"{DECIDED}_{knob}": [*decided, 0.0][0]}
    return found


def elo_report(record: Record, kept: str | None = None) -> Report:
    metrics = ("operations_per_s", PEAK, MEMORY)
    base = comparison.report(record, "adapt", baseline=sweep.DEFAULT, primary=ALL, metrics=metrics, kept=kept)
    rows: list[tuple[str, ...]] = []
    summary: list[str] = []
    for case in record.cases:
        for knob in RATED:
            matches, decided, left = (
                record.values(case, ADAPTIVE, f"{what}_{knob}") for what in (MATCHES, DECIDED, LEFT)
            )
            rows.append((case, knob, _range(matches), _range(_had(decided)), _runs(decided), _range(left)))
        if settled := record.values(case, ADAPTIVE, SETTLED):
            summary.append(f"{case}: the first round of trying was over {_when(settled)}.")
    columns = ("program", "knob", "matches", "decided after, s", "in runs", "value at the end")
    notes = ("From the least to the most of all runs, or of those in which it was decided.",)
    tables = (Table("Values rated by matches", columns, tuple(rows), notes, words=2),)
    return replace(base, sections=(*tables, *base.sections), summary=(*summary, *base.summary))


def _had(times: Sequence[float]) -> list[float]:
    """Those of the runs in which it was so."""
    return [time for time in times if time]


def _runs(times: Sequence[float]) -> str:
    return f"{len(_had(times))} of {len(times)}" if times else "-"


def _when(times: Sequence[float]) -> str:
    after = f"after {_range(_had(times))} s"
    if all(times):
        return after
    return f"in {_runs(times)} runs" + (f", {after}" if _had(times) else "")


def _range(values: Sequence[float]) -> str:
    ends = [f"{end:.10g}" for end in (min(values), max(values))] if values else ["-"]
    return " to ".join(dict.fromkeys(ends))
