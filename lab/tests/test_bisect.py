from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest
from hakmem import bisect, settings
from hakmem.bisect import Answer, Bisection, Builds, SkipError
from hakmem.commands import bisect as command
from hakmem.errors import InterruptedEarly, LabError, NegativeError
from hakmem.measure import CommandCase, SameOutput, Sample, Variant
from hakmem.statistics import Interval

# ---- The search ------------------------------------------------------------------------------------------------------


def answers(first_bad: int, skipped: set[int]) -> tuple[Callable[[int], Answer], list[int]]:
    asked: list[int] = []

    def judge(number: int) -> Answer:
        asked.append(number)
        return Answer.SKIP if number in skipped else Answer.BAD if number >= first_bad else Answer.GOOD

    return judge, asked


@pytest.mark.parametrize("count", range(1, 18))
def test_search_finds_every_first_bad_commit_in_few_steps(count: int) -> None:
    for first_bad in range(count):
        judge, asked = answers(first_bad, set())
        found = bisect.search(count, judge)
        assert found == bisect.Found(first_bad, (first_bad,))
        assert len(asked) == len(set(asked)) <= count.bit_length()


def test_search_goes_around_commits_that_are_skipped() -> None:
    judge, asked = answers(7, {4, 5})
    assert bisect.search(12, judge) == bisect.Found(7, (7,))
    assert len(asked) == len(set(asked))


def test_search_names_the_skipped_ones_right_before_the_first_bad_as_suspects() -> None:
    judge, _ = answers(6, {4, 5})
    assert bisect.search(12, judge) == bisect.Found(6, (4, 5, 6))
    judge, _ = answers(5, {4, 5, 6})
    assert bisect.search(8, judge) == bisect.Found(7, (4, 5, 6, 7))
    judge, asked = answers(0, set(range(9)))
    assert bisect.search(10, judge) == bisect.Found(9, tuple(range(10)))
    assert sorted(asked) == list(range(9))


# ---- The judge -------------------------------------------------------------------------------------------------------


def looks(*intervals: tuple[float, float]) -> tuple[Callable[[int], Interval], list[int]]:
    left = list(intervals)
    asked: list[int] = []

    def take(pairs: int) -> Interval:
        asked.append(pairs)
        low, high = left.pop(0)
        return Interval((low + high) / 2, low, high)

    return take, asked


def test_an_interval_beyond_the_limit_decides_at_once() -> None:
    take, asked = looks((1.06, 1.12))
    assert bisect.decide(take, 1.05)[0] is Answer.BAD
    take, more = looks((0.99, 1.04))
    assert bisect.decide(take, 1.05)[0] is Answer.GOOD
    assert asked == more == [10]


def test_an_interval_around_the_limit_takes_more_pairs_each_time_and_then_skips() -> None:
    take, asked = looks((1.0, 1.1), (1.0, 1.08), (1.055, 1.08))
    assert bisect.decide(take, 1.05) == (Answer.BAD, Interval(1.0675, 1.055, 1.08))
    assert asked == [10, 20, 40]
    take, asked = looks((1.0, 1.1), (1.0, 1.1), (1.049, 1.06))
    assert bisect.decide(take, 1.05)[0] is Answer.SKIP
    assert asked == [10, 20, 40]


def test_with_what_the_intervals_hold_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Each of the looks at a commit may decide."""
    line = bisect.Line("1" * 40, "111 a change", Answer.BAD, 10, Interval(1.1, 1.05, 1.2))
    command._print(bisect.Report("wall_s", 1.05, [line], "1" * 40, ["1" * 40]))
    said = capsys.readouterr().out
    assert "Each interval holds with 98.3%." in said and "1.100 (1.050-1.200)" in said


def test_worse_is_above_one_whatever_the_metric() -> None:
    assert bisect.worse_by([1.1] * 10, [1.0] * 10, less_is_better=True).estimate == pytest.approx(1.1)
    assert bisect.worse_by([1.0] * 10, [1.1] * 10, less_is_better=False).estimate == pytest.approx(1.1)


# ---- Commits ---------------------------------------------------------------------------------------------------------


@dataclass
class Toy:
    """A repository whose library is a file with one number, how long a run takes, and whose build copies it."""

    root: Path

    def git(self, *words: str) -> str:
        identity = {f"GIT_{who}_{what}": "toy" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        command = ["git", "-C", str(self.root), *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **identity})
        return done.stdout.strip()

    def commit(self, seconds: str, message: str = "change") -> str:
        (self.root / "seconds").write_text(seconds)
        self.git("add", "seconds")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")

    def worktrees(self) -> int:
        return len(self.git("worktree", "list").splitlines())


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    made = Toy(tmp_path / "toy")
    made.root.mkdir()
    made.git("init", "--quiet", "--initial-branch=main")
    return made


FAKE_CMAKE = """#!/bin/sh
echo "$@" >>"$0.log"
[ "$1" = --preset ] && exit 0
grep -q broken seconds && { echo 'error: it is broken'; exit 1; }
mkdir -p build/release && cp seconds build/release/libhakmem.so
"""


@pytest.fixture
def fake_cmake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bin" / "cmake"
    path.parent.mkdir()
    path.write_text(FAKE_CMAKE)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    return path


class Timed:
    """A case whose time is the number in the library: a little noisy, the same noise for each of the pairs."""

    name = "timed"
    command: Sequence[str] = ("timed",)
    same_output: SameOutput = "everywhere"

    def __init__(self) -> None:
        self.runs: list[str] = []

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        assert variant.allocator.library is not None
        seconds, *failure = variant.allocator.library.read_text().split()
        self.runs.append(seconds)
        if failure:
            raise LabError("crashed")
        noise = 1 + 0.001 * (len(self.runs) % 7)
        return Sample({"wall_s": float(seconds) * noise}, "same", True)


def run(
    toy: Toy, good: str, bad: str = "HEAD", case: Timed | None = None, metric: str | None = None
) -> tuple[bisect.Report, Timed]:
    case = case or Timed()
    start, after = bisect.commits(toy.root, good, bad)
    with bisect.builds(toy.root) as made:
        report = Bisection(made, case, metric=metric).run(start, after, 0.02)
    assert not made.folder.exists()
    assert toy.worktrees() == 1
    return report, case


def test_commits_are_those_of_the_first_parents(toy: Toy) -> None:
    good = toy.commit("1")
    toy.git("checkout", "--quiet", "-b", "side")
    toy.commit("1.1")
    toy.git("checkout", "--quiet", "main")
    second = toy.commit("1.2")
    toy.git("merge", "--quiet", "--strategy=ours", "side", "-m", "merge")
    assert bisect.commits(toy.root, good, "HEAD") == (good, [second, toy.git("rev-parse", "HEAD")])


def test_commits_that_can_not_be_searched_are_refused(toy: Toy) -> None:
    first, second = toy.commit("1"), toy.commit("2")
    with pytest.raises(LabError, match="'nothing' is no commit of "):
        bisect.commits(toy.root, "nothing", "HEAD")
    with pytest.raises(LabError, match="is no ancestor of the bad one"):
        bisect.commits(toy.root, second, first)
    with pytest.raises(LabError, match="are the same commit"):
        bisect.commits(toy.root, second, "HEAD")


@pytest.mark.usefixtures("fake_cmake")
def test_the_commit_that_made_it_slower_is_found(toy: Toy) -> None:
    good = toy.commit("1.00")
    for seconds in ("1.001", "1.002", "1.003"):
        toy.commit(seconds)
    culprit = toy.commit("1.10", "the culprit")
    for seconds in ("1.101", "1.102"):
        toy.commit(seconds)
    report, _ = run(toy, good)
    assert (report.first_bad, report.suspects, report.metric) == (culprit, [culprit], "wall_s")
    found = {line.commit: line for line in report.lines}
    assert found[culprit].answer is Answer.BAD and found[culprit].title.endswith("the culprit")
    assert found[culprit].pairs == 10
    assert found[culprit].worse_by is not None and found[culprit].worse_by.estimate == pytest.approx(1.1, rel=0.01)


@pytest.mark.usefixtures("fake_cmake")
def test_a_commit_that_does_not_build_or_crashes_is_skipped_and_named(toy: Toy) -> None:
    good = toy.commit("1.00")
    broken = toy.commit("1.00 broken")
    crashing = toy.commit("1.00 crash")
    bad = toy.commit("1.10")
    report, _ = run(toy, good)
    assert (report.first_bad, report.suspects) == (bad, [broken, crashing, bad])
    reasons = {line.commit: line.reason for line in report.lines if line.answer is Answer.SKIP}
    assert reasons == {broken: "does not build: error: it is broken", crashing: "crashed"}


def test_each_commit_is_built_once_and_equal_libraries_are_measured_once(toy: Toy, fake_cmake: Path) -> None:
    good = toy.commit("1.00")
    toy.commit("1.00", "documents only")
    toy.commit("1.00", "documents again")
    bad = toy.commit("1.10")
    toy.commit("1.10", "documents after it")
    report, case = run(toy, good)
    assert report.first_bad == bad
    assert set(case.runs) == {"1.00", "1.10"} and len(case.runs) == 2 * (10 + 1)
    builds = (fake_cmake.parent / "cmake.log").read_text().count("--build")
    assert builds == 1 + len(report.lines)


@pytest.mark.usefixtures("fake_cmake")
def test_a_bad_commit_that_is_not_worse_is_the_answer_no(toy: Toy) -> None:
    good = toy.commit("1.00")
    toy.commit("1.015")
    with pytest.raises(NegativeError, match="do not show it to be worse by 2.0%"):
        run(toy, good)
    assert toy.worktrees() == 1


@pytest.mark.usefixtures("fake_cmake")
def test_a_good_commit_that_fails_ends_the_search(toy: Toy) -> None:
    good = toy.commit("1.00 crash")
    toy.commit("1.10")
    with pytest.raises(LabError, match="^the good commit: crashed") as raised:
        run(toy, good)
    assert not isinstance(raised.value, SkipError)
    toy.commit("2 broken")
    with pytest.raises(LabError, match="does not build"):
        run(toy, "HEAD~1", "HEAD")


class Faulting(Timed):
    """It has as many faults as its time is above 1, and of less time none are told."""

    def run(self, variant: Variant) -> Sample:
        of_time = super().run(variant)
        faults = float(self.runs[-1]) - 1
        return replace(of_time, values={**of_time.values, **({"major_faults": faults} if faults >= 0 else {})})


def test_a_figure_that_no_command_has_is_refused_before_anything_is_built() -> None:
    with pytest.raises(LabError, match=r"^no figure 'foo' of a command; there are wall_s, "):
        Bisection(cast("Builds", None), CommandCase(("true",)), metric="foo")


@pytest.mark.usefixtures("fake_cmake")
@pytest.mark.parametrize("without", ["1.00", "0.50"])
def test_a_commit_without_a_figure_that_has_a_ratio_is_skipped_and_a_good_one_ends_the_search(
    toy: Toy, without: str
) -> None:
    good, middle, bad = (toy.commit(seconds) for seconds in ("2.00", without, "3.00"))
    report, _ = run(toy, good, case=Faulting(), metric="major_faults")
    assert (report.first_bad, report.suspects) == (bad, [middle, bad])
    with pytest.raises(LabError, match="^the good commit: not every run of timed has a major_faults") as raised:
        run(toy, middle, case=Faulting(), metric="major_faults")
    assert not isinstance(raised.value, SkipError)


@pytest.mark.usefixtures("fake_cmake")
def test_a_commit_that_ignores_a_setting_of_the_caller_s_is_skipped_and_a_good_one_ends_the_search(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be measured without what the other one has."""

    def said(library: Path, given: Mapping[str, str]) -> str:
        return "hakmem: unknown setting HAKMEM_NEW ignored\n" if library.read_text() == "0.99" else ""

    monkeypatch.setattr(settings, "_said", said)
    monkeypatch.setenv("HAKMEM_NEW", "1")
    good, older, bad = (toy.commit(seconds) for seconds in ("1.00", "0.99", "1.10"))
    report, case = run(toy, good)
    assert (report.first_bad, report.suspects) == (bad, [older, bad]) and "0.99" not in case.runs
    assert [line.reason for line in report.lines if line.commit == older] == ["unknown setting HAKMEM_NEW"]
    with pytest.raises(LabError, match="unknown setting HAKMEM_NEW") as raised:
        run(toy, older)
    assert not isinstance(raised.value, SkipError)


@pytest.mark.usefixtures("fake_cmake")
def test_ctrl_c_leaves_nothing_behind(toy: Toy) -> None:
    good = toy.commit("1.00")
    toy.commit("1.10")

    class Interrupted(Timed):
        def run(self, variant: Variant) -> Sample:
            if len(self.runs) == 7:
                raise KeyboardInterrupt
            return super().run(variant)

    start, after = bisect.commits(toy.root, good, "HEAD")
    with pytest.raises(KeyboardInterrupt), bisect.builds(toy.root) as made:
        Bisection(made, Interrupted()).run(start, after, 0.02)
    assert not made.folder.exists()
    assert toy.worktrees() == 1


@pytest.mark.usefixtures("fake_cmake")
@pytest.mark.parametrize("judged", [0, 1, 2, 3])
def test_an_interrupted_search_keeps_what_it_has_found(
    toy: Toy, judged: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    good, *after = (toy.commit(seconds) for seconds in ("1.00", "1.01", "1.02", "1.21", "1.22", "1.23", "1.24"))

    class Interrupted(Timed):
        def run(self, variant: Variant) -> Sample:
            assert variant.allocator.library is not None
            before = set(self.runs)
            sample = super().run(variant)
            if len(set(self.runs) - {"1.00"}) > judged and set(self.runs) != before:
                raise KeyboardInterrupt
            return sample

    monkeypatch.setattr("hakmem.native.checkout", lambda: toy.root)
    monkeypatch.setattr("hakmem.ab.cases", lambda what, sanity: [Interrupted()])
    written = tmp_path / "found.json"
    with pytest.raises((KeyboardInterrupt, InterruptedEarly)):
        command.command.main(["--good", good, "--json", str(written), "timed"], standalone_mode=False)
    said = capsys.readouterr().out
    if judged == 0:
        assert "first bad commit" not in said and not written.exists()
        return
    found = json.loads(written.read_text())
    left = {1: after, 2: after[:3], 3: after[1:3]}[judged]
    assert found["first_bad"] is None and found["suspects"] == left and len(found["lines"]) == judged
    goes_on = f"one of {len(left)}: `--good {left[0][:10]}~ --bad {left[-1][:10]}` goes on"
    assert said.splitlines()[-1] == f"first bad commit: {goes_on}"
    assert toy.worktrees() == 1


def test_a_worktree_that_git_can_not_remove_is_told_and_the_folder_is_gone(toy: Toy) -> None:
    toy.commit("1")
    with pytest.raises(LabError, match="git worktree: "), bisect.builds(toy.root) as made:
        made.tree.mkdir()
    assert not made.folder.exists()


DELAYED = """
#include <stddef.h>
#include <time.h>
extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
void *malloc(size_t size) {
    nanosleep(&(struct timespec){.tv_nsec = DELAY_NS}, NULL);
    return __libc_malloc(size);
}
void *calloc(size_t count, size_t size) { return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { return __libc_realloc(block, size); }
void free(void *block) { __libc_free(block); }
"""
PRESETS = """{"version": 6, "configurePresets": [
  {"name": "release", "generator": "Unix Makefiles", "binaryDir": "${sourceDir}/build/release"}]}"""
LISTS = """cmake_minimum_required(VERSION 3.25)
project(toy LANGUAGES C)
add_library(hakmem_shared SHARED slow.c)
set_target_properties(hakmem_shared PROPERTIES OUTPUT_NAME hakmem)
"""


@pytest.mark.long
def test_real_builds_of_a_library_that_delays_malloc(toy: Toy) -> None:
    (toy.root / "CMakePresets.json").write_text(PRESETS)
    (toy.root / "CMakeLists.txt").write_text(LISTS)
    commits = []
    for delay_ns in (1, 2, 20_000_000, 20_000_001):
        (toy.root / "slow.c").write_text(DELAYED.replace("DELAY_NS", str(delay_ns)))
        toy.git("add", "CMakePresets.json", "CMakeLists.txt", "slow.c")
        commits.append(toy.commit("0"))
    start, after = bisect.commits(toy.root, commits[0], commits[-1])
    with bisect.builds(toy.root) as made:
        report = Bisection(made, CommandCase(("true",))).run(start, after, 0.5)
    assert report.first_bad == commits[2]
    assert toy.worktrees() == 1
