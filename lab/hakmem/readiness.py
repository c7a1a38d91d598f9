"""The production-readiness table: what has to hold before hakmem is used for something that matters.

Each row is a question, and a check that answers it now or says why it can't; a row that can't be answered has not
passed. Nothing here is believed from a list: what is built is run.
"""

from __future__ import annotations

import re
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import (
    allocators,
    claims,
    comparison,
    health,
    ledger,
    machine,
    measure,
    native,
    process,
    statistics,
    suite,
    words,
)
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.statistics import Decision

# Results that ./dev test and ./dev test --forms leave in build/logs.
TESTED = ("quick-release", "quick-sanitize", "forms-release", "forms-sanitize", "forms-tsan")
ROUNDS = 6
TOLERANCE = 0.05  # by how much hakmem may have become worse beside the C library since the last baseline


@dataclass(frozen=True)
class Row:
    question: str
    check: Callable[[float], str]  # gets its time limit in seconds; the answer if it is yes, LabError says why not
    limit_s: float


@dataclass(frozen=True)
class Answer:
    question: str
    passed: bool
    detail: str
    seconds: float


def answers(rows: Sequence[Row]) -> Iterator[Answer]:
    for row in rows:
        start = time.monotonic()
        try:
            passed, detail = True, row.check(row.limit_s)
        except LabError as error:
            passed, detail = False, str(error)
        yield Answer(row.question, passed, detail, time.monotonic() - start)


def table() -> list[Row]:
    """In the order in which they are asked: the quick ones first."""
    return [
        Row("Do programs run on it, beyond doubt?", takes_over, 30),
        Row("Have all tests passed since the sources changed?", tests_passed, 30),
        Row("Is a double free stopped, and named?", double_free_is_stopped, 30),
        Row("Is a foreign pointer stopped, and named?", foreign_pointer_is_stopped, 30),
        Row("Does fork work while other threads allocate?", forks, 60),
        Row("Does a record stand behind every figure in the documents?", claims_hold, 60),
        Row("Is it silent?", silent, 120),
        Row("Is fragmentation bounded?", fragmentation_is_bounded, 300),
        Row("Do all benchmarks complete, under all profiles, at all thread counts?", healthy, 1800),
        Row("Is it as good as at the last baseline?", no_regression, 3600),
    ]


# ---- Programs that are run -------------------------------------------------------------------------------------------

ALLOCATE = """
import ctypes, os, resource, threading
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.malloc.argtypes = (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
"""
DOUBLE_FREE = """
block = libc.malloc(64)
libc.free(block)
libc.free(block)
"""
FOREIGN_POINTER = """
here = ctypes.create_string_buffer(64)
libc.free(ctypes.addressof(here) + 16)
"""
FORK = """
def churn():
    blocks = [libc.malloc(number * 37 % 5000 + 1) for number in range(200)]
    for block in blocks:
        libc.free(block)

def run():
    while not stop.is_set():
        churn()

stop = threading.Event()
threads = [threading.Thread(target=run) for _ in range(4)]
for thread in threads:
    thread.start()
statuses = []
for _ in range(50):
    child = os.fork()
    if child == 0:
        churn()
        os._exit(0)
    statuses.append(os.waitpid(child, 0)[1])
stop.set()
for thread in threads:
    thread.join()
print(statuses.count(0))
"""


def _python(program: str, limit_s: float) -> process.Run:
    command = [sys.executable, "-S", "-E", "-c", ALLOCATE + program]
    return process.run(command, allocators.hakmem(), {"PYTHONMALLOC": "malloc"}, timeout_s=limit_s)


def takes_over(limit_s: float) -> str:
    done = process.run(["true"], allocators.hakmem(), timeout_s=limit_s)  # raises when it doesn't
    if done.status != 0:
        raise LabError(f"true ended with {done.status}")
    return f"malloc is {allocators.hakmem().library}"


def _stopped(done: process.Run, message: str) -> str:
    said = done.stderr.decode(errors="replace").strip().splitlines()
    last = said[0] if said else "nothing"
    if done.status != -6 or not re.fullmatch(message, last):
        raise LabError(f"ended with {done.status} and said {last!r}; expected an abort and {message!r}")
    return last


def double_free_is_stopped(limit_s: float) -> str:
    return _stopped(_python(DOUBLE_FREE, limit_s), r"hakmem: free\(0x[0-9a-f]+\): double free of a block of 64 bytes")


def foreign_pointer_is_stopped(limit_s: float) -> str:
    return _stopped(_python(FOREIGN_POINTER, limit_s), r"hakmem: free\(0x[0-9a-f]+\): invalid pointer: .*")


def forks(limit_s: float) -> str:
    done = _python(FORK, limit_s)
    if done.status != 0 or done.stdout.strip() != b"50":
        raise LabError(f"ended with {done.status}; {done.stdout.decode().strip() or 0} of 50 children went on")
    return "50 children, four threads at work"


# ---- What is known already -------------------------------------------------------------------------------------------


def _checkout() -> Path:
    root = native.checkout()
    if root is None:
        raise LabError("can be answered in a checkout of hakmem only, and this is an installed package")
    return root


def tests_passed(limit_s: float) -> str:
    return logs_say_passed(_checkout())


def logs_say_passed(root: Path) -> str:
    """By the results that the tests leave, which must be newer than all sources and tests."""
    sources = (path for folder in ("src", "include", "tests") for path in (root / folder).rglob("*") if path.is_file())
    newest = max(sources, key=lambda path: path.stat().st_mtime)
    count = 0
    for run in TESTED:
        command = "./dev test" if run.startswith("quick") else "./dev test --forms"
        results = root / "build" / "logs" / f"{run}.xml"
        if not results.is_file():
            raise LabError(f"no results of {run} are known: {command}")
        try:
            cases = list(ElementTree.parse(results).iter("testcase"))
        except ElementTree.ParseError:
            cases = []
        failed = [case.get("name") for case in cases if _has_failed(case)]
        if failed or not cases:
            found = f"{len(failed)} tests failed, {failed[0]} is one" if failed else "no test was run"
            raise LabError(f"{results.relative_to(root)}: {found}")
        if results.stat().st_mtime < newest.stat().st_mtime:
            raise LabError(f"{newest.relative_to(root)} has changed since the tests of {run}: {command}")
        count += len(cases)
    return f"{count} tests in {len(TESTED)} runs"


def _has_failed(case: ElementTree.Element) -> bool:
    """Also one that was never run, as its program was not there: CTest calls it skipped."""
    skipped = case.find("skipped")
    never_ran = skipped is not None and not skipped.get("message", "").startswith("SKIP_")
    return never_ran or case.find("failure") is not None or case.find("error") is not None


def claims_hold(limit_s: float) -> str:
    findings = claims.audit(_checkout())
    if findings:
        raise LabError(f"{findings[0]}" + (f", and {len(findings) - 1} more: hakmem claims" if findings[1:] else ""))
    return "every one"


# ---- What the health check sees --------------------------------------------------------------------------------------


def _examine(groups: Sequence[str], limit_s: float) -> str:
    own = allocators.hakmem()
    assert own.library is not None
    profiles = health.profiles(own.library)
    deadline = time.monotonic() + limit_s
    count, failed = 0, []
    for check in health.Examination(own).run(profiles, groups):
        count += 1
        failed += [check] if not check.passed else []
        if time.monotonic() > deadline:
            raise LabError(f"not done after {limit_s:.0f} s, at {check.name}")
    if failed:
        more = f", and {len(failed) - 1} more: hakmem health" if failed[1:] else ""
        raise LabError(f"{failed[0].profile}: {failed[0].name}: {failed[0].wrong}{more}")
    return f"{count} runs under {', '.join(profile.name for profile in profiles)}"


def silent(limit_s: float) -> str:
    return _examine(["silence"], limit_s)


def healthy(limit_s: float) -> str:
    return _examine(["suite", "threads"], limit_s)


def fragmentation_is_bounded(limit_s: float) -> str:
    return _examine(["fragmentation"], limit_s)


# ---- What a record knows ---------------------------------------------------------------------------------------------


def last_baseline(records: Sequence[Record]) -> Record:
    found = [record for record in records if record.kind == "baseline" and record.size == "full"]
    if not found:
        raise LabError("no baseline was kept: hakmem baseline --keep baseline")
    return max(found, key=lambda record: record.date)


def no_regression(limit_s: float) -> str:
    records, _ = ledger.load_all()
    before = last_baseline(list(records.values()))
    facts = machine.facts()
    if before.machine.cpu != facts.cpu or before.machine.cores != facts.cores:
        raise LabError(f"{before.id} is of another machine ({before.machine.cpu}): hakmem baseline --keep baseline")
    deadline = time.monotonic() + limit_s

    def on_step(step: measure.Step) -> None:
        if time.monotonic() > deadline:
            raise LabError(f"not done after {limit_s:.0f} s, in round {step.round} of {step.rounds}")

    cases = [case for case in suite.resolve() if before.cases.get(case.name) == ledger.words_of(case)]
    if not cases:
        raise LabError(f"no benchmark is as it was for {before.id}: hakmem baseline --keep baseline")
    variants = measure.variants([allocators.hakmem(), allocators.glibc()])
    done = measure.measure(cases, variants, ROUNDS, on_step=on_step)
    done.expect_whole()
    now = ledger.from_measurement(done, "baseline", start=facts)
    if now.failures:
        failure = now.failures[0]
        raise LabError(f"{failure.case} on {failure.variant}: {failure.reason}")
    return compare_baselines(before, now)


def compare_baselines(before: Record, now: Record) -> str:
    """Time and memory beside the C library's, as geometric means over the same work: then and now."""
    told: list[str] = []
    holding = comparison.holding(statistics.CONFIDENCE)
    for title, figure in (("time", comparison.cost), ("peak RSS", comparison.memory)):
        then_ratios, now_ratios = (_beside(record, figure(record)) for record in (before, now))
        shared = [case for case in then_ratios if case in now_ratios]
        if not shared:
            raise LabError(f"{before.id} has no {title} of hakmem and glibc to compare with")
        then_means, now_means = (_means([ratios[case] for case in shared]) for ratios in (then_ratios, now_ratios))
        change = statistics.ratio(now_means, then_means, paired=False)
        over = f"over {len(shared)} of its {len(before.cases)} cases"
        said = f"{title} beside the C library {words.change(change)} since {before.id}, {over}"
        if statistics.decision(change, TOLERANCE) is Decision.NO_GO:
            raise LabError(f"{said}. {holding}")
        if change.high > 1 + TOLERANCE:
            raise LabError(f"can't tell: {said}. {holding}")
        told.append(said)
    return f"{'; '.join(told)}. {holding}"


def _beside(record: Record, figure: comparison.Figure) -> dict[str, list[float]]:
    """hakmem / glibc of each round, of the cases in which both have figures."""
    both = {case: (figure(case, "hakmem"), figure(case, "glibc")) for case in record.cases}
    return {
        case: [one / other for one, other in zip(own, theirs, strict=True)]
        for case, (own, theirs) in both.items()
        if own and theirs
    }


def _means(ratios: Sequence[Sequence[float]]) -> list[float]:
    """Of each round, over all cases."""
    return [statistics.geometric_mean(of_round) for of_round in zip(*ratios, strict=True)]
