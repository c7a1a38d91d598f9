"""Instruction counts as a measurement: what is counted, what is refused, and what A/B makes of them."""

from __future__ import annotations

import shutil

import pytest
from hakmem import ab, allocators, counted, measure, native, programs, suite
from hakmem.errors import LabError
from hakmem.measure import CommandCase
from hakmem.statistics import Decision
from test_ab import decisions, record

VALGRIND = pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")


def test_a_server_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted.profilers, "choose", lambda wanted: None)
    (bench,) = counted.counted(suite.resolve(["hot"]))
    assert bench.name == "hot" and bench.command == suite.resolve(["hot"])[0].command
    with pytest.raises(LabError, match="redis: its instructions can't be counted"):
        counted.counted([programs.ProgramCase(row, []) for row in programs.PROGRAMS if row.name == "redis"])


def test_what_goes_on_for_a_given_time_has_no_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counted.profilers, "choose", lambda wanted: None)
    for size in ("full", "sanity"):
        with pytest.raises(LabError, match="larson 1: it goes on for a given time"):
            counted.counted(suite.resolve(["hot,larson 1"], size))


def test_counts_decide_with_six_rounds() -> None:
    values = {
        ("case", side, "instructions"): [count + i for i in range(6)] for side, count in (("a", 1e9), ("b", 1.02e9))
    }
    assert decisions(record(values, kind="ab")) == {"instructions": Decision.NO_GO}
    few = {key: some[:5] for key, some in values.items()}
    assert decisions(record(few, kind="ab")) == {"instructions": Decision.UNDECIDED}
    assert "instructions in user mode: NO-GO" in " ".join(ab.report(record(values, kind="ab"), 0.01).summary)


@pytest.mark.forms
@VALGRIND
def test_counts_what_a_command_executes() -> None:
    variant = measure.variants([allocators.hakmem()])[0]
    few, more = (CommandCase(("python3", "-c", f"for i in range({n}): str(i)")) for n in (1000, 101000))
    one, other = (counted.CountedCase(case).run(variant).values["instructions"] for case in (few, more))
    assert 1e7 < other - one < 1e9
    with pytest.raises(LabError, match="ended with 3 under callgrind"):
        counted.CountedCase(CommandCase(("python3", "-c", "exit(3)"))).run(variant)


@pytest.mark.forms
@VALGRIND
def test_the_same_benchmark_has_nearly_the_same_count() -> None:
    (case,) = counted.counted(suite.resolve(["mixed 400"], "sanity"))
    samples = [case.run(measure.variants([allocators.hakmem()])[0]) for _ in range(2)]
    first, second = (sample.values["instructions"] for sample in samples)
    assert abs(first / second - 1) < 0.002 and samples[0].digest == samples[1].digest
    assert native.program("bench_random_mixed").name in case.command[0]


# Instructions of a whole program on hakmem, to those on glibc, at most: a hundredth above what they are.
TORN_DOWN = {
    ("lua5.4", "tear.lua"): 0.91,
    ("perl", "tear.pl"): 0.945,
    ("python3", "-S", "tear.py"): 0.86,
    ("jq", "-n", "-f", "tear.jq"): 0.98,
}


@pytest.mark.forms
@VALGRIND
@pytest.mark.parametrize("words", TORN_DOWN, ids=lambda words: words[0])
def test_what_programs_pay_that_build_up_and_tear_down(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    if not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    for name in ("PYTHONHASHSEED", "PERL_HASH_SEED", "PERL_PERTURB_KEYS"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv("PYTHONMALLOC", "malloc")
    case = counted.CountedCase(CommandCase((*words[:-1], str(programs.INPUTS / words[-1]))))
    ours, theirs = (
        case.run(variant).values["instructions"]
        for variant in measure.variants([allocators.hakmem(), allocators.glibc()])
    )
    assert ours / theirs < TORN_DOWN[words]
