"""`hakmem predict`: what is counted and delayed, on programs whose calls are known; what follows from rounds, on rounds
that are made up; and the command."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from compiled import EXPORTED, compile_c
from hakmem import allocators, delays, measure, native, predict, process
from hakmem.allocators import Allocator
from hakmem.delays import COUNTED, PLAIN, Counts, Tally
from hakmem.errors import LabError
from hakmem.measure import CommandCase, Measurement, SameOutput, Sample, Variant
from hakmem.statistics import Interval

PREDICT = [sys.executable, "-m", "hakmem", "predict"]
TOLERANCE = 0.2  # of a delay

PROGRAM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void *pairs(void *count) {
    for (long i = 0; i < (long)count; i++) {
        char *volatile block = malloc(100);
        free(block);
    }
    return NULL;
}

static int is_aligned(void *block, size_t alignment) { return block && (uintptr_t)block % alignment == 0; }

static int family(void) {
    char *block = calloc(3, 700), *aligned;
    int sound = block && block[0] == 0 && block[2099] == 0;
    memset(block, 7, 2100);
    block = realloc(block, 90000);
    sound &= block && block[2099] == 7;
    sound &= malloc_usable_size(block) >= 90000;
    errno = 0;
    sound &= !reallocarray(block, SIZE_MAX / 2, 4) && errno == ENOMEM;
    free(block);
    sound &= posix_memalign((void **)&aligned, 4096, 10) == 0 && is_aligned(aligned, 4096);
    free(aligned);
    free(NULL);
    sound &= is_aligned(aligned_alloc(64, 128), 64) && is_aligned(memalign(256, 5), 256);
    sound &= is_aligned(valloc(1), 4096) && is_aligned(pvalloc(1), 4096);
    return sound ? 0 : 9;
}

int main(int argc, char **argv) {
    long count = argc > 2 ? atol(argv[2]) : 0;
    if (strcmp(argv[1], "pairs") == 0) {
        pairs((void *)count);
    } else if (strcmp(argv[1], "unwaited") == 0) {
        pthread_t thread;
        pthread_create(&thread, NULL, pairs, (void *)count);
        usleep(1500000);
        pthread_join(thread, NULL);
    } else if (strcmp(argv[1], "children") == 0) {
        if (fork() == 0) {
            pairs((void *)count);
            _exit(0);
        }
        pairs((void *)count);
        wait(NULL);
    } else if (strcmp(argv[1], "pages") == 0) {
        for (long i = 0; i < count; i++) {
            char *volatile block = malloc(1 << 20);
            block[0] = 1;
        }
    } else if (strcmp(argv[1], "zero") == 0) {
        for (long i = 0; i < count; i++) {
            void *volatile block = malloc(10);
            block = realloc(block, 0);
        }
    } else if (strcmp(argv[1], "family") == 0) {
        return family();
    } else if (strcmp(argv[1], "where") == 0) {
        Dl_info info;
        puts(dladdr(malloc(10), &info) ? info.dli_fname : "nowhere");
    }
    return 0;
}
"""

OPERATORS = r"""
#include <cstdio>
#include <cstdlib>
#include <new>
struct alignas(64) Wide { char bytes[200]; };
int main(int argc, char **argv) {
    for (int i = 0; i < atoi(argv[1]); i++) {
        volatile auto one = new char[100];
        delete[] one;
        volatile auto other = new long(3);
        delete other;
        volatile auto quiet = new (std::nothrow) char[100];
        operator delete[](quiet, std::nothrow);
        volatile auto wide = new Wide;
        delete wide;
    }
    try {
        volatile auto all = ::operator new(size_t(1) << 62);
        operator delete(all);
    } catch (const std::bad_alloc &) {
        return new (std::nothrow) char[size_t(1) << 61] ? 1 : puts("caught") < 0;
    }
    return 2;
}
"""

EXPORTER = r"""
#include <cstddef>
#include <new>
extern "C" {
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);
void *malloc(size_t n) { return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { return __libc_realloc(p, n); }
void *memalign(size_t a, size_t n) { return __libc_memalign(a, n); }
void free(void *p) { __libc_free(p); }
}
static void *some(size_t n, size_t a) {
    if (void *p = __libc_memalign(a, n)) return p;
    throw std::bad_alloc();
}
void *operator new(size_t n) { return some(n, 16); }
void *operator new[](size_t n) { return some(n, 16); }
void *operator new[](size_t n, const std::nothrow_t &) noexcept { return __libc_malloc(n); }
void *operator new(size_t n, std::align_val_t a) { return some(n, (size_t)a); }
void operator delete(void *p) noexcept { __libc_free(p); }
void operator delete[](void *p) noexcept { __libc_free(p); }
void operator delete(void *p, size_t) noexcept { __libc_free(p); }
void operator delete[](void *p, const std::nothrow_t &) noexcept { __libc_free(p); }
void operator delete(void *p, size_t, std::align_val_t) noexcept { __libc_free(p); }
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("counted") / "counted", PROGRAM, "-pthread")


def counted(*words: object, allocator: Allocator | None = None, **delay: int) -> tuple[Sample, Counts]:
    case = delays.DelayedCase(CommandCase(tuple(map(str, words))))
    settings = {name: str(value) for name, value in delay.items()}
    return case.counted(Variant(COUNTED, allocator or allocators.glibc(), settings))


# ---- Counting and delaying -------------------------------------------------------------------------------------------


def test_every_call_is_counted_by_its_size(program: Path) -> None:
    few, many = (counted(program, "pairs", count)[1] for count in (1000, 51000))
    assert many.sizes[128].count - few.sizes[128].count == 50000
    assert many.frees.count - few.frees.count == 50000
    assert many.allocations - few.allocations == 50000
    assert 0 <= many.sizes[128].seconds < 1  # as fast as a look at the clock


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("operators") / "operators", OPERATORS, "-xc++", compiler="g++")


@pytest.fixture(scope="module")
def exporters(operators: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Allocator]:
    """A library that has operators of its own, hakmem, and of the installed peers those whose operators throw where
    there is no memory: some end the program."""
    library = tmp_path_factory.mktemp("exporter") / "exporter.so"
    compile_c(library, EXPORTER, "-xc++", "-shared", "-fPIC", compiler="g++")
    ours, *peers = (one for one in allocators.installed() if one.library)
    assert ours.name == "hakmem"
    throwing = [
        one
        for one in peers
        if subprocess.run([operators, "1"], env={"LD_PRELOAD": str(one.library)}, capture_output=True).returncode == 0
    ]
    return [Allocator("exporter", library), ours, *throwing]


def test_operators_of_the_allocator_are_counted(operators: Path, exporters: list[Allocator]) -> None:
    for allocator in (*exporters, allocators.glibc()):
        few, many = (counted(operators, count, allocator=allocator)[1] for count in (1000, 6000))
        assert many.allocations - few.allocations == 4 * 5000, allocator.name
        assert many.frees.count - few.frees.count == 4 * 5000, allocator.name
        assert many.sizes[8].count - few.sizes[8].count == 5000


def test_operators_of_the_allocator_are_recorded(operators: Path, exporters: list[Allocator], tmp_path: Path) -> None:
    for allocator in exporters:
        folder = tmp_path / allocator.name
        folder.mkdir()
        recorded = predict._record(CommandCase((str(operators), "5000")), allocator, folder)
        assert max(of.event_count for of in recorded.values()) >= 2 * 4 * 5000, allocator.name


def test_operators_of_a_runtime_that_a_plugin_brought_throw(tmp_path: Path) -> None:
    plugin = compile_c(tmp_path / "plugin.so", OPERATORS, "-xc++", "-shared", "-fPIC", compiler="g++")
    source = """
        #include <dlfcn.h>
        int main(int argc, char **argv) {
            int (*run)(int, char **) = (int (*)(int, char **))dlsym(dlopen(argv[2], RTLD_NOW | RTLD_LOCAL), "main");
            return run(argc, argv);
        }"""
    host = compile_c(tmp_path / "host", source)
    few, many = (counted(host, count, plugin)[1] for count in (1000, 6000))
    assert many.allocations - few.allocations == 4 * 5000


def test_a_realloc_to_nothing_is_a_free(program: Path) -> None:
    few, many = (counted(program, "zero", count)[1] for count in (1000, 6000))
    assert many.allocations - few.allocations == 5000
    assert many.frees.count - few.frees.count == 5000


def test_children_are_counted_too(program: Path) -> None:
    few, many = (counted(program, "children", count)[1] for count in (1000, 2000))
    assert many.sizes[128].count - few.sizes[128].count == 2 * 1000


def test_threads_are_counted_and_those_that_share_a_line(program: Path) -> None:
    assert counted(program, "unwaited", 1234)[1].sizes[128].count >= 1234


@pytest.mark.parametrize("kind", ["malloc", "free"])
def test_a_delay_is_as_long_as_it_is_to_be(program: Path, kind: str) -> None:
    """The processor's time grows by calls x delay; the clock on the wall would be moved by other work, too."""
    calls, delay_ns = 20_000, 20_000
    before, _ = counted(program, "pairs", calls)
    after, counts = counted(program, "pairs", calls, **{kind: delay_ns})
    expected_s = calls * delay_ns / 1e9
    assert after.values["cpu_s"] - before.values["cpu_s"] == pytest.approx(expected_s, rel=TOLERANCE)
    assert counts.waited_s - before.values["waited_s"] == pytest.approx(expected_s, rel=TOLERANCE)


def test_a_page_is_first_handed_out_once(program: Path) -> None:
    few, many = (counted(program, "pages", count)[1] for count in (10, 50))
    assert many.pages - few.pages == pytest.approx(40 * 256, rel=0.05)
    assert many.sizes[1 << 20].count == 50
    one, again = (counted(program, "pairs", count)[1] for count in (10, 50_000))
    assert one.pages == again.pages


def test_a_page_s_delay_is_as_long_as_it_is_to_be(program: Path) -> None:
    before, _ = counted(program, "pages", 400)
    after, counts = counted(program, "pages", 400, touch=2000)
    expected_s = counts.pages * 2000 / 1e9
    assert after.values["cpu_s"] - before.values["cpu_s"] == pytest.approx(expected_s, rel=TOLERANCE)


def test_all_calls_do_what_they_do_without(program: Path, tmp_path: Path) -> None:
    assert counted(program, "family")[1].allocations >= 7
    for delay in ("", "1:2", "1:2:3:" + str(tmp_path / "missing"), f"1:2:3:{tmp_path}"):
        given = {**os.environ, "LD_PRELOAD": str(native.helper("delay.so")), "HAK_DELAY": delay}
        assert subprocess.run([program, "family"], env=given).returncode == 0


def test_calls_go_to_the_allocator_behind(program: Path, tmp_path: Path) -> None:
    library = compile_c(tmp_path / "own.so", EXPORTED, "-shared", "-fPIC")
    file = tmp_path / "counts"
    file.touch()
    before = native.helper("delay.so")
    given = {"HAK_DELAY": f"0:0:0:{file}"}
    run = process.run([str(program), "where"], Allocator("own", library), given, before=before)
    assert run.stdout.decode().strip() == str(library)
    found = delays.read(file.read_bytes())
    assert found is not None and found.allocations >= 1


def test_what_takes_no_preload_has_no_figures(tmp_path: Path) -> None:
    static = compile_c(tmp_path / "static", "int main(void) { return 0; }", "-static")
    with pytest.raises(LabError, match="left no proof"):
        counted(static)


# ---- Sensitivity -----------------------------------------------------------------------------------------------------


def observed(*words: object, rounds: int = 3) -> Measurement:
    case = delays.DelayedCase(CommandCase(tuple(map(str, words))))
    pilot, _ = case.counted(Variant(COUNTED, allocators.glibc()))
    return measure.measure([case], delays.variants(allocators.glibc(), pilot), rounds, warmup=0)


@pytest.mark.forms
def test_a_delay_that_nobody_waits_for_does_not_arrive(program: Path) -> None:
    """A thread is done long before the program that sleeps beside it."""
    found = observed(program, "unwaited", 1000)
    share = delays.sensitivity(found, "malloc", range(found.rounds))
    assert share is not None and abs(share) < 0.3


def test_delays_add_a_share_and_are_not_made_where_nothing_calls() -> None:
    values = {"wall_s": 2.0, "allocations": 300_000, "frees": 0, "pages": 1}
    made = {one.name: one.settings for one in delays.variants(allocators.glibc(), Sample(values, "", True))}
    assert made[PLAIN] == {} and made[COUNTED] == {} and "free" not in made
    assert made["malloc"] == {"malloc": "1000"}
    assert made["touch"] == {"touch": str(delays.LONGEST_NS)}


# ---- From rounds to predictions --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    name: str
    command: tuple[str, ...] = ()
    same_output: SameOutput = "nowhere"

    def supports(self, variant: Variant) -> bool:
        return True

    def run(self, variant: Variant) -> Sample:
        raise AssertionError("made up")


def made_up(case: str, rows: dict[str, list[dict[str, float]]]) -> Measurement:
    own = [Variant(name, Allocator(name, None)) for name in rows]
    samples = {case: {name: [Sample(values, "", True) for values in some] for name, some in rows.items()}}
    (rounds,) = {len(some) for some in rows.values()}
    return Measurement([Named(case)], own, rounds, samples=samples)


def rounds_of(share: float, *, waited_s: float = 1.0, scale: float = 1.0, longer_s: float = 0.4) -> predict.Rounds:
    """A program of 10 s, whose delays arrive by that share; and a peer that takes longer by so much in the replay."""
    plain = {"wall_s": 10.0, "peak_rss_bytes": 100e6, "waited_s": 0.0, "malloc_s": 2.0, "free_s": 1.0,
             "cpu_s": 9.0}  # fmt: skip
    slow = {**plain, "wall_s": 10.0 + share * waited_s, "waited_s": waited_s}
    program = made_up("program", {name: [plain if name in (PLAIN, COUNTED) else slow] * 4
                                  for name in (PLAIN, COUNTED, *delays.DELAYED)})  # fmt: skip
    base = {"measured_s": 3.0, "system_s": 0.1, "minor_faults": 1e5, "peak_rss_bytes": 50e6, "heap_peak": 40e6}
    peer = {**base, "measured_s": 3.0 + longer_s, "minor_faults": 2e5, "peak_rss_bytes": 70e6}
    return predict.Rounds(
        program, made_up("trace", {"glibc": [{**base} for _ in range(3)], "peer": [peer] * 3}), scale, 30e6
    )


def time_of(of: predict.Rounds, name: str = "peer") -> Interval:
    time = by_name(of)[name].time
    assert time is not None
    return time


def by_name(of: predict.Rounds) -> dict[str, predict.Prediction]:
    return {one.name: one for one in predict.conclude(of)}


def test_a_replay_s_difference_arrives_by_the_sensitivity() -> None:
    def longer(of: predict.Rounds) -> float:
        return time_of(of).estimate - 1

    full = longer(rounds_of(1.0))
    assert full == pytest.approx((predict.COLD * 0.3 + 0.1) / 10)
    assert longer(rounds_of(0.5)) == pytest.approx(full / 2)
    assert longer(rounds_of(0.0)) == pytest.approx(0)
    assert longer(rounds_of(0.5, scale=3)) == pytest.approx(full * 3 / 2)


def test_what_page_faults_take_arrives_by_the_sensitivity_to_touches() -> None:
    """The peer's hundred thousand more of them take a tenth of a second, of the 0.4 s that it takes longer."""
    of = rounds_of(0.0)
    of.program.samples["program"]["touch"] = rounds_of(1.0).program.samples["program"]["touch"]
    assert time_of(of).estimate == pytest.approx(1.01)


def test_a_sensitivity_that_can_t_be_told_is_full() -> None:
    unknown = rounds_of(5.0, waited_s=0.01)
    assert predict.shares(unknown, range(4)) == dict.fromkeys(delays.DELAYED)
    assert by_name(unknown)["peer"].time == by_name(rounds_of(1.0))["peer"].time


@pytest.mark.parametrize("share", [-14.5, -0.3, 1.6, 9.0])
def test_a_sensitivity_that_is_beyond_all_likelihood_can_t_be_told(share: float) -> None:
    assert predict.shares(rounds_of(share), range(4)) == dict.fromkeys(delays.DELAYED)
    assert time_of(rounds_of(share)) == time_of(rounds_of(1.0))


def test_memory_differs_by_what_the_replays_do() -> None:
    memory = by_name(rounds_of(1.0))["peer"].memory
    assert memory is not None and memory.estimate == pytest.approx(1.2)


def test_traces_that_lack_calls_tell_nothing_of_memory_and_say_so() -> None:
    cut = replace(rounds_of(1.0, scale=3.0), least_bytes=None)
    assert all(one.memory is None and one.time is not None for one in predict.conclude(cut))
    memory, time = predict._lacks(cut, 3000, 1000)
    assert "Memory isn't predicted" in memory and "1,000 events" in memory
    assert "3.0 times" in time and "of 3,000 calls 1,000" in time
    assert not [*predict._lacks(rounds_of(1.0), 1000, 1000)]


def test_the_ideal_takes_no_time_for_calls_and_packs_blocks() -> None:
    ideal = by_name(rounds_of(0.5))[predict.IDEAL]
    assert ideal.time is not None and ideal.memory is not None
    assert ideal.time.estimate == pytest.approx(1 - 0.5 * 3 / 10)
    assert ideal.memory.estimate == pytest.approx(1 - 10 / 100)
    assert not ideal.time.is_bounded and not ideal.memory.is_bounded


def test_calls_take_no_more_than_the_run_that_they_are_part_of() -> None:
    of = rounds_of(0.5)
    for sample in of.program.samples["program"][COUNTED]:
        sample.values["malloc_s"] = 29.0  # with free 30 s, of 9 s that the processor was busy
    assert time_of(of, predict.IDEAL).estimate == pytest.approx(1 - 0.5 * 9 / 10)


def test_rounds_without_any_time_left_make_no_interval_of_any_width() -> None:
    """Drawn without the one round in which the incumbent was fast, the peer would take less than nothing."""
    of = rounds_of(1.0)
    for sample in of.replayed.samples["trace"]["glibc"][1:]:
        sample.values.update(measured_s=12.0, minor_faults=2e5)
    time = time_of(of)
    assert 2 < time.high / time.low < 20


def test_a_ratio_of_nothing_can_t_be_told() -> None:
    assert by_name(rounds_of(1.0, longer_s=-2.5, scale=9.0))["peer"].time is None


def test_intervals_hold_what_rounds_scatter_and_what_the_model_is_off() -> None:
    """The more, the larger a change is predicted."""
    steady = rounds_of(1.0)
    small, large = (time_of(one) for one in (steady, rounds_of(1.0, longer_s=3.0)))
    assert small.low < small.estimate < small.high
    assert small.high / small.low >= 1 + 2 * predict.ERROR_OF_TIME[0]
    assert large.high / large.low > small.high / small.low
    for number, sample in enumerate(steady.program.samples["program"]["malloc"]):
        steady.program.samples["program"]["malloc"][number] = Sample(
            {**sample.values, "wall_s": 11 + 0.4 * (number % 2)}, "", True
        )
    scattered = time_of(steady)
    assert scattered.high / scattered.low > small.high / small.low


@pytest.mark.parametrize("few", ["program", "replayed"])
def test_too_few_rounds_have_no_interval(few: str) -> None:
    """Drawn again, one round is always the same: what it scatters would seem to be nothing."""
    of = rounds_of(1.0)
    cut: Measurement = getattr(of, few)
    cut.rounds = predict.LEAST_ROUNDS - 1
    for samples in cut.samples.values():
        samples.update({name: some[: cut.rounds] for name, some in samples.items()})
    assert not time_of(of).is_bounded and time_of(of).estimate == time_of(rounds_of(1.0)).estimate
    assert any(note.startswith("No intervals: ") for note in predict._lacks(of, 1000, 1000))


def test_an_allocator_that_fails_a_replay_has_no_prediction() -> None:
    of = rounds_of(1.0)
    assert of.replayed
    of.replayed.samples["trace"]["peer"].clear()
    assert list(by_name(of)) == [predict.IDEAL]


def test_the_smallest_traces_are_left_out() -> None:
    traces = {Path("a"): 900, Path("b"): 60, Path("c"): 40}
    assert predict._largest(traces) == ([Path("a"), Path("b")], 960)
    assert predict._largest({}) == ([], 0)


def test_the_time_of_reading_the_clock_is_taken_off() -> None:
    words = [0] * (delays.HEAD_WORDS + delays.LINE_WORDS)
    words[0], words[1] = 1, 30_000  # 30 ns for each look
    place = delays.HEAD_WORDS + 3 * 7  # of sizes to 2^7
    words[place : place + 3] = [1700, 100, 8000]
    found = delays.read(b"".join(word.to_bytes(8, "little") for word in words))
    assert found is not None and found.sizes == {128: Tally(1700, pytest.approx(1700 * 50e-9))}
    assert delays.read(bytes(8 * len(words))) is None


# ---- The exam --------------------------------------------------------------------------------------------------------


@pytest.fixture
def exam() -> ModuleType:
    spec = importlib.util.spec_from_file_location("predict_exam", native.checkout() / "scripts/predict_exam.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_exam_keeps_what_was_predicted_when_it_was_taken(
    exam: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = predict.Answer("program", "glibc", Counts({}, Tally(0, 0), 0, 0), rounds_of(1.0), ())
    monkeypatch.setattr(exam.predict, "predict", lambda *words, **rest: answer)
    monkeypatch.setattr(exam.allocators, "resolve", lambda words: [allocators.glibc()])
    monkeypatch.setattr(exam.ledger, "from_measurement", lambda *words, **rest: None)
    exam.take(tmp_path, "program", ["true"])
    _, kept = pickle.loads((tmp_path / "program.taken").read_bytes())
    expected = predict.conclude(answer.rounds)
    monkeypatch.setattr(predict, "ERROR_OF_TIME", (9.0, 9.0))  # another design's
    assert kept.predictions == expected


def test_the_exam_is_of_one_commit(exam: ModuleType) -> None:
    taken = [(SimpleNamespace(commit=commit * 40), []) for commit in "ab"]
    with pytest.raises(LabError, match="taken at 2 commits"):
        exam.keep(taken, "exam")


# ---- The command -----------------------------------------------------------------------------------------------------


def run(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*PREDICT, *map(str, words)], capture_output=True, text=True, timeout=600)


def test_what_was_not_timed_is_not_told_to_take_nothing(program: Path) -> None:
    done = run("-n", 1, "--replays", 1, "--with", "glibc", "--", program, "pairs", 5000)
    assert done.returncode == 0, done.stderr
    assert "not timed" in done.stdout and " 0 ns" not in done.stdout


def test_it_predicts_without_running_the_program_on_another(program: Path) -> None:
    done = run("-n", 1, "--replays", 1, "--with", "hakmem", "--json", "-", "--", program, "pairs", 5000)
    assert done.returncode == 0, done.stderr
    begun = [line.split()[1] for line in done.stderr.splitlines()]
    assert [word for word in begun if word.endswith("ing")] == [
        "counting",
        "recording",
        "replaying",
        "packing",
        "running",
    ]
    found = json.loads(done.stdout)
    assert [one["allocator"] for one in found["predictions"]] == ["hakmem", "ideal"]
    assert {one["bytes"]: one["calls"] for one in found["allocations"]}[128] >= 5000
    assert found["incumbent"] == "glibc" and found["wall_s"] > 0


def test_a_record_that_reached_its_limit_is_told(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "TRACE_LIMIT_BYTES", 1 << 18)
    own = allocators.glibc()
    found = predict.predict([str(program), "pairs", "200000"], own, [], rounds=3, replay_rounds=3)
    assert [one.memory for one in found.predictions] == [None]
    memory, time = found.notes
    assert memory.startswith("Memory isn't predicted") and time.startswith("Time is scaled")
    assert found.rounds.scale > 2 and found.plain()["predictions"][0]["peak_rss_bytes"] is None


def test_what_figures_are_not_of_is_told(program: Path) -> None:
    """As in a comparison: here of a process that goes on when the command has ended."""
    words = ["sh", "-c", f"sleep 30 & exec {program} pairs 5000"]
    found = predict.predict(words, allocators.glibc(), [], rounds=1, replay_rounds=1)
    assert any("processes of it went on when it had ended" in note for note in found.notes), found.notes


def test_what_is_not_counted_is_told(tmp_path: Path) -> None:
    """A static program that the command starts: its calls are in no prediction, and its time in each."""
    lasts = compile_c(tmp_path / "lasts", "#include <unistd.h>\nint main(void) { return usleep(200000); }", "-static")
    words = ("sh", "-c", f"{lasts}; true")
    found = predict.predict(words, allocators.glibc(), [], rounds=1, replay_rounds=1)
    assert any("lasts, which it started," in note and "not counted" in note for note in found.notes), found.notes


def test_it_shows_tables(program: Path) -> None:
    done = run("-n", 1, "--replays", 1, "--with", "glibc", "--baseline", "hakmem", "--", program, "pairs", 5000)
    assert done.returncode == 0, done.stderr
    for said in ("on hakmem", "glibc", "ideal", "malloc to 128 B", "sensitivity"):
        assert said in done.stdout


@pytest.mark.parametrize(
    "words, said",
    [
        ((), "no command"),
        (("--", "nosuchcommand"), "nosuchcommand: command not found"),
        (("--baseline", "glibc,hakmem", "--", "true"), "--baseline glibc,hakmem: expected the name of one allocator"),
        (("--with", "nosuch", "--", "true"), "no allocator 'nosuch'"),
        (("--with", "hakmem", "--", "false"), "false ended with exit status 1"),
        (("--with", "hakmem", "--timeout", "0.2", "--", "sleep", "5"), "sleep was ended after 0.2 s"),
    ],
)
def test_errors_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = run(*words)
    assert done.returncode == 2 and done.stdout == ""
    *begun, error = done.stderr.splitlines()
    assert said in error and all(line.startswith("hakmem: counting the calls of ") for line in begun), done.stderr


@pytest.mark.parametrize("failing", [3, 4])  # the first two are counted and recorded, then comes the first round
def test_a_program_that_fails_later_is_told(failing: int, tmp_path: Path) -> None:
    script = 'echo >> "$1"; n=$(wc -l < "$1"); [ $n -ne $2 ]'
    done = run(
        "-n", 1, "--replays", 1, "--with", "hakmem", "--", "bash", "-c", script, "bash", tmp_path / "runs", failing
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "bash ended with exit status 1, in round 1" in done.stderr.splitlines()[-1], done.stderr
