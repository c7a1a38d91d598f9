"""Recording, reading, packing and replaying of traces, on programs whose calls are known one by one."""

from __future__ import annotations

import json
import lzma
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from compiled import compile_c
from hakmem import allocators, cli, measure, native, recording, replays, suite, trace
from hakmem.errors import LabError
from hakmem.trace import Event, Kind, Trace, TraceError

HERE = Path(__file__).parent
RECORDED, SLOW_ALLOCATOR = ((HERE / name).read_text() for name in ("recorded.c", "slow_allocator.c"))
MARK = 10_000_000  # as in recorded.c
LIMIT = 16 << 20
BIRTHS = (Kind.MALLOC, Kind.CALLOC, Kind.ALIGNED, Kind.REALLOCATED)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_c(tmp_path_factory.mktemp("recorded") / "recorded", RECORDED, "-pthread")


def record(program: Path, *words: str, limit: int = LIMIT, children: bool = False) -> recording.Recording:
    """Beside the program, over what was recorded before."""
    output = program.with_name("recorded.trace")
    output.unlink(missing_ok=True)
    return recording.record([str(program), *words], output, limit, children=children)


def trace_of(program: Path, *words: str, limit: int = LIMIT) -> Trace:
    (found,) = record(program, *words, limit=limit).traces.values()
    return found


def marks(found: Trace) -> list[int]:
    return [event.operand - MARK for event in found.events() if event.kind == Kind.MALLOC and event.operand >= MARK]


def between_marks(found: Trace) -> list[Event]:
    events = list(found.events())
    first, second = (i for i, event in enumerate(events) if event.kind == Kind.MALLOC and event.operand >= MARK)
    return events[first + 2 : second]


def told(events: Iterable[Event]) -> list[str]:
    """Kind, size and alignment of each event, and its block: a letter, in the order in which blocks came."""
    alphabet = iter("abcdefghijklmnopqrstuvwxyz")
    letters: dict[int, str] = {}
    lines = []
    for event in events:
        size, alignment = trace.size_and_alignment(event.kind, event.operand)
        words = [Kind(event.kind).name.lower()]
        if event.kind in BIRTHS:
            words.append(str(size))
            letters[event.name] = next(alphabet) if event.name else "failed"
        if alignment > 1:
            words.append(f"@{alignment}")
        lines.append(" ".join([*words, letters[event.name]]))
    return lines


# ---- Recording ---------------------------------------------------------------------------------------------------


def test_every_function_is_recorded_with_size_alignment_and_block(program: Path) -> None:
    assert told(between_marks(trace_of(program, "every_function"))) == [
        "malloc 100 a",
        "calloc 21 b",
        "realloc a",
        "reallocated 5000 c",
        "aligned 128 @64 d",
        "aligned 33 @256 e",
        "free b",
        "aligned 48 @32 f",
        "reallocated 77 g",
        "reallocated 24 h",
        "realloc h",
        "reallocated 6 i",
        "free g",
        "realloc f",
        "reallocated 0 failed",
        "aligned 10 @4096 j",
        "aligned 8192 @4096 k",
        "malloc 0 l",
        *(f"free {letter}" for letter in "cedfijkl"),
    ]


def test_a_block_that_goes_from_thread_to_thread(program: Path) -> None:
    events = between_marks(trace_of(program, "pass_blocks"))
    one, other = events[0].thread, events[1].thread
    assert one != other
    assert [(event.thread, event.kind) for event in events] == [(one, Kind.MALLOC), (other, Kind.FREE)] * 500
    tickets = [event.ticket for event in events]
    assert tickets == sorted(set(tickets))
    assert all(malloc.name == free.name for malloc, free in zip(events[::2], events[1::2], strict=True))


def test_what_threads_exchange_is_freed_after_it_was_returned_and_returned_after_it_was_freed(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = compile_c(tmp_path / "slow.so", SLOW_ALLOCATOR, "-shared", "-fPIC", "-pthread")
    monkeypatch.setenv("LD_PRELOAD", str(slow))
    found = trace_of(program, "storm")
    assert found.thread_count == 5
    alive: dict[int, int] = {}
    of_others = 0
    for event in found.events():
        if event.kind in (Kind.FREE, Kind.REALLOC):
            of_others += alive.pop(event.name) != event.thread
        else:
            assert event.name not in alive
            alive[event.name] = event.thread
    assert of_others > 1000


def test_each_of_many_threads_is_told(program: Path) -> None:
    found = trace_of(program, "many_threads")
    assert found.thread_count == 301
    threads = [event.thread for event in found.events() if event.operand >= MARK]
    assert threads == list(range(1, 301))


def test_a_program_that_is_killed_leaves_all_it_did(program: Path) -> None:
    done = record(program, "killed")
    assert done.exit_status == 128 + signal.SIGKILL
    (found,) = done.traces.values()
    sizes = [event.operand for event in found.events() if event.kind == Kind.MALLOC]
    assert sizes[-10001:] == [*(16 + i % 100 for i in range(10000)), MARK]
    assert not found.is_full


def test_a_program_that_leaves_at_once(program: Path) -> None:
    done = record(program, "leaves_at_once")
    assert done.exit_status == 3
    (found,) = done.traces.values()
    assert marks(found) == [0]


def test_children_are_left_out_unless_asked_for(program: Path) -> None:
    assert marks(trace_of(program, "forks")) == [0, 1, 3]


def test_children_do_not_even_begin_to_record(program: Path, tmp_path: Path) -> None:
    environment = {"LD_PRELOAD": str(native.helper("record.so")), "HAK_RECORD": f"{os.getpid()}:{LIMIT}:{tmp_path}"}
    child = subprocess.Popen([program, "forks"], env=environment)
    assert child.wait() == 0
    assert [file.name for file in tmp_path.iterdir()] == [f"{child.pid}.0"]


def test_children_have_files_of_their_own(program: Path) -> None:
    (path, own), (child_path, child) = record(program, "forks", children=True).traces.items()
    assert path.name == "recorded.trace"
    assert child_path.name == f"recorded.{child.pid}.0.trace"
    assert marks(own) == [0, 1, 3]
    assert marks(child) == [2]
    assert [event.operand for event in child.events() if event.kind == Kind.MALLOC][-1] == 20000


def test_a_process_that_outlives_the_command_goes_on_unharmed(program: Path, tmp_path: Path) -> None:
    here, go, status = tmp_path / "here", tmp_path / "go", tmp_path / "status"
    script = f"({program} waits {here} {go}; {program} leaves_at_once; echo $? > {status}) 2> {tmp_path}/said &"
    script += f" until [ -e {here} ]; do sleep 0.01; done"
    found = recording.record(["sh", "-c", script], tmp_path / "x.trace", LIMIT, children=True).traces
    go.touch()
    while not status.exists() or not status.read_text():
        time.sleep(0.01)
    assert (tmp_path / "said").read_text() == ""
    assert status.read_text() == "3\n"
    assert {path.name for path in tmp_path.glob("*.trace")} == {path.name for path in found}


def test_the_program_that_a_process_becomes_is_the_one_that_is_meant(program: Path) -> None:
    found = trace_of(program, "becomes", "leaves_at_once")
    assert found.command == (str(program), "leaves_at_once")
    assert marks(found) == [0]


def test_programs_that_a_process_was_are_kept_with_the_children(program: Path) -> None:
    traces = record(program, "becomes", "leaves_at_once", children=True).traces
    assert [found.command[1:] for found in traces.values()] == [("leaves_at_once",), ("becomes", "leaves_at_once")]


def test_at_its_limit_the_recording_ends_for_all_threads_and_the_program_goes_on(program: Path) -> None:
    limit = 1280 << 10
    done = record(program, "many_blocks", limit=limit)
    assert done.exit_status == 0
    ((path, found),) = done.traces.items()
    assert found.is_full
    assert path.stat().st_size == limit
    assert marks(found) == [0]
    sizes = [event.operand for event in found.events()][-300_000:]
    assert sizes == [16 + (sizes[0] - 16 + i) % 100 for i in range(len(sizes))]


def test_a_program_that_takes_no_preload_is_refused(tmp_path: Path) -> None:
    static = compile_c(tmp_path / "static", "int main(void) { return 0; }", "-static")
    with pytest.raises(LabError, match="can't be recorded: .*static"):
        recording.record([str(static)], tmp_path / "x.trace", LIMIT, children=False)
    assert [file.name for file in tmp_path.iterdir() if "trace" in file.name] == []


# ---- The command -------------------------------------------------------------------------------------------------

RECORD = [sys.executable, "-m", "hakmem", "record"]


def test_output_and_exit_status_are_the_command_s(tmp_path: Path) -> None:
    words = [*RECORD, "--", "sh", "-c", "cat; echo out; echo err >&2; exit 7"]
    done = subprocess.run(words, input="in\n", capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (7, "in\nout\n")
    first, second = done.stderr.splitlines()
    assert first == "err"
    assert re.fullmatch(r"hakmem: sh\.trace: \d+ events of 1 thread, [\d.]+ KiB", second)
    assert [file.name for file in tmp_path.iterdir()] == ["sh.trace"]


def test_a_limit_that_was_reached_is_told(program: Path, tmp_path: Path) -> None:
    words = [*RECORD, "-o", "small.trace.xz", "--limit", "64K", "--", str(program), "many_blocks"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.endswith("hakmem: small.trace.xz: reached its limit; --limit allows more than 64.00 KiB\n")
    assert trace.read(tmp_path / "small.trace.xz").is_full


def test_the_limit_of_a_file_s_size_is_told(program: Path, tmp_path: Path) -> None:
    shell = ["sh", "-c", 'ulimit -f 256; exec "$0" many_blocks', str(program)]
    done = subprocess.run([*RECORD, "-o", "x.trace.xz", "--", *shell], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0
    assert done.stderr.endswith("hakmem: x.trace.xz: reached the limit of a file's size; `ulimit -f` allows more\n")
    assert trace.read(tmp_path / "x.trace.xz").is_full


def test_a_disk_that_becomes_full_is_told(program: Path, tmp_path: Path) -> None:
    """It has room for the first stretch of the file."""
    done = record_on_disk("start == 0 ? 0 : ENOSPC", program, tmp_path)
    assert done.returncode == 0
    assert done.stderr.endswith("hakmem: x.trace.xz: ends where the disk had no more room\n"), done.stderr
    assert trace.read(tmp_path / "x.trace.xz").is_full


def test_a_signal_does_not_end_a_recording(program: Path, tmp_path: Path) -> None:
    done = record_on_disk("calls++ % 2 == 0 ? EINTR : 0", program, tmp_path)
    assert done.returncode == 0 and not trace.read(tmp_path / "x.trace.xz").is_full, done.stderr


def record_on_disk(answer: str, program: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """The disk's answer when it is asked for room."""
    source = f"""
#include <errno.h>
#include <fcntl.h>
int posix_fallocate(int file, off_t start, off_t bytes) {{
    static int calls;
    (void)file, (void)start, (void)bytes, (void)calls;
    return {answer};
}}
"""
    disk = compile_c(folder / "disk.so", source, "-shared", "-fPIC")
    words = [*RECORD, "-o", "x.trace.xz", "--", str(program), "many_blocks"]
    environment = {**os.environ, "LD_PRELOAD": str(disk)}
    return subprocess.run(words, env=environment, capture_output=True, text=True, cwd=folder)


def test_ctrl_c_ends_the_command_and_not_its_trace(tmp_path: Path) -> None:
    words = [*RECORD, "-o", "x.trace", "--", "sleep", "600"]
    child = subprocess.Popen(words, cwd=tmp_path, stderr=subprocess.DEVNULL, start_new_session=True)
    while not any(map(trace.complete, tmp_path.glob("*.recording/*.0"))):
        assert child.poll() is None
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGINT)
    assert child.wait() == 128 + signal.SIGINT
    assert trace.read(tmp_path / "x.trace").command == ("sleep", "600")


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("free_kib", [64, 2048])
def test_a_full_disk_is_told(program: Path, free_kib: int, tmp_path: Path) -> None:
    """Full from the start, and full when the trace, which then is there twice, is to get its name."""
    small = tmp_path / "small"
    small.mkdir()
    script = 'mount -t tmpfs -o size=$0k none "$1" || exit 77; cd "$1"; shift; "$@"; status=$?; ls >&2; exit $status'
    command = [*RECORD, "-o", "x.trace", "--", str(program), "many_blocks"]
    words = ["unshare", "--mount", "sh", "-c", script, str(free_kib), str(small), *command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode in (1, 77):
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    if free_kib == 64:
        recorder, error = done.stderr.splitlines()
        assert re.fullmatch(r"hakmem: can't record process \d+: no room for .*: No space left on device", recorder)
        assert error == f"hakmem: {program} ended with exit status 0 and could not be recorded: no trace"
    else:
        error, kept = done.stderr.splitlines()
        assert error == f"hakmem: x.trace: No space left on device; what was recorded is in {small}/{kept}"


def test_what_an_end_leaves_has_the_name_that_the_page_tells(tmp_path: Path) -> None:
    root = native.checkout()
    assert root is not None
    page = (root / "docs" / "traces.md").read_text()
    child = subprocess.Popen([*RECORD, "-o", "x.trace", "--", "sleep", "600"], cwd=tmp_path, start_new_session=True)
    while not any(map(trace.complete, tmp_path.glob("*.recording/*.0"))):
        assert child.poll() is None
        time.sleep(0.01)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    (left,) = tmp_path.iterdir()
    assert re.fullmatch(r"x\.trace\.\w+\.recording", left.name) and "`NAME.RANDOM.recording`" in page
    assert "`NAME.RANDOM.recorded`" in page  # test_a_full_disk_is_told


def test_a_program_that_asks_for_nothing_is_told(tmp_path: Path) -> None:
    compile_c(tmp_path / "asks", "int main(void) { return 0; }\n")
    done = subprocess.run([*RECORD, "--", "./asks"], capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hakmem: ./asks ended with exit status 0 and asked its allocator for nothing: no trace\n"


def test_a_file_that_somebody_makes_meanwhile_stays(tmp_path: Path) -> None:
    """The trace is beside it."""
    words = ["-o", "x.trace", "--", "sh", "-c", "echo precious > x.trace; exec sleep 0"]
    done = subprocess.run([*RECORD, *words], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0 and (tmp_path / "x.trace").read_text() == "precious\n"
    (path,) = tmp_path.glob("x.*.trace")
    assert done.stderr.startswith(f"hakmem: {path.name}: ") and trace.read(path).command == ("sleep", "0")


def test_what_could_not_be_completed_is_replayed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The recorder leaves it so where the disk is full at the end, or `hakmem record` is killed: room is behind it."""
    path = tmp_path / "123.0"
    path.write_bytes(SMALL[:8] + bytes(4) + SMALL[12:] + bytes(trace.CHUNK_BYTES))
    assert trace.read(path) == trace.parse(SMALL, "")
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", "--sanity", "--with", "glibc", str(path)])
    assert ended.value.code == 0, capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no command: expected `-- COMMAND [ARGUMENT...]`"),
        (["--", "no-such-program"], "no-such-program: command not found"),
        (["-o", "there", "--", "true"], "there is there already: name another file with -o"),
        (["-o", "nowhere/x.trace", "--", "true"], "can't write nowhere/x.trace: No such file or directory"),
        (["--limit", "1k", "--", "true"], "'1k': expected a number of bytes, with K, M or G, from 64K to 4G"),
        (["--limit", "63K", "--", "true"], "'63K': expected a number of bytes, with K, M or G, from 64K to 4G"),
    ],
)
def test_what_can_t_be_recorded_is_told_in_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").write_text("precious")
    with pytest.raises(SystemExit) as ended:
        cli.main(["record", *words])
    assert ended.value.code == 2
    line = capfd.readouterr().err
    assert line.startswith("hakmem: ") and line.endswith(f"{said}\n") and line.count("\n") == 1
    assert [file.read_text() for file in tmp_path.iterdir()] == ["precious"]


# ---- Reading -----------------------------------------------------------------------------------------------------


def small_trace() -> bytes:
    writer = trace.Writer()
    writer.event(0, Kind.MALLOC, 1, 100)
    writer.event(1, Kind.FREE, 1)
    return writer.finish(thread_count=2, command=["program", "argument"])


def sealed(data: bytes) -> bytes:
    """With the checksum of its header."""
    return data[:8] + trace._checksum(data[12 : trace.CHUNK_BYTES]).to_bytes(4, "little") + data[12:]


SMALL = small_trace()
BAD = {
    "a text": (b"#!/bin/sh\n", "not a trace"),
    "nothing": (b"", "not a trace"),
    "a header cut short": (SMALL[:1000], "cut short within its header"),
    "a chunk cut short": (SMALL[:-1], "cut short or with something added: 12287 bytes, expected 12288"),
    "something added": (SMALL + b"x", "something added"),
    "another format": (sealed(SMALL[:12] + b"\7" + SMALL[13:]), "a trace of format 7; this hakmem reads format 1"),
    "nothing recorded": (
        trace.HEADER.pack(trace.MAGIC, 0, 1, 1, 0, 0, 0).ljust(trace.CHUNK_BYTES, b"\0"),
        "nothing was",
    ),
    "a damaged header": (SMALL[:40] + b"?" + SMALL[41:], "its header does not have its checksum"),
    "a damaged chunk": (SMALL[:5000] + b"?" + SMALL[5001:], "chunk 1 does not have its checksum"),
    "damaged compression": (lzma.compress(SMALL)[:-40], "its compression is damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_trace_is_refused_with_one_line(name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data, reason = BAD[name]
    path = tmp_path / "bad.trace"
    path.write_bytes(data)
    with pytest.raises(SystemExit) as ended:
        cli.main(["replay", str(path)])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert said.startswith(f"hakmem: {path}: ") and reason in said and said.count("\n") == 1


@pytest.mark.parametrize("name", [name for name in BAD if name != "damaged compression"])
def test_the_replayer_refuses_it_by_itself(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.trace"
    path.write_bytes(BAD[name][0])
    assert refused(path).startswith(f"bench: {path}: ")


NONSENSE = {
    "an event without its second half": b"\1\1\2",
    "an integer without end": b"\1\1" + b"\xff" * 12,
    "an event of no kind": b"\1\1\0\2",
    "no turn at the beginning": b"\2\2",
    "a turn that can't be": b"\1\xff\xff\xff\x7f\2\2",
    "a turn that comes twice": b"\1\1\1\0",
}


@pytest.mark.parametrize("name", NONSENSE)
def test_the_replayer_refuses_events_that_make_no_sense(name: str, tmp_path: Path) -> None:
    payload = NONSENSE[name]
    chunk = (trace.CHUNK.pack(0, 0, 0, len(payload), 1) + payload).ljust(trace.CHUNK_BYTES, b"\0")
    writer = trace.Writer()
    writer.chunks += trace._checksum(chunk[4:]).to_bytes(4, "little") + chunk[4:]
    path = tmp_path / "bad.trace"
    path.write_bytes(writer.finish(thread_count=1))
    trace.read(path)  # the file is sound
    assert refused(path).startswith(f"bench: {path}: ")


def refused(path: Path) -> str:
    done = subprocess.run([native.program("bench_replay"), path, "1"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    return done.stderr


def test_a_missing_file_is_told_with_the_names_of_traces() -> None:
    with pytest.raises(TraceError, match="nowhere: no such file, and no trace of that name: .*sqlite"):
        replays.cases(["nowhere"])


# ---- Packing -----------------------------------------------------------------------------------------------------


def packed(*events: tuple[int, Kind, int, int]) -> list[tuple[int, int, int, int]]:
    """Thread, kind, name and operand, after packing."""
    writer = trace.Writer()
    for event in events:
        writer.event(*event)
    found = trace.parse(trace.pack(trace.parse(writer.finish(thread_count=2), "first")), "second")
    return [event[1:] for event in found.events()]


def test_blocks_are_numbered() -> None:
    assert packed(
        (0, Kind.MALLOC, 700, 10),
        (0, Kind.CALLOC, 900, 20),
        (1, Kind.FREE, 700, 0),
        (0, Kind.MALLOC, 700, 30),
        (1, Kind.FREE, 700, 0),
    ) == [
        (0, Kind.MALLOC, 1, 10),
        (0, Kind.CALLOC, 2, 20),
        (1, Kind.FREE, 1, 0),
        (0, Kind.MALLOC, 3, 30),
        (1, Kind.FREE, 3, 0),
    ]


def test_the_address_that_a_realloc_left_may_come_before_the_realloc_ends() -> None:
    assert packed(
        (0, Kind.MALLOC, 700, 10),
        (0, Kind.REALLOC, 700, 0),
        (1, Kind.MALLOC, 700, 20),
        (0, Kind.REALLOCATED, 900, 30),
        (0, Kind.FREE, 900, 0),
        (1, Kind.FREE, 700, 0),
    ) == [
        (0, Kind.MALLOC, 1, 10),
        (1, Kind.MALLOC, 2, 20),
        (0, Kind.REALLOC, 1, 0),
        (0, Kind.REALLOCATED, 3, 30),
        (0, Kind.FREE, 3, 0),
        (1, Kind.FREE, 2, 0),
    ]


def test_a_realloc_that_failed_leaves_the_block() -> None:
    assert packed(
        (0, Kind.MALLOC, 700, 10), (0, Kind.REALLOC, 700, 0), (0, Kind.REALLOCATED, 0, 0), (1, Kind.FREE, 700, 0)
    ) == [(0, Kind.MALLOC, 1, 10), (1, Kind.FREE, 1, 0)]


def test_what_was_never_seen_is_left_out_and_what_was_freed_unseen_is_freed() -> None:
    assert packed(
        (0, Kind.FREE, 100, 0),
        (0, Kind.REALLOC, 200, 0),
        (0, Kind.REALLOCATED, 300, 10),
        (1, Kind.MALLOC, 300, 20),
    ) == [(0, Kind.REALLOCATED, 1, 10), (1, Kind.FREE, 1, 0), (1, Kind.MALLOC, 2, 20)]


def test_a_packed_trace_is_the_same_and_much_smaller(program: Path, tmp_path: Path) -> None:
    ((path, found),) = record(program, "many_blocks", limit=256 << 10).traces.items()
    output = tmp_path / "small.trace.xz"
    output.write_bytes(trace.compress(trace.pack(found)))
    again = trace.read(output)
    assert [event[1:3] + event[4:] for event in again.events()] == [event[1:3] + event[4:] for event in found.events()]
    assert (again.pid, again.is_full, again.command) == (found.pid, found.is_full, found.command)
    assert output.stat().st_size < path.stat().st_size / 20
    assert trace.pack(again) == trace.unpacked(output)


# ---- Replaying ---------------------------------------------------------------------------------------------------


def figures(path: Path, environment: dict[str, str] | None = None) -> dict[str, str]:
    words = [str(native.program("bench_replay")), str(path), "2"]
    output = subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout
    return dict(line.split(" ", 1) for line in output.replace("figure ", "").splitlines())


def test_a_replay_does_what_was_recorded(tmp_path: Path) -> None:
    writer = trace.Writer()
    for event in (
        (0, Kind.MALLOC, 1, 1000),
        (1, Kind.CALLOC, 2, 500),
        (2, Kind.ALIGNED, 3, 100 << trace.SHIFT_BITS | 12),
        (0, Kind.REALLOC, 2, 0),
        (1, Kind.FREE, 1, 0),
        (0, Kind.REALLOCATED, 1, 9000),
        (2, Kind.REALLOC, 3, 0),
        (2, Kind.REALLOCATED, 0, 0),
        (2, Kind.FREE, 77, 0),
        (1, Kind.REALLOCATED, 4, 30),
        (1, Kind.FREE, 3, 0),
        (1, Kind.MALLOC, 4, 0),
    ):
        writer.event(*event)
    path = tmp_path / "made.trace"
    path.write_bytes(writer.finish(thread_count=3))
    found = figures(path)
    assert found["calls"] == "9 count"  # 4 was freed unseen
    assert found["turns"] == "8 count"
    assert found["live_peak"] == "9130 bytes"


def test_a_recording_and_its_packed_form_are_replayed_alike(program: Path, tmp_path: Path) -> None:
    ((path, found),) = record(program, "storm").traces.items()
    short = tmp_path / "packed.trace"
    short.write_bytes(trace.pack(found))
    for name in ("calls", "live_peak"):  # a turn that only begins a realloc has no steps
        assert figures(path)[name] == figures(short)[name]


OVERLAPPING = """
    #include <stddef.h>
    #include <string.h>
    extern void *__libc_malloc(size_t);
    extern void __libc_free(void *);
    static _Alignas(16) char block[48];
    void *malloc(size_t n) { return n == 48 ? block : n == 32 ? block + 16 : __libc_malloc(n); }
    void free(void *p) { if ((size_t)((char *)p - block) >= sizeof block) __libc_free(p); }
    void *realloc(void *p, size_t n) { return memcpy(__libc_malloc(n), p, 48); }"""
BROKEN = {
    "calloc that is not zero": """
        #include <stdlib.h>
        #include <string.h>
        void *calloc(size_t n, size_t m) { return memset(malloc(n * m), 1, n * m); }""",
    "realloc that does not copy": """
        #include <stdlib.h>
        void *realloc(void *p, size_t n) { (void)p; return calloc(1, n); }""",
    "free of damaged blocks": OVERLAPPING,
    "realloc of damaged blocks": OVERLAPPING,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_damaged_block_changes_the_checksum(name: str, tmp_path: Path) -> None:
    broken = compile_c(tmp_path / "broken.so", BROKEN[name], "-shared", "-fPIC")
    writer = trace.Writer()
    writer.event(0, Kind.MALLOC, 1, 48)
    writer.event(0, Kind.MALLOC, 2, 32)
    writer.event(0, Kind.CALLOC, 3, 100)
    if name.startswith("realloc"):
        writer.event(0, Kind.REALLOC, 1)
        writer.event(0, Kind.REALLOCATED, 1, 1000)
    path = tmp_path / "made.trace"
    path.write_bytes(writer.finish(thread_count=1))
    assert figures(path)["checksum"] != figures(path, {"LD_PRELOAD": str(broken)})["checksum"]


def test_shipped_traces_are_what_is_told_of_them() -> None:
    shipped = replays.shipped()
    assert len(shipped) >= 5
    assert sum(file.stat().st_size for file in shipped.values()) < 2 << 20
    for name, file in shipped.items():
        facts = json.loads(file.with_name(f"{name}.json").read_text())
        found = trace.read(file)
        assert (facts["events"], facts["threads"]) == (found.event_count, found.thread_count)
        assert facts["command"] == list(found.command)
        assert not found.is_full
        assert file.stat().st_size < 300 << 10


def test_a_shipped_trace_has_equal_checksums_under_every_allocator() -> None:
    cases = replays.cases(["git", "ripgrep"], size="sanity")
    done = measure.measure(cases, measure.variants(allocators.resolve(["hakmem,glibc"])), 1, warmup=0)
    assert done.failures == []
    assert {"heap_peak", "heap_per_live", "operations_per_s"} <= set(done.metrics())


def test_sanity_is_told_as_a_size_of_runs(capsys: pytest.CaptureFixture[str]) -> None:
    """They have rounds and verdicts as others do."""
    with pytest.raises(SystemExit):
        cli.main(["replay", "--help"])
    assert "--sanity short runs: they prove" in " ".join(capsys.readouterr().out.split())


def test_a_replay_at_full_size_makes_ten_million_calls() -> None:
    (case,) = replays.cases(["lua"])
    facts = json.loads(replays.shipped()["lua"].with_name("lua.json").read_text())
    assert int(case.arguments[0]) * facts["calls"] >= 10_000_000


def test_a_long_run_of_a_trace_is_the_same_under_every_allocator() -> None:
    cases = replays.cases(["git"], size="sanity", lifetimes=True)
    done = measure.measure(cases, measure.variants(allocators.resolve(["hakmem,glibc"])), 1, warmup=0)
    assert done.failures == []
    assert {*replays.LIFETIMES_FIGURES, "over_packed_early", "operations_per_s"} <= set(done.metrics())


def test_blocks_of_a_long_run_are_as_large_and_live_as_long_as_those_of_the_trace(tmp_path: Path) -> None:
    """Of ten alive at a time, so that four times as many are, with those that live longer; each of half a page."""
    made = trace.Writer()
    for block in range(1, 2001):
        made.event(0, Kind.MALLOC, block, 2048)
        if block > 10:
            made.event(0, Kind.FREE, block - 10)
    for block in range(1991, 2001):
        made.event(0, Kind.FREE, block)
    file = tmp_path / "ten.trace"
    file.write_bytes(made.finish(thread_count=1))
    words = [str(native.program("bench_lifetimes")), str(file), "20000000", "1"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    figures = {found["name"]: float(found["value"]) for found in suite.FIGURE.finditer(printed)}
    blocks = figures["rss_late"] / figures["over_packed_late"] / 2048
    assert 30 < blocks < 50


@pytest.mark.parametrize(("events", "said"), [(0, "a trace of nothing"), (1, "a trace without blocks")])
def test_lifetimes_of_no_block_are_refused(events: int, said: str, tmp_path: Path) -> None:
    made = trace.Writer()
    for block in range(events):
        made.event(0, Kind.FREE, block)
    file = tmp_path / "none.trace"
    file.write_bytes(made.finish(thread_count=events))
    words = [str(native.program("bench_lifetimes")), str(file), "100000", "1"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and said in done.stderr, done
