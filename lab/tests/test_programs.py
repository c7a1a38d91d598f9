"""Real programs as cases: what is compared, and when a run doesn't count. The programs are stand-ins made of sh and
python."""

from __future__ import annotations

import errno
import fcntl
import http.client
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hakmem import allocators, measure, native, process, programs, servers
from hakmem.commands import demo
from hakmem.errors import LabError
from hakmem.measure import Variant
from hakmem.programs import Program, ProgramCase
from sample_record import record

GLIBC = Variant("glibc", allocators.glibc())
SHELL = Program(
    "shell", "dash", (("sh",),), ("{exe}", "-c", "echo out $PORT; echo text > file; echo err >&2"), files=("file",)
)


def case(program: Program) -> ProgramCase:
    paths = programs.installed(program)
    assert paths
    return ProgramCase(program, paths)


def test_digest_has_a_part_for_each_output() -> None:
    digest = case(SHELL).run(GLIBC).digest
    assert [part.partition(":")[0] for part in digest.split()] == ["stdout", "stderr", "file"]
    assert case(SHELL).run(GLIBC).digest == digest


def test_filter_takes_out_what_may_differ() -> None:
    random = replace(SHELL, command=("{exe}", "-c", "echo $$; echo x > file"))
    assert case(random).run(GLIBC).digest != case(random).run(GLIBC).digest
    filtered = replace(random, output=lambda text: re.sub(rb"\d+", b"#", text))
    assert case(filtered).run(GLIBC).digest == case(filtered).run(GLIBC).digest


def test_callers_preloads_and_settings_of_other_tools_do_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/lib.so")
    seen = replace(SHELL, command=("{exe}", "-c", 'test -z "$GIT_DIR" || exit 9; echo x > file'))
    case(seen).run(GLIBC)


def test_failure_and_missing_processes_are_no_figure() -> None:
    with pytest.raises(LabError, match="shell ended with exit status 3: sorry"):
        case(replace(SHELL, command=("{exe}", "-c", "echo sorry >&2; exit 3"))).run(GLIBC)
    with pytest.raises(LabError, match="2 programs on glibc, expected 5 or more"):
        case(replace(SHELL, command=("{exe}", "-c", "ls >/dev/null; echo x > file"), processes=5)).run(GLIBC)


def test_output_that_differs_under_one_allocator_fails_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The setting stands for an allocator that makes the program print something else."""
    said = replace(SHELL, command=("{exe}", "-c", "echo ${{MALLOC_TOP_PAD_:-usual}}; echo x > file"))
    odd = Variant("odd", allocators.glibc(), {"MALLOC_TOP_PAD_": "1"})
    done = measure.measure([case(said)], [GLIBC, odd], 2, warmup=0)
    assert [failure.variant for failure in done.failures] == ["odd"]
    assert "stdout" in done.failures[0].reason and "file" not in done.failures[0].reason
    assert done.samples["shell"]["odd"] == [] and len(done.samples["shell"]["glibc"]) == 2


def test_drive_talks_to_a_server_until_it_ends() -> None:
    server = (
        "import socket, sys; s = socket.create_server(('127.0.0.1', int(sys.argv[1]))); c = s.accept()[0];"
        " c.sendall(c.recv(9)[::-1])"
    )

    def talk(values: Mapping[str, str]) -> servers.Told:
        with servers.connect(values["port"]) as client:
            return servers.Told(servers.ask(client, b"abc", b"a"), {"copied": 7.0}, {"copied": "B"})

    program = Program("echo", "python3", ((programs.PYTHON,),), ("{exe}", "-c", server, "{port}"), drive=talk)
    sample = case(program).run(GLIBC)
    assert "answers:" in sample.digest
    assert sample.values["copied"] == 7 and sample.units == {"copied": "B"} and sample.values["wall_s"] > 0


def test_server_that_never_listens_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "START_S", 0.05)
    program = replace(SHELL, drive=lambda values: servers.Told(servers.connect(values["port"]).recv(1)))
    with pytest.raises(LabError, match="no server listens on port"):
        case(program).run(GLIBC)


@pytest.mark.forms
@pytest.mark.parametrize(
    "program", [one for one in (*programs.PROGRAMS, *programs.SERVICES) if one.prepare], ids=lambda one: str(one.name)
)
def test_what_is_prepared_serves_all_cases_of_a_process(program: Program) -> None:
    """A machine of a cluster gets its cases anew for each round."""
    if programs.installed(program) is None:
        pytest.skip(f"{program.name} is not installed")
    short = replace(program, command=("/bin/sh", "-c", "exit 0"), processes=1, set_up=None, drive=None)
    for _ in range(2):
        case(short).run(GLIBC)


def test_what_could_not_be_prepared_is_tried_again() -> None:
    def prepare(values: Mapping[str, str]) -> dict[str, str]:
        Path(values["work"], "folder").mkdir()
        tries.append(values["work"])
        if len(tries) == 1:
            raise LabError("not now")
        return {"said": "it is there"}

    tries: list[str] = []
    prepared = replace(SHELL, command=("{exe}", "-c", "echo {said} >file"), prepare=prepare)
    with pytest.raises(LabError, match="^not now$"):
        case(prepared).run(GLIBC)
    for _ in range(2):
        case(prepared).run(GLIBC)
    assert len(tries) == 2


def test_the_commit_of_an_installed_package_is_the_same_whenever_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git = programs.find(("git",))
    if git is None:
        pytest.skip("git is not installed")
    monkeypatch.setattr(native, "checkout", lambda: None)
    made = programs._git({"exe": git, "work": str(tmp_path)})
    words = [git, "-C", made["repository"], "log", "--format=%at %ct"]
    told = subprocess.run(words, capture_output=True, text=True, check=True, env=programs.environment(tmp_path)).stdout
    assert told.split() and all(int(date) < time.time() - 86400 for date in told.split())


@pytest.mark.parametrize(
    ("number", "raises"), [(errno.ENOSPC, OSError), (errno.EDQUOT, OSError), (errno.ECONNREFUSED, LabError)]
)
def test_a_full_disk_is_no_fault_of_an_allocator(
    number: int, raises: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> process.Run:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(process, "run", fail)
    with pytest.raises(raises, match=re.escape(os.strerror(number))):
        case(SHELL).run(GLIBC)


def test_nor_is_what_finds_no_room_for_its_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(descriptor: int, start: int, length: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy(values: Mapping[str, str]) -> None:
        raise LabError("can't copy")

    copied = replace(SHELL, set_up=copy)
    with pytest.raises(LabError, match="can't copy"):
        case(copied).run(GLIBC)
    monkeypatch.setattr(os, "posix_fallocate", answer)
    with pytest.raises(OSError, match="No space left"):
        case(copied).run(GLIBC)


@pytest.mark.parametrize("how", ["set_up", "run"])
def test_nor_is_what_had_removed_what_it_had_no_room_for(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database's log, a compiler's assembly: there is room for a little when it has ended, or its client is told."""

    def answer(descriptor: int, start: int, length: int) -> None:
        if length > 16 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def copy(values: Mapping[str, str]) -> None:
        raise LabError("can't copy")

    def reset(*_: object, **__: object) -> process.Run:
        raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))

    if how == "run":
        monkeypatch.setattr(process, "run", reset)
    failing = replace(SHELL, set_up=copy if how == "set_up" else None)
    with pytest.raises(LabError, match="can't copy|reset by peer"):
        case(failing).run(GLIBC)
    monkeypatch.setattr(os, "posix_fallocate", answer)
    with pytest.raises(OSError, match="No space left"):
        case(failing).run(GLIBC)


def test_what_gets_old_while_it_is_used_stays() -> None:
    """systemd-tmpfiles passes over a folder that somebody has locked."""
    descriptor = os.open(programs._work(), os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(descriptor)


def test_unknown_and_missing_programs() -> None:
    with pytest.raises(LabError, match="no program 'nosuch'; there are python3"):
        programs.by_name("nosuch")
    absent = replace(SHELL, needs=(("no-such-command",), ("/no/such/*/file",)))
    assert programs.cases([absent, SHELL])[1] == [absent]


@pytest.mark.forms
@pytest.mark.parametrize("program", programs.SERVICES, ids=lambda program: str(program.name))
def test_a_service_answers_alike_for_however_long(monkeypatch: pytest.MonkeyPatch, program: Program) -> None:
    if programs.installed(program) is None:
        pytest.skip(f"{program.name} is not installed")
    monkeypatch.setattr(servers, "texts", lambda: [b"line\n" * (1 + i * 997) for i in range(40)])
    samples = [replace(case(program), seconds=seconds).run(GLIBC) for seconds in (0, 0.2)]
    assert "answers:" in samples[0].digest and samples[0].digest == samples[1].digest
    for sample in samples:
        operations = sample.values["cpu_s"] * 1e9 / sample.values["cost_ns"]
        assert round(operations) % 40 == 0 and sample.values["operations_per_s"] > 0


def test_a_service_is_kept_busy_for_as_long_as_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of two requests takes three seconds; the first one fills the caches."""
    now = 100.0

    def one_round() -> Iterator[bytes]:
        nonlocal now
        now += 3
        yield from (b"1", b"2")

    monkeypatch.setattr(servers.time, "monotonic", lambda: now)
    for seconds, rounds in ((0, 1), (3, 1), (3.1, 2), (90, 30)):
        told = servers._serve(one_round, seconds)
        assert told.answers == b"12" and told.operations == 2 * rounds
        assert told.values["operations_per_s"] == pytest.approx(2 / 3)


SERVICE = programs.INPUTS / "service.py"
ENDS_AT_ONCE = (
    "import http.server, os, runpy, sys; http.server.ThreadingHTTPServer.shutdown = lambda self: os._exit(0); "
)


def test_the_python_service_answers_before_it_ends() -> None:
    port = servers.free_port()
    words = [sys.executable, "-c", f"{ENDS_AT_ONCE}runpy.run_path({str(SERVICE)!r}, run_name='__main__')", port]
    with subprocess.Popen(words) as service:
        servers.connect(port).close()
        assert servers.post(http.client.HTTPConnection(servers.HOST, int(port)), "/end", b"").startswith(b"0 0 ")
    assert service.returncode == 0


def test_a_service_that_answers_otherwise_is_a_failure() -> None:
    rounds = [[b"1", b"2"], [b"1", b"3"], [b"1", b"3"], [b"1", b"2"], []]  # the first one may differ
    with pytest.raises(LabError, match="answered otherwise"):
        servers._serve(lambda: iter(rounds.pop(0)), 60)
    assert rounds == [[]]


def test_documents_have_a_heavy_tail_and_come_mixed() -> None:
    sizes = [len(text) for text in servers.texts()]
    large = [at for at, size in enumerate(sizes) if size > 512 << 10]
    assert len(sizes) == servers.DOCUMENTS and min(sizes) >= servers.LEAST_BYTES and max(sizes) > 4 << 20
    assert 5 <= len(large) <= 20 and all(later - one > 1 for one, later in zip(large, large[1:], strict=False))


class Silent:
    """A client whose server says nothing."""

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def sendall(self, text: bytes) -> None: ...

    def shutdown(self, how: int) -> None: ...

    def recv(self, most: int) -> bytes:
        return b""


@pytest.mark.parametrize("written", ["", "\n", "12", "none\n"])
@pytest.mark.parametrize(("talk", "name"), [(servers.nginx, "nginx.pid"), (servers.postgres, "postmaster.pid")])
def test_a_server_that_has_not_written_down_its_process_is_a_failure(
    talk: Callable[[Mapping[str, str]], servers.Told],
    name: str,
    written: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number without its line's end may go on."""
    monkeypatch.setattr(servers, "connect", lambda port: Silent())
    monkeypatch.setattr(servers.subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 0, "", ""))
    monkeypatch.setattr(servers.os, "kill", lambda pid, signal: pytest.fail(f"ends {pid}"))
    (tmp_path / name).write_text(written)
    with pytest.raises(LabError, match=f"{name} doesn't tell the server's process"):
        talk({"port": "1", "exe": "/usr/bin/server", "cwd": str(tmp_path), "data": str(tmp_path)})


def test_what_redis_does_not_tell_is_a_failure() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(b"-NOPERM this user has no permissions\r\n" + servers.REDIS_DONE)
        with pytest.raises(LabError, match="redis doesn't tell of its snapshot: -NOPERM this user"):
            servers.await_snapshot(ours)


@pytest.mark.long
def test_snapshot_of_redis_tells_what_was_copied() -> None:
    program = programs.by_name("redis snapshot")
    if programs.installed(program) is None:
        pytest.skip("redis-server is not installed")
    sample = case(program).run(Variant("hakmem", allocators.hakmem()))
    assert sample.values["operations_per_s"] > 0 and sample.units["copied"] == "B"
    assert servers.SNAPSHOT_UPDATES * 100 < sample.values["copied"] < sample.values["peak_rss_bytes"] * 1.1


def test_the_demo_s_columns_say_whose_they_are() -> None:
    """Under each figure's name both allocators and hakmem's part of glibc's; what failed has no figure."""
    values = {(case, "glibc", metric): [4.0] * 6 for case in ("one", "other") for metric in demo.ALL_METRICS.values()}
    values |= {("one", "hakmem", metric): [1.0] * 6 for metric in demo.ALL_METRICS.values()}
    of_time, of_memory = demo._table(record(values), demo.ALL_METRICS).split("\n\n")
    assert of_memory.splitlines()[-1] == demo.DOUBT
    heads, names, one, other, mean = of_time.splitlines()
    assert [word.strip("-") for word in re.split(r"  +", heads.strip())] == list(demo.ALL_METRICS)[:2]
    assert names.split() == ["program", *("glibc", "hakmem", "ratio") * 2]
    assert one.split().count("0.25") == 2 and other.split() == ["other", *["failed"] * 2]
    assert mean.split() == ["geometric", "mean", "of", "1", "of", "2", *["0.25"] * 2]
    for group in re.finditer(r"-+[a-zA-Z ]+-+", heads):
        assert names[group.start() : group.end()].split() == ["glibc", "hakmem", "ratio"]


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ([0.9, 0.91, 0.89, 0.9, 0.9, 0.92], "0.90"),
        ([0.9, 1.2, 0.8, 0.9, 1.1, 0.7], "?0.90"),
        ([0.9, 0.9, 0.9], "?0.90"),  # too few rounds to tell
        ([0.9, 0.9, 0.9, 0.9, 0.9, 0.0], "-"),
        ([1.0] * 6, "?1.00"),
        ([0.9996] * 6, "0.9996"),
        ([0.5, 0.5, 0.9, 0.9, 0.9, 0.9], "0.67"),  # the ratio that the mark is of
    ],
)
def test_the_demo_says_of_which_ratios_chance_may_be_the_cause(own: list[float], said: str) -> None:
    figures = [(case, metric) for case in ("one", "two") for metric in demo.ALL_METRICS.values()]
    values = {(case, "glibc", metric): [1.0] * len(own) for case, metric in figures}
    values |= {(case, "hakmem", metric): own for case, metric in figures}
    *_, one, two, mean, legend = demo._table(record(values), demo.ALL_METRICS).splitlines()
    assert [line.split().count(said) for line in (one, two, mean)] == [2, 2, 2]
    assert legend == demo.DOUBT
