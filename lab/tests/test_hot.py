"""Profiles from what the tools printed once, and a live run of each tool that is here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import compile_c
from hakmem import hot, pages, profilers
from hakmem.allocators import Allocator, glibc
from hakmem.commands import hot as hot_command
from hakmem.errors import LabError
from hakmem.hot import Function
from hakmem.measure import Variant
from hakmem.process import Run
from hakmem.profilers import Choice, Recording, Spot

OWN = Allocator("hakmem", Path("/opt/libhakmem.so.1"))
SYSTEM = Allocator("glibc", None)

# ---- What perf prints ------------------------------------------------------------------------------------------------

REPORT = """# To display the perf.data header info, please use --header/--header-only options.
#
 62.71% \t 148        \tbench_random_mi\tbench_random_mixed  \t[.] main
 5.51%  \t 13         \tbench_random_mi\tlibhakmem.so.1\t[.] operator delete[]
 4.66%  \t 11         \tbench_random_mi\t[kernel.kallsyms]   \t[k] exc_page_fault
 2.12%  \t 5          \ta thread       \tbench_random_mixed  \t[.] main
 1.00%  \t 3          \tbench_random_mi\tlibstdc++.so.6\t[.] std::map<int, int>::find
 0.85%  \t 2          \tlaunch         \t[kernel.kallsyms]   \t[k] do_exit
 0.85%  \t 2          \tperf-exec      \t[kernel.kallsyms]   \t[k] do_exec
 0.42%  \t 1          \tbench_random_mi\t[unknown]           \t[.] 0x00007f0000001234

"""
OWN_REPORT = """# dso: libhakmem.so.1
 5.51%  \t 12         \tbench_random_mi\t[.] hak_free
 0.42%  \t 1          \tbench_random_mi\t[.] hak_malloc.cold
"""


def test_perf_report() -> None:
    assert profilers.parse_report(REPORT) == [
        Spot("bench_random_mixed", "main", 153),
        Spot("libhakmem.so.1", "operator delete[]", 13),
        Spot("[kernel.kallsyms]", "exc_page_fault", 11, in_kernel=True),
        Spot("libstdc++.so.6", "std::map<int, int>::find", 3),
        Spot("[unknown]", "0x00007f0000001234", 1),
    ]


def test_perf_report_of_one_file() -> None:
    assert profilers.parse_report(OWN_REPORT, module="libhakmem.so.1") == [
        Spot("libhakmem.so.1", "hak_free", 12),
        Spot("libhakmem.so.1", "hak_malloc.cold", 1),
    ]


def test_perf_report_of_nothing() -> None:
    assert profilers.parse_report("") == []
    assert profilers.parse_report("Error:\nno data\n") == []


def test_perf_stat() -> None:
    text = """# started on Sun Nov 22 01:49:08 2026

1234567;;instructions:u;734701;100.00;66.694;K/sec
<not supported>;;L1-dcache-load-misses;0;100.00;;
<not counted>;;dTLB-load-misses;0;0.00;;
"""
    assert profilers.parse_stat(text) == {"instructions": 1234567}


# ---- What callgrind writes -------------------------------------------------------------------------------------------

CALLGRIND = """# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 42
cmd:  ./program
part: 1

positions: line
events: Ir
summary: 1111

ob=(1) /usr/bin/program
fl=(1) ???
fn=(1) main
0 100
+3 20
cob=(2) /opt/libhakmem.so.1
cfi=(2) src/malloc.c
cfn=(2) malloc
calls=7 30
* 5000
-1 3
cfn=(3) recurse
calls=1 0
0 4000

fn=(3)
5 30
cfn=(4) recurse'2
calls=1 0
0 400

fn=(4)
5 8

ob=(2)
fl=(2)
fn=(2)
30 700
fi=(3) src/bits.h
12 50
fe=(2)
31 200

totals: 1111
"""


def test_callgrind_has_each_function_s_own_cost() -> None:
    assert profilers.parse_callgrind(CALLGRIND.splitlines()) == {
        ("/usr/bin/program", "main"): 123,
        ("/usr/bin/program", "recurse"): 38,
        ("/opt/libhakmem.so.1", "malloc"): 950,
    }


def test_callgrind_with_addresses_and_several_events() -> None:
    text = "positions: instr line\nevents: Ir Dr\nob=(1) x\nfn=(1) f\n0x10 5 7 100\n+3 * 2\n"
    assert profilers.parse_callgrind(text.splitlines()) == {("x", "f"): 9}


# ---- Layers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spot, allocator, layer",
    [
        (Spot("[kernel.kallsyms]", "clear_page_erms", 1, in_kernel=True), OWN, "kernel"),
        (Spot("libhakmem.so.1", "put_group", 1), OWN, "allocator"),
        (Spot("libhakmem.so.1", "put_group", 1), SYSTEM, "program"),
        (Spot("libc.so.6", "_int_malloc", 1), OWN, "libc"),
        (Spot("libc.so.6", "_int_malloc", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "_int_free_merge_chunk", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "malloc", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "__libc_calloc", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "cfree@GLIBC_2.2.5", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "malloc_consolidate", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "unlink_chunk.isra.0", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "tcache_init.part.0", 1), SYSTEM, "allocator"),
        (Spot("libc.so.6", "freeaddrinfo", 1), SYSTEM, "libc"),
        (Spot("libc.so.6", "memcpy", 1), SYSTEM, "libc"),
        (Spot("libc-2.31.so", "_IO_file_xsputn", 1), OWN, "libc"),
        (Spot("ld-linux-x86-64.so.2", "do_lookup_x", 1), OWN, "libc"),
        (Spot("libm.so.6", "sin", 1), OWN, "libc"),
        (Spot("[vdso]", "clock_gettime", 1), OWN, "libc"),
        (Spot("program", "malloc", 1), SYSTEM, "program"),
        (Spot("libstdc++.so.6", "std::sort", 1), OWN, "program"),
        (Spot("[unknown]", "0x0000123412341234", 1), OWN, "program"),
    ],
)
def test_layers(spot: Spot, allocator: Allocator, layer: str) -> None:
    assert hot.layer_of(spot, allocator) == layer


# ---- The report ------------------------------------------------------------------------------------------------------


def run_of(status: int = 0, user_s: float = 0.9, system_s: float = 0.1) -> Run:
    return Run(7, status, 1.5, user_s, system_s, 1 << 20, 1234, 5, (), b"", b"")


PERF = Choice("perf", "it works here", None)


def report(spots: list[Spot], choice: Choice = PERF, run: Run | None = None, unit: str = "samples") -> hot.Profile:
    run = run or run_of()
    return hot.summarize(["program", "x"], OWN, choice, Recording(unit, spots, run), run, {})


MIX = [
    Spot("program", "main", 500),
    Spot("libhakmem.so.1", "hak_malloc", 300),
    Spot("libhakmem.so.1", "hak_free", 19),
    Spot("libc.so.6", "memcpy", 20),
    Spot("[kernel.kallsyms]", "clear_page_erms", 161, in_kernel=True),
]


def test_a_report_has_shares_by_layer_and_hot_functions() -> None:
    profile = report(MIX)
    assert profile.layers == {"allocator": 0.319, "program": 0.5, "libc": 0.02, "kernel": 0.161}
    assert profile.functions == [
        Function("program", "program", "main", 0.5),
        Function("allocator", "libhakmem.so.1", "hak_malloc", 0.3),
        Function("kernel", "[kernel.kallsyms]", "clear_page_erms", 0.161),
        Function("libc", "libc.so.6", "memcpy", 0.02),
    ]
    assert (profile.total, profile.minor_faults, profile.major_faults) == (1000, 1234, 5)
    assert profile.cannot_count == list(profilers.EVENTS.values())
    assert profile.notes == []


def test_few_samples_are_said() -> None:
    assert "few samples (9): shares are rough; give the command more work" in report([Spot("program", "main", 9)]).notes


def test_little_time_is_not_split_between_program_and_kernel() -> None:
    in_kernel = [Spot("[kernel.kallsyms]", "exc_page_fault", 1, in_kernel=True)]
    short = hot_command.text(report(in_kernel, run=run_of(user_s=0.001, system_s=0)))
    assert "CPU time     1.00 ms, too little to tell user mode from the kernel\n" in short
    assert "Shares of 1 sample," in short
    assert "CPU time     1.00 s, 90% in user mode, 10% in the kernel\n" in hot_command.text(report(MIX))


def test_a_hidden_kernel_is_said() -> None:
    user_only = [spot for spot in MIX if not spot.in_kernel]
    assert any("kernel's share is hidden" in note for note in report(user_only).notes)
    assert report(user_only, run=run_of(user_s=1, system_s=0)).notes == []
    assert report(user_only, run=run_of(user_s=0, system_s=0.004)).notes == []  # one tick


def test_what_callgrind_cannot_see_is_said() -> None:
    choice = Choice("callgrind", "perf does not work here: no", "no")
    profile = report(MIX, choice, unit="instructions")
    assert any("the kernel has no share" in note for note in profile.notes)
    assert profile.cannot_count_why == "perf does not work here: no"


def test_what_has_no_symbols_is_one_function_and_is_said() -> None:
    nameless = [Spot("stripped", f"0x00000000000e27{n:02x}", 2) for n in range(20)]
    profile = report([*MIX, *nameless, Spot("other", "???", 1), Spot("x", "deadbeef", 1)])
    assert [f.name for f in profile.functions if f.module == "stripped"] == ["(without symbols)"]
    assert [note for note in profile.notes if "symbols" in note] == [
        "4% is in stripped without symbols: install its debug symbols"
    ]


def test_a_failed_command_is_said_and_nothing_seen_is_an_error() -> None:
    assert "program ended with exit status 3" in report(MIX, run=run_of(3)).notes
    with pytest.raises(LabError, match="give it more work"):
        report([])


# ---- Which tool ------------------------------------------------------------------------------------------------------


def with_tools(monkeypatch: pytest.MonkeyPatch, perf_refusal: str | None, *installed: str) -> None:
    monkeypatch.setattr(profilers, "perf_refusal", lambda: perf_refusal)
    monkeypatch.setattr(shutil, "which", lambda name: f"/bin/{name}" if name in installed else None)


def test_perf_where_it_works(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tools(monkeypatch, None, "perf", "valgrind")
    assert profilers.choose().name == "perf"
    assert profilers.choose("callgrind") == Choice("callgrind", "asked for", None)


def test_callgrind_where_perf_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tools(monkeypatch, "not permitted", "perf", "valgrind")
    choice = profilers.choose()
    assert (choice.name, choice.why) == ("callgrind", "perf does not work here: not permitted")
    with pytest.raises(LabError, match="perf does not work here: not permitted"):
        profilers.choose("perf")


def test_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    with_tools(monkeypatch, "not installed")
    with pytest.raises(LabError, match="install Debian's linux-perf .* or valgrind") as error:
        profilers.choose()
    assert (error.value.exit_status, "\n" in str(error.value)) == (2, False)
    with pytest.raises(LabError, match="install Debian's package valgrind"):
        profilers.choose("callgrind")


def fake_perf(folder: Path, script: str) -> str:
    path = folder / "perf"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_why_perf_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "echo 'Error:' >&2; echo 'No permission to enable cpu-clock event.' >&2; echo >&2; exit 255"
    monkeypatch.setenv("PATH", fake_perf(tmp_path, said))
    assert profilers.perf_refusal() == "No permission to enable cpu-clock event."
    fake_perf(tmp_path, "exit 2")
    assert profilers.perf_refusal() == "exit status 2"
    fake_perf(tmp_path, "exit 0")
    assert profilers.perf_refusal() is None
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert profilers.perf_refusal() == "not installed"


# ---- Live ------------------------------------------------------------------------------------------------------------

BUSY = """
#include <stdlib.h>
#include <string.h>
int main(int count, char **arguments) {
    static char *blocks[64];
    long rounds = atol(arguments[1]);
    for (long i = 0; i < rounds; i++) {
        free(blocks[i % 64]);
        blocks[i % 64] = malloc(16 + i % 100);
        memset(blocks[i % 64], 1, 16);
    }
    return count - 2;
}
"""


def hakmem(*words: object, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hakmem", "hot", *map(str, words)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, **(environment or {})}
    )


@pytest.mark.forms
def test_perf_live(tmp_path: Path) -> None:
    refusal = profilers.perf_refusal()
    if refusal:
        pytest.skip(f"perf does not work here: {refusal}")
    program = compile_c(tmp_path / "busy", BUSY)
    done = hakmem("--tool", "perf", "--json", "-", "--", program, 20_000_000)
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert (profile["tool"], profile["unit"], profile["allocator"]) == ("perf", "samples", "hakmem")
    assert profile["layers"]["allocator"] > 0.1
    assert sum(profile["layers"].values()) == pytest.approx(1)
    assert {"hak_malloc", "hak_free"} & {function["name"] for function in profile["functions"]}
    assert profile["minor_faults"] > 0


@pytest.mark.forms
def test_callgrind_live(tmp_path: Path) -> None:
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed (Debian's package valgrind)")
    program = compile_c(tmp_path / "busy", BUSY)
    done = hakmem("--tool", "callgrind", "--json", "-", "--", "sh", "-c", f"{program} 20000; {program} 20000")
    assert done.returncode == 0, done.stderr
    profile = json.loads(done.stdout)
    assert (profile["tool"], profile["unit"]) == ("callgrind", "instructions")
    hottest = {(function["name"], function["layer"]) for function in profile["functions"]}
    assert {("main", "program"), ("malloc", "allocator"), ("free", "allocator")} <= hottest
    assert profile["total"] > 40_000 * 37  # both programs: malloc and free alone are 37 instructions


@pytest.mark.forms
def test_the_text_names_tool_reason_and_what_is_not_counted(tmp_path: Path) -> None:
    if profilers.perf_refusal() and not shutil.which("valgrind"):
        pytest.skip("perf does not work here, and valgrind is not installed (Debian's package valgrind)")
    done = hakmem("--", compile_c(tmp_path / "busy", BUSY), 10_000_000)
    assert done.returncode == 0, done.stderr
    assert "busy 10000000 on hakmem, by " in done.stdout
    for word in ("user mode", "page faults", "allocator", "kernel", "main"):
        assert word in done.stdout


@pytest.mark.forms
def test_bad_input_is_one_line(tmp_path: Path) -> None:
    static = compile_c(tmp_path / "static", BUSY, "-static")
    for words, expected in [
        (["--", "no-such-command"], "command not found"),
        (["--allocator", "no-such", "true"], "no allocator 'no-such'"),
        (["--allocator", "hakmem,glibc", "true"], "expected one allocator"),
        ([], "Missing argument"),
        (["--", static, 1], "no proof of its allocator"),
        (["--", "sh", "-c", "kill -9 $$"], "killed by signal 9"),
    ]:
        done = hakmem(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert expected in done.stderr and done.stderr.startswith("hakmem: ") and done.stderr.count("\n") == 1


def test_a_machine_without_tools_is_one_line(tmp_path: Path) -> None:
    done = hakmem("/bin/true", environment={"PATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (2, "")
    assert "perf: not installed; valgrind: not installed" in done.stderr and done.stderr.count("\n") == 1


# ---- Pages -----------------------------------------------------------------------------------------------------------


def names(allocator: Allocator) -> list[str]:
    return [variant.name for variant in pages.matrix(allocator).variants]


def with_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, enabled: str | None) -> None:
    monkeypatch.setattr(pages, "HUGE_PAGES", tmp_path / "enabled")
    if enabled is not None:
        (tmp_path / "enabled").write_text(enabled)


def test_rows_are_what_machine_and_allocator_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_machine(monkeypatch, tmp_path, "always [madvise] never\n")
    peer = Allocator("peer", tmp_path / "libpeer.so")
    as_system = "huge pages as the system has it (madvise)"
    assert names(peer) == ["no huge pages", as_system]
    assert names(glibc()) == ["no huge pages", as_system, "huge pages asked for"]
    assert pages.matrix(peer).notes == [
        "peer has no setting that asks for huge pages",
        "peer has no setting for prefault",
    ]
    assert pages.matrix(peer).denied == {"no huge pages"}


def test_settings_of_the_library_make_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_machine(monkeypatch, tmp_path, "[always] madvise never\n")
    monkeypatch.setattr(pages.settings, "parse", lambda words, library: dict.fromkeys(words, ""))
    matrix = pages.matrix(OWN)
    assert [variant.name for variant in matrix.variants] == [
        page + fault
        for page in ("no huge pages", "huge pages as the system has it (always)", "huge pages asked for")
        for fault in ("", ", prefault")
    ]
    assert matrix.denied == {"no huge pages", "no huge pages, prefault"}
    assert matrix.notes == []
    assert [len(variant.settings) for variant in matrix.variants] == [0, 1, 0, 1, 1, 2]


def test_a_machine_without_huge_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_machine(monkeypatch, tmp_path, None)
    assert names(Allocator("peer", tmp_path)) == ["no huge pages"]
    with_machine(monkeypatch, tmp_path, "always madvise [never]\n")
    assert names(glibc()) == ["no huge pages"]


def test_huge_pages_are_denied_to_what_is_started_and_to_nothing_else() -> None:
    status = Path("/proc/self/status").read_text()
    if "THP_enabled:\t1" not in status:
        pytest.skip("this machine has no transparent huge pages to deny")
    case = pages.PagesCase(("sh", "-c", "grep -q 'THP_enabled:.0' /proc/self/status"), denied=frozenset({"off"}))
    case.run(Variant("off", glibc()))
    with pytest.raises(LabError, match="exit status 1"):
        case.run(Variant("on", glibc()))
    assert "THP_enabled:\t1" in Path("/proc/self/status").read_text()


def test_pages_live() -> None:
    done = hakmem("--pages", "--rounds", 1, "--json", "-", "--", "true")
    assert done.returncode == 0, done.stderr
    plain = json.loads(done.stdout)
    assert plain["rounds"] == 1
    assert plain["rows"][0]["variant"] == "no huge pages" and plain["rows"][0]["huge_pages_denied"] is True
    assert all(len(row["minor_faults"]) == 1 for row in plain["rows"])
    table = hakmem("--pages", "--rounds", 1, "--", "true").stdout
    assert "no huge pages" in table and "peak RSS" in table
