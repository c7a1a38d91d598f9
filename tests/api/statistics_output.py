"""Statistics as users ask for them: at exit, on a signal, as JSON that docs/statistics.schema.json describes.

    statistics_output.py LIBRARY SCHEMA CASE [LINKED]

LINKED is a program that is linked with hakmem.o, for the case `copies`.

The schema is a contract: what is written satisfies it, and nothing is written that it doesn't describe. It is checked by the few
keywords of JSON Schema 2020-12 that it uses; any other keyword fails, because nobody would check it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from preloads import expect_hakmem
from typing import Any

LIMIT_S = 300
Json = Any


class Failure(Exception):
    pass


def expect(condition: object, message: str) -> None:
    if not condition:
        raise Failure(message)


# ---- The schema ------------------------------------------------------------------------------------------------------

TYPES = {"object": dict, "array": list, "string": str, "integer": int}
ANNOTATIONS = {"$schema", "$defs", "title", "description"}


def problems(value: Json, schema: Json, root: Json, where: str = "$") -> Iterator[str]:
    """What is wrong with a value, and what it has that the schema doesn't describe."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**root["$defs"][name], **{key: word for key, word in schema.items() if key != "$ref"}}
    for keyword, word in schema.items():
        if keyword == "type":
            if not isinstance(value, TYPES[word]) or isinstance(value, bool):
                yield f"{where}: {value!r} is no {word}"
                return
        elif keyword == "minimum":
            if value < word:
                yield f"{where}: {value} < {word}"
        elif keyword == "maximum":
            if value > word:
                yield f"{where}: {value} > {word}"
        elif keyword == "pattern":
            if not re.search(word, value):
                yield f"{where}: {value!r} does not match {word}"
        elif keyword == "required":
            yield from (f"{where}: no {name}" for name in word if name not in value)
        elif keyword == "properties":
            for name, member in value.items():
                if name in word:
                    yield from problems(member, word[name], root, f"{where}.{name}")
                else:
                    yield f"{where}: {name} is not in docs/statistics.schema.json"
        elif keyword == "additionalProperties":
            for name, member in value.items():
                if name not in schema.get("properties", {}):
                    yield from problems(member, word, root, f"{where}.{name}")
        elif keyword == "items":
            for index, item in enumerate(value):
                yield from problems(item, word, root, f"{where}[{index}]")
        elif keyword not in ANNOTATIONS:
            yield f"{where}: {keyword} is a keyword that this test does not know"


def checked(text: str, schema: Json) -> Json:
    value = json.loads(text)
    found = list(problems(value, schema, schema))
    expect(not found, "; ".join(found))
    total = sum(row["live"] for row in value["classes"]) + value["large_blocks"]
    expect(total == value["live_blocks"], f"classes have {total} live blocks, all together {value['live_blocks']}")
    expect(len({row["heap"] for row in value["threads"]}) == len(value["threads"]), "a heap has two threads")
    expect(len(value["threads"]) <= value["heaps"], "more threads than heaps")
    return value


# ---- Programs that are run -------------------------------------------------------------------------------------------

NAMED_THREADS = """
import ctypes, os, signal, sys, threading
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = (ctypes.c_void_p,)
def work(name):
    libc.prctl(15, name, 0, 0, 0)
    blocks = [libc.malloc(size) for size in range(1, 40000, 100)]
    for block in blocks[::2]:
        libc.free(block)
    ready.wait()
    done.wait()
ready, done = threading.Barrier(4), threading.Event()
threads = [threading.Thread(target=work, args=(name,)) for name in (b"first", b'sec"o\\\\nd', b"\\xc3\\xa4third")]
for thread in threads:
    thread.start()
ready.wait()
"""
WAIT_FOR_INPUT = """
print("ready", flush=True)
sys.stdin.readline()
done.set()
"""


def environment(library: Path, **settings: str) -> dict[str, str]:
    rest = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    return {**rest, "LD_PRELOAD": str(library), **{f"HAKMEM_{name}": value for name, value in settings.items()}}


class Program:
    """Python, which says when it is ready, and ends when it is told to."""

    def __init__(self, library: Path, program: str, **settings: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", "-E", "-c", program + WAIT_FOR_INPUT], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment(library, **settings))
        assert self.process.stdout is not None
        expect(self.process.stdout.readline() == "ready\n", "it did not start")

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, str]:
        """Exit status and what it wrote to standard error."""
        _, error = self.process.communicate("end\n", timeout=LIMIT_S)
        return self.process.returncode, error


def wait_for(path: Path) -> str:
    """What is written to a file, when it is whole."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        text = path.read_text() if path.exists() else ""
        if text.endswith("}\n"):
            return text
        time.sleep(0.002)
    raise Failure(f"no statistics in {path}")


# ---- Cases -----------------------------------------------------------------------------------------------------------


def at_exit(library: Path, schema: Json, folder: Path) -> None:
    for command in (["true"], ["ls", "/"], [sys.executable, "-c", "pass"]):
        setting = f"json:{folder}/%p.json"
        done = subprocess.run(command, env=environment(library, STATS=setting), capture_output=True, timeout=LIMIT_S)
        expect(done.returncode == 0 and done.stderr == b"", f"{command}: {done}")
        written = list(folder.glob("*.json"))
        expect(len(written) == 1, f"{command} wrote {written}")
        value = checked(written[0].read_text(), schema)
        expect(value["pid"] == int(written[0].stem), f"{value['pid']} wrote {written[0]}")
        written[0].unlink()


def threads(library: Path, schema: Json, folder: Path) -> None:
    """While they live: at the exit of the program they have gone."""
    path = folder / "statistics"
    program = Program(library, NAMED_THREADS, STATS=f"json:{path}", STATS_SIGNAL="USR1")
    program.send(signal.SIGUSR1)
    value = checked(wait_for(path), schema)
    names = {row["name"]: row for row in value["threads"]}
    expect({"first", "sec?o?nd", "??third"} <= set(names), f"threads are {sorted(names)}")
    ids = {int(name) for name in os.listdir(f"/proc/{program.process.pid}/task")}
    expect({row["id"] for row in value["threads"]} <= ids, f"{value['threads']} of {ids}")
    expect(names["first"]["refills"] > 0 and names["first"]["cached_bytes"] > 0, f"{names['first']}")
    expect(names["first"]["large_allocs"] > 0, f"{names['first']}")
    expect(program.end() == (0, ""), "it did not end well")


def on_signal(library: Path, schema: Json, folder: Path) -> None:
    """Again and again, and at the end once more."""
    path = folder / "statistics"
    for name, number in (("USR2", signal.SIGUSR2), ("HUP", signal.SIGHUP), ("40", 40)):
        program = Program(library, NAMED_THREADS, STATS=f"json:{path}", STATS_SIGNAL=name)
        for _ in range(5):
            program.send(number)
            checked(wait_for(path), schema)
            path.unlink()
        expect(program.end() == (0, ""), "it did not end well")
        checked(wait_for(path), schema)
        path.unlink()


def to_stderr(library: Path, schema: Json, folder: Path) -> None:
    """Text, where nothing else was asked for; and not at the end."""
    program = Program(library, "import sys, threading; done = threading.Event()", STATS_SIGNAL="USR2")
    program.send(signal.SIGUSR2)
    status, error = program.end()
    expect(status == 0 and error.startswith("hakmem "), f"{status}, {error!r}")
    expect(error.count(" statistics\n") == 1 and "  live_bytes " in error, error)
    expect(re.search(r"^ +\d+ python\S* +\d+ +\d+", error, re.MULTILINE), error)


def own_handler(library: Path, schema: Json, folder: Path) -> None:
    """The program's handler is the one that counts; another signal is left alone."""
    handles = "import signal, sys, threading; done = threading.Event(); " \
              "signal.signal(signal.SIGUSR2, lambda *_: print('handled', file=sys.stderr, flush=True))"
    program = Program(library, handles, STATS_SIGNAL="USR2")
    program.send(signal.SIGUSR2)
    expect(program.end() == (0, "handled\n"), "its handler was not called")
    program = Program(library, "import sys, threading; done = threading.Event()", STATS_SIGNAL="USR2")
    program.send(signal.SIGUSR1)
    program.process.wait(LIMIT_S)
    expect(program.process.returncode == -signal.SIGUSR1, f"it ended with {program.process.returncode}")
    words = ["nohup", sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGHUP)"]
    done = subprocess.run(words, env=environment(library, STATS_SIGNAL="HUP"), capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, timeout=LIMIT_S)
    expect(done.returncode == 0 and "HAKMEM_STATS_SIGNAL ignored" in done.stderr, f"{done}")


def in_child(library: Path, schema: Json, folder: Path) -> None:
    """A forked child writes its own."""
    forks = "import os, sys, threading; done = threading.Event(); child = os.fork()\n" \
            "if child == 0:\n    import signal\n    signal.sigtimedwait([], 0.0)\n" \
            "    os.kill(os.getpid(), signal.SIGUSR2)\n    os._exit(0)\n" \
            "os.waitpid(child, 0)\n"
    program = Program(library, forks, STATS=f"json:{folder}/%p", STATS_SIGNAL="USR2")
    expect(program.end() == (0, ""), "it did not end well")
    written = sorted(folder.iterdir())
    expect(len(written) == 2, f"{written}")
    for path in written:
        value = checked(path.read_text(), schema)
        expect(value["pid"] == int(path.name), f"{value['pid']} wrote {path}")
        expect(value["threads"][-1]["id"] == value["pid"], f"{value['threads']}")


def complaints(library: Path, schema: Json, folder: Path) -> None:
    """A line that can't be said is not said: it waits for nobody, and goes into no file of the program's."""
    data = folder / "data"
    script = f'exec 2>&-; exec 2>{shlex.quote(str(data))}; echo record >&2; exit 0'
    done = subprocess.run(["bash", "-c", script], env=environment(library, STATS="text:/none/such", PROF="1:/none/such"),
                          capture_output=True, text=True, timeout=LIMIT_S)
    expect(done.returncode == 0 and data.read_text() == "record\n", f"{done}, {data.read_text()}")
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    full = subprocess.run(["true"], env=environment(library, STATS="text:/none/such", PROF="1:/none/such"),
                          stderr=writer, timeout=LIMIT_S)
    os.close(reader)
    os.close(writer)
    expect(full.returncode == 0, f"{full}")


def unread_pipe(library: Path, schema: Json, folder: Path) -> None:
    """Whoever should read has gone, or never came: the program ends as it would have."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(["true"], env=environment(library, STATS="text"), stderr=writer, timeout=LIMIT_S)
    wrong = subprocess.run(["true"], env=environment(library, NONSENSE="1", STATS="text:/none/such"), stderr=writer,
                           timeout=LIMIT_S)
    os.close(writer)
    expect(done.returncode == 0 and wrong.returncode == 0, f"{done}, {wrong}")
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    named = subprocess.run(["true"], env=environment(library, STATS=f"json:{pipe}"), capture_output=True, text=True,
                           timeout=LIMIT_S)
    expect(named.returncode == 0 and named.stderr == f"hakmem: can't write statistics to {pipe}\n", f"{named}")
    full = subprocess.run(["true"], env=environment(library, STATS="json:/dev/full", PROF="1:/dev/full"),
                          capture_output=True, text=True, timeout=LIMIT_S)
    expect(full.returncode == 0 and full.stderr == "hakmem: can't write statistics to /dev/full\n"
           "hakmem: can't write the heap profile to /dev/full\n", f"{full}")
    for place in ("/none/such", str(folder), str(pipe), "/dev/full"):
        lost = subprocess.run(["true"], env=environment(library, METRICS_FILE=place), capture_output=True, text=True,
                              timeout=LIMIT_S)
        expect(lost.returncode == 0 and lost.stderr == f"hakmem: can't write metrics to {place}\n", f"{lost}")
    tool = subprocess.run(["ls", "-d", "/"], env=environment(library, STATS="text:/none/such"), capture_output=True,
                          text=True, timeout=LIMIT_S)  # closes standard error before it ends
    expect(tool.returncode == 0 and tool.stderr == "hakmem: can't write statistics to /none/such\n", f"{tool}")
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as read:
        deadline, text = time.monotonic() + LIMIT_S, None
        while text is None and time.monotonic() < deadline:  # until it has opened the pipe
            done = subprocess.run(["true"], env=environment(library, STATS=f"json:{pipe}"), capture_output=True,
                                  timeout=LIMIT_S)
            text = read.communicate(timeout=LIMIT_S)[0] if done.stderr == b"" else None
    checked(text or "", schema)


PROGRAM_OF_ITS_OWN = """
import os, socket, sys
os.closerange(3, 2000)
held = [os.open("/dev/null", os.O_RDONLY) for _ in range(150)]
ends = socket.socketpair()
os.dup2(ends[0].fileno(), held[-50])
for number in held[90:]:
    os.dup2(ends[0].fileno(), number)
if os.fork() == 0:
    sys.exit(0)
os.wait()
ends[1].setblocking(False)
try:
    got = ends[1].recv(100)
except BlockingIOError:
    got = b""
sys.exit(len(got))
"""
DAEMON = """
import os, sys, time
child = os.fork()
if child == 0:
    os.setsid()
    for number in range(3):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)
    time.sleep(60)
print(child)
"""
CANCELLED = """
import ctypes, os
libc = ctypes.CDLL(None)
libc.pthread_self.restype = ctypes.c_void_p
libc.pthread_cancel.argtypes = (ctypes.c_void_p,)
libc.pthread_setcancelstate(1, None)
os.write(1, b"end")
libc.pthread_setcancelstate(0, None)
libc.pthread_cancel(libc.pthread_self())
libc.exit(3)
"""


def run(library: Path, words: list[str], prefix: tuple[str, ...] = (), **settings: str) -> Any:
    rest = {name: value for name, value in os.environ.items() if not name.startswith("HAKMEM_")}
    given = [f"HAKMEM_{name}={value}" for name, value in settings.items()]
    return subprocess.run([*prefix, "env", f"LD_PRELOAD={library}", *given, *words], capture_output=True, text=True,
                          stdin=subprocess.DEVNULL, env=rest, timeout=LIMIT_S)


def by_hand(library: Path, schema: Json, folder: Path) -> None:
    """What is set by hand wins over a policy: bins of all classes follow from bin_bytes."""
    policy, path = folder / "policy", folder / "statistics"

    def found(**settings: str) -> Json:
        done = run(library, ["true"], STATS=f"json:{path}", **settings)
        expect(done.returncode == 0 and done.stderr == "", f"{settings}: {done}")
        return checked(path.read_text(), schema)

    lines = ["hakmem policy 1", f"version {found()['hakmem']}", "program any", "knob decay_ms 4000", "class 2048 64",
             "end"]
    policy.write_text("\n".join(lines) + "\n")
    for knobs, slots in (("decay_ms=70", [{"block_bytes": 2048, "slots": 64}]), ("bin_bytes=4096", [])):
        control = found(POLICY=str(policy), KNOBS=knobs)["control"]
        expect(control["class_slots"] == slots, f"{knobs}: {control['class_slots']}")


TRAPPED = """
import ctypes
leave, trap = ctypes.CDLL(None).exit, ctypes.CDLL("libm.so.6").feenableexcept
trap(0x3d)
leave(3)
"""


def trapped(library: Path, schema: Json, folder: Path) -> None:
    """A program for which each inexact result is a signal: what is written at its end meets none."""
    for settings in ({}, {"STATS": f"json:{folder}/statistics"}, {"STATS": f"text:{folder}/text"},
                     {"HEAP_PROFILE": f"1:{folder}/profile"}):
        done = run(library, [sys.executable, "-S", "-E", "-c", TRAPPED], **settings)
        expect(done.returncode == 3, f"{settings}: {done}")
    checked((folder / "statistics").read_text(), schema)


def own_descriptors(library: Path, schema: Json, folder: Path) -> None:
    """A descriptor that the program closed and got again is the program's."""
    done = run(library, [sys.executable, "-c", PROGRAM_OF_ITS_OWN], STATS="text")
    expect(done.returncode == 0, f"the program's socket got {done.returncode} bytes: {done}")


def daemon(library: Path, schema: Json, folder: Path) -> None:
    """Whoever started it isn't kept waiting."""
    try:
        done = run(library, [sys.executable, "-S", "-c", DAEMON], STATS="text")
    except subprocess.TimeoutExpired as late:
        os.kill(int(late.stdout or b"0"), signal.SIGKILL)
        raise Failure("it waited for the daemon") from late
    os.kill(int(done.stdout), signal.SIGKILL)
    expect(done.returncode == 0 and "live_bytes" in done.stderr, f"{done}")


def cancelled(library: Path, schema: Json, folder: Path) -> None:
    """What is written at the end is no cancellation point."""
    for settings in ({}, {"STATS": f"text:{folder}/stats"}, {"HEAP_PROFILE": f"1:{folder}/profile"}):
        done = run(library, [sys.executable, "-S", "-c", CANCELLED], **settings)
        expect(done.returncode == 3, f"{settings}: {done}")


def limits(library: Path, schema: Json, folder: Path) -> None:
    """Limits of files' sizes and of descriptors."""
    none_larger = ("prlimit", "--fsize=0", "--core=0")
    for settings in ({"STATS": f"text:{folder}/stats"}, {"HEAP_PROFILE": f"1:{folder}/profile"}):
        done = run(library, ["true"], none_larger, **settings)
        expect(done.returncode == 0, f"{settings}: {done}")
    for most in (100, 20):
        done = run(library, ["true"], ("prlimit", f"--nofile={most}"), STATS="text")
        expect(done.returncode == 0 and "live_bytes" in done.stderr, f"{most} descriptors: {done}")


OWN_FILE = """
import os, signal, sys
closed_at, data = sys.argv[1:]
if closed_at == "child" and (child := os.fork()) != 0:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os.closerange(0, 3)
for number in range(3):
    os.open(data, os.O_RDWR | os.O_CREAT | os.O_APPEND)
os.write(2, b"record")
os.kill(os.getpid(), signal.SIGUSR2)
"""


def own_file(library: Path, schema: Json, folder: Path) -> None:
    """A program without standard error may have a file of its own by that number: nothing is written into it."""
    data = folder / "data"
    start = ["bash", "-c", 'exec "$@" 2>&-', "bash"]
    for closed_at, before in (("child", []), ("start", start), ("begin", [])):
        words = [*before, sys.executable, "-S", "-c", OWN_FILE, closed_at, str(data)]
        done = subprocess.run(words, env=environment(library, STATS="text", STATS_SIGNAL="USR2"), capture_output=True,
                              timeout=LIMIT_S)
        expect(done.returncode == 0 and data.read_text() == "record", f"{closed_at}: {done}, {data.read_text()[:100]}")
        data.unlink()


def copies(library: Path, schema: Json, folder: Path) -> None:
    """Of two that are preloaded, or of one that is where the program is linked with hakmem, the first has malloc: it
    writes what settings ask for, and the other nothing over it. Threads are that one's, too."""
    other = folder / "other.so"
    linked, secure = sys.argv[4:]
    shutil.copy(library, other)
    written, profile = folder / "statistics", folder / "profile"
    asked = {"STATS": f"json:{written}", "HEAP_PROFILE": f"1:{profile}", "HEAP_PROFILE_INTERVAL": "1K"}

    def check(what: str) -> None:
        expect(checked(written.read_text(), schema)["refills"] > 0, f"{what}: statistics of a copy that nobody calls")
        expect("\nsite " in profile.read_text(), f"{what}: a profile of such a copy")
        written.unlink()
        profile.unlink()

    for first, second in ((library, other), (library, secure), (secure, library)):
        waits = "import sys, threading; done = threading.Event()"
        program = Program(Path(f"{first}:{second}"), waits, CTL="1", **asked)
        tasks, names = Path(f"/proc/{program.process.pid}/task"), []
        deadline = time.monotonic() + LIMIT_S
        while "hakmem-ctl\n" not in names and time.monotonic() < deadline:
            names = [(task / "comm").read_text() for task in tasks.iterdir()]
        expect(names.count("hakmem-ctl\n") == 1, f"{first}, then {second}: {names}")
        expect(program.end() == (0, ""), f"{first}, then {second}: it did not end well")
        check(f"{first}, then {second}")
    done = subprocess.run([linked, "works"], env=environment(library, **asked), timeout=LIMIT_S)
    expect(done.returncode == 0, f"{done}")
    check("linked, and preloaded")


CASES = {"exit": at_exit, "threads": threads, "signal": on_signal, "stderr": to_stderr, "handler": own_handler,
         "child": in_child, "unread_pipe": unread_pipe, "complaints": complaints,
         "own_descriptors": own_descriptors, "own_file": own_file,
         "daemon": daemon, "cancelled": cancelled, "limits": limits, "copies": copies, "by_hand": by_hand,
         "trapped": trapped}


def main() -> int:
    library, schema = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    expect_hakmem(library)
    with tempfile.TemporaryDirectory(prefix="statistics-", dir=os.getcwd()) as folder:
        try:
            CASES[sys.argv[3]](library, schema, Path(folder))
        except Failure as failure:
            print(f"{sys.argv[3]}: {failure}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
