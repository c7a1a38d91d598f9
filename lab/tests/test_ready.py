from __future__ import annotations

import os
import re
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner
from hakmem import cli, health, process, readiness
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.process import Run
from hakmem.readiness import Answer, Row
from hakmem.suite import BenchCase
from sample_record import MACHINE, Values, record

# ---- The table -------------------------------------------------------------------------------------------------------


def no(limit_s: float) -> str:
    raise LabError(f"not within {limit_s:.0f} s")


def test_an_answer_is_no_when_its_check_says_why() -> None:
    rows = [Row("Is it?", lambda limit_s: "it is", 1), Row("Was it?", no, 7)]
    assert [(one.question, one.passed, one.detail) for one in readiness.answers(rows)] == [
        ("Is it?", True, "it is"),
        ("Was it?", False, "not within 7 s"),
    ]


def test_every_row_has_a_limit_and_the_quick_ones_come_first() -> None:
    limits = [row.limit_s for row in readiness.table()]
    assert min(limits) > 0 and limits == sorted(limits)


@pytest.mark.parametrize("passed", [True, False])
def test_the_command_ends_with_one_when_an_answer_is_no(monkeypatch: pytest.MonkeyPatch, passed: bool) -> None:
    monkeypatch.setattr(readiness, "answers", lambda rows: iter([Answer("Is it?", passed, "because", 0.1)]))
    for words in (["ready"], ["ready", "--json", "-"], ["ready", "--quick"]):
        done = CliRunner().invoke(cli.cli, words, standalone_mode=False)
        assert done.return_value == (0 if passed else 1)
        assert "because" in done.output


# ---- Misuse and fork, from what a run said ---------------------------------------------------------------------------


def run(status: int, stdout: bytes = b"", stderr: bytes = b"") -> Run:
    return Run(1, status, 0.1, 0.1, 0.0, 1 << 20, 1, 0, (), stdout, stderr)


DOUBLE_FREE = b"hakmem: free(0x7f00): double free of a block of 64 bytes\n"


def test_a_double_free_must_abort_and_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(done: Run) -> str:
        monkeypatch.setattr(readiness, "_python", lambda program, limit_s: done)
        return readiness.double_free_is_stopped(1)

    assert check(run(-6, stderr=DOUBLE_FREE)) == DOUBLE_FREE.decode().strip()
    others = (run(0, stderr=DOUBLE_FREE), run(-11, stderr=DOUBLE_FREE), run(-6, stderr=b"hakmem: ?\n"))
    for bad in (run(0), run(-6), *others):
        with pytest.raises(LabError, match="expected an abort and "):
            check(bad)


def test_every_forked_child_must_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "_python", lambda program, limit_s: run(0, stdout=b"49\n"))
    with pytest.raises(LabError, match="49 of 50 children went on"):
        readiness.forks(1)


# ---- Logs of tests ---------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("src/a.c", "include/a.h", "tests/a.c"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (100, 100))
    for build in readiness.TESTED:
        log(tmp_path, build)
    return tmp_path


PASSED = '<testsuite tests="2"><testcase name="a"/><testcase name="b"/></testsuite>'
FAILED = '<testsuite tests="2"><testcase name="a"/><testcase name="b"><failure message=""/></testcase></testsuite>'


def log(tree: Path, run: str, text: str = PASSED, time: int = 200) -> None:
    path = tree / "build" / "logs" / f"{run}.xml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (time, time))


def test_green_results_newer_than_the_sources_are_a_yes(tree: Path) -> None:
    assert readiness.logs_say_passed(tree) == "10 tests in 5 runs"


def test_missing_red_or_old_results_are_a_no(tree: Path) -> None:
    log(tree, "forms-tsan", time=50)
    with pytest.raises(LabError, match="has changed since the tests of forms-tsan: ./dev test --forms"):
        readiness.logs_say_passed(tree)
    log(tree, "quick-sanitize", FAILED)
    with pytest.raises(LabError, match=r"build/logs/quick-sanitize\.xml: 1 tests failed, b is one"):
        readiness.logs_say_passed(tree)
    never_ran = FAILED.replace('<failure message=""/>', '<skipped message="Unable to find executable"/>')
    log(tree, "quick-sanitize", never_ran)
    with pytest.raises(LabError, match="1 tests failed, b is one"):
        readiness.logs_say_passed(tree)
    for nothing in ("killed", "<testsuite/>"):
        log(tree, "quick-sanitize", nothing)
        with pytest.raises(LabError, match=r"quick-sanitize\.xml: no test was run"):
            readiness.logs_say_passed(tree)
    (tree / "build/logs/quick-release.xml").unlink()
    with pytest.raises(LabError, match="no results of quick-release are known: ./dev test"):
        readiness.logs_say_passed(tree)


# ---- What the health check sees --------------------------------------------------------------------------------------


def test_a_failed_check_and_an_expired_limit_are_a_no(monkeypatch: pytest.MonkeyPatch) -> None:
    good = health.Check("default", "suite", "hot", None, None, 0.1)
    bad = health.Check("speed", "suite", "larson 4", "killed by signal 11", None, 0.1)
    found = [good, bad, bad]
    monkeypatch.setattr(health, "profiles", lambda library: [health.Profile("default")])
    monkeypatch.setattr(health.Examination, "run", lambda self, profiles, groups: iter(found))
    with pytest.raises(LabError, match="^speed: larson 4: killed by signal 11, and 1 more: hakmem health$"):
        readiness.healthy(60)
    found[:] = [good, good]
    assert readiness.healthy(60) == "2 runs under default"
    with pytest.raises(LabError, match="^not done after 0 s, at hot$"):
        readiness.healthy(0)


# ---- Against the last baseline ---------------------------------------------------------------------------------------

NOISE = [1.000, 1.004, 0.996, 1.002, 0.998, 1.001]


def baseline(
    time: float = 0.8,
    memory: float = 1.0,
    *,
    drift: float = 1.0,
    own: Sequence[float] = NOISE[3:] + NOISE[:3],
    **changes: object,
) -> Record:
    """hakmem takes `time` of what glibc takes, with noise of its own; the machine of that day is slower by `drift`."""
    values: dict[tuple[str, str, str], list[float]] = {}
    for case, cost in {"hot": 1e-8, "mixed 400": 4e-8}.items():
        for name, factors in {"hakmem": (time, memory), "glibc": (1.0, 1.0)}.items():
            noise = NOISE[: len(own)] if name == "glibc" else own
            values[case, name, "operations_per_s"] = [1 / (cost * drift * factors[0] * one) for one in noise]
            values[case, name, "peak_rss_bytes"] = [2e6 * factors[1] * one for one in noise]
    made: Values = values
    return record(made, **{"kind": "baseline", **changes})


def test_the_last_full_baseline_is_the_one_to_compare_with() -> None:
    def at(day: int, **changes: object) -> Record:
        return baseline(date=datetime(2026, 1, day, tzinfo=timezone.utc), id=f"2026-01-0{day}-baseline", **changes)

    records = [at(2), at(3), at(1), at(4, size="sanity"), at(5, kind="bench")]
    assert readiness.last_baseline(records).id == "2026-01-03-baseline"
    with pytest.raises(LabError, match="no baseline was kept"):
        readiness.last_baseline(records[3:])


def test_a_slower_machine_is_no_regression() -> None:
    said = readiness.compare_baselines(baseline(), baseline(drift=1.5))
    change = r"\+0\.0 % \(-0\.\d to \+0\.\d %\) since 2026-01-02-sample, over 2 of its 2 cases"
    both = rf"time beside the C library {change}; peak RSS beside the C library {change}"
    assert re.fullmatch(rf"{both}\. Each interval holds with 95%\.", said), said


def test_worse_by_more_than_the_tolerance_is_a_no() -> None:
    with pytest.raises(LabError, match=r"^time beside the C library \+10\.0 % \(.* Each interval holds with 95%\.$"):
        readiness.compare_baselines(baseline(), baseline(time=0.88))
    with pytest.raises(LabError, match=r"^peak RSS beside the C library \+20\.0 % \("):
        readiness.compare_baselines(baseline(), baseline(memory=1.2))
    readiness.compare_baselines(baseline(), baseline(time=0.82, memory=1.03))
    readiness.compare_baselines(baseline(), baseline(time=0.4, memory=0.5))


NOISY = [0.80, 0.90, 1.20, 0.76, 1.10, 0.95]


@pytest.mark.parametrize(("own", "said"), [(NOISY, r"\+15\.3 % \(-4\.6 to \+49\.7 %\)"), (NOISE[:1], r"\+2\d\.\d %")])
def test_what_may_be_worse_by_more_than_the_tolerance_is_no_yes(own: list[float], said: str) -> None:
    with pytest.raises(LabError, match=f"^can't tell: time beside the C library {said} since .* holds with 95%.$"):
        readiness.compare_baselines(baseline(), baseline(time=1.0, own=own))


@pytest.mark.parametrize("lost", ["then", "now"])
def test_the_same_work_is_compared_and_how_much_of_it_there_was_is_told(lost: str) -> None:
    """What failed has no figures: here it would change the mean."""

    def without(of: Record) -> Record:
        return msgspec.structs.replace(of, series=[one for one in of.series if one.case != "hot"])

    then, now = baseline(), baseline()
    slow = {key: [rate / 4 for rate in values] for key, values in now.by_name.items() if key[:2] == ("hot", "hakmem")}
    changed = [
        msgspec.structs.replace(one, values=slow.get((one.case, one.variant, one.metric), one.values))
        for one in now.series
    ]
    now = msgspec.structs.replace(now, series=changed)
    then, now = without(then) if lost == "then" else then, without(now) if lost == "now" else now
    said = readiness.compare_baselines(then, now)
    assert said.count("+0.0 % (") == said.count("over 1 of its 2 cases") == 2


def test_without_figures_there_is_no_answer() -> None:
    with pytest.raises(LabError, match="has no time of hakmem and glibc to compare with"):
        readiness.compare_baselines(baseline(series=[]), baseline())


@pytest.mark.parametrize(("words", "said"), [(("program", "hot"), "measures hot$"), (("new",), "no benchmark is as")])
def test_only_work_that_the_baseline_has_is_measured(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    def measured(cases: Sequence[BenchCase], *_: object, **__: object) -> None:
        raise LabError(f"measures {', '.join(case.name for case in cases)}")

    now = [BenchCase("hot", words), BenchCase("mixed 400", ("program", "other"))]
    monkeypatch.setattr(BenchCase, "command", property(lambda self: self.words))
    monkeypatch.setattr(readiness.ledger, "load_all", lambda: ({"x": baseline()}, []))
    monkeypatch.setattr(readiness.machine, "facts", lambda: MACHINE)
    monkeypatch.setattr(readiness.allocators, "hakmem", readiness.allocators.glibc)
    monkeypatch.setattr(readiness.suite, "resolve", lambda: now)
    monkeypatch.setattr(readiness.measure, "measure", measured)
    with pytest.raises(LabError, match=f"^{said}"):
        readiness.no_regression(60)


def test_a_baseline_of_another_machine_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    other = msgspec.structs.replace(MACHINE, cpu="Another CPU")
    monkeypatch.setattr(readiness.ledger, "load_all", lambda: ({"x": baseline(machine=other)}, []))
    monkeypatch.setattr(readiness.machine, "facts", lambda: MACHINE)
    with pytest.raises(LabError, match="is of another machine"):
        readiness.no_regression(1)


def test_misuse_is_run_on_hakmem_for_real() -> None:
    try:
        assert "double free of a block of 64 bytes" in readiness.double_free_is_stopped(60)
        assert "invalid pointer" in readiness.foreign_pointer_is_stopped(60)
        assert readiness.forks(60).startswith("50 children")
    except LabError as error:
        if isinstance(error, process.RunError) or "is not there" not in str(error):
            raise
        pytest.skip(str(error))
