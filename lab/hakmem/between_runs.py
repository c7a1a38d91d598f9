"""Learns from several runs of a command: the knobs differ from run to run, and stay as they are within one.

For programs that are too short for the controller, or have one thread. In two stages, as in a sweep: first each of many
settings has a run beside the default. What looked best then runs in turns with the default, as the policy file that it
would become. Only these runs, which nobody had seen when the candidates were chosen, decide.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hakmem import comparison, control, learning, measure, native, process, statistics, sweep, words
from hakmem.allocators import hakmem
from hakmem.errors import LabError
from hakmem.measure import Case, CommandCase, Measurement, Sample, Step, Variant
from hakmem.settings import Knob
from hakmem.statistics import Decision, Interval
from hakmem.sweep import KNOBS

CANDIDATES = 3
TOGETHER = 3  # knobs that are tried together
AGAIN_SHARE = 4  # of the settings that have been tried: one n-th has another run each
DECIDING = ("cpu_s", "peak_rss_bytes")
SHOWN = (*DECIDING, "wall_s", "mean_rss_bytes")
NOT_LEARNED = {"guard_share", "direct_free_mode", *sweep.UNRELATED}  # they look for misuse, or change nothing


class Alone:
    """Each knob alone at each of its values, so many trials in all: once in a random order, then again and again the
    fastest of those that have been tried."""

    def __init__(self, knobs: Sequence[Knob], trials: int, seed: int) -> None:
        ones = sweep.single([knob for knob in knobs if knob.name not in NOT_LEARNED])
        random.Random(seed).shuffle(ones)
        self._given = {sweep.setting_of(one): one for one in ones}
        self._queue, self._left = list(self._given), trials
        self._seen: dict[str, list[tuple[float, float]]] = {}

    def ask(self) -> Variant | None:
        if not self._queue:
            ranked = sorted(self._seen, key=self._time)
            self._queue = ranked[: math.ceil(len(ranked) / AGAIN_SHARE)]
        if self._left == 0 or not self._queue:
            return None
        self._left -= 1
        name = self._queue.pop(0)
        return sweep.fixed(name, self._given[name])

    def tell(self, name: str, found: tuple[float, float] | None) -> None:
        if found is not None:
            self._seen.setdefault(name, []).append(found)

    def _time(self, name: str) -> float:
        return statistics.geometric_mean([time for time, _ in self._seen[name]])

    def _memory(self, name: str) -> float:
        return statistics.geometric_mean([memory for _, memory in self._seen[name]])

    def rows(self) -> list[sweep.Row]:
        return [(name, self._time(name), self._memory(name)) for name in self._seen]

    def candidates(self) -> list[Mapping[str, int]]:
        """The fastest; the leanest of those that lose next to no time; and the fastest values of some knobs
        together."""
        fast = sorted((name for name in self._seen if self._time(name) < 1), key=self._time)
        lean = [name for name in self._seen if self._time(name) <= sweep.TOLERATED and self._memory(name) < 1]
        together: dict[str, int] = {}
        for name in fast:
            [(knob, value)] = self._given[name].items()
            if len(together) < TOGETHER:
                together.setdefault(knob, value)
        chosen = [self._given[name] for name in (*fast[:1], *sorted(lean, key=self._memory)[:1])]
        return [*{sweep.setting_of(one): one for one in (*chosen, together) if one}.values()]


@dataclass(frozen=True)
class GivenCase(CommandCase):
    """A command with settings of the user's under all variants, his knobs before a variant's own, and with a policy
    under those that have one."""

    given: tuple[tuple[str, str], ...] = ()
    policies: Mapping[str, str] = field(default_factory=dict)  # by variant

    def knobs(self) -> str:
        """The user's."""
        own = dict(self.given).get(KNOBS, os.environ.get(KNOBS, ""))
        return "" if own == "none" else own

    def run(self, variant: Variant) -> Sample:
        with tempfile.NamedTemporaryFile("w", prefix="hakmem-policy-") as file:
            file.write(self.policies.get(variant.name, ""))
            file.flush()
            policy = {"HAKMEM_POLICY": file.name if variant.name in self.policies else "none"}
            knobs = ":".join(filter(None, (self.knobs(), variant.settings.get(KNOBS))))
            own = {**variant.settings, **({KNOBS: knobs} if knobs else {})}
            return super().run(replace(variant, settings={**dict(self.given), **policy, **own}))


@dataclass(frozen=True)
class Candidate:
    name: str
    knobs: Mapping[str, int]
    ratios: Mapping[str, Interval]  # to the default, of SHOWN

    @property
    def is_worth_it(self) -> bool:
        """One figure is shown to be better, and the other to be worse by no more than what is worth a change."""
        ratios = [self.ratios[name] for name in DECIDING]
        no_loss = all(ratio.high <= 1 + statistics.THRESHOLD for ratio in ratios)
        return no_loss and any(statistics.decision(ratio) is Decision.GO for ratio in ratios)

    @property
    def cost(self) -> float:
        return math.prod(self.ratios[name].estimate for name in DECIDING)

    def says(self) -> str:
        figures = ", ".join(
            f"{measure.METRICS[name].title} {words.ratio(ratio)}" for name, ratio in self.ratios.items()
        )
        return f"{self.name}: {figures}"


@dataclass(frozen=True)
class Learned:
    statistics: control.Statistics  # of a run at the default
    candidates: Sequence[Candidate]
    measurement: Measurement | None = None  # of the second stage; None: there was no candidate

    @property
    def best(self) -> Candidate | None:
        """The one that saves most of time and memory together; with fewer knobs, if that is as good but for what is
        not worth a change."""
        worth = [one for one in self.candidates if one.is_worth_it]
        least = min((one.cost for one in worth), default=0)
        as_good = [one for one in worth if one.cost <= least * (1 + statistics.THRESHOLD)]
        return min(as_good, key=lambda one: (len(one.knobs), one.cost), default=None)

    @property
    def holding(self) -> str:
        """Of the candidates' intervals."""
        assert self.measurement is not None
        return comparison.holding(_each_of(self.measurement))

    def policy(self, *, any_program: bool) -> str:
        assert self.best is not None and self.measurement is not None
        found = control.Learned(self.best.knobs, {})
        program = control.program_of(self.statistics, any_program=any_program)
        evidence = [
            f"{self.measurement.rounds} runs in turns with the default: {one.says()}" for one in self.candidates
        ]
        return control.policy_text(self.statistics["hakmem"], program, found, [*evidence, self.holding])


def trials_of(runs: int) -> int:
    """Of the runs, one is for the facts, and half of the others for trials, each round with one of the default."""
    return (runs - 1) // 2 * sweep.IN_A_ROUND // (1 + sweep.IN_A_ROUND)


def learn(
    command: Sequence[str],
    knobs: Sequence[Knob],
    runs: int,
    given: Mapping[str, str],
    *,
    any_program: bool,
    seed: int = 1,
    on_step: Callable[[Step], None] = lambda step: None,
) -> Learned:
    """At most so many runs in all. Knobs that the user has set are not tried."""
    case = GivenCase(tuple(command), given=tuple(given.items()))
    facts = _facts(case)
    program = control.program_of(facts, any_program=any_program)
    trials = trials_of(runs)
    taken = {one.partition("=")[0] for one in case.knobs().split(":")}
    search = Alone([knob for knob in knobs if knob.name not in taken], trials, seed)
    sweep.run(search, [case], measure.Here(), trials, on_step)
    chosen = {sweep.setting_of(one): one for one in search.candidates()}
    if not chosen:
        return Learned(facts, [])
    rounds = runs // 2 // (1 + CANDIDATES) - 1  # and one to warm up
    policies = {
        name: control.policy_text(facts["hakmem"], program, control.Learned(values, {}), [])
        for name, values in chosen.items()
    }
    sides = [Variant(name, hakmem()) for name in (sweep.DEFAULT, *policies)]
    done = measure.measure([replace(case, policies=policies)], sides, rounds, on_step=on_step)
    done.expect_whole()
    done.notes += sweep.screened(search.rows())
    found = [Candidate(name, values, _ratios(done, case, name)) for name, values in chosen.items()]
    return Learned(facts, [one for one in found if one.ratios], done)


def _facts(case: GivenCase) -> control.Statistics:
    """Of a run at the default, which finds out what program the command becomes."""
    with tempfile.TemporaryDirectory(prefix="hakmem-learn-") as folder:
        settings = {**dict(case.given), "HAKMEM_POLICY": "none", **learning.statistics_settings(folder)}
        run = process.run(case.command, hakmem(), settings, before=native.helper("ending.so"), prove=False)
        case.expect_success(run)
        process.prove_takeover(run, case.command[0], hakmem())
        written = Path(folder) / str(run.pid)
        if not written.is_file():
            raise LabError(f"{case.command[0]} left no statistics: nothing was learned")
        return control.read(written)


def _each_of(done: Measurement) -> float:
    """The confidence of each interval, with which those that decide hold all together."""
    return statistics.family_confidence((len(done.variants) - 1) * len(DECIDING))


def _ratios(done: Measurement, case: Case, name: str) -> dict[str, Interval]:
    """Empty where a figure that decides is missing."""
    values = [(one, done.values(case.name, name, one), done.values(case.name, sweep.DEFAULT, one)) for one in SHOWN]
    found = {one: comparison.compare(own, base, _each_of(done)) for one, own, base in values}
    ratios = {one: ratio for one, ratio in found.items() if ratio}
    return ratios if all(one in ratios for one in DECIDING) else {}
