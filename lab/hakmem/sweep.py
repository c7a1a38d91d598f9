"""Sweep: the best fixed setting of the knobs for a program, and how much there is to gain over the default.

In two stages, because most settings change nothing. In the first one many settings have a run each, beside the default
in the same round on the same machine: every knob alone at each of some values, then all knobs at random, then what
Optuna's sampler (TPE) makes of all that was seen. That says which are worth a closer look, and no more. These, the
default and whatever else is asked for (the controller, a policy) then run in turns, as often as an interval needs. So
the best of the second stage is not the best by luck: what it shows was not seen when it was chosen.

The random ones tell what a budget buys: what the best of so many is expected to be, and which part of all settings it
is likely among.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from hakmem import ab, behaviours, comparison, statistics, words
from hakmem.allocators import hakmem
from hakmem.behaviours import BehaviourCase
from hakmem.errors import LabError
from hakmem.ledger import Record, Series
from hakmem.measure import Case, Failure, Outcome, Place, Step, Turn, Variant
from hakmem.report.model import Report
from hakmem.settings import Knob

if TYPE_CHECKING:
    import optuna

DEFAULT = "default"
FIXED = "HAKMEM_ACE_ENABLED"
KNOBS = "HAKMEM_KNOBS"
UNRELATED = {"metrics_ms"}
STEPS = (1 / 4, 4, 16)  # as the controller's arms
MODE_MOST = 16  # a knob with so few values has them all
BY_TIME, COMBINED, BY_MEMORY = 3, 1, 2  # finalists: of single knobs, of settings of all knobs, of any
RANDOM, FOUND = "random ", "found "
SINGLE_SHARE, RANDOM_SHARE = 2, 4  # of the settings: at most a half are single knobs, a quarter random
IN_A_ROUND = 4  # settings beside the default
BUDGET = "budget: "
TOLERATED = 1.02  # time of a finalist that saves memory, as a ratio to the default's
TIMES = ("cost_ns", "cpu_s")  # a case is judged by the first that it has
MEMORIES = ("mean_rss_bytes", "peak_rss_bytes")

TIME = "CPU time: of an operation where it goes on for a time, else of all of it"  # of cases of which some have either

Row = tuple[str, float, float]  # a setting, with its time and memory as ratios to the default's


# ---- What is tried ---------------------------------------------------------------------------------------------------


def arms(knob: Knob) -> list[int]:
    """Values other than the default, within the bounds, which are among them."""
    if knob.highest - knob.lowest < MODE_MOST:
        return [value for value in range(knob.lowest, knob.highest + 1) if value != knob.default]
    inner = {int(knob.default * step) for step in STEPS}
    return sorted(
        {value for value in inner if knob.lowest <= value <= knob.highest}
        | {knob.lowest, knob.highest} - {knob.default}
    )


def fixed(name: str, given: Mapping[str, int]) -> Variant:
    """There is no controller, no experiment, and no policy: what is set stays so, and nothing else is."""
    own = {FIXED: "0", "HAKMEM_EXPERIMENT": "none", "HAKMEM_POLICY": "none"}
    return Variant(name, hakmem(), {**own, **({KNOBS: setting_of(given)} if given else {})})


def expect_no_knobs() -> None:
    """LabError where the caller has set some: the default would have them, and what is tried beside it would not."""
    if os.environ.get(KNOBS, "") not in ("", "none"):
        raise LabError(f"{KNOBS}={os.environ[KNOBS]}: expected it not to be set, as the knobs are what is tried here")


def setting_of(given: Mapping[str, int]) -> str:
    return ":".join(f"{knob}={value}" for knob, value in given.items())


def values(knob: Knob) -> list[int]:
    """In order, the default among them."""
    return sorted({knob.default, *arms(knob)})


def single(knobs: Sequence[Knob]) -> list[dict[str, int]]:
    return [{knob.name: value} for knob in knobs for value in arms(knob)]


def combined(knobs: Sequence[Knob], count: int, seed: int) -> list[dict[str, int]]:
    """All knobs at random, each at its default or at one of its arms."""
    source = random.Random(seed)
    return [{knob.name: source.choice(values(knob)) for knob in knobs} for _ in range(count)]


def cases(what: Sequence[str], seconds: float = behaviours.SECONDS) -> list[Case]:
    """After the word `behaviour`, behaviours of bench_switching with commas between; else what `hakmem ab` takes."""
    if tuple(what[:1]) == ("behaviour",):
        names = dict.fromkeys(name.strip() for name in " ".join(what[1:]).split(","))
        return [BehaviourCase(name, seconds) for name in names]
    return ab.cases(what, sanity=False)


def shortened(case: Case) -> Case:
    """For a glance at very many settings."""
    return replace(case, seconds=case.seconds / 4) if isinstance(case, BehaviourCase) else case


# ---- The first stage -------------------------------------------------------------------------------------------------


class Tries(Protocol):
    """Settings to be tried, each beside the default."""

    def ask(self) -> Variant | None:
        """None: all have been asked for."""
        ...

    def tell(self, name: str, found: tuple[float, float] | None) -> None:
        """Ratios of time and memory; None: it has none."""
        ...


class Search:
    """So many settings of the knobs, of which each follows from those that came back before it."""

    def __init__(self, knobs: Sequence[Knob], count: int, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._knobs = {knob.name: knob for knob in knobs if knob.name not in UNRELATED}
        spaces = {name: len(values(knob)) for name, knob in self._knobs.items()}
        self._space: dict[str, optuna.distributions.BaseDistribution] = {
            name: optuna.distributions.IntDistribution(0, size - 1) for name, size in spaces.items()
        }
        self._study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        alone = single([*self._knobs.values()])
        random.Random(seed).shuffle(alone)
        alone = alone[: count // SINGLE_SHARE]
        drawn = combined([*self._knobs.values()], min(count // RANDOM_SHARE, count - len(alone)), seed)
        self._planned = [(setting_of(one), one) for one in alone]
        self._planned += [(f"{RANDOM}{number}", one) for number, one in enumerate(drawn, 1)]
        self._count, self._asked = count, 0
        self._given: dict[str, frozenset[tuple[str, int]]] = {}  # of each setting all knobs
        self._trials: dict[str, optuna.Trial] = {}  # those that are being run
        self.size = math.prod(spaces.values())
        self.variants: dict[str, Variant] = {}
        self.rows: list[Row] = []

    @property
    def tried(self) -> int:
        """So many different settings have a figure."""
        return len({self._given[name] for name, _, _ in self.rows})

    def ask(self) -> Variant | None:
        if self._asked == self._count:
            return None
        name, given = f"{FOUND}{self._asked - len(self._planned) + 1}", None
        if self._asked < len(self._planned):
            name, given = self._planned[self._asked]
            every = {knob: given.get(knob, of.default) for knob, of in self._knobs.items()}
            self._study.enqueue_trial({knob: values(self._knobs[knob]).index(value) for knob, value in every.items()})
        self._asked += 1
        trial = self._study.ask(self._space)
        if given is None:
            given = {knob: values(self._knobs[knob])[place] for knob, place in trial.params.items()}
        self._trials[name] = trial
        self._given[name] = frozenset(trial.params.items())
        self.variants[name] = fixed(name, given)
        return self.variants[name]

    def tell(self, name: str, found: tuple[float, float] | None) -> None:
        from optuna.trial import TrialState

        trial = self._trials.pop(name)
        if found is None:
            self._study.tell(trial, state=TrialState.FAIL)
            return
        self._study.tell(trial, math.log(found[0]))
        self.rows.append((name, *found))


def run(search: Tries, cases: Sequence[Case], place: Place, count: int, on_step: Callable[[Step], None]) -> None:
    """All settings of a search; a round that is lost is run again. So is one of which nothing succeeds, and its machine
    is left out. LabError where the default fails, to which the others are compared."""
    default = fixed(DEFAULT, {})
    begun = 0
    lost: list[Turn] = []
    unable: dict[str, Failure] = {}  # machines on which nothing of a round has succeeded, with what failed first

    def next_turn(machine: str) -> Turn | None:
        nonlocal begun
        if machine in unable:
            return None
        if lost:
            return lost.pop()
        asked = [variant for variant in (search.ask() for _ in range(IN_A_ROUND)) if variant is not None]
        begun += 1
        return Turn(begun, begun - 1, begun, cases, [default, *asked]) if asked else None

    def on_run(turn: Turn, number: int, case: str, variant: str) -> None:
        rounds = math.ceil(count / IN_A_ROUND)
        of_round = (1 + IN_A_ROUND) * len(cases)
        on_step(Step(turn.begun * of_round + number, rounds * of_round, turn.round, rounds, case, variant))

    for done in place.run(next_turn, on_run):
        if done.outcome is None:
            lost.append(done.turn)
            continue
        failed = [one for one in done.outcome.failures if one.variant == DEFAULT]
        if failed and not done.outcome.samples:
            lost.append(done.turn)
            unable[done.machine] = failed[0]
            continue
        if failed:
            raise _broken(failed[0])
        for variant in done.turn.variants[1:]:
            search.tell(variant.name, _ratios(done.outcome, cases, variant.name))
    if lost and unable:
        raise _broken(next(iter(unable.values())))


def _broken(failure: Failure) -> LabError:
    return LabError(f"{failure.case} at the default: {failure.reason}")


def _memory_of(case: Case) -> str:
    """The mean over time of the RSS is noise in a short command."""
    return "mean_rss_bytes" if isinstance(case, BehaviourCase) else "peak_rss_bytes"


def _ratios(found: Outcome, cases: Sequence[Case], variant: str) -> tuple[float, float] | None:
    """Geometric means over the cases of time and memory, to the default's of the same round."""
    samples = {(case, name): sample.values for case, name, sample in found.samples}

    def ratio(case: Case, metric: str) -> float:
        return samples[case.name, variant][metric] / samples[case.name, DEFAULT][metric]

    try:
        times = [next(name for name in TIMES if name in samples[case.name, variant]) for case in cases]
        time, memory = (
            statistics.geometric_mean([ratio(case, name) for case, name in zip(cases, names, strict=True)])
            for names in (times, [_memory_of(case) for case in cases])
        )
        return time, memory
    except (KeyError, ZeroDivisionError, ValueError):  # it failed a case, or a figure is 0
        return None


# ---- What a budget buys ----------------------------------------------------------------------------------------------


def expected_best(ratios: Sequence[float], count: int) -> float:
    """The mean, over all choices of `count` of them, of the lowest one."""
    ordered = sorted(ratios)
    of_all = math.comb(len(ordered), count)
    return sum(one * math.comb(len(ordered) - rank - 1, count - 1) for rank, one in enumerate(ordered)) / of_all


def budget(search: Search) -> list[str]:
    """Lines for the record: how much of all settings was seen, and what more of them would bring."""
    drawn = [time for name, time, _ in search.rows if name.startswith(RANDOM)]
    lines = [f"{search.tried} of {search.size:.3g} settings were tried"]
    if drawn:
        share = 1 - (1 - statistics.CONFIDENCE) ** (1 / len(drawn))
        lines.append(f"with 95 % one of {len(drawn)} random ones is among the best {share:.1%} of all")
        counts = [count for count in (1, 2, 5, 10, 20, 50, 100, 200, 500) if count < len(drawn)] + [len(drawn)]
        best = ", ".join(f"{count}: {expected_best(drawn, count):.3f}" for count in counts)
        lines.append(f"expected time of the best of so many random ones, of the default's in one run each: {best}")
        found = [time for name, time, _ in search.rows if name.startswith(FOUND)]
        if found:
            by_chance = "by one run each and so also by chance"
            lines.append(f"the best of {len(found)} that the search chose, {by_chance}: {min(found):.3f}")
    return [BUDGET + line for line in lines]


# ---- Who comes into the second stage ---------------------------------------------------------------------------------


def finalists(rows: Iterable[Row]) -> list[str]:
    """Those that save time, then those that save memory and lose next to no time."""
    ranked = sorted(rows, key=lambda row: row[1])
    faster = [name for name, time, _ in ranked if time < 1]
    of_all_knobs = [name for name in faster if name.startswith((RANDOM, FOUND))]
    chosen = [name for name in faster if name not in of_all_knobs][:BY_TIME] + of_all_knobs[:COMBINED]
    lean = [row for row in ranked if row[1] <= TOLERATED and row[2] < 1 and row[0] not in chosen]
    return chosen + [name for name, _, _ in sorted(lean, key=lambda row: row[2])[:BY_MEMORY]]


def screened(rows: Iterable[Row]) -> list[str]:
    """A line each for the record, the fastest first."""
    ranked = sorted(rows, key=lambda row: row[1])
    return [f"screened: {name}: time {time:.3f}, memory {memory:.3f} of the default's" for name, time, memory in ranked]


def unfinished(search: Search) -> list[str]:
    """A line for each finalist of a search without a second stage, with its setting."""
    chosen = finalists(search.rows)
    rows = [row for row in search.rows if row[0] in chosen]
    return [f"{screened([row])[0]}: {search.variants[row[0]].settings[KNOBS]}" for row in rows]


# ---- What came of it -------------------------------------------------------------------------------------------------


def _fixed_ones(record: Record) -> list[str]:
    return [name for name, facts in record.variants.items() if facts.settings.get(FIXED) == "0" and name != DEFAULT]


def _each_of(record: Record) -> float:
    """The confidence of one of the intervals by which the fixed settings are judged."""
    return statistics.family_confidence(len(_fixed_ones(record)))


def _time_of(record: Record, case: str) -> str:
    """Empty where no side has a figure."""
    return next((name for name in TIMES if any(record.values(case, side, name) for side in record.variants)), "")


def _with_one_time(record: Record) -> Record:
    """With the time by which each case is judged under one name, in seconds."""
    times = [
        Series(
            case=one.case,
            variant=one.variant,
            metric=TIME,
            unit="s",
            values=[value / 1e9 if one.unit == "ns" else value for value in one.values],
        )
        for one in record.series
        if one.metric == _time_of(record, one.case)
    ]
    return msgspec.structs.replace(record, series=[*record.series, *times])


def headroom(record: Record, case: str) -> tuple[str, statistics.Interval] | None:
    """The fixed setting that is shown to be fastest, and its ratio of time to the default's; None: none is."""
    metric = _time_of(record, case)
    found = []
    for name in _fixed_ones(record):
        ratio = comparison.compare(
            record.values(case, name, metric), record.values(case, DEFAULT, metric), _each_of(record), record.blocks
        )
        if ratio is not None and ratio.is_bounded and ratio.high < 1:
            found.append((name, ratio))
    return min(found, key=lambda pair: pair[1].estimate, default=None)


def report(record: Record, kept: str | None = None) -> Report:
    kinds = {_time_of(record, case) for case in record.cases} - {""}
    primary = kinds.pop() if len(kinds) == 1 else TIME
    timed = _with_one_time(record) if primary == TIME else record
    base = comparison.report(timed, "sweep", baseline=DEFAULT, primary=primary, metrics=MEMORIES, kept=kept)
    summary: list[str] = []
    least = statistics.minimum_rounds(_each_of(record))
    for case in record.cases:
        best = headroom(record, case)
        if _fixed_ones(record) and record.rounds < least:
            few = words.few_rounds(record.rounds, least)
            summary.append(f"{case}: whether a fixed setting is faster than the default can't be told: {few}.")
        elif best is None:
            summary.append(f"{case}: no fixed setting is shown to be faster than the default.")
        else:
            summary.append(
                f"{case}: the fastest fixed setting is {best[0]}, {words.ratio(best[1])} of the default's time. "
                f"{comparison.holding(_each_of(record))}"
            )
    summary += [note.removeprefix(BUDGET).capitalize() + "." for note in record.notes if note.startswith(BUDGET)]
    knobs = tuple(
        f"{name}: {facts.settings[KNOBS]}" for name, facts in record.variants.items() if KNOBS in facts.settings
    )
    return replace(base, summary=tuple(summary), notes=(*knobs, *base.notes))
