"""`hakmem ctl` and `hakmem top`: processes that answer; for those that can't, one line, and they come to no harm."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import mmap
import os
import platform
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled import compile_c
from hakmem import cli, ctl, explain, foreign, native, profile, top
from hakmem.errors import LabError
from prometheus_client.openmetrics.parser import text_string_to_metric_families

ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not ROOT, reason="takes another user")
WAIT = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n"


@contextlib.contextmanager
def running(
    program: str = WAIT, preload: bool = True, prefix: tuple[str, ...] = (), **settings: str
) -> Iterator[subprocess.Popen[str]]:
    """Python, which is let go on and must end well."""
    others = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    environment = {**others, **{f"HAKMEM_{name}": value for name, value in settings.items()}}
    if preload:
        environment["LD_PRELOAD"] = str(native.library())
    child = subprocess.Popen(
        [*prefix, sys.executable, "-S", "-E", "-c", program],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin and child.stdout
    try:
        assert child.stdout.readline() == "ready\n"
        yield child
        if child.poll() is None:
            child.send_signal(signal.SIGCONT)
            child.stdin.write("end\n")
            child.stdin.close()
            assert child.wait(600) == 0, "it came to harm"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


@contextlib.contextmanager
def answering(**options: str) -> Iterator[subprocess.Popen[str]]:
    with running(CTL="1", **options) as child:
        wait_for_thread(child.pid)
        yield child


def wait_for_thread(pid: int) -> None:
    deadline = time.monotonic() + 300
    while ctl.find_channel(pid) is None:
        assert time.monotonic() < deadline, "it has no control thread"
        time.sleep(0.01)


def stop(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGSTOP)
    while any("T (stopped)" not in task.read_text() for task in Path(f"/proc/{child.pid}/task").glob("*/status")):
        time.sleep(0.01)


def says(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit status, output, error."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.out, printed.err


def refuses(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """The one line it says, and nothing else."""
    status, out, error = says(capsys, *words)
    assert status == 2 and out == "" and error.count("\n") == 1, (status, out, error)
    return error


# ---- Answers ---------------------------------------------------------------------------------------------------------


def test_answers(capsys: pytest.CaptureFixture[str]) -> None:
    with answering() as child:
        status, out, error = says(capsys, "ctl", child.pid, "stats", "json")
        assert (status, error) == (0, "") and json.loads(out)["pid"] == child.pid
        assert says(capsys, "ctl", child.pid, "stats")[1].startswith("hakmem ")
        assert says(capsys, "ctl", child.pid, "set", "decay_ms=300")[1] == "decay_ms: 1000 -> 300\n"
        assert "decay_ms = 300 (default 1000" in says(capsys, "ctl", child.pid, "knobs")[1]
        pattern = r"[\d.]+ \w+ given back; resident memory: [\d.]+ \w+ before, [\d.]+ \w+ now\n"
        assert re.fullmatch(pattern, says(capsys, "ctl", child.pid, "purge")[1])
        assert "purge: " in says(capsys, "ctl", child.pid)[1]  # help
        assert "resident" in says(capsys, "ctl", child.pid, "explain")[1]
        assert "knows no nonsense" in refuses(capsys, "ctl", child.pid, "nonsense")
        assert "expected a number from 10 to" in refuses(capsys, "ctl", child.pid, "set", "decay_ms=1")


@pytest.mark.forms
def test_mallopt_takes_back_what_it_found_and_not_what_was_on_trial() -> None:
    program = (
        "import ctypes, sys, threading\n"
        "set_parameter = ctypes.CDLL(None).mallopt\n"
        "def work():\n    while True: pass\n"
        "threading.Thread(target=work, daemon=True).start()\n"
        f"{WAIT}"
        "for value in (-1, 1 << 17): set_parameter(-1, value)\n"  # M_TRIM_THRESHOLD: all is kept, and the usual
        "print('set', flush=True)\n"
        "sys.stdin.readline()\n"
    )

    def decay_ms(pid: int) -> str:
        return next(line.split()[2] for line in ctl.ask(pid, "knobs").splitlines() if line.startswith("decay_ms = "))

    with running(program, CTL="1", ACE_FAST_MS="100", ACE_SLOW_MS="3000") as child:
        assert child.stdin and child.stdout
        wait_for_thread(child.pid)
        ctl.ask(child.pid, "try decay_ms=4000")
        deadline = time.monotonic() + 300
        while decay_ms(child.pid) != "4000":
            assert time.monotonic() < deadline, "it is not tried"
            time.sleep(0.01)
        child.stdin.write("set\n")
        child.stdin.flush()
        assert child.stdout.readline() == "set\n"
        assert decay_ms(child.pid) == "1000"


def test_profile_of_a_running_process(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = (
        "import threading, time\nblocks = []\n"
        "def grow():\n    while True: blocks.append(bytearray(100000)); time.sleep(0.01)\n"
        "threading.Thread(target=grow, daemon=True).start()\n"
    )
    with answering_program(program + WAIT) as child:
        assert "never was a profile" in refuses(capsys, "ctl", child.pid, "profile", "dump")
        assert says(capsys, "ctl", child.pid, "profile", "on", "4K")[1] == "one sample per 4096 bytes\n"
        time.sleep(0.5)
        assert says(capsys, "ctl", child.pid, "profile", "off")[0] == 0
        found = tmp_path / "now.prof"
        found.write_text(says(capsys, "ctl", child.pid, "profile", "dump")[1])
        read = profile.read(found)
        assert read.process == child.pid and read.total.live_bytes > 300000
        assert any(frame.name for site in read.sites for frame in site.frames)
        assert "control: " in says(capsys, "ctl", child.pid, "control")[1]


def test_a_process_that_ends_while_its_profile_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader(io.StringIO):
        def write(self, text: str) -> int:
            child.kill()
            child.wait()
            return super().write(text)

    with answering() as child:
        ctl.ask(child.pid, "profile on")
        shown = Reader()
        monkeypatch.setattr(sys, "stdout", shown)
        with pytest.raises(SystemExit) as ended:
            cli.main(["ctl", str(child.pid), "profile", "dump"])
    assert ended.value.code == 0
    head, _, memory_map = shown.getvalue().partition("\nmaps\n")
    assert head.startswith(profile.FIRST_LINE) and "[stack]" in memory_map


def test_a_process_that_ends_before_its_memory_map_is_read(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ctl, "ask", lambda *_: "maps\n")
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    for _ in ("it waits for its parent", "it is gone"):
        assert "ended before its memory map was read" in refuses(capsys, "ctl", child.pid, "profile", "dump")
        child.wait()


def test_a_large_process_answers_unasked() -> None:
    program = (
        "import threading\ngrown, ended = threading.Event(), threading.Event()\n"
        "def work():\n    blocks = [bytes(1000) for _ in range(80000)]\n    grown.set()\n    ended.wait()\n"
        "threading.Thread(target=work, daemon=True).start()\ngrown.wait()\n"
    )
    with running(program + WAIT) as child:
        wait_for_thread(child.pid)
        assert json.loads(ctl.ask(child.pid, "stats json"))["live_blocks"] > 80000


def test_pipes_are_small() -> None:
    """What all pipes of a user's processes may hold is limited."""
    get_pipe_bytes = 1032  # F_GETPIPE_SZ, which Python 3.9 has no name for
    with answering() as child:
        channel = ctl.find_channel(child.pid)
        assert channel is not None
        for number in (ctl.REQUEST_WRITE, ctl.ANSWER_READ):
            with open(channel / str(number), "rb" if number == ctl.ANSWER_READ else "wb", buffering=0) as pipe:
                assert fcntl.fcntl(pipe, get_pipe_bytes) == mmap.PAGESIZE


def test_purge_gives_memory_back() -> None:
    program = "blocks = [bytes(1000) for _ in range(50000)]\ndel blocks[::]\n" + WAIT
    with answering_program(program) as child:
        before = float(ctl.ask(child.pid, "purge").split()[0])
        assert before >= 0 and float(ctl.ask(child.pid, "purge").split()[0]) <= before
        stats = json.loads(ctl.ask(child.pid, "stats json"))
        assert stats["purged_bytes"] > 40 << 20


@contextlib.contextmanager
def answering_program(program: str) -> Iterator[subprocess.Popen[str]]:
    with running(program, CTL="1") as child:
        wait_for_thread(child.pid)
        yield child


def test_many_ask_at_once() -> None:
    wrong: list[str] = []

    def ask_often(pid: int) -> None:
        for _ in range(20):
            try:
                if json.loads(ctl.ask(pid, "stats json"))["pid"] != pid:
                    wrong.append("another's answer")
            except Exception as error:
                wrong.append(str(error))

    with answering() as child:
        threads = [threading.Thread(target=ask_often, args=(child.pid,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong


def test_who_asks_and_goes_away_leaves_no_trace() -> None:
    with answering() as child:
        channel = ctl.find_channel(child.pid)
        assert channel
        with open(channel / str(ctl.REQUEST_WRITE), "wb", buffering=0) as requests:
            for _ in range(5):
                requests.write(b"gone metrics\n")
        assert ctl.ask(child.pid, "set decay_ms=300") == "decay_ms: 1000 -> 300\n"


@pytest.mark.skipif(not ROOT, reason="makes namespaces")
def test_a_process_in_namespaces_of_its_own_answers() -> None:
    """As in a container: other process ids, no network, another root of /proc."""
    prefix = ("unshare", "--pid", "--net", "--mount-proc", "--uts", "--ipc", "--fork")
    if subprocess.run([*prefix, "true"], capture_output=True).returncode != 0:
        pytest.skip("no namespaces here")
    with running(prefix=prefix, CTL="1", preload=True) as child:
        tasks = Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split()
        inner = int(tasks[0])
        wait_for_thread(inner)
        assert json.loads(ctl.ask(inner, "stats json"))["pid"] == 1


# ---- None ------------------------------------------------------------------------------------------------------------


def test_a_stopped_process(capsys: pytest.CaptureFixture[str]) -> None:
    with answering() as child:
        stop(child)
        assert f"is stopped and can't answer; kill -CONT {child.pid}" in refuses(capsys, "ctl", child.pid, "stats")
        child.send_signal(signal.SIGCONT)
        ctl.ask(child.pid, "stats")


def test_a_process_that_hangs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in a way that doesn't show. The request is taken back, and not carried out later."""
    with answering() as child:
        stop(child)
        monkeypatch.setattr(ctl, "state", lambda pid: "S")
        began = time.monotonic()
        error = refuses(capsys, "ctl", "--timeout", "0.3", child.pid, "set", "decay_ms=500")
        assert "did not answer in time; the request has been taken back" in error
        assert time.monotonic() - began < 300
        child.send_signal(signal.SIGCONT)
        assert "decay_ms = 1000 " in ctl.ask(child.pid, "knobs")


def test_a_process_that_is_always_asked(capsys: pytest.CaptureFixture[str]) -> None:
    import fcntl

    with answering() as child:
        channel = ctl.find_channel(child.pid)
        assert channel
        with open(channel / str(ctl.ANSWER_READ), "rb", buffering=0) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            assert "asked by somebody else" in refuses(capsys, "ctl", "--timeout", "0.2", child.pid, "stats")


def test_a_process_that_dies_meanwhile(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with answering() as child:
        stop(child)
        monkeypatch.setattr(ctl, "state", lambda pid: "S")
        threading.Timer(0.3, child.kill).start()
        assert "ended before it answered" in refuses(capsys, "ctl", child.pid, "stats")
        child.wait()


def test_no_process_and_a_dead_one(capsys: pytest.CaptureFixture[str]) -> None:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert "has ended" in refuses(capsys, "ctl", child.pid, "stats")  # a zombie
    child.wait()
    assert f"there is no process {child.pid}" in refuses(capsys, "ctl", child.pid, "stats")


def test_a_request_that_is_too_long(capsys: pytest.CaptureFixture[str]) -> None:
    with answering() as child:
        assert "at most 200 bytes, and this one 5000" in refuses(capsys, "ctl", child.pid, "x" * 5000)
        assert "knows no " + "x" * 200 in refuses(capsys, "ctl", child.pid, "x" * 200)  # the process's own answer


@pytest.mark.parametrize("words", [("explain", "--json", "-"), ("pins", "--pprof", "x"), ("stats", "--timeout", "1")])
def test_options_of_other_commands(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    assert "options stand before PID" in refuses(capsys, "ctl", os.getpid(), *words)


def test_not_hakmems(capsys: pytest.CaptureFixture[str]) -> None:
    with running(preload=False) as child:
        assert "is not on hakmem" in refuses(capsys, "ctl", child.pid, "stats")


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"CTL": "0"}, "it was started with HAKMEM_CTL=0"),
        ({"CTL": "1", "BACKGROUND": "0"}, "it was started with HAKMEM_BACKGROUND=0"),
    ],
)
def test_no_control_thread(capsys: pytest.CaptureFixture[str], settings: dict[str, str], why: str) -> None:
    with running(**settings) as child:
        time.sleep(0.2)
        assert f"is on hakmem, but has no control thread: {why}" in refuses(capsys, "ctl", child.pid, "stats")


# ---- Processes that only look like hakmem's --------------------------------------------------------------------------

# A library that has hakmem's note, a thread with the name, and descriptors that the test says: pairs of what it opens
# and a number.
POSES = """
import ctypes, os, sys
for file, flags, number in OPENED:
    os.dup2(os.open(file, flags), number)
ctypes.CDLL(None).prctl(15, b"hakmem-ctl")
"""


@contextlib.contextmanager
def posing(opened: list[tuple[str, int, int]], preload: bool = True) -> Iterator[subprocess.Popen[str]]:
    with running(POSES.replace("OPENED", repr(opened)) + WAIT, preload=preload, CTL="0") as child:
        yield child


def on_all(file: Path) -> list[tuple[str, int, int]]:
    return [(str(file), os.O_RDWR, number) for number in range(10, 14)]


@pytest.mark.parametrize("preload", [True, False])
def test_a_file_behind_the_name_is_left_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, preload: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("x" * 100)
    with posing(on_all(file), preload) as child, open(file) as other:
        why = "has a thread named hakmem-ctl that is not hakmem's" if preload else "is not on hakmem"
        fcntl.flock(other, fcntl.LOCK_EX)
        assert why in refuses(capsys, "ctl", "--timeout", "1", child.pid, "stats")
        assert file.read_text() == "x" * 100
        assert says(capsys, "top", "--interval", "0.1")[0] == 0
        assert file.read_text() == "x" * 100


def test_a_pipe_with_a_name_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with posing(on_all(tmp_path / "pipe")) as child:
        assert "that is not hakmem's" in refuses(capsys, "ctl", "--timeout", "1", child.pid, "stats")


@needs_root
def test_another_users_pipe_is_left_alone() -> None:
    """The process has one end of it, and could not open the other."""
    answers, requests = os.pipe(), os.pipe()
    program = f"import os\nos.dup2({requests[0]}, 11)\nos.dup2({answers[1]}, 12)\n{POSES.replace('OPENED', '[]')}{WAIT}"
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", sys.executable, "-S", "-E", "-c", program]
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_CTL": "0"}
    inherited = (requests[0], answers[1])
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, cwd="/", pass_fds=inherited, **pipes) as child:
        try:
            assert child.stdout and child.stdout.readline() == b"ready\n"
            os.write(answers[1], b"the owner's")
            with pytest.raises(LabError, match="that is not hakmem's"):
                ctl.ask(child.pid, "stats", 1)
            assert os.read(answers[0], 100) == b"the owner's"
            os.set_blocking(requests[0], False)
            with pytest.raises(BlockingIOError):
                os.read(requests[0], 100)
        finally:
            child.kill()
    for end in (*answers, *requests):
        os.close(end)


@needs_root
@pytest.mark.skipif(
    tuple(map(int, platform.release().split(".")[:2])) < (5, 14), reason="the kernel does not say whose pipe it is"
)
def test_root_may_ask_a_process_that_has_changed_its_user() -> None:
    """Its pipes are still its former user's."""
    program = WAIT.replace("import sys", "import os, sys, time\nCHANGE")
    program = program.replace(
        "CHANGE", "while len(os.listdir('/proc/self/task')) < 3: time.sleep(0.01)\nos.setuid(65534)"
    )
    with running(program, CTL="1") as child:
        wait_for_thread(child.pid)
        assert os.stat(f"/proc/{child.pid}").st_uid == 65534
        assert ctl.ask(child.pid, "stats").startswith("hakmem ")


# Answers what the test says, as hakmem does.
ANSWERS = """
import ctypes, os, sys, threading
for read_end, write_end in ((10, 11), (12, 13)):
    ends = os.pipe()
    os.dup2(ends[0], read_end)
    os.dup2(ends[1], write_end)
def answer():
    while True:
        for line in os.read(10, 4096).splitlines():
            os.write(13, line.split()[0] + BODY)
ctypes.CDLL(None).prctl(15, NAME)
def serve():
    ctypes.CDLL(None).prctl(15, b"hakmem-ctl")
    answer()
threading.Thread(target=serve, daemon=True).start()
"""


@contextlib.contextmanager
def answering_with(body: str, name: str = "poser") -> Iterator[subprocess.Popen[str]]:
    program = ANSWERS.replace("BODY", repr(f" {body}\nend\n".encode())).replace("NAME", repr(name.encode()))
    with running(program + WAIT, CTL="0") as child:
        wait_for_thread(child.pid)
        yield child


def statistics_with(**changes: object) -> str:
    numbers = dict.fromkeys((*top.TOTALS, *top.MISSES), 1)
    classes = [dict.fromkeys(top.ROWS["classes"], 1)]
    threads = [{"name": "thread", **dict.fromkeys(top.ROWS["threads"], 1)}]
    return "ok\n" + json.dumps({**numbers, "classes": classes, "threads": threads, **changes})


@pytest.mark.parametrize(
    "body",
    [
        "ok\nno json",
        "ok\n" + "[" * 3000,
        "ok\n[]",
        'ok\n{"threads": []}',
        statistics_with(threads=[7]),
        statistics_with(threads=[{"name": 7, **dict.fromkeys(top.ROWS["threads"], 1)}]),
        statistics_with(classes={}),
        statistics_with(live_bytes="many"),
        statistics_with(live_bytes=10**400),
    ],
)
def test_answers_that_are_none(capsys: pytest.CaptureFixture[str], body: str) -> None:
    with answering_with(body) as child:
        assert "answers with something else than statistics" in refuses(capsys, "top", child.pid)
        status, out, error = says(capsys, "top", "--interval", "0.1")
        assert (status, error) == (0, "") and "don't answer: read from outside" in out


@pytest.mark.parametrize("name", ["[/x]", "[async] x", "[red]io", "[b"])
def test_names_are_no_markup(capsys: pytest.CaptureFixture[str], name: str) -> None:
    threads = [{**dict.fromkeys(top.ROWS["threads"], 1), "name": f"{name} 2"}]
    with answering_with(statistics_with(threads=threads), name) as child:
        for words in ((child.pid,), ()):
            status, out, error = says(capsys, "top", *words, "--interval", "0.1")
            assert (status, error) == (0, "") and f"{name} " in out
        assert f"{name} 2" in says(capsys, "top", child.pid, "--interval", "0.1")[1]


def test_nothing_of_others_steers_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    threads = [{**dict.fromkeys(top.ROWS["threads"], 1), "name": "\x1b[2J\x9bthread"}]
    with answering_with(statistics_with(threads=threads), "\x1b]0;x\x07\n\ry") as child:
        said = [
            says(capsys, "top", "--interval", "0.1"),
            says(capsys, "top", child.pid, "--interval", "0.1"),
            says(capsys, "ctl", child.pid, "explain"),
        ]
    for body in ("ok\nfirst\n\x1b[2Jsecond\r\x07\x9b\u202e", "error: \x1b[2Jsecond"):
        with answering_with(body, "\x1b[2J") as child:
            said.append(says(capsys, "ctl", child.pid, "stats"))
            stop(child)
            said.append(says(capsys, "ctl", "--timeout", "0.1", child.pid, "stats"))
    assert [status for status, _, _ in said] == [0, 0, 0, 0, 2, 2, 2]
    for _, out, error in said:
        assert all(letter.isprintable() or letter == "\n" for letter in out + error), out + error
    assert "?]0;x???y" in said[0][1] and "?[2J?thread" in said[1][1] and "?]0;x?" in said[2][1]
    assert said[3][1].splitlines()[:2] == ["first", "?[2Jsecond????"]


@pytest.mark.parametrize("endless", ["x" * 4000, "{mark} ok " + "x" * 4000])
def test_an_answer_without_an_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, endless: str
) -> None:
    monkeypatch.setattr(ctl, "MOST_ANSWER_BYTES", 1 << 16)
    piece = f"{endless!r}.format(mark=line.split()[0].decode()).encode()"
    program = ANSWERS.replace("os.write(13, line.split()[0] + BODY)", f"os.write(13, b'\\n' + {piece})").replace(
        "            os.write", "            while True: os.write"
    )
    with running(program.replace("NAME", "b'poser'") + WAIT, CTL="0") as child:
        wait_for_thread(child.pid)
        began = time.monotonic()
        error = refuses(capsys, "ctl", "--timeout", "1", child.pid, "stats")
        assert ("answers without an end" if "mark" in endless else "did not answer in time") in error
        assert time.monotonic() - began < 300


# ---- Whose it is -----------------------------------------------------------------------------------------------------


def asked_by(user: int, pid: int) -> str:
    """What a process of that user is told."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            os.setgroups([])
            os.setgid(user)
            os.setuid(user)
            try:
                said = ctl.ask(pid, "stats")
            except LabError as error:
                said = str(error)
            os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with open(reading) as text:
        return text.read()


ALLOCATES = """
import select, sys
print('ready', flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]: blocks = [bytes(2000) for _ in range(200)]
"""


def test_one_thread_that_allocates(capsys: pytest.CaptureFixture[str]) -> None:
    """It starts a control thread because it is asked, not before."""
    with running(ALLOCATES) as child:
        tasks = Path(f"/proc/{child.pid}/task")
        with pytest.raises(LabError, match="or its heap is small: hakmem has no thread in it"):
            ctl.ask(child.pid, "stats")  # as `top` does
        time.sleep(0.2)
        assert len(list(tasks.iterdir())) == 1
        assert says(capsys, "ctl", child.pid, "stats")[1].startswith("hakmem ")
        assert len(list(tasks.iterdir())) == 3
        assert ctl.ask(child.pid, "set decay_ms=300") == "decay_ms: 1000 -> 300\n"


def test_one_thread_that_sleeps(capsys: pytest.CaptureFixture[str]) -> None:
    """It is told what is waited for, in vain; then the wish is taken back."""
    with running() as child:
        status, out, error = says(capsys, "ctl", "--timeout", "1", child.pid, "stats")
        assert (status, out) == (2, "")
        assert "waiting until it asks for memory" in error
        assert (
            "asked for none that its cache doesn't have: hakmem has no thread in it; started with HAKMEM_CTL=1" in error
        )
        assert wishes(child.pid) == [ctl.NO_WISH]


def wishes(pid: int) -> list[bytes]:
    """The words in its memory that a control thread is wished for by."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        places = [place for base in ctl.library_bases(pid) if (place := ctl._wish_place(memory, base))]
        return [ctl._read(memory, place, 8) for place in places]


def test_all_who_ask_one_thread_at_once_are_answered() -> None:
    """Also those who wait on when another gives up."""
    answers: list[str] = []
    waiting: list[str] = []

    def ask(timeout_s: float) -> None:
        try:
            answers.append(ctl.ask(child.pid, "stats", timeout_s, waiting.append))
        except LabError as error:
            answers.append(str(error))

    with running(f"{WAIT}{ALLOCATES}") as child:
        assert child.stdin and child.stdout
        threads = [threading.Thread(target=ask, args=(timeout_s,)) for timeout_s in (600, 600, 1)]
        for thread in threads[:2]:
            thread.start()
        while len(waiting) < 2:
            time.sleep(0.01)
        threads[2].start()
        threads[2].join()
        assert len(answers) == 1 and "it asked for none" in answers[0], answers
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        for thread in threads:
            thread.join()
        assert [answer.partition(" ")[0] for answer in answers[1:]] == ["hakmem"] * 2, answers


def test_who_waits_is_told_that_the_process_has_ended() -> None:
    def ends(_: str) -> None:
        child.kill()
        child.wait()

    with running() as child:
        with pytest.raises(LabError, match="ended before it answered"):
            ctl.ask(child.pid, "stats", 60, ends)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_is_interrupted_takes_the_wish_back(number: signal.Signals) -> None:
    with running() as child:
        words = [sys.executable, "-m", "hakmem", "ctl", "--timeout", "600", str(child.pid), "stats"]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as asks:
            while wishes(child.pid) != [ctl.WISHED]:
                assert asks.poll() is None
                time.sleep(0.01)
            asks.send_signal(number)
            assert asks.wait(600) == 130
        assert wishes(child.pid) == [ctl.NO_WISH]


def test_a_process_that_sleeps_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    with running() as child:
        for request in ("stats", "purge"):
            status, out, error = says(capsys, "ctl", child.pid, request)
            assert (status, out) == (2, "")
            assert "sleeps, and hakmem has no thread in it to answer: `hakmem explain PID` reads" in error


SLEEPS = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *sleeps(void *unused) { for (;;) pause(); return unused; }
int main(void) {
    static char *blocks[4000];
    for (int i = 0; i < 4000; i++) memset(blocks[i] = malloc(10000), 1, 10000);
    pthread_t other;
    pthread_create(&other, NULL, sleeps, NULL);
    puts("ready");
    fflush(stdout);
    return getchar() == EOF || blocks[9] == NULL;
}
"""


def test_threads_that_all_sleep_are_told_at_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The second one has asked for nothing, so hakmem has no thread in it."""
    program = compile_c(tmp_path / "sleeps", SLEEPS, "-pthread")
    environment = {**os.environ, "LD_PRELOAD": str(native.library())}
    with subprocess.Popen([program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        assert len(list(Path(f"/proc/{child.pid}/task").iterdir())) == 2
        status, _, error = says(capsys, "ctl", child.pid, "stats")
        child.communicate(b"x")
    assert status == 2 and "has one thread" not in error
    assert "sleeps, and hakmem has no thread in it to answer" in error


def test_what_is_shared_is_not_read(tmp_path: Path) -> None:
    """It may be a device."""
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        for kind, is_read in ((mmap.MAP_SHARED, False), (mmap.MAP_PRIVATE, True)):
            with mmap.mmap(file.fileno(), mmap.PAGESIZE, kind, mmap.PROT_READ):
                (line,) = [one for one in ctl.memory_map(os.getpid()).splitlines() if one.endswith(f" {file.name}")]
                assert (int(line.partition("-")[0], 16) in ctl.library_bases(os.getpid())) == is_read


@needs_root
@pytest.mark.parametrize("map_files", [True, False])
def test_a_process_that_has_changed_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, map_files: bool) -> None:
    """The path of its library leads nowhere from there. Not everybody may open what it has mapped as such. Its control
    thread is there before: it begins only where it can read in /proc that no filter forbids it to."""
    if not map_files:
        opened = foreign.opened
        monkeypatch.setattr(foreign, "opened", lambda path: opened(str(path).replace("map_files", "none")))
    with running(f"import os\n{WAIT}os.chroot({str(tmp_path)!r})\n{WAIT}", CTL="1") as child:
        wait_for_thread(child.pid)
        assert child.stdin and child.stdout
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        assert ctl.ask(child.pid, "stats").startswith("hakmem ")
        assert child.pid in top.Watcher().samples()


@needs_root
def test_another_users() -> None:
    with answering() as child:
        assert "belongs to root: only that user and root may ask it" in asked_by(65534, child.pid)
        ctl.ask(child.pid, "stats")


@needs_root
@pytest.mark.parametrize("dumpable", [1, 0])
def test_the_same_user_may_unless_undumpable(dumpable: int) -> None:
    prctl = {"x86_64": 157, "aarch64": 167}.get(platform.machine())
    if prctl is None:
        pytest.skip(f"no system call's number is known for {platform.machine()}")
    for tool, package in (("perl", "perl-base"), ("setpriv", "util-linux")):
        if not shutil.which(tool):
            pytest.skip(f"{tool} is not installed (Debian's package {package})")
    program = f"$| = 1; syscall({prctl}, 4, {dumpable}, 0, 0, 0); print qq(ready\\n); <STDIN>"
    # setpriv itself must not have threads: it gives up its rights by calls that are each thread's own.
    words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    words += ["env", "HAKMEM_CTL=1", f"LD_PRELOAD={native.library()}", "perl", "-e", program]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as child:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        wait_for_thread(child.pid)
        said = asked_by(65534, child.pid)
        assert said.startswith("hakmem ") if dumpable else "can't be looked into by you" in said or "only" in said
        assert ctl.ask(child.pid, "stats").startswith("hakmem ")  # root
    assert child.returncode == 0


def test_a_filtered_process(capsys: pytest.CaptureFixture[str]) -> None:
    """Under a filter it has no control thread unasked; asked for, it has."""
    program = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
libc.prctl(38, 1, 0, 0, 0)
code = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), 8)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(code)), 16)
assert libc.prctl(22, 2, program, 0, 0) == 0
os.environ["FILTERED"] = "1"
os.execv(sys.executable, [sys.executable, "-S", "-c", "blocks = [bytes(1000) for _ in range(80000)]\\n" + WAIT])
""".replace("WAIT", repr(WAIT))
    with running(program) as child:
        time.sleep(0.5)
        assert "its system calls are filtered" in refuses(capsys, "ctl", child.pid, "stats")
    with running(program, CTL="1") as child:
        wait_for_thread(child.pid)
        ctl.ask(child.pid, "stats")


# ---- Metrics ---------------------------------------------------------------------------------------------------------


def families(text: str) -> dict[str, float]:
    """Samples without labels, by name, as a stock parser reads them."""
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels
    }


def test_metrics_are_read_by_a_stock_parser() -> None:
    with answering_program("blocks = [bytes(1000) for _ in range(10000)]\n" + WAIT) as child:
        stats = json.loads(ctl.ask(child.pid, "stats json"))
        values = families(ctl.ask(child.pid, "metrics"))
        assert values["hakmem_live_bytes"] == pytest.approx(stats["live_bytes"], rel=0.01)
        assert values["hakmem_refills_total"] >= stats["refills"] > 0
        assert values["hakmem_purged_bytes_total"] >= stats["purged_bytes"]
        text = ctl.ask(child.pid, "metrics")
        blocks = next(one for one in text_string_to_metric_families(text) if one.name == "hakmem_class_blocks")
        assert {sample.labels["state"] for sample in blocks.samples} == {"live", "cached", "free"}


def test_metrics_file_is_whole_at_every_moment(tmp_path: Path) -> None:
    with running(CTL="1", METRICS_FILE=str(tmp_path / "%p.prom")) as child:
        file = tmp_path / f"{child.pid}.prom"
        wait_for_thread(child.pid)
        ctl.ask(child.pid, "set metrics_ms=100")
        deadline, written = time.monotonic() + 300, set()
        while len(written) < 5 and time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                text = file.read_text()
                assert families(text)["hakmem_heaps"] >= 1
                written.add(file.stat().st_mtime_ns)
        assert len(written) >= 5
        stop(child)
        assert [path for path in tmp_path.iterdir() if path.suffix != ".part"] == [file]


def test_metrics_file_that_cannot_be_written(tmp_path: Path) -> None:
    with running(METRICS_FILE=str(tmp_path / "no" / "file")) as child:
        wait_for_thread(child.pid)
        ctl.ask(child.pid, "stats")
    assert not list(tmp_path.iterdir())


# ---- Top -------------------------------------------------------------------------------------------------------------


def test_top_lists_processes_once(capsys: pytest.CaptureFixture[str]) -> None:
    with answering() as child, running() as small:
        time.sleep(0.2)
        status, out, error = says(capsys, "top", "--interval", "0.2")
        assert (status, error) == (0, "")
        rows: dict[str, list[str]] = {}
        for line in out.splitlines():
            rows.setdefault(line.split()[0], []).append(line)
        (row,) = rows[str(child.pid)]
        assert "M " in row and "/s" in row
        (row,) = rows[str(small.pid)]
        assert "M " in row and len(row.split()) == 7 and "don't answer: read from outside" in out


def test_who_becomes_a_program_on_hakmem_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `hakmem run`, which is of the same file as what it starts if that is Python."""
    monkeypatch.setattr(top, "STARTS_S", 0.0)
    words = [sys.executable, "-S", "-E", "-c", WAIT]
    becomes = f"{WAIT}import os\nos.execve({words[0]!r}, {words!r}, {{'LD_PRELOAD': {str(native.library())!r}}})\n"
    with running(becomes, preload=False) as child:
        watcher = top.Watcher()
        assert child.pid not in list(watcher.pids())
        assert child.stdin and child.stdout
        child.stdin.write("go on\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n"
        assert child.pid in list(watcher.pids())


def test_who_becomes_another_program_is_seen_where_no_places_are_told(tmp_path: Path) -> None:
    """A sandbox that says 0 of where arguments lie."""
    (tmp_path / "stat").write_text("7 (a b) S" + 49 * " 0")
    found = []
    for program in ("/bin/launcher", "/bin/program"):
        (tmp_path / "exe").unlink(missing_ok=True)
        (tmp_path / "exe").symlink_to(program)
        found.append(top._program(tmp_path))
    assert found[0] != found[1]


def test_a_program_is_looked_at_until_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its linker may not have mapped the library yet."""
    looks: list[int] = []

    def at_the_third_look(pid: int) -> bool:
        looks.append(pid)
        return looks.count(pid) > 2

    def found() -> list[bool]:
        looks.clear()
        watcher = top.Watcher()
        return [os.getpid() in list(watcher.pids()) for _ in range(4)]

    monkeypatch.setattr(ctl, "is_on_hakmem", at_the_third_look)
    monkeypatch.setattr(top, "STARTS_S", 1e9)
    assert found() == [False, False, True, True] and looks.count(os.getpid()) == 3
    monkeypatch.setattr(top, "STARTS_S", 0.0)
    assert found() == [False] * 4 and looks.count(os.getpid()) == 1


# The kernel cuts a name after 15 bytes, also within a character.
CUT_NAME = (
    "import ctypes, threading\nctypes.CDLL(None).prctl(15, b'" + "\\xd0\\xb6" * 7 + "\\xd0')\n"
    "def run():\n    ctypes.CDLL(None).prctl(15, b'\\xff')\n    print('ready', flush=True)\n    sys.stdin.readline()\n"
    "import sys\nthreading.Thread(target=run).start()\n"
)


def test_names_that_are_no_text(capsys: pytest.CaptureFixture[str]) -> None:
    with running(CUT_NAME, CTL="1") as child:
        wait_for_thread(child.pid)
        assert "live" in ctl.ask(child.pid, "stats")
        status, out, error = says(capsys, "top", "--interval", "0.2")
        assert (status, error) == (0, "") and f"{child.pid} " in out
    assert "there is no process" in refuses(capsys, "ctl", child.pid, "stats")


def test_top_of_one_process(capsys: pytest.CaptureFixture[str]) -> None:
    with answering_program("blocks = [bytes(1000) for _ in range(10000)]\n" + WAIT) as child:
        status, out, _ = says(capsys, "top", child.pid, "--interval", "0.2")
        assert status == 0 and "blocks of" in out and "thread" in out and "1.12K" in out
    assert "there is no process" in refuses(capsys, "top", child.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("words", [("top",), ("top", "1"), ("ctl", "1", "stats")])
def test_without_proc_nothing_is_said_of_processes(words: tuple[str, ...]) -> None:
    command = ["sh", "-c", 'mount -t tmpfs none /proc || exit 77; exec "$@"', "-", sys.executable, "-m", "hakmem"]
    done = subprocess.run(["unshare", "--mount", *command, *words], capture_output=True, text=True, timeout=600)
    if done.returncode in (1, 77):
        pytest.skip(f"no file system can be mounted: {done.stderr}")
    said = "hakmem: there is no /proc here, so no process can be found\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_top_reads_from_outside_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, as long as no more of it is resident."""
    looks: list[int] = []
    look = explain.of_process

    def counted(pid: int) -> explain.Explanation:
        looks.append(pid)
        return look(pid)

    monkeypatch.setattr(explain, "of_process", counted)
    with running("blocks = [bytes(1000) for _ in range(10000)]\n" + WAIT) as child:
        watcher = top.Watcher()
        monkeypatch.setattr(watcher, "pids", lambda: iter([child.pid]))
        found = [watcher.samples() for _ in range(3)][-1]
        shown = top.processes(found, {}, "l")
    assert not found[child.pid].stats and 10_000_000 < (found[child.pid].figure("live_bytes") or 0) < 14_000_000
    assert len(looks) < 3 and "at most one of its threads" not in shown[1]
    assert shown[2].startswith("1 don't answer: read from outside")


def test_top_refuses_what_cannot_be_asked(capsys: pytest.CaptureFixture[str]) -> None:
    with running(preload=False) as child:
        assert "is not on hakmem" in refuses(capsys, "top", child.pid)


def test_rates_are_of_the_time_between() -> None:
    row = {"classes": [], "threads": [], "threads_left_out": 0, "large_blocks": 0, "large_bytes": 0}
    figures = dict.fromkeys(("live_bytes", "free_bytes", "cached_bytes", "purged_bytes", *top.MISSES), 0)
    first = top.Sample(1, "x", 10.0, 1 << 20, {**row, **figures})
    second = top.Sample(1, "x", 12.0, 3 << 20, {**row, **figures, "purged_bytes": 4 << 20, "refills": 500})
    shown = "\n".join(top.processes({1: second}, {1: first}))
    assert "+1.00M/s" in shown and " 2.00M/s" in shown and " 250/s" in shown


def crowd(count: int) -> dict[int, top.Sample]:
    numbers = {name: 1 << 40 for name in (*top.TOTALS, *top.MISSES)}
    row = {"classes": [dict.fromkeys(top.ROWS["classes"], 1 << 20)] * 40, "threads_left_out": 3}
    threads = [{"name": "x" * 15, **dict.fromkeys(top.ROWS["threads"], 1 << 20)}] * 40
    stats = {**row, **numbers, "threads": threads}
    every = {
        (1 << 22) - i: top.Sample((1 << 22) - i, f"{i} of a crowd of", 2.0, i << 30, {**stats, "live_bytes": -i}, "")
        for i in range(1, count)
    }
    return {**every, 7: top.Sample(7, "silent", 2.0, 5, {}, "is on hakmem, but has no control thread: " + "why " * 30)}


@pytest.mark.parametrize("count", [2, 10, 100])
def test_a_screen_of_80_columns_has_a_line_for_each(count: int) -> None:
    before = {pid: top.Sample(pid, one.name, 1.0, 0, one.stats) for pid, one in crowd(count).items()}
    lines = top.processes(crowd(count), before, screen=top.Screen(80, 22))
    assert len(lines) == min(count + 1, 22) and all(len(line) <= 80 for line in lines)
    assert lines[0].split()[:7] == ["PID", "process", "RSS", "growth", "live", "free", "caches"]
    assert count < 22 or lines[-1] == f"and {count - 20} more"
    assert lines[1].split()[0] == str((1 << 22) - count + 1), "the largest first, its number whole"
    for view in (crowd(count)[7], crowd(count)[(1 << 22) - 1]):
        if view.stats:
            page = top.process(view, None, top.Screen(80, 22))
            assert len(page) <= 22 and all(len(line) <= 80 for line in page)
            assert any(line.startswith("blocks of") for line in page) and any("remote frees" in line for line in page)


@pytest.mark.parametrize(("key", "first"), [("p", 7), ("r", (1 << 22) - 9), ("l", (1 << 22) - 1), ("g", (1 << 22) - 9)])
def test_keys_sort(key: str, first: int) -> None:
    before = {pid: top.Sample(pid, one.name, 1.0, 0, one.stats) for pid, one in crowd(10).items()}
    assert top.processes(crowd(10), before, key)[1].split()[0] == str(first)


def test_top_on_a_terminal_without_a_cursor_shows_all_once() -> None:
    ours, theirs = pty.openpty()
    with answering() as child:
        words = [sys.executable, "-m", "hakmem", "top", "--interval", "0.1"]
        done = subprocess.run(words, stdin=theirs, stdout=theirs, timeout=600, env={**os.environ, "TERM": "dumb"})
        text = os.read(ours, 1 << 16)
    assert done.returncode == 0 and str(child.pid).encode() in text and b"\x1b" not in text
    os.close(ours)
    os.close(theirs)


def test_top_on_a_terminal_sorts_and_ends_at_a_key() -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with answering() as child:
        words = [sys.executable, "-m", "hakmem", "top", "--interval", "30"]
        with_cursor = {**os.environ, "TERM": "xterm"}
        shown = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, env=with_cursor)
        text = b""
        for key, expected in ((b"", b"by RSS now"), (b"l", b"by live now"), (b"q", b"")):
            os.write(ours, key)
            while expected not in text:
                text += os.read(ours, 1 << 16)
        shown.wait(600)
        assert shown.returncode == 0 and shown.stderr is not None and shown.stderr.read() == b""
        assert str(child.pid).encode() in text
    os.close(ours)
    os.close(theirs)
