from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hakmem import health, process, settings, suite
from hakmem.allocators import Allocator
from hakmem.errors import LabError
from hakmem.health import Check, Examination, Profile
from hakmem.process import Run, RunError, TakeoverError
from hakmem.suite import BenchCase

HAKMEM = Allocator("hakmem", Path("/libhakmem.so"))
DEFAULT = Profile("default")
CLOSING = b"""figure rss_end 1234 bytes
figure over_limit_end 1.2 x
allocator /lib/x86_64-linux-gnu/libc.so.6
peak 2048 KiB
checksum 0x0123456789abcdef
Throughput = 1000 operations per second, relative time: 1.000 s.
"""
GOOD = Run(1, 0, 0.1, 0.1, 0.0, 1 << 20, 1, 0, (), CLOSING, b"")
Behaviour = Callable[[Sequence[str], Allocator, Mapping[str, str]], Run]
Fake = Callable[[Behaviour], list[Sequence[str]]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Makes runs of hakmem what a function says, and those of the C library good; tells what was run on the latter."""
    case = BenchCase("fragment", ("bench_fragment_stress", "1"))
    monkeypatch.setattr(health, "benchmarks", lambda: [("suite", case), ("threads", replace(case, name="again"))])
    monkeypatch.setattr(health, "SILENT", (("true",),))
    monkeypatch.setattr(BenchCase, "command", property(lambda self: self.words))

    def use(behaviour: Behaviour) -> list[Sequence[str]]:
        on_glibc: list[Sequence[str]] = []

        def run(words: Sequence[str], allocator: Allocator, *settings: Mapping[str, str], **more: Any) -> Run:
            if allocator.library is None:
                on_glibc.append(words)
                return GOOD
            return behaviour(words, allocator, *settings)

        monkeypatch.setattr(process, "run", run)
        return on_glibc

    return use


def wrong(checks: Sequence[Check]) -> dict[str, str]:
    return {check.name: check.wrong for check in checks if check.wrong is not None}


def test_all_is_well_when_all_runs_are_those_of_the_c_library(fake: Fake) -> None:
    other_figures = GOOD.stdout.replace(b"2048", b"4096").replace(b" 1000 ", b" 9 ").replace(b" 1234 ", b" 7 ")
    other_figures = other_figures.replace(b"/lib/x86_64-linux-gnu/libc.so.6", b"/libhakmem.so")

    def behaviour(words: Sequence[str], allocator: Allocator, settings: Mapping[str, str]) -> Run:
        return GOOD if words[0] == "true" else replace(GOOD, stdout=other_figures)

    on_glibc = fake(behaviour)
    checks = list(Examination(HAKMEM).run([DEFAULT, Profile("second", {"HAKMEM_X": "1"})]))
    assert wrong(checks) == {}
    assert [(check.profile, check.group) for check in checks] == [
        (profile, group) for profile in ("default", "second") for group in ("silence", "suite", "threads")
    ]
    assert len(on_glibc) == 2  # each command once, whatever the number of profiles


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (
            {"status": -11, "stderr": b"x\nlast\n"},
            "it was killed by signal 11 (last), on the C library it ended with exit status 0",
        ),
        ({"status": 1}, "it ended with exit status 1, on the C library it ended with exit status 0"),
        ({"stderr": b"hakmem: debug\n"}, "another error output than on the C library: 'hakmem: debug' for 'nothing'"),
        ({"stdout": b"hi\n" + CLOSING}, "another output than on the C library: 'hi' for 'figure rss_end N bytes'"),
        (
            {"stdout": CLOSING.replace(b"0x0123456789abcdef", b"0x0000000000000000")},
            "another output than on the C library: 'checksum 0x0000000000000000' for 'checksum 0x0123456789abcdef'",
        ),
        (
            {"stdout": CLOSING.replace(b"1.2 x", b"1.51 x")},
            "RSS at the end is 1.51 x the page limit, more than 1.5 x",
        ),
        (
            {"stdout": CLOSING.replace(b"over_limit_end", b"debug")},
            "another output than on the C library: 'figure debug N x' for 'figure over_limit_end N x'",
        ),
    ],
)
def test_each_thing_that_is_wrong_is_named(fake: Fake, change: dict[str, Any], expected: str) -> None:
    fake(lambda words, allocator, settings: GOOD if words[0] == "true" else replace(GOOD, **change))
    assert wrong(list(Examination(HAKMEM).run([DEFAULT]))) == {"fragment": expected, "again": expected}


def test_the_figure_that_has_a_limit_must_be_there() -> None:
    case = BenchCase("fragment", (health.FRAGMENTATION, "1"))
    assert health.wrong_figures(case, replace(GOOD, stdout=b""), 1) == "printed no figure over_limit_end"
    assert health.wrong_figures(BenchCase("hot", ("bench_tiny_hot",)), replace(GOOD, stdout=b""), 1) is None


def test_fragmentation_is_examined_at_full_size_and_in_a_group_of_its_own() -> None:
    full = {case.words for case in suite.resolve() if case.words[0] == health.FRAGMENTATION}
    found = {case.words for group, case in health.benchmarks() if group == "fragmentation"}
    assert found == full and full
    assert {group for group, _ in health.benchmarks()} == set(health.GROUPS) - {"silence"}


@pytest.mark.parametrize("output", [{"stdout": CLOSING + b"x"}, {"stderr": b"x"}, {"stdout": b""}])
def test_a_silent_program_differs_by_a_byte(fake: Fake, output: dict[str, Any]) -> None:
    fake(lambda words, allocator, settings: replace(GOOD, **output) if words[0] == "true" else GOOD)
    assert list(wrong(list(Examination(HAKMEM).run([DEFAULT])))) == ["true"]


@pytest.mark.parametrize("error", [TakeoverError("ran on malloc of libc"), RunError("was ended after 60 s")])
def test_a_run_that_does_not_count_is_wrong(fake: Fake, error: LabError) -> None:
    def behaviour(words: Sequence[str], allocator: Allocator, settings: Mapping[str, str]) -> Run:
        raise error

    fake(behaviour)
    assert set(wrong(list(Examination(HAKMEM).run([DEFAULT]))).values()) == {str(error)}


def test_the_settings_of_a_profile_reach_its_runs(fake: Fake) -> None:
    seen: list[Mapping[str, str]] = []

    def behaviour(words: Sequence[str], allocator: Allocator, settings: Mapping[str, str]) -> Run:
        seen.append(settings)
        return GOOD

    fake(behaviour)
    list(Examination(HAKMEM).run([Profile("x", {"HAKMEM_X": "1"})], ["suite"]))
    assert seen == [{"HAKMEM_X": "1"}]


def test_larson_and_remote_run_at_every_thread_count() -> None:
    words = [case.words for _, case in health.benchmarks()]
    assert len(words) == len(set(words))
    assert {int(one[-1]) for one in words if one[0] == "larson"} >= {1, 2, 4, 16, 64}
    assert {int(one[1]) for one in words if one[0] == "bench_remote"} >= {1, 2, 4, 16, 64}


# ---- The quick form --------------------------------------------------------------------------------------------------


def test_the_quick_form_does_all_with_the_first_profile_and_little_with_the_others(fake: Fake) -> None:
    fake(lambda words, allocator, settings: GOOD)
    checks = list(Examination(HAKMEM, quick=True).run([DEFAULT, Profile("second"), Profile("third")]))
    assert [(check.profile, check.group) for check in checks] == [
        ("default", "silence"),
        ("default", "suite"),
        ("default", "threads"),
        *((profile, group) for profile in ("second", "third") for group in ("silence", "threads")),
    ]


@pytest.mark.parametrize(("figure", "passes"), [(b"1.49 x", True), (b"2.49 x", True), (b"2.51 x", False)])
def test_the_quick_form_has_another_bar_and_tells_by_what_the_goal_is_missed(
    fake: Fake, figure: bytes, passes: bool
) -> None:
    stdout = CLOSING.replace(b"1.2 x", figure)
    fake(lambda words, allocator, settings: replace(GOOD, stdout=GOOD.stdout if words[0] == "true" else stdout))
    (check, *_) = (one for one in Examination(HAKMEM, quick=True).run([DEFAULT]) if one.group == "suite")
    assert check.passed is passes
    expected = "RSS at the end is 2.49 x the page limit, more than 1.5 x" if figure == b"2.49 x" else None
    assert check.short == expected


def examined(*options: str) -> tuple[int, str]:
    words = [sys.executable, "-m", "hakmem", "health", *options]
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.forms
def test_all_is_well_in_the_quick_form() -> None:
    status, said = examined("--quick")
    assert status == 0, said


@pytest.mark.long
def test_all_is_well_but_what_fragmentation_leaves() -> None:
    """The goal for fragmentation is missed today. Who reaches it makes FRAGMENTATION_TODAY the goal, and this test
    one of success."""
    status, said = examined()
    failed = [line for line in said.splitlines() if line.startswith("FAILED: ")]
    assert status == 1 and failed, said
    assert [line for line in failed if ": fragmentation: RSS at the end is " not in line] == []


# ---- Profiles --------------------------------------------------------------------------------------------------------


def library_with(monkeypatch: pytest.MonkeyPatch, names: list[str], profiles: tuple[str, ...] = ()) -> None:
    def parse(words: Sequence[str], library: Path) -> dict[str, str]:
        value = words[0].partition("=")[2]
        if value not in profiles:
            raise LabError(f"setting HAKMEM_PROFILE={value}: expected one of {', '.join(profiles)}")
        return {"HAKMEM_PROFILE": value}

    monkeypatch.setattr(settings, "known", lambda library: names)
    monkeypatch.setattr(settings, "parse", parse)


def test_profiles_are_those_whose_settings_the_library_has(monkeypatch: pytest.MonkeyPatch) -> None:
    library_with(monkeypatch, ["HELP", "LAZY_PURGE"])
    assert [profile.name for profile in health.profiles(Path("lib"))] == ["default", "lazy purge"]


def test_named_profiles_are_asked_of_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    library_with(monkeypatch, ["PROFILE"], ("speed", "mid-heavy"))
    assert health.profiles(Path("lib"))[1:] == [
        Profile("speed", {"HAKMEM_PROFILE": "speed"}),
        Profile("mid-heavy", {"HAKMEM_PROFILE": "mid-heavy"}),
    ]


def test_a_library_that_hides_its_profiles_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    library_with(monkeypatch, ["PROFILE"])
    with pytest.raises(LabError, match="does not say which names it takes"):
        health.profiles(Path("lib"))
