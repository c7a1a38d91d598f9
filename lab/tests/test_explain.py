"""`hakmem explain`: programs whose heaps are known are explained right; others get one line."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from compiled import compile_c, interrupt
from hakmem import ctl, explain, moments, native, process
from hakmem.commands.explain import look_at_command
from hakmem.errors import InterruptedEarly, LabError
from hakmem.explain import FILES, MOST_UNKNOWN, OTHER, PROGRAM, STACKS, Explanation
from hakmem.measure import Variant
from hakmem.report.model import Table
from hakmem.words import amount

MIB = 1 << 20
QUIET = {"HAKMEM_BACKGROUND": "0", "HAKMEM_THP": "off"}

# A program that does a step at each line of its input, says so, and waits for the next.
STEPS = """
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
static char input[16], output[64];
static void next(const char *done) {
    if (write(1, done, strlen(done)) < 0 || write(1, "\\n", 1) < 0 || read(0, input, 1) <= 0) _exit(0);
}
"""


@contextlib.contextmanager
def running(
    program: Path, settings: Mapping[str, str] = QUIET, preload: bool = True
) -> Iterator[Callable[[], Explanation]]:
    """Yields a function that lets it do a step and explains it then."""
    preloads = {"LD_PRELOAD": str(native.library())} if preload else {}
    child = subprocess.Popen(
        [program], env={**preloads, **settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert child.stdin and child.stdout
    stdin, stdout = child.stdin, child.stdout

    def step() -> Explanation:
        if step_count:
            stdin.write(b"\n")
        step_count.append(stdout.readline())
        assert step_count[-1], "the program has ended"
        return explain.of_process(child.pid)

    step_count: list[bytes] = []
    try:
        yield step
    finally:
        child.kill()
        child.wait()
        stdin.close()
        stdout.close()


def adds_up(found: Explanation) -> Explanation:
    assert found.error <= MOST_UNKNOWN, found.plain()
    return found


def part(found: Explanation, cause: str, name: str) -> int:
    parts = next(one.parts for one in found.causes if one.name == cause)
    return sum(size for said, size in parts if name in said)


# ---- Heaps that are known --------------------------------------------------------------------------------------------

BLOCKS = (
    STEPS
    + """
static char *blocks[1000];
int main(void) {
    next("nothing");
    for (int i = 0; i < 1000; i++) memset(blocks[i] = malloc(4096), 1, 4096);
    next("live");
    for (int i = 0; i < 1000; i++) if (i % 2) free(blocks[i]);
    next("half");
    for (int i = 0; i < 1000; i++) if (i % 2 == 0) free(blocks[i]);
    next("none");
    malloc_trim(0);
    next("trimmed");
}
"""
)


def of_4096(found: Explanation) -> dict[str, int]:
    return next((one for one in found.classes if one["block_bytes"] == 4096), {"live": 0, "free": 0, "cached": 0})


# What is free stays, though the program has one thread.
KEEPING = {**QUIET, "HAKMEM_KNOBS": f"dirty_limit_bytes={1 << 40}"}


def test_blocks_are_live_then_free_then_gone(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "blocks", BLOCKS), KEEPING) as step:
        nothing = adds_up(step())
        live = adds_up(step())
        assert of_4096(live)["live"] == 1000 * 4096
        assert of_4096(live)["free"] + of_4096(live)["cached"] == 0  # not touched
        assert live.bytes_of("live blocks") - nothing.bytes_of("live blocks") == 1000 * 4096
        half = adds_up(step())
        assert of_4096(half)["live"] == 500 * 4096
        assert of_4096(half)["free"] + of_4096(half)["cached"] == 500 * 4096
        assert half.bytes_of("front caches") >= of_4096(half)["cached"] > 0
        none = adds_up(step())
        left = none.bytes_of("awaiting purge") + none.bytes_of("empty slabs kept by threads")
        assert of_4096(none)["free"] + of_4096(none)["cached"] + left >= 1000 * 4096
        assert left > 0 and of_4096(none)["live"] == 0
        trimmed = adds_up(step())
        assert trimmed.resident <= none.resident - 1000 * 4096 + 256 * 1024
        assert trimmed.bytes_of("awaiting purge") == 0


def test_slabs_of_the_secure_build(tmp_path: Path) -> None:
    """They have a block less than the others', for a guard. Blocks that wait count as live."""
    program = compile_c(tmp_path / "blocks", BLOCKS.replace("4096", "4000"))
    settings = {**KEEPING, "LD_PRELOAD": str(native.secure_library())}
    with running(program, settings, preload=False) as step:
        adds_up(step())
        live = adds_up(step())
        assert of_4096(live)["live"] == 1000 * 4096
        assert of_4096(live)["free"] + of_4096(live)["cached"] == 0
        half = adds_up(step())
        assert 500 * 4096 <= of_4096(half)["live"] <= 510 * 4096


LARGE = (
    STEPS
    + """
int main(void) {
    char *run = malloc((1 << 20) + 5), *mapping = malloc(64 << 20);
    memset(run, 1, (1 << 20) + 5);
    memset(mapping, 1, 32 << 20);
    next("live");
    free(run);
    free(mapping);
    next("free");
}
"""
)


def test_large_objects(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "large", LARGE), KEEPING) as step:
        live = adds_up(step())
        page = os.sysconf("SC_PAGESIZE")
        assert part(live, "live blocks", "page runs") == MIB + page
        assert part(live, "live blocks", "own mappings") == 32 * MIB
        assert live.bytes_of("large cache") == 0
        free = adds_up(step())
        assert part(free, "live blocks", "own mappings") == 0
        assert free.bytes_of("large cache") == 32 * MIB
        assert free.bytes_of("awaiting purge") >= MIB


BEGIN_WORK = """
int main(void) {
    pthread_t thread;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_create(&thread, NULL, work, NULL);
    pthread_barrier_wait(&barrier);
"""
THREADS = (
    STEPS
    + """
static pthread_barrier_t barrier;
static void *work(void *unused) {
    prctl(PR_SET_NAME, "worker bee");
    void *blocks[64];
    for (int i = 0; i < 64; i++) memset(blocks[i] = malloc(1024), 1, 1024);
    for (int i = 0; i < 64; i++) free(blocks[i]);
    pthread_barrier_wait(&barrier);
    pause();
    return unused;
}
"""
    + BEGIN_WORK
    + """
    usleep(100000);
    next("cached");
}
"""
)


def test_front_caches_and_stacks_have_their_threads_names(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "threads", THREADS, "-pthread")) as step:
        found = adds_up(step())
        assert part(found, "front caches", "worker bee") >= 8 * 1024
        assert part(found, STACKS, "worker bee") > 0
        assert part(found, STACKS, "[stack]") > 0


def test_a_forked_child_s_cache_is_its_own(tmp_path: Path) -> None:
    source = (
        STEPS
        + """
    int main(void) {
        void *block = malloc(1024);
        memset(block, 1, 1024);
        free(block);
        if (fork()) { read(0, input, 1); return 0; }
        sprintf(output, "%d", (int)getpid());
        next(output);
    }
    """
    )
    program = compile_c(tmp_path / "fork", source)
    child = subprocess.Popen(
        [program], env={"LD_PRELOAD": str(native.library()), **QUIET}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout
    pid = int(child.stdout.readline())
    try:
        found = adds_up(explain.of_process(pid))
        assert found.pid == pid and part(found, "front caches", f"thread {pid} fork") > 0
    finally:
        os.kill(pid, signal.SIGKILL)
        child.kill()
        child.communicate()


@pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces")
def test_threads_of_a_container_have_their_names(tmp_path: Path) -> None:
    """Their heaps have the numbers that they have there."""
    prefix = ("unshare", "--pid", "--fork")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces here")
    program = compile_c(tmp_path / "threads", THREADS, "-pthread")
    environment = {"LD_PRELOAD": str(native.library()), **QUIET}
    with subprocess.Popen([*prefix, program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"cached\n"
        (inner,) = map(int, Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split())
        try:
            found = adds_up(explain.of_process(inner))
        finally:
            os.kill(inner, signal.SIGKILL)
    assert part(found, "front caches", "thread 1 threads") > 0 and part(found, "front caches", "worker bee") > 0
    assert not any(name.endswith("(ended)") for cause in found.causes for name, _ in cause.parts)


def test_what_is_freed_lazily(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "lazy", BLOCKS), {**KEEPING, "HAKMEM_LAZY_PURGE": "1"}) as step:
        for _ in range(4):
            adds_up(step())
        found = adds_up(step())
        assert found.bytes_of("lazily freed") >= 400 * 4096  # malloc_trim leaves one free SuperSlab mapped


HUGE = (
    STEPS
    + """
int main(void) {
    memset(malloc(20000), 1, 20000);
    next("touched");
}
"""
)


def test_huge_pages_hold_more_than_lives_in_them(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "huge", HUGE), {**QUIET, "HAKMEM_THP": "on"}) as step:
        found = adds_up(step())
        if found.resident < 2 * MIB + MIB // 2:
            pytest.skip("the kernel gives no huge pages")
        assert found.bytes_of("huge-page bloat") >= 2 * MIB - 512 * 1024
        assert found.bytes_of("awaiting purge") == 0


FREED_HUGE = (
    STEPS
    + """
enum { COUNT = 40, BYTES = 1000000 };
int main(void) {
    char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
    next("used");
    for (int i = 0; i < COUNT; i++) free(blocks[i]);
    next("freed");
}
"""
)


def test_what_is_free_and_waits_is_no_bloat_of_huge_pages(tmp_path: Path) -> None:
    """It goes back, in whatever pages it is: without huge pages as much of it would be there."""
    with running(compile_c(tmp_path / "freed", FREED_HUGE), {**KEEPING, "HAKMEM_THP": "on"}) as step:
        used, freed = adds_up(step()), adds_up(step())
        assert used.bytes_of("live blocks") >= 38 * MIB
        assert freed.bytes_of("awaiting purge") >= 36 * MIB and freed.bytes_of("live blocks") < MIB
        assert freed.bytes_of("huge-page bloat") < 4 * MIB


# ---- What docs/explain.md says to do ---------------------------------------------------------------------------------

# Two threads fill and free: blocks of a page, of which half live on, and whole slabs. Then all trim, or wait.
FILLED = (
    STEPS
    + """
static pthread_barrier_t barrier;
static char *blocks[1000], *others[2000];
static void *work(void *unused) {
    for (int i = 0; i < 1000; i++) memset(blocks[i] = malloc(4096), 1, 4096);
    for (int i = 0; i < 2000; i++) memset(others[i] = malloc(1024), 1, 1024);
    for (int i = 0; i < 1000; i++) if (i % 2) free(blocks[i]);
    for (int i = 0; i < 2000; i++) free(others[i]);
    pthread_barrier_wait(&barrier);
    pause();
    return unused;
}
"""
    + BEGIN_WORK
    + """
    next("filled");
    malloc_trim(0);
    next("trimmed");
}
"""
)
# One thread that uses again and again what it has freed, and then rests.
AGAIN = (
    STEPS
    + """
int main(void) {
    enum { COUNT = 320, BYTES = 100000 };
    static char *blocks[COUNT];
    for (int burst = 0; burst < 4; burst++) {
        for (int i = 0; i < COUNT; i++) memset(blocks[i] = malloc(BYTES), 1, BYTES);
        for (int i = 0; i < COUNT; i++) free(blocks[i]);
        usleep(50000);
    }
    for (;;) next("rests");
}
"""
)


def advice(cause: str) -> str:
    """The third column of the page's table."""
    lines = Path(__file__, "../../../docs/explain.md").resolve().read_text().splitlines()
    return next(line.split(" | ")[2] for line in lines if line.startswith(f"| {cause} |"))


@pytest.mark.parametrize(
    ("cause", "at_least"),
    [("free blocks in slabs", 300 * 4096), ("front caches", 16 * 1024), ("empty slabs kept by threads", 1)],
)
def test_malloc_trim_gives_back_what_the_page_says(tmp_path: Path, cause: str, at_least: int) -> None:
    assert "malloc_trim(0)" in advice("front caches" if cause.startswith("empty") else cause)
    with running(compile_c(tmp_path / "filled", FILLED, "-pthread"), KEEPING) as step:
        before, after = adds_up(step()).bytes_of(cause), adds_up(step()).bytes_of(cause)
    assert before >= at_least and after <= before / 10, (before, after)


def test_a_thread_of_hakmem_gives_back_what_waits(tmp_path: Path) -> None:
    assert "HAKMEM_BACKGROUND=1" in advice("awaiting purge")
    waiting = {}
    for background in ("0", "1"):
        with running(compile_c(tmp_path / "again", AGAIN), {**QUIET, "HAKMEM_BACKGROUND": background}) as step:
            deadline = time.monotonic() + 300
            waiting[background] = adds_up(step()).bytes_of("awaiting purge")
            while background == "1" and waiting["1"] > MIB and time.monotonic() < deadline:
                time.sleep(1)
                waiting["1"] = adds_up(step()).bytes_of("awaiting purge")
    assert waiting["0"] > 4 * MIB > MIB >= waiting["1"], waiting


def test_settings_that_the_page_names_leave_no_bloat_and_nothing_that_is_freed_lazily(tmp_path: Path) -> None:
    said = dict(word.strip("`").split("=", 1) for word in advice("huge-page bloat").split() if "=" in word)
    with running(compile_c(tmp_path / "huge", HUGE), {**QUIET, **said}) as step:
        assert adds_up(step()).bytes_of("huge-page bloat") == 0
    assert advice("lazily freed").strip(" |") == "only with `HAKMEM_LAZY_PURGE=1`"
    with running(compile_c(tmp_path / "lazy", BLOCKS), KEEPING) as step:
        assert not any([adds_up(step()).bytes_of("lazily freed") for _ in range(5)])


def test_without_the_newer_system_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLAIN_WITHOUT_SCAN", "1")
    with running(compile_c(tmp_path / "blocks", BLOCKS)) as step:
        step()
        live = adds_up(step())
        assert of_4096(live)["live"] == 1000 * 4096
        assert any("older than 6.7" in note for note in live.notes)


def test_a_static_program_without_symbols(tmp_path: Path) -> None:
    root = native.checkout()
    if root is None:
        pytest.skip("the archive is not part of the package")
    archive = root / "build/release/libhakmem.a"
    static = compile_c(tmp_path / "static", BLOCKS, "-static", "-s", "-Wl,-u,malloc", str(archive), "-pthread")
    with running(static, preload=False) as step:
        adds_up(step())
        assert of_4096(adds_up(step()))["live"] == 1000 * 4096


def test_the_sum_is_what_the_kernel_says_elsewhere(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "blocks", BLOCKS)) as step:
        for _ in range(5):
            found = step()
            rollup = Path(f"/proc/{found.pid}/smaps_rollup").read_text()
            resident = int(re.search(r"^Rss: +(\d+) kB$", rollup, re.MULTILINE)[1]) * 1024  # type: ignore[index]
            assert abs(sum(cause.bytes for cause in found.causes) - resident) <= MOST_UNKNOWN * resident


def test_the_process_is_as_it_was(tmp_path: Path) -> None:
    """Not a page more, nor a page table, nor a fault of its own."""

    def state(pid: int) -> list[str]:
        status = Path(f"/proc/{pid}/status").read_text()
        counted = re.findall(
            r"^(?:VmSize|VmPTE|VmHWM|State|Threads|nonvoluntary_ctxt_switches|VmSwap):.*$", status, re.MULTILINE
        )
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
        return [
            *counted,
            # Whether pages of libc's file are shared is for others to say, who begin and end.
            *(line for line in rollup if not line.startswith(("Pss", "Shared_Clean", "Private_Clean"))),
            Path(f"/proc/{pid}/stat").read_text(),
        ]

    with running(compile_c(tmp_path / "blocks", BLOCKS)) as step:
        step()
        pid = step().pid
        before = state(pid)
        for _ in range(3):
            explain.of_process(pid)
        assert state(pid) == before


# ---- Processes that don't hold still ---------------------------------------------------------------------------------

CHURN = (
    STEPS
    + """
static void *churn(void *seed) {
    static __thread char *blocks[4096];
    unsigned long random = (unsigned long)seed;
    for (;;) {
        random = random * 6364136223846793005 + 1442695040888963407;
        char **slot = &blocks[random >> 52];
        free(*slot);
        size_t size = (random >> 20 & 1023) == 0 ? 3 << 20 : random >> 30 & 8191;
        *slot = malloc(size);
        if (*slot && size) memset(*slot, 1, size < 65536 ? size : 65536);
    }
    return NULL;
}
int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++) pthread_create(&threads[i], NULL, churn, (void *)i);
    usleep(300000);
    for (;;) next("churning");
}
"""
)


def test_a_busy_process_is_read_without_harm(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "churn", CHURN, "-pthread"), {}) as step:
        errors = sorted(step().error for _ in range(20))
        assert errors[len(errors) // 2] <= MOST_UNKNOWN, errors
        step()


# Units that are given back but have memory: as if they had been given back after the look at their pages.
GIVEN_BACK = (
    STEPS
    + """
int main(void) {
    char *volatile block = malloc(1 << 20);
    memset(block, 1, 1 << 20);
    free(block);
    malloc_trim(0);
    next("given back");
    memset(block, 2, 1 << 20);
    next("written");
}
"""
)


def test_what_is_given_back_while_it_is_read(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "given", GIVEN_BACK)) as step:
        assert adds_up(step()).bytes_of("changing hands") == 0
        found = adds_up(step())
        assert part(found, "changing hands", "given back meanwhile") == 1 << 20
        assert found.bytes_of("lazily freed") == 0


# What looks like hakmem's landmarks and isn't. FILL fills in the structure.
PRETENDS = (
    STEPS
    + """
#include <stdint.h>
__asm__(".pushsection .note.hakmem, \\"a\\", %note\\n.balign 4\\n.long 7, 8, 0x68616b31\\n.asciz \\"hakmem\\"\\n"
        ".balign 4\\n.quad landmarks - .\\n.popsection\\n");
__attribute__((used)) struct { char version[24]; uint32_t layout[64]; } landmarks = {"99.1.2"};
int main(void) { next("here"); }
"""
)


def test_another_version_is_not_explained(tmp_path: Path) -> None:
    with (
        running(compile_c(tmp_path / "other", PRETENDS), preload=False) as step,
        pytest.raises(LabError, match=r"runs on hakmem 99\.1\.2, and this explains \d"),
    ):
        step()


def test_another_layout_is_not_explained(tmp_path: Path) -> None:
    version = subprocess.run([native.helper("explain"), "--version"], capture_output=True, text=True).stdout.strip()
    with (
        running(compile_c(tmp_path / "other", PRETENDS.replace("99.1.2", version)), preload=False) as step,
        pytest.raises(LabError, match="another build of hakmem"),
    ):
        step()


# The structures of a real heap, overwritten with random bytes in places: nothing may crash or hang.
SPOILED = (
    STEPS
    + """
int main(void) {
    static void *blocks[2000];
    for (int i = 0; i < 2000; i++) blocks[i] = malloc((size_t)i * 17 % 40000);
    for (int i = 0; i < 2000; i += 3) free(blocks[i]);
    blocks[0] = malloc(40 << 20);
    free(malloc(50 << 20));
    next("whole");
    next("spoiled");
}
"""
)
HEAP_BYTES_IN_LAYOUT, MOST_SPOILED = 18, 1 << 20  # in src/observe/landmarks.h; of each table


class Structures:
    """What a process's landmarks lead to, with its addresses, for whoever wants to overwrite it."""

    def __init__(self, pid: int) -> None:
        self.memory = open(f"/proc/{pid}/mem", "r+b", buffering=0)
        found = [ctl.landmarks_of(self.memory, base) for base in ctl.library_bases(pid)]
        at = next(address for address in found if address is not None) + ctl.WISH_AT
        layout = struct.unpack("=29I", self.read(at + 8, 116))
        ranges, heaps, directory, kept = (self.word(at + 128 + 8 * i) for i in range(4))
        first, heap = self.word(ranges), self.word(heaps)
        start = self.word(first)  # of the heap; the tables lie below it
        maps = Path(f"/proc/{pid}/maps").read_text()
        mapped = [(int(low, 16), int(high, 16)) for low, high in re.findall(r"^(\w+)-(\w+) rw-p", maps, re.MULTILINE)]
        self.tables = [(low, high) for low, high in mapped if first <= low and high <= start]
        self.record = (first, first + layout[0])
        self.others = [(heap, heap + layout[HEAP_BYTES_IN_LAYOUT])]
        leaves, places = self.word(directory), self.word(kept)
        self.others += [(leaves, leaves + 4096), (places, places + 64 * 8)]
        profile = self.word(self.word(at + 160))
        parts = range(profile, profile + (16 << 20), MOST_SPOILED) if profile else ()
        self.others += [(low, low + MOST_SPOILED) for low in parts]

    def read(self, address: int, size: int) -> bytes:
        self.memory.seek(address)
        return self.memory.read(size)

    def word(self, address: int) -> int:
        return int(struct.unpack("=Q", self.read(address, 8))[0])

    def spoil(self, random: Random, sparse: int) -> int:
        """Each word with a probability of one in `sparse`; returns how many words there were."""
        count = 0
        for low, high in self.tables + self.others:
            words = bytearray(self.read(low, min(high - low, MOST_SPOILED)))
            for at in range(0, len(words), 8):
                count += 1
                is_record = self.record[0] <= low + at < self.record[1]
                if random.randrange(10 * sparse if is_record else sparse) == 0:
                    words[at : at + 8] = struct.pack("=Q", random.getrandbits(64) >> random.randrange(64))
            self.memory.seek(low)
            assert self.memory.write(words) == len(words)
        return count


@pytest.mark.parametrize("sparse", [1, 3, 50])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_spoiled_heap_ends_in_an_answer(tmp_path: Path, seed: int, sparse: int) -> None:
    with running(compile_c(tmp_path / "spoiled", SPOILED)) as step:
        whole = adds_up(step())
        structures = Structures(whole.pid)
        assert len(structures.tables) >= 5, "the tables are not where they were thought to be"
        assert structures.spoil(Random(seed), sparse) > MOST_SPOILED // 8
        found = step()
        assert all(cause.bytes >= 0 for cause in found.causes)
        assert found.causes != whole.causes, "nothing was spoiled that is read"


# ---- What can't be explained -----------------------------------------------------------------------------------------


def test_one_line_for_what_can_t_be_explained() -> None:
    with pytest.raises(LabError, match=r"^there is no process 4194305$"):
        explain.of_process(4194305)
    with subprocess.Popen(["sleep", "60"], env={"PATH": os.defpath}) as child:
        time.sleep(0.2)
        with pytest.raises(LabError, match=rf"^process {child.pid} does not run on hakmem$"):
            explain.of_process(child.pid)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(LabError, match="has no memory: it has ended"):
            explain.of_process(child.pid)


def test_another_user_s_process() -> None:
    if os.geteuid() != 0:
        with pytest.raises(LabError, match=r"^process 1 may not be read: "):
            explain.of_process(1)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        helper = shutil.copy(native.helper("explain"), folder)
        done = subprocess.run([helper, str(os.getpid())], user=65534, group=65534, extra_groups=[], capture_output=True)
    assert done.returncode == 2
    assert re.match(rb"^process \d+ may not be read: .*as root, with CAP_SYS_PTRACE\n$", done.stderr)


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="gives up rights of root")
def test_root_without_the_right_to_read_is_told_which() -> None:
    held = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if held is None or not int(held[1], 16) >> 19 & 1:
        pytest.skip("root has no such right here")
    without = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    done = subprocess.run([*without, native.helper("explain"), str(os.getpid())], capture_output=True)
    assert done.returncode == 2 and done.stderr.endswith(b"as root, with CAP_SYS_PTRACE\n"), done.stderr


# ---- Causes ----------------------------------------------------------------------------------------------------------


def mapping(name: str, resident: int, start: int = 0, permissions: str = "rw-p", inode: int = 0) -> dict[str, object]:
    span = {"start": start, "end": start + 0x1000, "permissions": permissions, "inode": inode}
    return {**span, "name": name, "resident": resident, "foreign": resident}


MEASURED = {
    "pid": 7,
    "name": "program",
    "hakmem": "1.2.3",
    "copies": 1,
    "resident": 1000,
    "page_bytes": 4096,
    "sees_huge_pages": True,
    "rounding_most": 17,
    "causes": {name: 0 for parts in explain.OWN.values() for name, _ in parts} | {"live_small": 500, "cached": 90},
    "classes": [{"block_bytes": 16, "slabs": 1, "live_blocks": 9, "live": 144, "free": 1, "cached": 2}],
    "heaps": [
        {"number": 1, "thread": 7, "has_thread": True, "cached": 60, "kept_units": 0},
        {"number": 2, "thread": 8, "has_thread": True, "cached": 30, "kept_units": 0},
    ],
    "threads": [{"id": 7, "stack_pointer": 0x9010, "name": "main"}],
    "mappings": [
        mapping("/bin/program", 10, 0x1000, "r-xp", 5),
        mapping("/bin/program", 20, 0x2000, "rw-p", 5),
        mapping("", 30, 0x3000),
        mapping("", 40, 0x5000),
        mapping("/data/file", 50, 0x6000, "r--p", 6),
        mapping("/dev/zero (deleted)", 60, 0x7000, "rw-s", 7),
        mapping("", 70, 0x9000),
        mapping("[heap]", 80, 0xB000),
    ],
}


def test_causes_of_what_is_not_hakmem_s() -> None:
    found = explain.explanation(MEASURED)
    assert [found.bytes_of(name) for name in (PROGRAM, FILES, STACKS, OTHER)] == [60, 110, 70, 120]
    assert part(found, STACKS, "of main") == 70
    assert part(found, OTHER, "[heap]") == 80
    assert next(cause.parts for cause in found.causes if cause.name == "front caches") == (
        ("thread 7 main", 60),
        ("thread 8 (ended)", 30),
    )
    assert found.unknown == 1000 - 950
    assert found.error == 0.05


def test_sampled_blocks_count_with_those_of_their_size() -> None:
    small, sampled = dict(MEASURED["classes"][0]), {**MEASURED["classes"][0], "live": 6}  # type: ignore[index]
    other = {**small, "block_bytes": 32}
    found = explain.explanation({**MEASURED, "classes": [small, other, sampled]})
    assert [(one["block_bytes"], one["slabs"], one["live"]) for one in found.classes] == [(16, 2, 150), (32, 1, 144)]


def test_the_sizes_that_matter_come_first() -> None:
    one = dict(MEASURED["classes"][0])  # type: ignore[index]
    classes = [{**one, "block_bytes": 16 * i, "live": 1000 + i * 7 % 13, "slabs": 1} for i in range(1, 13)]
    shown = explain.report(explain.explanation({**MEASURED, "classes": classes}), "hakmem explain 7")
    table = next(found for found in shown.sections if isinstance(found, Table))
    sizes = [classes[number - 1]["live"] for number in (int(row[0].split()[0]) // 16 for row in table.rows[:10])]
    assert len(table.rows) == 11 and sizes == sorted(sizes, reverse=True)
    assert table.rows[10][:2] == ("2 other sizes", "2")
    others = sorted(one["live"] for one in classes)[:2]
    assert table.rows[10][3] == amount(sum(others), "B") and min(sizes) >= max(others)


def test_all_three_forms_say_the_same() -> None:
    from io import StringIO

    from hakmem.report import html, markdown, text

    shown = explain.report(explain.explanation(MEASURED), "hakmem explain 7", "2026-01-02")
    file = StringIO()
    text.write(shown, file)
    for form in (file.getvalue(), markdown.render(shown), html.render(shown)):
        assert "live blocks" in form and "500 B" in form and "50.0%" in form and "thread 7 main" in form
        assert "5.00% of it is unknown" in form and "Try again" in form


# ---- As a user types it ----------------------------------------------------------------------------------------------


def hakmem(*options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hakmem", "explain", *(str(word) for word in options)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


def test_a_command_at_its_end(tmp_path: Path) -> None:
    file, page = tmp_path / "found.json", tmp_path / "page.html"
    script = "import sys; x = [bytes(100) for i in range(100000)]; print(sys.argv[1:])"
    done = hakmem("--json", file, "--html", page, "--", sys.executable, "-c", script, "a", "b")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.startswith("['a', 'b']\n") and "live blocks" in done.stdout
    plain = json.loads(file.read_text())
    assert abs(plain["unknown"]) <= MOST_UNKNOWN * plain["resident"]
    assert "<svg" in page.read_text() and "http://" not in page.read_text().replace("http://www.w3.org", "")


def test_standard_error_is_the_commands(tmp_path: Path) -> None:
    """Whom the command leaves behind with it is not waited for."""
    command = [sys.executable, "-m", "hakmem", "explain", "--", "sh", "-c", "echo said >&2; sleep 600 & exit 3"]
    with open(tmp_path / "out", "wb") as out, open(tmp_path / "error", "wb") as error:
        assert subprocess.run(command, stdout=out, stderr=error, timeout=300).returncode == 0
    assert (tmp_path / "error").read_text() == "said\nhakmem: sh ended with exit status 3\n"
    assert "live blocks" in (tmp_path / "out").read_text()


SAYS_WHAT_IS_OPEN = """
import os, sys
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
found = [number for number in range(64) if is_open(number)]
open(sys.argv[1], "w").write(str(found))
"""


@pytest.mark.parametrize("closed", ["", "0<&-", "2<&-", "0<&- 2<&-"])
def test_a_command_has_open_what_the_caller_had(closed: str, tmp_path: Path) -> None:
    words = [sys.executable, "-S", "-E", "-c", SAYS_WHAT_IS_OPEN]
    found = []
    for before in ([], [sys.executable, "-m", "hakmem", "explain", "--"]):
        call = ["sh", "-c", f'exec "$@" {closed}', "sh", *before, *words, str(tmp_path / "open")]
        done = subprocess.run(call, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=600)
        assert done.returncode == 0
        found.append((tmp_path / "open").read_text())
    assert b"live blocks" in done.stdout and found[0] == found[1]


@pytest.mark.parametrize("command", ["explain", "pins"])
@pytest.mark.parametrize("options", [(), ("--after", "0.3")])
@pytest.mark.parametrize(
    ("script", "became"),
    [("kill -SEGV $$", "was killed by signal 11"), ("exit 5", "ended with exit status 5"), ("exit 0", "")],
)
def test_how_a_command_ended_is_told(command: str, options: tuple[str, ...], script: str, became: str) -> None:
    wait = "sleep 1; " if options else ""
    words = [sys.executable, "-m", "hakmem", command, *options, "--json", "-", "--", "sh", "-c", wait + script]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and json.loads(done.stdout)
    assert (f"hakmem: sh {became}\n" in done.stderr) if became else ("hakmem: sh" not in done.stderr), done.stderr


def test_a_command_that_is_killed_is_explained() -> None:
    done = hakmem("--", "sh", "-c", "kill -9 $$")
    assert (done.returncode, done.stderr) == (0, "hakmem: sh was killed by signal 9\n"), done
    assert "on hakmem" in done.stdout


def test_a_command_after_a_while() -> None:
    done = hakmem("--after", "0.1", "--", "sh", "-c", "sleep 5; echo end")
    assert (done.returncode, done.stderr) == (0, ""), done
    assert "on hakmem" in done.stdout and "end\n" in done.stdout


TELLS_PRCTL = """
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
int prctl(int option, ...) {
    unsigned long words[4];
    va_list values;
    va_start(values, option);
    for (int i = 0; i < 4; i++) words[i] = va_arg(values, unsigned long);
    va_end(values);
    FILE *file = fopen(getenv("PRCTL_FILE"), "a");
    fprintf(file, "%d %x %lu\\n", (int)getpid(), (unsigned)option, words[0]);
    fclose(file);
    return (int)syscall(SYS_prctl, option, words[0], words[1], words[2], words[3]);
}
"""


def test_a_command_lets_itself_be_read_after_a_while(tmp_path: Path) -> None:
    """Where Yama lets ancestors only: by who has started it, and whom that one starts."""
    library = compile_c(tmp_path / "tells.so", TELLS_PRCTL, "-shared", "-fPIC")
    told, file = tmp_path / "told", tmp_path / "found.json"
    command = [sys.executable, "-m", "hakmem", "explain", "--after", "0.1", "--json", file, "--", "sleep", "5"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "PRCTL_FILE": str(told)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as child:
        assert child.wait(600) == 0
    assert f"{json.loads(file.read_text())['pid']} 59616d61 {child.pid}" in told.read_text().splitlines()


def test_a_command_is_read_by_who_has_started_it_even_if_that_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the command has begun: its parent is process 1 by then."""
    told: list[tuple[int, int]] = []

    def prctl(option: int, reader: ctypes.c_ulong, *_: object) -> None:
        told.append((option, reader.value))

    def started(words: object, environment: object, file: object, out: object, first: Callable[[], None]) -> None:
        first()
        raise LabError("it has begun")

    monkeypatch.setattr(explain, "_C", SimpleNamespace(prctl=prctl))
    monkeypatch.setattr(os, "getppid", lambda: 1)
    monkeypatch.setattr(process, "started", started)
    with pytest.raises(LabError, match="^it has begun$"):
        explain.look_after(0.0, Path("/bin/sleep"), ["sleep", "5"], {}, None, lambda child: None)
    assert told == [(explain.PR_SET_PTRACER, os.getpid())]


def test_that_a_command_can_not_be_read_is_said_before_it_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def fails(*_: object) -> None:
        raise LabError("it may not be read")

    def ends(child: subprocess.Popen[bytes]) -> int:
        said.append(capsys.readouterr().err)
        child.kill()
        return child.wait()

    monkeypatch.setattr(explain, "look", fails)
    monkeypatch.setattr(process, "wait_for", ends)
    with pytest.raises(LabError, match="^sleep has ended, and was not looked at$"):
        explain.look_after(0.0, Path("/bin/sleep"), ["sleep", "5"], {}, None, lambda child: None)
    assert said == ["hakmem: it may not be read\n"]


@pytest.mark.parametrize("most_s", [60.0, 0.0])
def test_a_command_that_takes_long_to_begin_is_looked_at_again(monkeypatch: pytest.MonkeyPatch, most_s: float) -> None:
    """As on a busy machine; not for ever, as it may never be on hakmem."""
    asked: list[int] = []

    def look(pid: int, *_: object) -> dict[str, int]:
        asked.append(pid)
        if len(asked) < 4:
            raise LabError(f"process {pid} {explain.NOT_OURS}")
        return {"pid": pid}

    def ends(child: subprocess.Popen[bytes]) -> int:
        child.kill()
        return child.wait()

    monkeypatch.setattr(explain, "look", look)
    monkeypatch.setattr(explain, "BEGIN_S", most_s)
    monkeypatch.setattr(process, "wait_for", ends)
    call = (0.0, Path("/bin/sleep"), ["sleep", "5"], {}, None, lambda child: None)
    if most_s:
        assert explain.look_after(*call)["pid"] == asked[0] and len(asked) == 4
    else:
        with pytest.raises(LabError, match="was not looked at"):
            explain.look_after(*call)
        assert len(asked) == 1


SAVES = """
import signal, sys, time
def save(*_):
    time.sleep(0.6)
    open(sys.argv[2], "w").write("saved")
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP): signal.signal(number, save)
time.sleep(float(sys.argv[3]))
open(sys.argv[1], "w").close()
while True: time.sleep(0.05)
"""


@pytest.mark.forms
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("options", [(), ("--after", "0.5")])
def test_ctrl_c_is_for_the_command(tmp_path: Path, options: tuple[str, ...], number: int) -> None:
    ready, saved, file = tmp_path / "ready", tmp_path / "saved", tmp_path / "found.json"
    program = (sys.executable, "-S", "-E", "-c", SAVES, ready, saved, "6" if options else "0")
    command = [sys.executable, "-m", "hakmem", "explain", *options, "--json", file, "--", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as child:
        interrupt(child.pid, ready, number)
        out, error = child.communicate(timeout=600)
    assert child.returncode == 0 and saved.read_text() == "saved", error
    assert b"live blocks" in out and json.loads(file.read_text())["resident"] > 0
    assert (b"interrupted: " in error) == (not options)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_command_that_is_asked_to_end_is_explained(tmp_path: Path, number: signal.Signals) -> None:
    ready, saved, file = tmp_path / "ready", tmp_path / "saved", tmp_path / "found.json"
    program = (sys.executable, "-S", "-E", "-c", SAVES, ready, saved, "0")
    command = [sys.executable, "-m", "hakmem", "explain", "--json", file, "--", *program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        while not ready.exists():
            time.sleep(0.01)
        child.send_signal(number)
        out, error = child.communicate(timeout=600)
    assert child.returncode == 0 and saved.read_text() == "saved", error
    assert b"live blocks" in out and b"interrupted: " in error and json.loads(file.read_text())["resident"] > 0


def test_what_is_ignored_does_not_end_a_command() -> None:
    """As of a terminal that is closed under nohup."""
    script = "kill -HUP $$ $PPID $(ps -o ppid= -p $PPID); echo went on"
    call = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", sys.executable, "-m", "hakmem", "explain", "--"]
    done = subprocess.run([*call, "sh", "-c", script], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("went on\n")


def test_who_asks_it_to_end_asks_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    program = ("sh", "-c", 'echo $$ >"$0.new" && mv "$0.new" "$0" && exec sleep 1000', ready)
    command = [sys.executable, "-m", "hakmem", "explain", "--after", "100", "--", *program]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child:
        while not ready.exists():
            time.sleep(0.01)
        child.terminate()
        _, error = child.communicate(timeout=600)
    assert child.returncode == 2 and error.endswith(b"was killed by signal 15 before the 100 s were over\n"), error
    assert not Path(f"/proc/{ready.read_text().strip()}").exists()


def test_mistakes_are_one_line() -> None:
    for options, said in (
        (["4194305"], "there is no process 4194305"),
        (["0"], "there is no process 0"),
        (["9" * 20], f"there is no process {'9' * 20}"),
        (["9" * 5000], f"there is no process {'9' * 5000}"),
        (["--after", "1", "7"], "--after and --set are for commands"),
        (["--", "no-such-command"], "command not found"),
        (["--after", "5", "--", "true"], "true ended with exit status 0 before the 5 s were over"),
    ):
        done = hakmem(*options)
        assert (done.returncode, done.stdout) == (2, ""), done
        assert said in done.stderr and done.stderr.startswith("hakmem: ") and done.stderr.count("\n") == 1


# ---- Real programs, at five moments ----------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("variant", moments.variants(), ids=lambda variant: variant.name)
@pytest.mark.parametrize("name", moments.TIMES)
def test_real_programs(name: str, variant: Variant) -> None:
    if name not in [case.name for case in moments.cases()]:
        pytest.skip(f"{name} is not installed")
    for one in moments.explanations(name, variant):
        print(f"{name} {one.name}: {one.resident / MIB:.1f} MiB, unknown {one.unknown / one.resident:+.3%}")
        adds_up(one)


def test_a_command_that_is_asked_to_end_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anybody passes it on, the helper itself ends by it."""

    def ends_early(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise LabError("explain ended with -15")

    monkeypatch.setattr(explain, "look_at_end", ends_early)
    with pytest.raises(InterruptedEarly, match=r"^interrupted before true could be explained$"):
        look_at_command(("true",), None, (), None)


@pytest.mark.parametrize("command", ["explain", "pins"])
def test_a_temporary_folder_without_room_is_named(command: str, tmp_path: Path) -> None:
    words = f"ulimit -f 1; exec {shlex.quote(sys.executable)} -m hakmem {command} -- true"
    done = subprocess.run(
        ["bash", "-c", words], env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, timeout=600
    )
    (line,) = done.stderr.splitlines()
    assert done.returncode == 2 and line.startswith("hakmem: what reads the process "), done.stderr
    assert f"is there room in {tmp_path}" in line and "ended with -" not in line
