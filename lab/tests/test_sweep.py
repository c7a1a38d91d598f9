from __future__ import annotations

import errno
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hakmem import behaviours, cli, measure, native, process, settings, sweep
from hakmem.allocators import Allocator
from hakmem.behaviours import BehaviourCase
from hakmem.errors import LabError
from hakmem.ledger import VariantFacts
from hakmem.measure import (
    Case,
    CommandCase,
    Done,
    Here,
    OnRun,
    Outcome,
    SameOutput,
    Sample,
    Turn,
    Variant,
    run_turn,
)
from hakmem.report.model import Comparison, Table
from hakmem.settings import Knob
from hakmem.suite import BenchCase
from sample_record import MACHINE, record

HELP = """\
hakmem: settings (value, default, meaning)
  HAKMEM_ACE_ENABLED   = 1 (default 1): 0: no controller
  HAKMEM_KNOBS         = none (default none): NAME=NUMBER[:NAME=NUMBER...]
hakmem: knobs (value, default, bounds, meaning)
  decay_ms            = 1000 (default 1000, 10 to 3600000): how long
  huge_page_mode      = 1 (default 1, 0 to 2): 0 none
"""
KNOBS = [Knob("decay_ms", 1000, 10, 3600000, "how long"), Knob("huge_page_mode", 1, 0, 2, "0 none")]


@pytest.fixture(autouse=True)
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "libhakmem.so"
    path.write_bytes(b"a library")
    monkeypatch.setattr(native, "library", lambda: path)
    monkeypatch.setattr(settings, "_said", lambda library, settings: HELP)
    return path


def test_knobs_are_those_the_library_lists(library: Path) -> None:
    assert settings.knobs(library) == KNOBS


def test_arms_are_steps_and_bounds_but_not_the_default() -> None:
    assert sweep.arms(KNOBS[0]) == [10, 250, 4000, 16000, 3600000]
    assert sweep.arms(KNOBS[1]) == [0, 2]
    assert sweep.arms(Knob("limit", 100, 50, 200)) == [50, 200]  # steps beyond the bounds are none


def test_a_setting_has_no_controller() -> None:
    assert len(sweep.single(KNOBS)) == 7
    assert sweep.fixed("name", {"decay_ms": 10}).settings == {
        "HAKMEM_ACE_ENABLED": "0",
        "HAKMEM_EXPERIMENT": "none",
        "HAKMEM_POLICY": "none",
        "HAKMEM_KNOBS": "decay_ms=10",
    }


def test_random_settings_follow_from_the_seed() -> None:
    first, again, other = (sweep.combined(KNOBS, 8, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first[0].keys() == {"decay_ms", "huge_page_mode"}


def row(name: str, time: float, memory: float) -> tuple[str, float, float]:
    return name, time, memory


def test_finalists_save_time_or_memory() -> None:
    ranked = [
        row("random 1", 0.5, 2),
        row("found 2", 0.6, 2),
        row("a=1", 0.8, 1),
        row("b=1", 0.9, 1.1),
        row("c=1", 0.95, 1),
        row("d=1", 0.96, 1.2),
        row("e=1", 1.01, 0.8),
        row("f=1", 1.5, 0.1),  # too slow
    ]
    assert sweep.finalists(ranked) == ["a=1", "b=1", "c=1", "random 1", "e=1"]
    assert sweep.finalists([row("a=1", 1.2, 1)]) == []


@dataclass
class Bowl:
    """Its time is least where many knobs have one value each; every run is a little off."""

    name: str = "bowl"
    command: Sequence[str] = ("bowl",)
    same_output: SameOutput = "everywhere"
    count: int = 0

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        self.count += 1
        given = dict(word.split("=") for word in variant.settings.get("HAKMEM_KNOBS", "").split(":") if word)
        off = sum(abs(BOWL_VALUES.index(int(given.get(knob.name, "100"))) - 4) for knob in BOWL)
        noise = 1 + 0.01 * math.sin(self.count)
        if given.get("knob0") == "0":
            raise LabError("it fails there")
        return Sample({"cpu_s": (1 + 0.1 * off) * noise, "peak_rss_bytes": 100.0}, "", True)


BOWL = [Knob(f"knob{number}", 100, 0, 100000) for number in range(6)]
BOWL_VALUES = [0, 25, 100, 400, 1600, 100000]


def searched(trials: int, seed: int) -> sweep.Search:
    search = sweep.Search(BOWL, trials, seed)
    sweep.run(search, [Bowl()], Here(), trials, lambda step: None)
    return search


def test_the_search_finds_more_than_chance_does() -> None:
    """Of as many settings as the search chooses, chance's best is worse, in four of five seeds at the least."""
    wins = 0
    for seed in range(5):
        search = searched(100, seed)
        found = [time for name, time, _ in search.rows if name.startswith(sweep.FOUND)]
        by_chance = searched_at_random(len(found), seed)
        wins += min(found) < by_chance
    assert wins >= 4


def searched_at_random(count: int, seed: int) -> float:
    bowl, default = Bowl(), Bowl().run(sweep.fixed("default", {})).values["cpu_s"]
    drawn = [one for one in sweep.combined(BOWL, count, seed + 100) if one["knob0"] != 0]
    return min(bowl.run(sweep.fixed("x", one)).values["cpu_s"] for one in drawn) / default


def test_every_setting_is_compared_in_its_round_and_failures_are_left_out() -> None:
    search = searched(40, 3)
    assert len(search.variants) == 40
    assert [name for name in search.variants if name.startswith(sweep.RANDOM)] == [f"random {i}" for i in range(1, 11)]
    failing = {name for name, one in search.variants.items() if "knob0=0" in one.settings["HAKMEM_KNOBS"].split(":")}
    assert {name for name, _, _ in search.rows} == search.variants.keys() - failing
    assert searched(40, 3).rows == search.rows  # by its seed


def test_memory_of_a_command_is_the_peak_of_a_behaviour_the_mean() -> None:
    values = {"cpu_s": 1.0, "cost_ns": 1.0, "mean_rss_bytes": 100.0, "peak_rss_bytes": 100.0}
    other = {**values, "mean_rss_bytes": 50.0, "peak_rss_bytes": 80.0}
    cases: list[Case] = [CommandCase(("true",)), BehaviourCase("hot")]
    for case, memory in zip(cases, (0.8, 0.5), strict=True):
        samples = [(case.name, "a", Sample(other, "", True)), (case.name, "default", Sample(values, "", True))]
        assert sweep._ratios(Outcome(samples, [], (0, 0, 0)), [case], "a") == pytest.approx((1.0, memory))


def test_what_a_budget_buys() -> None:
    ratios = [0.9, 1.0, 1.1]
    assert sweep.expected_best(ratios, 1) == pytest.approx(1.0)
    assert sweep.expected_best(ratios, 2) == pytest.approx((0.9 + 0.9 + 1.0) / 3)
    assert sweep.expected_best(ratios, 3) == pytest.approx(0.9)
    search = searched(40, 3)
    lines = sweep.budget(search)
    assert f"budget: {search.tried} of {6**6:.3g} settings were tried" in lines
    drawn = sum(name.startswith(sweep.RANDOM) for name, _, _ in search.rows)
    share = 1 - 0.05 ** (1 / drawn)
    assert f"budget: with 95 % one of {drawn} random ones is among the best {share:.1%} of all" in lines
    assert "by one run each and so also by chance" in lines[-1]  # the least of many figures that are noisy


def test_a_setting_that_was_tried_twice_counts_once() -> None:
    search = sweep.Search(BOWL[:1], 40, 3)
    while (asked := search.ask()) is not None:
        search.tell(asked.name, (1.0, 1.0))
    assert len(search.rows) == 40 and 2 <= search.tried <= search.size == 6
    assert sweep.budget(search)[0] == f"budget: {search.tried} of 6 settings were tried"


def test_a_lost_round_is_run_again() -> None:
    class Losing(Here):
        def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
            for number, done in enumerate(super().run(next_turn, on_run)):
                yield replace(done, outcome=None) if number == 1 else done

    search, lossless = sweep.Search(BOWL, 12, 1), searched(12, 1)
    sweep.run(search, [Bowl()], Losing(), 12, lambda step: None)
    assert {name for name, _, _ in search.rows} == {name for name, _, _ in lossless.rows}


def test_the_default_must_work() -> None:
    class Broken(Bowl):
        def run(self, variant: Variant) -> Sample:
            raise LabError("broken")

    with pytest.raises(LabError, match="bowl at the default: broken"):
        sweep.run(sweep.Search(BOWL, 4, 1), [Broken()], Here(), 4, lambda step: None)


def test_a_machine_on_which_nothing_succeeds_is_left_out() -> None:
    """It lacks the program, say: what the others find stands."""

    class Two(Here):
        def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
            while turns := [(name, turn) for name in ("bare", "good") if (turn := next_turn(name)) is not None]:
                for name, turn in turns:
                    yield Done(name, turn, run_turn(replace(turn, cases=[Bare()]) if name == "bare" else turn))

    class Bare(Bowl):
        def run(self, variant: Variant) -> Sample:
            asked.append(variant.name)
            raise LabError("prog: command not found")

    asked: list[str] = []
    search, alone = sweep.Search(BOWL, 12, 1), searched(12, 1)
    sweep.run(search, [Bowl()], Two(), 12, lambda step: None)
    assert len(search.rows) == len(alone.rows) and asked.count(sweep.DEFAULT) == 1


# ---- Behaviours ------------------------------------------------------------------------------------------------------


def test_a_behaviour_is_the_last_visit_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"cost_idle_1": 9.0, "cost_idle_2": 5.0, "rss_idle_1": 1.0, "rss_idle_2": 2.0}
    values |= {"peak_idle_1": 9.0, "peak_idle_2": 3.0, "cpu_s": 3.0}
    monkeypatch.setattr(BenchCase, "run", lambda self, variant: Sample(values, "0x1", True))
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    [case] = sweep.cases(["behaviour", "idle"])
    assert case.command == ("/bench/bench_switching", "0.5", "2", "1", "idle")
    assert case.run(sweep.fixed("default", {})).values == {
        "cost_ns": 5.0,
        "mean_rss_bytes": 2.0,
        "peak_rss_bytes": 3.0,
    }
    assert sweep.cases(["behaviour", "hot,idle"], 2)[1].command[1] == "2"
    assert len(sweep.cases(["behaviour", "hot, hot"])) == 1
    assert sweep.shortened(case).command[1] == "0.125"


def test_no_such_behaviour() -> None:
    with pytest.raises(LabError, match="no behaviour 'busy'; there are hot, bulk"):
        sweep.cases(["behaviour", "busy"])


# ---- The command -----------------------------------------------------------------------------------------------------


def test_sweep_finds_the_best(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """decay_ms=4000 takes half of the time; the controller, which takes part, does nothing."""

    def run(self: BehaviourCase, variant: Variant) -> Sample:
        given: Mapping[str, str] = variant.settings
        is_best = given.get("HAKMEM_KNOBS") == "decay_ms=4000"
        cost = 5.0 if is_best else 10.0
        return Sample({"cost_ns": cost, "mean_rss_bytes": 100.0, "peak_rss_bytes": 200.0}, "0x1", True)

    monkeypatch.setattr(BehaviourCase, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    words = ["sweep", "--trials", "30", "--side", "adaptive=ACE_ENABLED=1", "--json", str(tmp_path / "record.json")]
    done = CliRunner().invoke(cli.cli, [*words, "--", "behaviour", "hot"])
    assert done.exit_code == 0, done.output
    assert "settings were tried." in done.output
    assert "hot: the fastest fixed setting is decay_ms=4000, 0.5" in done.output
    assert "mean RSS" in done.output and "peak RSS" in done.output
    text = (tmp_path / "record.json").read_text()
    assert '"kind": "sweep"' in text and "screened: decay_ms=4000: time 0.500" in text
    assert text.count('"variant": "adaptive"') == 3
    assert set(behaviours.NAMES) == {"hot", "bulk", "handover", "buffers", "growing", "idle"}


def test_a_benchmark_that_goes_on_for_a_time_is_judged_by_what_it_does_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """decay_ms=4000 makes each do twice as much in a second; one of fixed work takes its processor time as before."""

    def run(words: Sequence[str], allocator: Allocator, given: Mapping[str, str], **_: object) -> process.Run:
        rate = 2000000 if given.get("HAKMEM_KNOBS") == "decay_ms=4000" else 1000000
        closing = (
            f"allocator {allocator.library}\npeak 2048 KiB\nchecksum 0x00000000000000ff\n"
            f"Throughput = {rate} operations per second, relative time: 1.000 s.\n"
        )
        return process.Run(1, 0, 1.0, 1.0, 0.1, 9 << 20, 10, 0, (), closing.encode(), b"")

    monkeypatch.setattr(process, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    done = CliRunner().invoke(cli.cli, ["sweep", "--trials", "30", "--", "bench", "hot,larson 1"])
    assert done.exit_code == 0, done.output
    assert "larson 1: the fastest fixed setting is decay_ms=4000, 0.500" in done.output
    assert "hot: no fixed setting is shown to be faster than the default." in done.output
    assert done.output.count("CPU time") == 1 and f"{sweep.TIME}: less is better" in done.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--side", "default=ACE_ENABLED=1"], "--side default: there is one of that name"),
        (["--side", "a=ACE_ENABLED=1", "--side", "a=ACE_ENABLED=0"], "--side a: there is one of that name"),
        (["--side", "=ACE_ENABLED=1"], "expected --side NAME=SIDE"),
        (["--knob", "metrics_ms"], "no knob 'metrics_ms' to sweep; there are decay_ms, huge_page_mode"),
    ],
)
def test_what_makes_no_sweep_is_refused(words: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = "  metrics_ms          = 0 (default 0, 0 to 1000): how often\n"
    monkeypatch.setattr(settings, "_said", lambda library, settings: HELP + metrics)
    monkeypatch.setattr(sweep, "run", lambda *_: pytest.fail("measures"))
    done = CliRunner().invoke(cli.cli, ["sweep", *words, "--", "behaviour", "hot"])
    assert done.exit_code != 0 and isinstance(done.exception, LabError) and said in str(done.exception)


@pytest.mark.parametrize("words", [["sweep", "--", "behaviour", "hot"], ["adapt", "switching"]])
def test_the_default_is_the_default(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Knobs in the environment are not in what has knobs of its own: a setting would be compared with another one than
    is said."""
    monkeypatch.setattr(sweep, "run", lambda *_: pytest.fail("measures"))
    monkeypatch.setattr(measure, "measure", lambda *_, **__: pytest.fail("measures"))
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    monkeypatch.setenv("HAKMEM_KNOBS", "decay_ms=50")
    done = CliRunner().invoke(cli.cli, words)
    assert isinstance(done.exception, LabError)
    assert "HAKMEM_KNOBS=decay_ms=50: expected it not to be set" in str(done.exception)


@pytest.mark.parametrize("end", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_what_ends_the_first_stage_loses_nothing(end: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: BehaviourCase, variant: Variant) -> Sample:
        if next(count) == 30:
            raise end
        is_best = variant.settings.get("HAKMEM_KNOBS") == "decay_ms=4000"
        return Sample({"cost_ns": 5.0 if is_best else 10.0, "mean_rss_bytes": 100.0}, "0x1", True)

    count = itertools.count()
    monkeypatch.setattr(BehaviourCase, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    done = CliRunner().invoke(cli.cli, ["sweep", "--trials", "100", "--", "behaviour", "hot"])
    assert done.exit_code != 0
    assert "screened: decay_ms=4000: time 0.500, memory 1.000 of the default's: decay_ms=4000" in done.output


@pytest.mark.parametrize(
    ("rounds", "said"),
    [
        (
            8,
            "the fastest fixed setting is fixed, 0.800 (0.800-0.800) of the default's time. "
            "Each interval holds with 97.5%.",
        ),
        (6, "whether a fixed setting is faster than the default can't be told: too few rounds: 6 of at least 7."),
    ],
)
def test_too_few_rounds_do_not_show_that_nothing_is_faster(rounds: int, said: str) -> None:
    """The more settings are left, the more rounds it takes."""
    values = {("true", name, "cpu_s"): [time] * rounds for name, time in (("default", 1.0), ("fixed", 0.8), ("x", 1.1))}
    facts = {
        name: VariantFacts(allocator="hakmem", library=None, sha256=None, settings={sweep.FIXED: "0"})
        for name in ("default", "fixed", "x")
    }
    (summary,) = sweep.report(record(values, variants=facts)).summary
    assert summary == f"true: {said}"


def test_each_case_is_shown_by_the_time_that_it_is_judged_by() -> None:
    """One table with all of them, and none of what is the same by construction."""
    values = {
        ("hot", "default", "cpu_s"): [1.0] * 12,
        ("hot", "fixed", "cpu_s"): [1.0] * 12,
        ("larson", "default", "cpu_s"): [1.0] * 12,
        ("larson", "fixed", "cpu_s"): [1.0] * 12,
        ("larson", "default", "cost_ns"): [16.0] * 12,
        ("larson", "fixed", "cost_ns"): [4.0] * 12,
    }
    facts = {
        name: VariantFacts(allocator="hakmem", library=None, sha256=None, settings={sweep.FIXED: "0"})
        for name in ("default", "fixed")
    }
    machines = {name: msgspec.structs.replace(MACHINE, cpu=name) for name in ("one", "other")}
    shown = sweep.report(record(values, variants=facts, machines=machines, blocks=[*machines] * 6))
    times, by_machine = shown.sections
    assert isinstance(times, Comparison) and isinstance(by_machine, Table)
    assert [case.name for case in times.cases] == ["hot", "larson"] and times.title == sweep.TIME
    assert times.cases[1].entry("default").values == pytest.approx([16e-9] * 12)
    assert times.mean is not None and (mean := times.mean.entry("fixed").ratio) is not None
    assert mean.estimate == pytest.approx(0.5)
    assert by_machine.title == "CPU time by machine" and all("-" not in row for row in by_machine.rows)
