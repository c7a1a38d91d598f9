"""Performance bisect: from a good commit and a bad one to the first bad one, with figures that are noisy.

Three parts that know nothing of each other: a search over commits that can be skipped, a judge that takes more rounds
while the figures don't say, and builds of commits in a worktree of their own. Every commit is measured against the
good one's library, in turns: what drifts on the machine drifts for both.
"""

from __future__ import annotations

import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from hakmem import measure, settings, statistics
from hakmem.allocators import Allocator
from hakmem.errors import LabError, NegativeError
from hakmem.measure import METRICS, Case, CommandCase, Step, Variant
from hakmem.statistics import Interval

PAIRS = 10  # of the first look at a commit
LOOKS = 3  # each doubles the pairs; then the commit is skipped
EACH = statistics.family_confidence(LOOKS)  # confidence of each interval


class Answer(Enum):
    GOOD = "good"
    BAD = "bad"
    SKIP = "skipped"


# ---- The search ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Found:
    first_bad: int
    suspects: tuple[int, ...]  # it and the skipped ones right before it: the change is in one of these


def search(count: int, judge: Callable[[int], Answer]) -> Found:
    """The first bad of `count` commits, of which the last is bad; the one before the first is good. Halves what is
    left; in the place of one that is skipped it takes the next nearest to the middle."""
    good, bad = -1, count - 1
    skipped: set[int] = set()
    while left := [number for number in range(good + 1, bad) if number not in skipped]:
        middle = (good + bad) / 2
        number = min(left, key=lambda number: abs(number - middle))
        answer = judge(number)
        if answer is Answer.SKIP:
            skipped.add(number)
        elif answer is Answer.GOOD:
            good = number
        else:
            bad = number
    return Found(bad, tuple(range(good + 1, bad + 1)))


# ---- The judge -------------------------------------------------------------------------------------------------------

# Measures so many more pairs, and gives the factor by which the commit is worse than the good one in all there are:
# above 1 is worse, whatever the metric.
TakePairs = Callable[[int], Interval]


def decide(take_pairs: TakePairs, limit: float) -> tuple[Answer, Interval]:
    """Whether a commit is worse than the good one by more than the limit, a factor. SKIP when no reasonable number of
    pairs tells."""
    pairs = PAIRS
    for _ in range(LOOKS):
        worse_by = take_pairs(pairs)
        if worse_by.low > limit:
            return Answer.BAD, worse_by
        if worse_by.high < limit:
            return Answer.GOOD, worse_by
        pairs *= 2
    return Answer.SKIP, worse_by


def worse_by(commit: Sequence[float], good: Sequence[float], less_is_better: bool) -> Interval:
    worse, better = (commit, good) if less_is_better else (good, commit)
    return statistics.ratio(worse, better, confidence=EACH)


# ---- Commits and their libraries -------------------------------------------------------------------------------------


class SkipError(LabError):
    """A commit that can't be judged: it doesn't build, fails the benchmark, or ignores a setting of the environment."""


def _fault(variant: str, why: str) -> LabError:
    return LabError(f"the good commit: {why}") if variant == "good" else SkipError(why)


def _expect_callers(library: Path) -> None:
    try:
        settings.expect_callers(library)
    except LabError as error:
        raise SkipError(str(error)) from None


def git(repository: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(repository), *words], capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise LabError(f"git {words[0]}: {said[-1] if said else 'failed'}")
    return done.stdout.strip()


def commits(repository: Path, good: str, bad: str) -> tuple[str, list[str]]:
    """The good commit, and those after it up to the bad one: along first parents, as they were merged."""
    names = []
    for word in (good, bad):
        try:
            names.append(git(repository, "rev-parse", "--verify", "--quiet", f"{word}^{{commit}}"))
        except LabError:
            raise LabError(f"{word!r} is no commit of {repository}") from None
    try:
        git(repository, "merge-base", "--is-ancestor", *names)
    except LabError:
        raise LabError(f"the good commit {good!r} is no ancestor of the bad one, {bad!r}") from None
    after = git(repository, "rev-list", "--reverse", "--first-parent", f"{names[0]}..{names[1]}").split()
    if not after:
        raise LabError(f"{good!r} and {bad!r} are the same commit: there is nothing between them")
    return names[0], after


def subject(repository: Path, commit: str) -> str:
    return git(repository, "log", "-1", "--format=%h %s", commit)


class Builds:
    """The library of each commit, built once. Libraries lie in `folder` under the names of their commits."""

    def __init__(self, repository: Path, folder: Path) -> None:
        self.repository, self.folder = repository, folder
        self.tree = folder / "tree"
        self.cmake = shutil.which("cmake") or shutil.which("cmake", path=str(repository / ".venv" / "bin"))

    def library(self, commit: str) -> Path:
        library = self.folder / f"{commit}.so"
        if not library.exists():
            self._build(commit, library)
        return library

    def _build(self, commit: str, library: Path) -> None:
        if self.cmake is None:
            raise LabError("no cmake in the path, and none in .venv")
        if self.tree.exists():
            git(self.tree, "checkout", "--quiet", "--force", "--detach", commit)
        else:
            git(self.repository, "worktree", "add", "--quiet", "--detach", str(self.tree), commit)
        shutil.rmtree(self.tree / "build", ignore_errors=True)
        for words in (
            [self.cmake, "--preset", "release", "-DHAK_TESTS=OFF"],
            [self.cmake, "--build", "build/release", "--target", "hakmem_shared"],
        ):
            done = subprocess.run(words, cwd=self.tree, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode != 0:
                said = [line for line in done.stdout.splitlines() if "error" in line.lower()] or [words[1]]
                raise SkipError(f"does not build: {said[0].strip()}")
        built = self.tree / "build" / "release" / "libhakmem.so"
        if not built.is_file():
            raise SkipError("does not build: there is no build/release/libhakmem.so after it")
        shutil.copyfile(built, library)


@contextmanager
def builds(repository: Path) -> Iterator[Builds]:
    """Builds that leave nothing behind, however the search ends."""
    folder = Path(tempfile.mkdtemp(prefix="hakmem-bisect-"))
    made = Builds(repository, folder)
    try:
        yield made
    finally:
        try:
            if made.tree.exists():
                git(repository, "worktree", "remove", "--force", str(made.tree))
        finally:
            shutil.rmtree(folder, ignore_errors=True)


# ---- All of it -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """What is known of one commit."""

    commit: str
    title: str
    answer: Answer
    pairs: int  # of runs, of this commit and of the good one
    worse_by: Interval | None = None  # than the good one; None: it was not measured
    reason: str = ""  # why it was skipped, or not measured


@dataclass(frozen=True)
class Report:
    metric: str
    limit: float  # a commit that is worse than the good one by more than this factor is bad
    lines: list[Line]  # of the commits that were looked at, in the order of history
    first_bad: str | None  # None: the search was interrupted
    suspects: list[str]  # the first bad one is one of these


class Bisection:
    """One search. `on_line` is told of each commit that was judged."""

    def __init__(
        self,
        made: Builds,
        case: Case,
        *,
        metric: str | None = None,
        on_step: Callable[[Step], None] = lambda step: None,
        on_line: Callable[[Line], None] = lambda line: None,
    ) -> None:
        self.made, self.case, self.metric = made, case, metric
        self.on_step, self.on_line = on_step, on_line
        self.lines: dict[str, Line] = {}  # by commit
        self.limit: float | None = None  # None: the bad commit is not judged yet
        if metric and type(case) is CommandCase and metric not in METRICS:  # a benchmark may have any
            raise LabError(f"no figure {metric!r} of a command; there are {', '.join(METRICS)}")

    def run(self, good: str, after: Sequence[str], threshold: float) -> Report:
        """Looks for the commit that made most of the difference, not for the first that made some: bad is what is worse
        than the good commit by more than half of what the bad one is worse. That has to be more than the threshold."""
        self.good = self.made.library(good)
        settings.expect_callers(self.good)
        last = self._judge(after[-1], 1 + threshold)
        if last.answer is not Answer.BAD or last.worse_by is None:
            why = last.reason or f"{last.pairs} pairs of runs do not show it to be worse by {threshold:.1%}"
            raise NegativeError(f"nothing to look for: {last.title}: {why}")
        self.limit = limit = math.sqrt(last.worse_by.estimate)
        found = search(len(after), lambda number: self._judge(after[number], limit).answer)
        return self._report(after, after[found.first_bad], [after[number] for number in found.suspects])

    def so_far(self, after: Sequence[str]) -> Report | None:
        """What an interrupted search of these commits has found. None before the bad one was judged."""
        if self.limit is None:
            return None
        answers = [self.lines[commit].answer if commit in self.lines else None for commit in after]
        bad = answers.index(Answer.BAD)
        good = max((number for number in range(bad) if answers[number] is Answer.GOOD), default=-1)
        return self._report(after, None, list(after[good + 1 : bad + 1]))

    def _report(self, after: Sequence[str], first_bad: str | None, suspects: list[str]) -> Report:
        assert self.limit is not None
        lines = [self.lines[commit] for commit in after if commit in self.lines]
        return Report(self.metric or "", self.limit, lines, first_bad, suspects)

    def _judge(self, commit: str, limit: float) -> Line:
        title = subject(self.made.repository, commit)
        commit_values: list[float] = []
        good_values: list[float] = []
        try:
            library = self.made.library(commit)
            _expect_callers(library)
            if twin := self._twin(library):
                line = Line(commit, title, twin.answer, 0, twin.worse_by, f"the same library as {twin.commit[:10]}")
            else:

                def take(pairs: int) -> Interval:
                    less_is_better = self._measure(library, pairs, commit_values, good_values)
                    return worse_by(commit_values, good_values, less_is_better)

                answer, interval = decide(take, limit)
                reason = "the figures do not tell" if answer is Answer.SKIP else ""
                line = Line(commit, title, answer, len(commit_values), interval, reason)
        except SkipError as error:
            line = Line(commit, title, Answer.SKIP, len(commit_values), None, str(error))
        self.lines[commit] = line
        self.on_line(line)
        return line

    def _twin(self, library: Path) -> Line | None:
        """A commit judged before whose library is the same, byte for byte: commits that change documents only have
        one."""
        content = library.read_bytes()
        if content == self.good.read_bytes():
            return Line(self.good.stem, "", Answer.GOOD, 0)
        for line in self.lines.values():
            if line.worse_by is not None and self.made.library(line.commit).read_bytes() == content:
                return line
        return None

    def _measure(self, library: Path, pairs: int, commit_values: list[float], good_values: list[float]) -> bool:
        """Adds so many more pairs of values; tells whether less of them is better."""
        variants = [Variant("good", Allocator("good", self.good)), Variant("commit", Allocator("commit", library))]
        warmup = 0 if good_values else 1
        done = measure.measure([self.case], variants, pairs, warmup=warmup, on_step=self.on_step)
        done.expect_whole()
        for failure in sorted(done.failures, key=lambda failure: failure.variant != "good"):
            raise _fault(failure.variant, failure.reason)
        known = done.metrics()
        self.metric = self.metric or ("operations_per_s" if "operations_per_s" in known else "wall_s")
        if self.metric not in known:
            raise LabError(f"no figure {self.metric!r} of {self.case.name}; there are {', '.join(known)}")
        for name, values in (("good", good_values), ("commit", commit_values)):
            found = done.values(self.case.name, name, self.metric)
            if not found or min(found) <= 0:
                why = f"not every run of {self.case.name} has a {self.metric} above 0, as a ratio needs"
                raise _fault(name, why)
            values += found
        return measure.METRICS[self.metric].less_is_better if self.metric in measure.METRICS else True
