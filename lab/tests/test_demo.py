"""hakmem demo: its table, its sentences, the service at rest, and what an interruption keeps."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem import allocators, cli, ledger, machine, measure, native, programs, resting
from hakmem.commands import demo
from hakmem.errors import InterruptedEarly, LabError
from hakmem.measure import Sample, Variant
from sample_record import record

GLIBC = Variant("glibc", allocators.glibc())
VALUES = {"cpu_s": 1.0, "peak_rss_bytes": float(40 << 20)}


def record_of(own: Mapping[tuple[str, str], Sequence[float]]) -> ledger.Record:
    """Of cases whose runs on glibc have always the same figures; `own` are hakmem's, by case and metric."""
    glibc = {"cpu_s": [1.0] * 6, "peak_rss_bytes": [40.0 * 2**20] * 6, "idle_bytes": [96.0 * 2**20] * 6}
    values = {(case, "hakmem", metric): list(some) for (case, metric), some in own.items()}
    values |= {(case, "glibc", metric): glibc[metric] for case, metric in own}
    return record(values)


def test_a_service_has_a_line_for_its_rest_and_no_mean_is_told() -> None:
    found = record_of(
        {
            ("git", "cpu_s"): [0.9] * 6,
            ("git", "peak_rss_bytes"): [41.0 * 2**20] * 6,
            ("service", "cpu_s"): [1.0] * 6,
            ("service", "peak_rss_bytes"): [40.0 * 2**20] * 6,
            ("service", "idle_bytes"): [24.0 * 2**20] * 6,
        }
    )
    _, names, git, service, rest, doubt = demo._table(found, demo.METRICS).splitlines()
    assert names.split() == ["program", *["glibc", "hakmem", "ratio"] * 2]
    assert git.split()[0] == "git" and "0.90" in git and service.startswith("service")
    assert re.split("  +", rest.strip()) == ["after 10 s of rest", "96.00 MiB", "24.00 MiB", "0.25"]
    assert rest.endswith("0.25") and len(rest) == len(git)
    assert doubt == demo.DOUBT
    assert max(map(len, (names, git, service, rest))) <= 80


def test_all_metrics_fit_beside_each_other() -> None:
    sizes = {"wall_s": 12.5, "cpu_s": 12.5, "peak_rss_bytes": 1.25e9, "minor_faults": 1.25e6}
    values = {("memcached", metric): [sizes[metric]] * 6 for metric in demo.ALL_METRICS.values()}
    own = {(case, "hakmem", metric): some for (case, metric), some in values.items()}
    both = own | {(case, "glibc", metric): some for case, _, metric in own for some in [own[case, "hakmem", metric]]}
    lines = demo._table(record(both), demo.ALL_METRICS).splitlines()
    assert max(len(line) for line in lines if line != demo.DOUBT) <= 80
    assert all(any(name in line for line in lines) for name in demo.ALL_METRICS)
    assert sum(line.startswith("memcached") for line in lines) == 2


@pytest.mark.parametrize(
    ("time", "peak", "said"),
    [
        ([0.92] * 6, [41.2 * 2**20] * 6, "hakmem takes 8 % less time; hakmem has a peak 3 % higher."),
        (
            [1.002] * 6,
            [39.9 * 2**20] * 6,
            "hakmem takes less than 1 % more time; hakmem has a peak less than 1 % lower.",
        ),
        (
            [0.9, 1.2, 0.8, 1.1, 1.0, 1.0],
            [30.0 * 2**20] * 6,
            "the difference in time may be chance; hakmem has a peak 25 % lower.",
        ),
    ],
)
def test_each_program_has_a_sentence_with_its_doubt(time: list[float], peak: list[float], said: str) -> None:
    found = record_of({("git", "cpu_s"): time, ("git", "peak_rss_bytes"): peak})
    assert demo._verdicts(found) == [f"git: {said}"]


def test_of_too_few_rounds_there_is_no_verdict() -> None:
    """Whatever they show: no interval of theirs has ends."""
    own = {("git", "cpu_s"): [0.37] * 2, ("git", "peak_rss_bytes"): [41.2 * 2**20] * 2}
    values = {(case, "hakmem", metric): some for (case, metric), some in own.items()}
    values |= {("git", "glibc", "cpu_s"): [1.0] * 2, ("git", "glibc", "peak_rss_bytes"): [40.0 * 2**20] * 2}
    assert demo._verdicts(record(values)) == ["No verdict: too few rounds: 2 of at least 6."]


def test_the_service_s_sentence_is_that_on_its_rest() -> None:
    whole = {("service", "cpu_s"): [1.0] * 6, ("service", "peak_rss_bytes"): [40.0 * 2**20] * 6}
    found = record_of({**whole, ("service", "idle_bytes"): [24.0 * 2**20] * 6})
    assert demo._verdicts(found) == ["service: after 10 s of rest hakmem holds 24.00 MiB, glibc 96.00 MiB."]
    found = record_of({**whole, ("service", "idle_bytes"): [n * 2.0**20 for n in (90, 99, 95, 97, 92, 101)]})
    (said,) = demo._verdicts(found)
    assert said.endswith("glibc 96.00 MiB, which may be chance.")


# ---- The service -----------------------------------------------------------------------------------------------------


def test_services_rest_side_by_side_and_tell_what_they_hold() -> None:
    """hakmem is in a build folder only; glibc twice shows that outputs are compared."""
    variants = [GLIBC, replace(GLIBC, name="glibc #2")]
    found = resting.measured(variants, 2, requests=8, rest_s=0.2)
    assert found.rounds == 2 and not found.failures
    for variant in variants:
        held = found.values(resting.NAME, variant.name, "idle_bytes")
        peak = found.values(resting.NAME, variant.name, "peak_rss_bytes")
        assert len(held) == 2 and all(4 << 20 < now < most * 1.05 for now, most in zip(held, peak, strict=True))
    samples = [sample for of_variant in found.samples[resting.NAME].values() for sample in of_variant]
    assert len({sample.digest for sample in samples}) == 1
    assert min(sample.values["wall_s"] for sample in samples) >= 0.2


def services(requests: int) -> int:
    """Processes of those that are asked so often."""
    count = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            words = (process / "cmdline").read_bytes().split(b"\0")
            count += words[1:2] == [str(programs.INPUTS / "bursts.py").encode()] and words[2] == b"%d" % requests
    return count


def test_services_of_a_few_rounds_are_there_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "MOST_ROUNDS", 1)
    there: list[int] = []
    variants = [GLIBC, replace(GLIBC, name="glibc #2")]
    found = resting.measured(variants, 3, requests=9, rest_s=0.1, on_step=lambda step: there.append(services(9)))
    assert found.rounds == 3 and not found.failures and there == [0, 1] * 3


def test_what_has_failed_at_rest_is_not_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resting, "MOST_ROUNDS", 2)
    asked: list[str] = []

    def run(case: object, variant: Variant) -> Sample:
        asked.append(variant.name)
        if variant.name == "other":
            raise LabError("no luck")
        return Sample(VALUES, "same", full_size=True)

    monkeypatch.setattr(resting.ProgramCase, "run", run)
    found = resting.measured([GLIBC, replace(GLIBC, name="other")], 6, rest_s=0)
    assert found.rounds == 6 and [failure.variant for failure in found.failures] == ["other"]
    assert (asked.count("glibc"), asked.count("other")) == (6, 2)


def test_a_service_that_does_not_get_to_its_rest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "INPUTS", Path("/nosuch"))
    with pytest.raises(measure.LabError, match="service"):
        resting.measured([GLIBC], 1, requests=8, rest_s=0.1)


def test_ctrl_c_ends_services_at_rest() -> None:
    """All of them, before it returns."""

    def interrupt(step: measure.Step) -> None:
        if step.number == 2:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(InterruptedEarly):
        resting.measured([GLIBC, replace(GLIBC, name="other")], 1, requests=10, rest_s=60, on_step=interrupt)
    assert not services(10)


# ---- Interruptions ---------------------------------------------------------------------------------------------------


class Case:
    """One that is done at once; the last one interrupts."""

    command = ("program",)
    same_output: measure.SameOutput = "nowhere"

    def __init__(self, name: str, interrupts: str = "") -> None:
        self.name, self._interrupts = name, interrupts

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        if variant.name == self._interrupts:
            raise KeyboardInterrupt
        return Sample(VALUES, "same", full_size=True)


VARIANTS = [GLIBC, replace(GLIBC, name="hakmem")]


def test_ctrl_c_in_the_first_round_keeps_the_cases_that_are_finished() -> None:
    """Those that have run under both allocators."""
    done = measure.measure([Case("one"), Case("two"), Case("three", "hakmem")], VARIANTS, 6, keeps_parts=True)
    assert done.interrupted and done.rounds == 1 and [case.name for case in done.cases] == ["one", "two"]
    assert done.values("two", "hakmem", "cpu_s") == [1.0] and "three" not in done.samples
    assert done.notes[0] == "interrupted in the warm-up: 2 of 3 cases were finished, once each"
    kept = ledger.from_measurement(done, "demo", start=machine.facts(), warmup=1)
    assert kept.interrupted and len(demo._table(kept, demo.METRICS).splitlines()) == 6
    done = measure.measure([Case("one"), Case("two", "hakmem")], VARIANTS, 6, warmup=0, keeps_parts=True)
    assert done.notes[0] == "interrupted in round 1: 1 of 2 cases were finished, once each"


class EndsLater(Case):
    """Not in its first runs."""

    runs = 0

    def run(self, variant: Variant) -> Sample:
        self.runs += 1
        return super().run(variant) if self.runs > len(VARIANTS) else Sample(VALUES, "same", full_size=True)


@pytest.mark.parametrize("others", [[], ["zero"]])
def test_ctrl_c_right_after_the_warm_up_keeps_the_warm_up(others: list[str]) -> None:
    """The first round counts as soon as it has more."""
    cases = [*map(Case, others), EndsLater("last", GLIBC.name)]
    done = measure.measure(cases, VARIANTS, 6, keeps_parts=True)
    assert done.notes[0] == f"interrupted in the warm-up: {len(cases)} of {len(cases)} cases were finished, once each"
    assert done.interrupted and done.rounds == 1 and done.cases == cases


def test_ctrl_c_before_any_case_is_finished_keeps_nothing() -> None:
    with pytest.raises(InterruptedEarly):
        measure.measure([Case("one", "hakmem")], VARIANTS, 6, keeps_parts=True)


def test_parts_of_a_round_are_kept_only_where_that_is_asked_for() -> None:
    """A search over settings can't do with them."""
    with pytest.raises(InterruptedEarly):
        measure.measure([Case("one"), Case("two", "hakmem")], VARIANTS, 6)


# ---- What is shown whatever fails ------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """One program that is done at once, and a service that has nothing to tell."""

    def measured(
        variants: Sequence[Variant], rounds: int, on_step: Callable[[measure.Step], None] = lambda step: None
    ) -> measure.Measurement:
        on_step(measure.Step(1, 2, 1, rounds, resting.NAME, "glibc"))
        return measure.measure([Case(resting.NAME)], variants, rounds, warmup=0)

    monkeypatch.setattr(demo, "_few", lambda: ([Case("one")], []))
    monkeypatch.setattr(resting, "measured", measured)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LabError("service under glibc, hakmem: no luck"), "service under glibc, hakmem: no luck"),
        (OSError(28, "No space left on device"), "[Errno 28] No space left on device"),
        (RuntimeError("can't start new thread"), "can't start new thread"),
    ],
)
def test_programs_are_shown_where_the_service_can_not_be_measured(
    quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, said: str
) -> None:
    def refuse(variants: Sequence[Variant], rounds: int, **_: object) -> measure.Measurement:
        raise error

    monkeypatch.setattr(resting, "measured", refuse)
    done = CliRunner().invoke(cli.cli, ["demo", "--json", str(tmp_path / "record")])
    assert done.exit_code == 1 and f"\nFAILED: service: {said}\n" in done.output
    assert "\none  " in done.output and "\none: " in done.output and "proved: 1 of 2 programs" in done.output
    assert f"service: {said}" in json.loads((tmp_path / "record").read_text())["notes"]


def test_programs_are_shown_where_the_record_can_not_be_written(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: Path, text: str) -> None:
        raise LabError(f"can't write {file}: No space left on device")

    monkeypatch.setattr(demo.files, "write", refuse)
    done = CliRunner().invoke(cli.cli, ["demo", "--json", "record"])
    assert str(done.exception) == "can't write record: No space left on device"
    assert "\none: " in done.output and "proved: 2 of 2 programs" in done.output


def test_rounds_of_the_service_are_told(quick: None) -> None:
    done = CliRunner().invoke(cli.cli, ["demo"])
    assert done.exit_code == 0 and "rests for 10 s\nhakmem: round 1 of 6\n" in done.output


def test_ctrl_c_is_told_by_the_status_amid_the_lines(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a reader who has been ended by it, too."""

    def refuse(*_: object) -> str:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(demo, "_table", refuse)
    for last, status in ((Case("two", "hakmem"), 130), (Case("two"), 1)):
        monkeypatch.setattr(demo, "_few", lambda last=last: ([Case("one"), last], []))
        assert CliRunner().invoke(cli.cli, ["demo"]).exit_code == status


def test_ctrl_c_is_told_by_the_status_whoever_reads() -> None:
    """What reads may have been ended with it."""
    program = """
import sys
from hakmem import cli
cli.LazyGroup.invoke = lambda self, context: print("table") or context.exit({})
cli.main(["demo"])
"""
    for status, expected in ((130, 130), (0, 1)):
        reader, writer = os.pipe()
        os.close(reader)
        command = [sys.executable, "-c", program.format(status)]
        buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, env=buffered, timeout=600)
        os.close(writer)
        assert (done.returncode, done.stderr) == (expected, b"")


# ---- Programs --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", programs.SHORT)
def test_short_programs_print_something(name: str) -> None:
    ready, _ = programs.cases([programs.short(name)])
    if not ready:
        pytest.skip(f"{name} is not installed")
    assert ready[0].run(GLIBC).digest.startswith("stdout:")


def test_git_stands_in_for_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"python3": ["x"], "sqlite3": ["x"], "git": ["x"]}
    monkeypatch.setattr(programs, "installed", lambda program: there.get(program.name))
    wanted, missing = demo._few()
    assert [case.name for case in wanted] == ["python3", "sqlite3", "git"] and not missing
    there["gcc"] = ["x"]
    assert [case.name for case in demo._few()[0]] == ["python3", "sqlite3", "gcc"]
    there.clear()
    wanted, missing = demo._few()
    assert not wanted and [program.name for program in missing] == ["python3", "sqlite3", "gcc", "git"]


def test_nothing_installed_is_77(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "installed", lambda program: None)
    done = CliRunner().invoke(cli.cli, ["demo"])
    assert done.exit_code == 77 and done.output.count("skipped, it is not installed") == 4


def test_the_service_is_shown_among_the_examples() -> None:
    root = native.checkout()
    assert root is not None and (root / "examples" / "bursts.py").samefile(programs.INPUTS / "bursts.py")


@pytest.mark.parametrize(
    "words",
    [["predict", "--", "true"], ["replay", "x"], ["bench", "larson"], ["health"], ["placement", "--check", "x"]],
    ids=lambda words: str(words[0]),
)
def test_commands_that_need_more_than_the_demo_builds_say_so_first(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(native, "checkout", lambda: tmp_path)
    done = CliRunner().invoke(cli.cli, words)
    assert str(done.exception).endswith("bench_replay is not there: to build it, type ./dev lab")


@pytest.mark.skipif(programs.installed(programs.by_name("sqlite3")) is None, reason="sqlite3 is not installed")
def test_settings_of_the_environment_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the C library, too."""
    monkeypatch.setenv("HAKMEM_THP", "off")
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.arena_max=1")
    monkeypatch.setenv("MALLOC_TOP_PAD_", "4096")
    done = CliRunner().invoke(cli.cli, ["demo", "--check", "--only", "sqlite3"])
    assert done.exit_code == 0
    (said,) = re.findall("^Set for all runs by the environment: (.*)$", done.output, re.MULTILINE)
    assert {"HAKMEM_THP=off", "GLIBC_TUNABLES=glibc.malloc.arena_max=1", "MALLOC_TOP_PAD_=4096"} <= {*said.split()}
