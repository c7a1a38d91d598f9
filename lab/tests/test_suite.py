"""The suite's cases: names, closing lines, and what makes a run no figure."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hakmem import process, suite
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.measure import Variant

LIBRARY = Path("/lib/liballoc.so")
VARIANT = Variant("alloc", Allocator("alloc", LIBRARY))
OUTPUT = (
    f"something else\nfigure p99 12.5 ns\nallocator {LIBRARY}\npeak 2048 KiB\nchecksum 0x00000000000000ff\n"
    "Throughput = 2000000 operations per second, relative time: 0.500 s.\n"
)


def fake_run(monkeypatch: pytest.MonkeyPatch, stdout: str, status: int = 0, stderr: str = "") -> suite.BenchCase:
    done = process.Run(1, status, 0.6, 0.4, 0.1, 9 << 20, 10, 0, (), stdout.encode(), stderr.encode())
    monkeypatch.setattr(process, "run", lambda *words, **options: done)
    monkeypatch.setattr(suite.BenchCase, "command", ("program", "1"))
    return suite.BenchCase("case", ("program", "1"))


def test_reads_closing_lines_and_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    sample = fake_run(monkeypatch, OUTPUT).run(VARIANT)
    assert sample.values["operations_per_s"] == 2e6 and sample.values["measured_s"] == 0.5
    assert sample.values["peak_rss_bytes"] == 2 << 20  # the program's own, not wait4's
    assert sample.values["p99"] == 12.5 and sample.units["p99"] == "ns"
    assert sample.digest == "0x00000000000000ff" and not sample.full_size


def test_an_operation_of_a_case_that_goes_on_for_a_time_has_a_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processor time is that time, however much is done."""
    case = fake_run(monkeypatch, OUTPUT)
    assert "cost_ns" not in case.run(VARIANT).values
    assert replace(case, is_timed=True).run(VARIANT).values["cost_ns"] == pytest.approx(0.5e9 / 1e6)


def test_full_size_is_a_second_or_ten_million_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    assert fake_run(monkeypatch, OUTPUT.replace("0.500", "1.000")).run(VARIANT).full_size
    assert fake_run(monkeypatch, OUTPUT.replace("2000000", "20000000")).run(VARIANT).full_size


def test_other_allocator_is_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    case = fake_run(monkeypatch, OUTPUT.replace(str(LIBRARY), "/lib/libc.so.6"))
    with pytest.raises(process.TakeoverError, match=r"ran on malloc of /lib/libc\.so\.6, not on alloc"):
        case.run(VARIANT)


@pytest.mark.parametrize(
    ("stdout", "status", "words"),
    [
        ("", 0, "ended with exit status 0 and no closing lines"),
        (OUTPUT, 3, "ended with exit status 3: bench: out of memory"),
        ("", -11, "signal 11"),
    ],
)
def test_failed_run_is_no_figure(monkeypatch: pytest.MonkeyPatch, stdout: str, status: int, words: str) -> None:
    case = fake_run(monkeypatch, stdout, status, "bench: out of memory\n" if status > 0 else "")
    with pytest.raises(LabError, match=words):
        case.run(VARIANT)


def test_names_and_groups() -> None:
    assert [case.name for case in suite.resolve(["hot,larson 2"])] == ["hot", "larson 2"]
    threads = suite.resolve(["threads"])
    assert {case.name for case in threads} == {row.name for row in suite.BENCHMARKS if row.group == "threads"}
    all_of_them = [case.name for case in suite.resolve()]
    assert "soak" in all_of_them and "soak half an hour" not in all_of_them
    (soak,) = suite.resolve([suite.LONG])
    assert soak.timeout_s > 1800 and soak.words[1] == "1800"
    founding = {case.name: case.words for case in suite.resolve([suite.FOUNDING])}
    assert founding["fixed 8192"][-2:] == ("8192", "8192") and founding["small larson 16"][-1] == "16"
    assert not set(founding) & set(all_of_them)
    with pytest.raises(LabError, match="no benchmark 'nosuch'; there are mixed 400"):
        suite.resolve(["nosuch"])


FOLDER = Path(suite.__file__).resolve().parents[2] / "bench"


def test_every_row_has_programs_that_exist() -> None:
    for row in suite.BENCHMARKS:
        for words in (row.full, row.sanity):
            assert (FOLDER / f"{words.split()[0]}.c").is_file(), row.name


def test_rows_that_go_on_for_a_time_are_those_with_seconds_among_their_arguments() -> None:
    """Idle seconds are none, unless threads are busy in them."""
    for row in suite.BENCHMARKS:
        for program, *given in (row.full.split(), row.sanity.split()):
            usage = re.search(rf'"{program} (.*)"', (FOLDER / f"{program}.c").read_text())
            assert usage, program
            names = re.sub(r"[\[\]]", "", usage[1]).split()[: len(given)]
            is_timed = "SECONDS" in names or ("IDLE_SECONDS" in names and "busy" in given)
            assert row.is_timed == suite.case_of(row, "full").is_timed == is_timed, row.name
