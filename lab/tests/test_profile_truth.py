"""hakmem profile against the truth, which a library that counts every allocation tells (truth.c): what is counted is
within 2 %, and what functions have within the errors that are told."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from compiled import compile_c
from hakmem import native, servers

HERE = Path(__file__).parent
MIB = 1 << 20
SYSTEM_PYTHON = "/usr/bin/python3"

COMMON = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#define SITE __attribute__((noinline))
SITE static char *touch(char *p, size_t n) { memset(p, 1, n < 64 ? n : 64); return p; }
"""

OWN = """
static pthread_barrier_t all_work;
SITE char *replaces(size_t n) { return touch(malloc(n), n); }
static void *work(void *seed) {
    unsigned s = (unsigned)(size_t)seed;
    char *slots[4096] = {0};
    for (int i = 0; i < 1000000; i++) {
        s = s * 1103515245u + 12345u;
        int k = (s >> 8) % 4096;
        free(slots[k]);
        slots[k] = replaces(16 + (s >> 20) % 1024);
    }
    pthread_barrier_wait(&all_work); /* so that the peak isn't the kernel's affair */
    for (int k = 0; k < 4096; k++) free(slots[k]);
    return NULL;
}
int main(int count, char **words) {
    int n = count > 1 ? atoi(words[1]) : 2;
    pthread_t threads[16];
    pthread_barrier_init(&all_work, NULL, n);
    for (int i = 0; i < n; i++) pthread_create(&threads[i], NULL, work, (void *)(size_t)(i + 1));
    for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
    return 0;
}
"""

LEAK = """
static volatile int is_over;
SITE char *leaks(size_t n) { return touch(malloc(n), n); }
SITE char *churns(size_t n) { return touch(malloc(n), n); }
static void *churn(void *nothing) {
    char *slots[64] = {0};
    for (unsigned i = 0; i < 3000000; i++) {
        free(slots[i % 64]);
        slots[i % 64] = churns(24 + i % 500);
    }
    for (int i = 0; i < 64; i++) free(slots[i]);
    return nothing;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, churn, NULL);
    for (int i = 0; i < 1000000; i++) leaks(100);
    pthread_join(thread, NULL);
    return 0;
}
"""

PEAK = """
static char *blocks[60100];
int main(void) {
    for (int i = 0; i < 100; i++) blocks[i] = touch(malloc(1000000), 1000000);
    for (int i = 100; i < 60100; i++) blocks[i] = touch(malloc(40), 40);
    for (int i = 100; i < 60100; i++) free(blocks[i]);
    return 0;
}
"""

# The peak is of blocks of the first size, and most samples of a class that both have are of the second.
MIXED = """
static char *blocks[1000000];
SITE void fills(int count, size_t n) {
    for (int i = 0; i < count; i++) blocks[i] = touch(malloc(n), n);
    for (int i = 0; i < count; i++) free(blocks[i]);
}
int main(int count, char **words) {
    (void)count;
    fills(200000, (size_t)atol(words[1]));
    for (int round = 0; round < 20; round++) fills(100000, (size_t)atol(words[2]));
    return 0;
}
"""

BURST = """
SITE char *bursts(size_t n) { return touch(malloc(n), n); }
SITE char *goes_round(size_t n) { return touch(malloc(n), n); }
int main(void) {
    static char *blocks[200000];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 100000; i++) free(goes_round(300));
        for (int i = 0; i < 60000 * (round == 1 ? 3 : 1); i++) blocks[i] = bursts(200);
        for (int i = 0; i < 60000 * (round == 1 ? 3 : 1); i++) free(blocks[i]);
    }
    usleep(50000);
    return 0;
}
"""

CONSUMER = """
enum { ROOM = 512, ALL = 400000 };
static char *queue[ROOM];
static unsigned put, taken;
SITE char *produces(size_t n) { return touch(malloc(n), n); }
static void *consume(void *nothing) {
    for (unsigned i = 0; i < ALL; i++) {
        while (__atomic_load_n(&put, __ATOMIC_ACQUIRE) == i) usleep(10);
        free(queue[i % ROOM]);
        __atomic_store_n(&taken, i + 1, __ATOMIC_RELEASE);
    }
    return nothing;
}
int main(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, consume, NULL);
    char *kept = touch(malloc(3000000), 3000000);
    for (unsigned i = 0; i < ALL; i++) {
        while (i - __atomic_load_n(&taken, __ATOMIC_ACQUIRE) == ROOM) usleep(10);
        queue[i % ROOM] = produces(200 + i % 3000);
        __atomic_store_n(&put, i + 1, __ATOMIC_RELEASE);
    }
    pthread_join(thread, NULL);
    free(kept);
    return 0;
}
"""

FORKS = """
SITE char *of_the_parent(size_t n) { return touch(malloc(n), n); }
SITE char *of_children(size_t n) { return touch(malloc(n), n); }
int main(void) {
    static char *blocks[100000];
    for (int i = 0; i < 50000; i++) blocks[i] = of_the_parent(500);
    for (int child = 0; child < 3; child++) {
        if (fork() != 0) continue;
        for (int i = 0; i < 100000; i++) free(of_children(100));
        for (int i = 0; i < 25000; i++) free(blocks[i]);
        return 0;
    }
    while (wait(NULL) > 0) {}
    return 0;
}
"""

STRINGS = """
a = [bytearray(1000) for _ in range(100000)]
del a
b = [str(i) for i in range(300000)]
print(len(b))
"""
QUERIES = """create table t (a integer, b text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 100000)
insert into t select i, hex(i * 7919) || 'x' from n;
select count(*), sum(length(b)) from (select a, b from t order by b, a);
select substr(b, 1, 2) k, group_concat(a) from t group by k order by length(group_concat(a)) desc limit 3;
"""


@dataclass(frozen=True)
class Truth:
    allocations: int
    reallocations: int
    bytes: int
    live_blocks: int
    live_bytes: int
    peak_blocks: int
    peak_bytes: int


@pytest.fixture(scope="session")
def counting(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("truth")
    return compile_c(folder / "truth.so", (HERE / "truth.c").read_text(), "-shared", "-fPIC", "-fno-builtin", "-w")


def truths(counting: Path, folder: Path, words: Sequence[object], **options: object) -> list[Truth]:
    """Of the processes that have ended, the one that allocated most first."""
    settings = {"LD_PRELOAD": str(counting), "TRUTH": str(folder / "truth"), "PATH": "/usr/bin:/bin"}
    settings |= {"PYTHONHASHSEED": "0", "PYTHONMALLOC": "malloc"}
    subprocess.run([str(word) for word in words], env=settings, check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    found = [Truth(*map(int, path.read_text().split())) for path in folder.glob("truth.*")]
    return sorted(found, key=lambda one: -one.bytes)


def told(folder: Path, words: Sequence[object], **options: object) -> list[dict[str, object]]:
    """Of the same processes, the profiles."""
    settings = {
        "LD_PRELOAD": str(native.library()),
        "HAKMEM_HEAP_PROFILE": f"1:{folder / 'told'}.%p.prof",
        "PATH": "/usr/bin:/bin",
        "PYTHONHASHSEED": "0",
        "PYTHONMALLOC": "malloc",
    }
    subprocess.run([str(word) for word in words], env=settings, check=True, stdout=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    found = [read(path) for path in folder.glob("told.*.prof")]
    return sorted(found, key=lambda one: -counted(one, "in_all")["bytes"])


def read(path: Path) -> dict[str, object]:
    return said("--read", path)


def said(*options: object) -> dict[str, object]:
    words = [sys.executable, "-m", "hakmem", "profile", "--json", *(str(option) for option in options)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def counted(profile: dict[str, object], what: str) -> dict[str, int]:
    return profile["counted"][what]  # type: ignore[index, no-any-return]


def expect(profile: dict[str, object], truth: Truth, *, shares: float = 0.02) -> None:
    """A block that realloc leaves where it is, is none more to hakmem, and one more to truth.c."""
    in_all, live, peak = (counted(profile, what) for what in ("in_all", "live", "at_the_peak"))
    least, most = truth.allocations, truth.allocations + truth.reallocations
    assert least * (1 - shares) <= in_all["blocks"] <= most * (1 + shares)
    if truth.reallocations * 50 < truth.allocations:
        assert abs(in_all["bytes"] - truth.bytes) <= max(shares * truth.bytes, 2 * in_all["bytes_error"])
    assert live["blocks"] == pytest.approx(truth.live_blocks, rel=shares, abs=40)
    assert live["bytes"] == pytest.approx(truth.live_bytes, rel=shares, abs=40_000)
    assert abs(peak["bytes"] - truth.peak_bytes) <= max(shares * truth.peak_bytes, 40_000, 2 * peak["bytes_error"])
    assert peak["bytes_error"] <= max(3 * shares * truth.peak_bytes, 80_000)


def expect_function(profile: dict[str, object], name: str, what: str, truth: float) -> None:
    """Four standard errors: one run in 16,000 is further off by chance, and each test asks a few times."""
    rows = {row["function"]: row for row in profile["functions"]}  # type: ignore[attr-defined]
    row = rows[name]
    assert abs(row[f"{what}_bytes"] - truth) <= 4 * row[f"{what}_error"] + 0.001 * truth, row
    assert row[f"{what}_error"] < 0.2 * truth


@pytest.fixture
def program(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return compile_c(tmp_path / "program", COMMON + request.param, "-pthread", "-fno-omit-frame-pointer")


@pytest.mark.parametrize("program", [OWN], indirect=True)
@pytest.mark.parametrize("threads", [1, 2, 16])
def test_small_blocks_that_are_replaced(tmp_path: Path, counting: Path, program: Path, threads: int) -> None:
    (truth,) = truths(counting, tmp_path, [program, threads])
    (profile,) = told(tmp_path, [program, threads])
    expect(profile, truth, shares=0.02 if threads < 16 else 0.04)  # each of many threads may miss a part of the peak
    expect_function(profile, "replaces", "total", truth.bytes)


@pytest.mark.parametrize("program", [LEAK], indirect=True)
def test_a_leak_beside_a_busy_thread(tmp_path: Path, counting: Path, program: Path) -> None:
    (truth,) = truths(counting, tmp_path, [program])
    (profile,) = told(tmp_path, [program])
    expect(profile, truth)
    expect_function(profile, "leaks", "live", 100e6)
    expect_function(profile, "leaks", "peak", 100e6)
    rows = {row["function"]: row for row in profile["functions"]}  # type: ignore[attr-defined]
    assert rows["churns"]["live_bytes"] == 0


TOPS = """
SITE char *keeps(size_t n) { return touch(malloc(n), n); }
int main(void) {
    static char *kept[40][5000];
    for (int i = 0; i < 5000; i++)
        for (size_t k = 0; k < 40; k++) kept[k][i] = keeps(k < 16 ? 16 * (k + 1) : 256 + 32 * (k - 15) * (k - 15 < 9));
    return kept[39][4999] == NULL;
}
"""


@pytest.mark.parametrize("program", [TOPS], indirect=True)
def test_sizes_that_fill_their_blocks(tmp_path: Path, counting: Path, program: Path) -> None:
    """Few of the classes have a sample. Where none has one, all may be off to the same side."""
    (truth,) = truths(counting, tmp_path, [program])
    (profile,) = told(tmp_path, [program])
    for what, bytes_ in (("in_all", truth.bytes), ("live", truth.live_bytes), ("at_the_peak", truth.peak_bytes)):
        found = counted(profile, what)
        assert abs(found["bytes"] - bytes_) <= 2 * found["bytes_error"] < 0.6 * bytes_, what


@pytest.mark.parametrize("program", [PEAK], indirect=True)
def test_sizes_at_the_peak(tmp_path: Path, program: Path) -> None:
    """What came last is missing from them, and their error has it."""
    (profile,) = told(tmp_path, [program])
    rows = {row["block_bytes"]: row for row in profile["by_block_size"]}  # type: ignore[attr-defined]
    assert rows[None]["at_the_peak"]["blocks"] == 100
    small, large = rows[48]["at_the_peak"], rows[None]["at_the_peak"]
    assert abs(small["bytes"] - 60000 * 40) <= 2 * small["bytes_error"] < 8e6
    assert abs(large["bytes"] - 100e6) <= 2 * large["bytes_error"]
    assert all(row["at_the_peak"]["blocks"] <= row["in_all"]["blocks"] for row in rows.values())


@pytest.mark.parametrize("program", [MIXED], indirect=True)
@pytest.mark.parametrize(("first", "second"), [(33, 48), (48, 33), (1025, 1152)])
def test_sizes_that_share_blocks_at_the_peak(tmp_path: Path, program: Path, first: int, second: int) -> None:
    (profile,) = told(tmp_path, [program, str(first), str(second)])
    peak = counted(profile, "at_the_peak")
    assert peak["blocks"] == pytest.approx(200000, rel=0.02)
    assert abs(peak["bytes"] - 200000 * first) <= 2 * peak["bytes_error"] < 0.3 * 200000 * first


@pytest.mark.parametrize(("first", "second"), [(33, 48), (48, 33), (1025, 1152)])
def test_the_peak_and_differences_know_what_no_sample_stands_for(tmp_path: Path, first: int, second: int) -> None:
    """Blocks from before the profile, which are gone at the next dump, when it was off in between."""
    source = """
static char *before[200000], *after[100000];
int main(int count, char **words) {
    (void)count;
    for (int i = 0; i < 200000; i++) before[i] = touch(malloc((size_t)atol(words[3])), 32);
    if (hak_profile_start(32 << 10) != 0) return 2;
    for (int i = 0; i < 100000; i++) after[i] = touch(malloc((size_t)atol(words[4])), 32);
    if (hak_profile_save(words[1]) != 0) return 3;
    for (int i = 0; i < 100000; i++) free(before[i]);
    for (int i = 0; i < 50000; i++) free(after[i]);
    hak_profile_stop();
    if (hak_profile_start(32 << 10) != 0) return 2;
    return hak_profile_save(words[2]) != 0;
}
"""
    dumps = [tmp_path / name for name in ("one.prof", "two.prof")]
    words = [linked(tmp_path / "program", source), *dumps, str(first), str(second)]
    subprocess.run(words, check=True)
    truth = 200000 * first + 100000 * second
    for dump in dumps:
        peak = counted(read(dump), "at_the_peak")
        assert abs(peak["bytes"] - truth) <= 2 * peak["bytes_error"], dump
    command = [sys.executable, "-m", "hakmem", "profile", "--json", "--diff", *dumps]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    live = counted(found, "live")
    assert abs(live["bytes"] + 100000 * first + 50000 * second) <= 2 * live["bytes_error"]


@pytest.mark.parametrize(("temporary", "kept"), [(33000, 36864), (36864, 33000)])
def test_large_objects_of_other_sizes_than_most(tmp_path: Path, temporary: int, kept: int) -> None:
    source = """
int main(int count, char **words) {
    (void)count;
    for (int i = 0; i < 20000; i++) free(touch(malloc((size_t)atol(words[1])), 64));
    for (int i = 0; i < 1000; i++) touch(malloc((size_t)atol(words[2])), 64);
    return 0;
}
"""
    program = compile_c(tmp_path / "program", COMMON + source, "-pthread")
    (profile,) = told(tmp_path, [program, str(temporary), str(kept)])
    for what in ("live", "at_the_peak"):
        found = counted(profile, what)
        assert abs(found["bytes"] - 1000 * kept) <= 2 * found["bytes_error"] < 0.15 * 1000 * kept


@pytest.mark.parametrize("program", [FORKS], indirect=True)
def test_children_draw_samples_of_their_own(tmp_path: Path, program: Path) -> None:
    found = [profile["functions"] for profile in told(tmp_path, [program])]
    own = [row["total_bytes"] for rows in found for row in rows if row["function"] == "of_children"]  # type: ignore[attr-defined]
    assert len(own) == 3 and len(set(own)) > 1, own


@pytest.mark.parametrize("program", [BURST], indirect=True)
def test_a_burst_that_is_gone_at_the_end(tmp_path: Path, counting: Path, program: Path) -> None:
    (truth,) = truths(counting, tmp_path, [program])
    (profile,) = told(tmp_path, [program])
    expect(profile, truth)
    expect_function(profile, "bursts", "total", 300000 * 200)
    expect_function(profile, "goes_round", "total", 300000 * 300)


@pytest.mark.parametrize("program", [CONSUMER], indirect=True)
def test_a_producer_and_a_consumer(tmp_path: Path, counting: Path, program: Path) -> None:
    (truth,) = truths(counting, tmp_path, [program])
    (profile,) = told(tmp_path, [program])
    expect(profile, truth, shares=0.05)  # how far the queue fills is the kernel's affair
    expect_function(profile, "produces", "total", truth.bytes - 3000000)


@pytest.mark.parametrize("program", [FORKS], indirect=True)
def test_children(tmp_path: Path, counting: Path, program: Path) -> None:
    """A child has what its parent had counted."""
    found = list(zip(told(tmp_path, [program]), truths(counting, tmp_path, [program]), strict=True))
    assert len(found) == 4
    for profile, truth in found:
        expect(profile, truth)


def test_python(tmp_path: Path, counting: Path) -> None:
    words = [SYSTEM_PYTHON, "-S", "-c", STRINGS]
    (profile, truth), *_ = zip(told(tmp_path, words), truths(counting, tmp_path, words), strict=True)
    expect(profile, truth)


def test_sqlite(tmp_path: Path, counting: Path) -> None:
    words = ["sqlite3", ":memory:"]
    (tmp_path / "queries").write_text(QUERIES)
    with (tmp_path / "queries").open() as first, (tmp_path / "queries").open() as second:
        (profile,) = told(tmp_path, words, stdin=first)
        (truth,) = truths(counting, tmp_path, words, stdin=second)
    expect(profile, truth, shares=0.03)  # it asks how much a block has room for


def linked(output: Path, source: str) -> Path:
    """A program that calls the profile's own functions."""
    include, library = HERE.parents[1] / "include", native.library()
    source = f"#include <hakmem/hakmem.h>\n{COMMON}{source}"
    return compile_c(output, source, "-pthread", f"-I{include}", str(library), f"-Wl,-rpath,{library.parent}")


WORDS = """
static char *words[1000000];
SITE char *word(size_t n) { return memset(malloc(n), 1, n); }
int main(int count, char **arguments) {
    (void)count;
    if (hak_profile_start(512 << 10) != 0) return 2;
    for (int i = 0; i < 1000000; i++) words[i] = word(2 + i % 15);
    if (hak_profile_save(arguments[1]) != 0) return 3;
    for (int i = 0; i < 1000000; i++) {
        free(words[i]);
        words[i] = word(2 + i % 15);
    }
    return hak_profile_save(arguments[2]) != 0;
}
"""


def test_bytes_of_blocks_of_many_sizes_are_within_the_error_that_is_told(tmp_path: Path) -> None:
    """A million words of 2 to 16 bytes have some 30 samples: blocks are counted, their mean size is not."""
    program = linked(tmp_path / "program", WORDS)
    first, second = tmp_path / "first.prof", tmp_path / "second.prof"
    truth = sum(2 + i % 15 for i in range(1000000))
    for _ in range(5):
        subprocess.run([program, first, second], check=True)
        live, change = (counted(one, "live") for one in (read(first), said("--diff", first, second)))
        assert live["blocks"] == pytest.approx(1000000, abs=200) and abs(change["blocks"]) < 200
        assert abs(live["bytes"] - truth) <= 4 * live["bytes_error"] < truth
        assert abs(change["bytes"]) <= 4 * change["bytes_error"]


def test_profiles_of_two_processes_with_one_number_share_no_samples(tmp_path: Path) -> None:
    """As in containers. Their difference is as uncertain as both; the second dump of one process is not."""
    program = linked(tmp_path / "program", WORDS)
    names = [tmp_path / f"{name}.prof" for name in "abcd"]
    for first, second in (names[:2], names[2:]):
        subprocess.run([program, first, second], check=True)
        for path in (first, second):
            lines = path.read_text().splitlines(keepends=True)
            path.write_text("".join("process 1\n" if line.startswith("process ") else line for line in lines))
    of_two, of_one = (said("--diff", names[0], other) for other in (names[2], names[0]))
    assert of_two["functions"][0]["total_error"] > 0.1 * 9e6  # type: ignore[index]
    assert counted(of_two, "live")["bytes_error"] > 0.03 * 9e6 and counted(of_one, "live")["bytes_error"] == 0
    words = [sys.executable, "-m", "hakmem", "profile", "--diff", names[1], names[0]]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and "a.prof is older than b.prof: expected --diff BEFORE AFTER" in done.stderr


def test_switched_off(tmp_path: Path) -> None:
    """What is live is that of now; what was allocated meanwhile is missing, and a line says so."""
    source = """
SITE char *small(size_t n) { return touch(malloc(n), n); }
int main(int count, char **paths) {
    static char *large[150], *blocks[40000];
    (void)count;
    if (hak_profile_start(512 << 10) != 0) return 2;
    for (int i = 0; i < 50; i++) large[i] = malloc(1 << 20);
    for (int i = 0; i < 10000; i++) blocks[i] = small(1000);
    hak_profile_stop();
    for (int i = 0; i < 30; i++) free(large[i]);
    for (int i = 50; i < 150; i++) large[i] = malloc(1 << 20);
    for (int i = 10000; i < 40000; i++) blocks[i] = small(1000);
    if (hak_profile_save(paths[1]) != 0) return 3;
    for (int i = 50; i < 150; i++) free(large[i]);
    if (hak_profile_start(512 << 10) != 0) return 2;
    free(small(1000));
    return hak_profile_save(paths[2]) != 0;
}
"""
    off, again = tmp_path / "off.prof", tmp_path / "again.prof"
    subprocess.run([linked(tmp_path / "program", source), off, again], check=True)
    found = read(off)
    assert counted(found, "live")["blocks"] == pytest.approx(40120, rel=0.005)
    assert counted(found, "live")["bytes"] == pytest.approx(120 * MIB + 40e6, rel=0.01)
    assert counted(found, "at_the_peak")["bytes"] >= counted(found, "live")["bytes"] * 0.99
    assert counted(found, "in_all")["blocks"] == pytest.approx(10050, rel=0.005)
    assert found["remarks"] == [
        "the profile was off when it was written: live is of then, the rest of until it was switched off"
    ]
    found = read(again)
    live = counted(found, "live")
    assert abs(live["bytes"] - (20 * MIB + 40e6)) <= live["bytes_error"] < 5e6  # some are of unknown sizes
    (remark,) = found["remarks"]  # type: ignore[misc]
    assert re.fullmatch(r"the profile was off for [\d.]+ s in between: what was allocated then is missing", remark)


def test_a_program_whose_first_thread_has_ended(tmp_path: Path) -> None:
    """The process has its names still."""
    source = """
SITE char *late(size_t n) { return touch(malloc(n), n); }
static void *work(void *path) {
    char state[256] = "";
    while (strstr(state, ") Z ") == NULL) {
        FILE *file = fopen("/proc/self/stat", "r");
        if (file == NULL || fgets(state, sizeof state, file) == NULL || fclose(file) != 0) _exit(2);
    }
    for (int i = 0; i < 20000; i++) late(1000);
    _exit(hak_profile_save(path));
}
int main(int count, char **paths) {
    (void)count;
    pthread_t thread;
    if (hak_profile_start(64 << 10) != 0 || pthread_create(&thread, NULL, work, paths[1]) != 0) return 2;
    pthread_exit(NULL);
}
"""
    program, path = linked(tmp_path / "program", source), tmp_path / "late.prof"
    subprocess.run([program, path], check=True)
    found = read(path)
    assert found["program"] == "program" and found["remarks"] == []
    expect_function(found, "late", "live", 20e6)


def test_a_file_that_is_cut_off_says_so(tmp_path: Path) -> None:
    program, path = linked(tmp_path / "program", WORDS), tmp_path / "first.prof"
    subprocess.run([program, path, path], check=True)
    assert read(path)["remarks"] == []
    text = path.read_text()
    path.write_text(text[: text.index("\nmaps\n") + 200])
    assert read(path)["remarks"] == ["the file is cut off: names may be missing"]
    path.write_text("")
    words = [sys.executable, "-m", "hakmem", "profile", "--read", path]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, f"hakmem: {path}: empty: its process could not write it\n")


@pytest.mark.parametrize(("before", "after"), [(1000, 1000), (33, 48), (48, 33), (1025, 1152), (1152, 1025)])
def test_switched_on_late(tmp_path: Path, before: int, after: int) -> None:
    """What was live before is told apart: it has no function, and its sizes are not known."""
    source = """
SITE char *early(size_t n) { return touch(malloc(n), n); }
SITE char *late(size_t n) { return touch(malloc(n), n); }
int main(int count, char **words) {
    (void)count;
    for (int i = 0; i < 200000; i++) early((size_t)atol(words[2]));
    if (hak_profile_start(32 << 10) != 0) return 2;
    for (int i = 0; i < 100000; i++) late((size_t)atol(words[3]));
    return hak_profile_save(words[1]) != 0;
}
"""
    program = linked(tmp_path / "program", source)
    subprocess.run([program, tmp_path / "late.prof", str(before), str(after)], check=True)
    profile = read(tmp_path / "late.prof")
    assert counted(profile, "in_all")["blocks"] == pytest.approx(100000, rel=0.001)
    began, live = profile["live_when_it_began"], counted(profile, "live")
    assert live["blocks"] == pytest.approx(300000, rel=0.001)
    assert began["blocks"] == pytest.approx(200000, rel=0.001)  # type: ignore[index]
    assert abs(began["bytes"] - 200000 * before) <= began["bytes_error"]  # type: ignore[index]
    truth = 200000 * before + 100000 * after
    assert abs(live["bytes"] - truth) <= 2 * live["bytes_error"] < 0.7 * truth
    expect_function(profile, "late", "live", 100000 * after)


@pytest.mark.forms
def test_redis_under_load(tmp_path: Path, counting: Path) -> None:
    """A server that answers the same in each run: its load is a fixed one, over one connection."""
    from hakmem import programs

    redis = programs.find(("redis-server",))
    if redis is None:
        pytest.skip("not installed: Debian's package redis-server")

    def run(settings: dict[str, str]) -> None:
        port = servers.free_port()
        words = [redis, "--port", port, "--save", "", "--appendonly", "no", "--dir", str(tmp_path), "--hz", "1"]
        words += ["--activedefrag", "no", "--io-threads", "1"]
        with subprocess.Popen(words, env={"PATH": "/usr/bin:/bin", **settings}, stdout=subprocess.DEVNULL) as server:
            with servers.connect(port) as client:
                for first in range(0, 60000, 500):
                    many = [("SET", f"key:{key:05}", "v" * (50 + key % 900)) for key in range(first, first + 500)]
                    sent = b"".join(servers.resp_command(*one) for one in many)
                    servers.ask(client, sent + servers.resp_command("ECHO", "done"), servers.REDIS_DONE)
                servers.end_redis(client)
            server.wait(60)

    run({"LD_PRELOAD": str(counting), "TRUTH": str(tmp_path / "truth")})
    run({"LD_PRELOAD": str(native.library()), "HAKMEM_HEAP_PROFILE": f"1:{tmp_path / 'told'}.prof"})
    (truth,) = (Truth(*map(int, path.read_text().split())) for path in tmp_path.glob("truth.*"))
    expect(read(tmp_path / "told.prof"), truth, shares=0.03)  # it asks how much a block has room for, and it polls
