"""`hakmem adapt`: what is measured of a controller at work; and that a real one rolls back what is bad."""

from __future__ import annotations

import contextlib
import pickle
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from hakmem import adapt, behaviours, cli, control, ctl, ledger, native, places, programs
from hakmem import words as words_of
from hakmem.errors import LabError
from hakmem.measure import Done, Here, OnRun, Sample, Turn, Variant
from hakmem.report.model import Comparison, Table
from hakmem.suite import BenchCase


def figures(cost: float) -> Sample:
    """A run in which every operation costs so much, and twice as much in the first visit."""
    values = {f"cost_{name}_{visit}": cost * (2 if visit == 1 else 1) for name in behaviours.NAMES for visit in (1, 2)}
    memory = {name.replace("cost", "rss"): 100.0 for name in values}
    peaks = {name.replace("cost", "peak"): 300.0 if name.endswith("1") else 200.0 for name in values}
    return Sample({**values, **memory, **peaks}, "0x1", True)


def costs_of(variant: Variant) -> float:
    if "HAKMEM_KNOBS" in variant.settings:
        return 5.0
    return 12.0 if variant.name == adapt.ADAPTIVE else 10.0


def test_switching_is_compared_with_the_best_of_each(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(BenchCase, "run", lambda self, variant: figures(costs_of(variant)))
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    file = tmp_path / "record.json"
    words = ["adapt", "switching", "--visits", "2", "-n", "3", "--best", "idle=decay_ms=10:held_slabs=1"]
    done = CliRunner().invoke(cli.cli, [*words, "--json", str(file)])
    assert done.exit_code == 0, done.output
    # 12 to 10 in five, 12 to 5 in one: (1.2 ^ 5 * 2.4) ^ (1 / 6)
    assert "adaptive: 1.347 of the oracle's CPU time, over the behaviours" in done.output
    assert "default: 1.122 of the oracle's CPU time from the second visit on, over the behaviours" in done.output
    assert "adaptive: 1.000 of the oracle's mean RSS, over the behaviours" in done.output
    assert "adaptive: 1.000 of the oracle's peak RSS, over the behaviours" in done.output
    text = file.read_text()
    for metric, value in (("mean_rss_bytes", 100.0), ("peak_rss_bytes", 300.0)):
        series = f'"metric": "{metric}", "unit": "B", "values": [{value}, {value}, {value}]'
        assert f'"case": "hot", "variant": "adaptive", {series}' in text
    assert '"oracle in idle: decay_ms=10:held_slabs=1"' in text and '"oracle in hot: default"' in text
    assert (
        '"case": "idle", "variant": "oracle", "metric": "cost_again_ns", "unit": "ns", "values": [5.0, 5.0, 5.0]'
        in text
    )
    assert '"case": "hot", "variant": "oracle", "metric": "cost_ns", "unit": "ns", "values": [15.0, 15.0, 15.0]' in text


@pytest.mark.parametrize("word", ["busy=decay_ms=9", "idle", "idle=decay_ms", "idle=decay_ms=x", "idle="])
def test_what_is_no_best_setting(word: str) -> None:
    with pytest.raises(LabError, match="expected BEHAVIOUR=KNOB=NUMBER"):
        adapt.best_of([word])


@pytest.mark.parametrize("word", ["idle=no_such_knob=1", "idle=decay_ms=9"])
def test_what_the_library_would_ignore_is_refused(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setattr(BenchCase, "run", lambda self, variant: pytest.fail("it is run"))
    done = CliRunner().invoke(cli.cli, ["adapt", "switching", "-n", "1", "--best", word])
    assert isinstance(done.exception, LabError) and f"KNOBS={word.removeprefix('idle=')}" in str(done.exception)


def test_intervals_of_the_summary_are_those_of_the_sections(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    noise = random.Random(1)
    monkeypatch.setattr(BenchCase, "run", lambda self, variant: figures(costs_of(variant) * noise.uniform(0.9, 1.1)))
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    file = tmp_path / "record.json"
    words = ["adapt", "switching", "--visits", "2", "-n", "14", "--json", str(file)]
    assert CliRunner().invoke(cli.cli, words).exit_code == 0
    record = msgspec.json.decode(file.read_bytes(), type=ledger.Record)
    report = adapt.switching_report(record)
    told = [section.mean for section in report.sections if isinstance(section, Comparison) and section.mean]
    ratios = [entry.ratio for mean in told for entry in mean.entries if entry.ratio]
    assert len(told) == 4 and [ratio for ratio in ratios if ratio.low < ratio.high]
    assert [line.split(": ")[1].split(" of ")[0] for line in report.summary] == [words_of.ratio(one) for one in ratios]


def test_the_summary_says_nothing_of_a_part_of_the_behaviours(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(self: BenchCase, variant: Variant) -> Sample:
        found = figures(costs_of(variant))
        nothing = {"cost_idle_2": 0.0} if variant.name == adapt.ADAPTIVE else {}
        return Sample({**found.values, **nothing}, found.digest, found.full_size)

    monkeypatch.setattr(BenchCase, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    done = CliRunner().invoke(cli.cli, ["adapt", "switching", "--visits", "2", "-n", "3"])
    assert done.exit_code == 0, done.output
    told = [line for line in done.output.splitlines() if "over the behaviours" in line]
    assert ["adaptive" in line for line in told if "second visit" in line] == [False]
    assert ["adaptive" in line for line in told if "mean RSS" in line].count(True) == 1


# ---- Excursion -------------------------------------------------------------------------------------------------------


def state(*whys: str, knob: str = "decay_ms", switches: int | None = None) -> Mapping[str, Any]:
    """The last switches of so many, of which each comes a tenth of a second after the one before."""
    count = len(whys) if switches is None else switches
    events = [{"ms": 1000 + 100 * at, "why": why, "knob": knob} for at, why in enumerate(whys, count - len(whys))]
    return {"events": events, "switches": count}


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        ([state(), state(), state("canary"), state("canary", "canary", "roll back")], 0.2),
        ([state("canary", "roll back"), state("canary", "roll back", "canary", "roll back", "explore")], 0.1),
        ([state(*["explore"] * 64), state(*["explore"] * 62, "canary", "roll back", switches=66)], 0.1),
        (
            [
                state(),
                state("canary"),
                state(*["canary"] * 64, switches=90),
                state(*["canary"] * 63, "roll back", switches=101),
            ],
            10.0,
        ),
    ],
)
def test_an_excursion_lasts_from_the_first_try_to_the_end(
    monkeypatch: pytest.MonkeyPatch, states: list[Mapping[str, Any]], seconds: float
) -> None:
    answers = iter(states)
    monkeypatch.setattr(adapt, "_state", lambda pid: next(answers))
    monkeypatch.setattr(ctl, "ask", lambda pid, request: "")
    assert adapt.excursion_s(1, "decay_ms=9") == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("why", "problem"), [("keep", "decay_ms=9 was kept"), ("end", "decay_ms=9 .*: decay_ms was given a value")]
)
def test_a_candidate_that_is_not_rolled_back_was_not_bad(
    monkeypatch: pytest.MonkeyPatch, why: str, problem: str
) -> None:
    answers = iter([state(), state("canary", why)])
    monkeypatch.setattr(adapt, "_state", lambda pid: next(answers))
    monkeypatch.setattr(ctl, "ask", lambda pid, request: "")
    with pytest.raises(LabError, match=problem):
        adapt.excursion_s(1, "decay_ms=9")


def test_a_report_of_an_excursion_has_time_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"cpu_s": 1.0, "wall_s": 2.0, "peak_rss_bytes": 3e6, "mean_rss_bytes": 2e6}
    monkeypatch.setattr(adapt.ExcursionCase, "run", lambda self, variant: Sample(values, "", True))
    words = ["adapt", "excursion", "--try", "decay_ms=4000", "-n", "2", "--", "true"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code == 0 and all(
        word in done.output for word in ("CPU time", "wall time", "peak RSS", "mean RSS")
    )


@pytest.mark.forms
def test_a_bad_candidate_is_rolled_back() -> None:
    """In a real process, to which memory of its own for each block of a MiB is more than twice the cost. A test with a
    clock of its own (tests/unit/control) holds within how many periods."""
    slow_s = 1.0
    command = (str(native.program("bench_mid_large")), "1000000", "100", "1", "524289", "2097152", "4")
    given = {"HAKMEM_ACE_FAST_MS": "50", "HAKMEM_ACE_SLOW_MS": f"{slow_s * 1000:.0f}"}
    tried = adapt.excursion_variants(given)[1]
    found = adapt.ExcursionCase(command, assignment="run_limit_bytes=512K").run(tried)
    assert found.values[adapt.EXCURSION] > 0


# ---- Elo -------------------------------------------------------------------------------------------------------------


def controlled(decided_ms: int, settled_ms: int, tried: list[Mapping[str, Any]]) -> control.Statistics:
    strategies = [{"knob": "run_limit_bytes", "value": n, "points": 1500, "matches": n} for n in (1, 2, 3)]
    strategies.append({"knob": "decay_ms", "value": 250, "points": 1500, "matches": 0})
    row = {"knob": "run_limit_bytes", "block_bytes": 0, "gain_ppm": 0, "outcome": "untried", "decided_ms": decided_ms}
    knobs = {"run_limit_bytes": 1 << 20, "decay_ms": 250}
    told = {"knobs": knobs, "tried": tried, "strategies": strategies, "prospects": [row], "settled_ms": settled_ms}
    return {"control": told}


def test_what_became_of_the_rated_values() -> None:
    """What was on trial at the end was not kept; what was not decided took no time."""
    trial = {"knob": "decay_ms", "block_bytes": 0, "chosen": 1000}
    matches = {"matches_run_limit_bytes": 3, "matches_decay_ms": 0}
    left = {"left_run_limit_bytes": 1 << 20, "left_decay_ms": 1000}
    times = {"decided_s_run_limit_bytes": 0.0, "decided_s_decay_ms": 0.0, "settled_s": 0.0}
    assert adapt.rated(controlled(0, 0, [trial])) == {**matches, **left, **times}
    times |= {"decided_s_run_limit_bytes": 41.5, "settled_s": 54.0}
    assert adapt.rated(controlled(41500, 54000, [])) == {**matches, **left, "left_decay_ms": 250, **times}


@pytest.mark.parametrize("is_decided", [True, False])
def test_services_are_compared_with_and_without_the_controller(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_decided: bool
) -> None:
    ran: list[tuple[str, Mapping[str, str], float]] = []
    decided = iter([40000, 42000 if is_decided else 0])
    settled = iter([50000, 50000 if is_decided else 0])

    def run(self: programs.ProgramCase, variant: Variant) -> Sample:
        given = dict(variant.settings)
        Path(given.pop("HAKMEM_STATS").removeprefix("json:")).write_text("{}")
        ran.append((self.name, given, self.seconds))
        figures = {"cost_ns": 10.0, "operations_per_s": 5.0, "peak_rss_bytes": 3e6, "mean_rss_bytes": 2e6}
        return Sample(figures, "", True)

    monkeypatch.setattr(programs.ProgramCase, "run", run)
    monkeypatch.setattr(control, "read", lambda file: controlled(next(decided), next(settled), []))
    file = tmp_path / "record.json"
    words = ["adapt", "elo", "--seconds", "7", "-n", "2", "--set", "GOAL=memory", "--json", str(file), "python3"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code == 0, done.output
    assert {(name, seconds) for name, _, seconds in ran} == {("python3", 7.0)} and len(ran) == 4
    on = {"HAKMEM_GOAL": "memory", "HAKMEM_POLICY": "none"}
    off = {**on, "HAKMEM_ACE_ENABLED": "0"}
    assert [settings for _, settings, _ in ran].count(on) == [settings for _, settings, _ in ran].count(off) == 2
    over = "after 50 s" if is_decided else "in 1 of 2 runs, after 50 s"
    assert f"python3: the first round of trying was over {over}." in done.output
    lines = [line.split() for line in done.output.splitlines()]
    rows = {line[1]: " ".join(line[2:]) for line in lines if line[1:2] in (["run_limit_bytes"], ["decay_ms"])}
    assert rows["run_limit_bytes"] == "3 " + ("40 to 42 2 of 2" if is_decided else "40 1 of 2") + " 1048576"
    assert rows["decay_ms"] == "0 - 0 of 2 250"
    assert all(word in done.output for word in ("CPU time", "throughput", "peak RSS", "mean RSS"))
    text = file.read_text()
    assert '"metric": "matches_run_limit_bytes", "unit": "", "values": [3.0, 3.0]' in text
    times = f"[40.0, {42.0 if is_decided else 0.0}]"
    assert f'"metric": "decided_s_run_limit_bytes", "unit": "s", "values": {times}' in text
    record = msgspec.json.decode(file.read_bytes(), type=ledger.Record)
    older = [series for series in record.series if not series.metric.startswith(adapt.DECIDED)]
    table = adapt.elo_report(msgspec.structs.replace(record, series=older)).sections[0]
    assert isinstance(table, Table) and {row[3:5] for row in table.rows} == {("-", "-")}


def test_what_is_no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LabError, match="no service 'busy'; there are python3, redis, node"):
        adapt.elo_cases(["busy"], 1)
    monkeypatch.setattr(programs, "installed", lambda program: None)
    with pytest.raises(LabError, match="redis: Debian's package redis-tools is not installed"):
        adapt.elo_cases(["redis"], 1)


# ---- Policy ----------------------------------------------------------------------------------------------------------


class Elsewhere(Here):
    """A machine of a cluster: what it runs has come there in a message."""

    def run(self, next_turn: Callable[[str], Turn | None], on_run: OnRun) -> Iterator[Done]:
        return super().run(lambda name: pickle.loads(pickle.dumps(next_turn(name))), on_run)


@pytest.mark.parametrize("on", [[], ["--on", "tcp://elsewhere:8786"]])
def test_a_policy_is_compared_from_its_first_visit_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on: list[str]
) -> None:
    asked: list[str | None] = []

    def opened(address: str | None) -> contextlib.AbstractContextManager[Here]:
        asked.append(address)
        return contextlib.nullcontext(Elsewhere())

    monkeypatch.setattr(places, "opened", opened)

    def run(self: BenchCase, variant: Variant) -> Sample:
        visits = int(self.words[2])
        assert visits == (4 if variant.name == adapt.LEARNED else adapt.SHORT_VISITS)
        policy = variant.settings.get("HAKMEM_POLICY")
        assert (policy is not None) == (variant.name == adapt.FOLLOWED)
        assert policy is None or Path(policy).read_text().endswith("odds 25\nend\n")
        if "HAKMEM_STATS" in variant.settings:
            Path(variant.settings["HAKMEM_STATS"].removeprefix("json:")).write_text("{}")
        cost = 10.0 if variant.name == "default" else 5.0
        values = {
            f"{figure}_idle_{visit}": cost for figure in ("cost", "rss", "peak") for visit in range(1, visits + 1)
        }
        return Sample(values, "0x1", True)

    monkeypatch.setattr(BenchCase, "run", run)
    monkeypatch.setattr(native, "program", lambda name: Path("/bench") / name)
    monkeypatch.setattr(control, "read", lambda file: {})
    monkeypatch.setattr(
        control, "policy", lambda statistics, any_program: "evidence 2 s keep decay_ms 1 4 gain 50 % odds 25\nend\n"
    )
    words = ["adapt", "policy", "--visits", "4", "-n", "2", *on, "--json", str(tmp_path / "record.json"), "idle"]
    done = CliRunner().invoke(cli.cli, words)
    assert done.exit_code == 0, done.output
    assert asked == (on[1:] or [None])
    text = (tmp_path / "record.json").read_text()
    assert "the policy comes from: 2 s keep decay_ms 1 4 gain 50 % odds 25" in text
    assert '"variant": "policy", "metric": "cost_first_ns", "unit": "ns", "values": [5.0, 5.0]' in text
    assert '"variant": "learned", "metric": "cost_first_ns"' not in text
    for metric in ("mean_rss_bytes", "peak_rss_bytes"):
        assert f'"variant": "policy", "metric": "{metric}"' in text
    assert "mean RSS" in done.output and "peak RSS" in done.output
    assert "but for the first visit's, figures are of visit 4 under learned, and of visit 2 under" in done.output
    refused = CliRunner().invoke(cli.cli, ["adapt", "policy", "busy"])
    assert isinstance(refused.exception, LabError)
