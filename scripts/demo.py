#!/usr/bin/env python3
"""demo: programs everybody knows, on glibc's malloc and on hakmem, side by side.

    ./dev demo [--all] [--rounds N] [--only NAME]       (after a build: scripts/demo.py --build build/release)

For each program of the table PROGRAMS:

  1. one run on glibc: its stdout, stderr, exit status and files are what every later run must repeat to the byte;
  2. one run on hakmem with HAKMEM_STATS set: every process on hakmem leaves a file with its pid and its allocations.
     Those files, read back, are the proof of takeover. (A preload that fails prints one line and runs on with glibc.);
  3. rounds of glibc, hakmem, glibc, hakmem ... with no HAKMEM_* set: the figures of the table are their medians.

A wrong output, a process that can't be proved or a program that fails is named, and the exit status is 1.
scripts/demo/ holds what the programs read, and measure.c, which starts them and takes their figures.
"""
from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

ROOT = Path(__file__).resolve().parent.parent
INPUTS = ROOT / "scripts" / "demo"
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
RUN_TIMEOUT_S = 120
NOTHING_TO_RUN = 77  # CTest's word for "skipped"

Values = Dict[str, str]


class Failure(Exception):
    """Something the user must read; the message is complete."""


# ---- The programs -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Program:
    name: str
    package: str  # Debian's, for --all
    needs: Tuple[Tuple[str, ...], ...]  # of each group the first one installed; the first group's is {exe}
    command: Tuple[str, ...]  # {placeholders}: exe, inputs, python, port, and what prepare() adds
    files: Tuple[str, ...] = ()  # outputs besides stdout and stderr
    processes: int = 1  # at least so many must prove that they ran on hakmem
    allocations: int = 10_000  # and be handed so many blocks together: more than the C library takes for itself
    stdout_filter: Optional[Callable[[bytes], bytes]] = None  # only where two runs on glibc differ
    prepare: Optional[Callable[["Runner", Values], Values]] = None
    drive: Optional[Callable[[Values], bytes]] = None  # talks to a server until it ends; what it returns is output too
    brings_allocator: bool = False  # linked with another malloc: glibc's has to be preloaded too


def programs() -> Tuple[Program, ...]:
    python = ((PYTHON,),)
    return (
        Program("python", "python3", python, ("{exe}", "{inputs}/objects.py")),
        Program("sqlite", "python3", python, ("{exe}", "{inputs}/rows.py", "1000000")),
        Program("c++", "g++", (("g++",),),
                ("{exe}", "-std=c++17", "-O1", "-c", "{inputs}/headers.cpp", "-o", "headers.o"),
                files=("headers.o",), processes=3),
        Program("git", "git", (("git",),),
                ("{python}", "{inputs}/git_passes.py", "{exe}", "{repository}", "{passes}"),
                processes=4, allocations=1_000, prepare=clone_repository),
        # Debian's redis-tools holds the server too, under another name; redis-server would also start a service.
        Program("redis", "redis-tools", (("redis-server", "redis-check-rdb"), ("redis-benchmark",)),
                ("{server}", "--port", "{port}", "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
                 "--jemalloc-bg-thread", "no"),
                stdout_filter=lambda text: re.sub(rb"\d+:[A-Z] .{24}|\d+", b"#", text),  # pids, dates, the port
                prepare=link_server, drive=drive_redis, brings_allocator=True),
        Program("node", "nodejs", (("node", "nodejs"),), ("{exe}", "{inputs}/objects.js")),
        Program("lua", "lua5.4", (("lua5.4", "lua5.3", "lua"),), ("{exe}", "{inputs}/objects.lua")),
        Program("ruby", "ruby", (("ruby",),), ("{exe}", "{inputs}/objects.rb")),
    )


def installed(program: Program) -> Optional[List[str]]:
    """The programs it needs, by path; None when one is missing."""
    found = [next(filter(None, map(shutil.which, group)), None) for group in program.needs]
    return None if None in found else [path for path in found if path]


def clone_repository(runner: Runner, values: Values) -> Values:
    """A bare copy of this repository, so that nobody's commit changes it halfway and nothing here is ever written to.
    Without history (a tarball, an empty repository) the tree as it is becomes a history of one commit."""
    git, copy = values["exe"], runner.work / "repository.git"
    settings = "[safe]\n\tdirectory = *\n[user]\n\tname = demo\n\temail = demo@localhost\n"
    (runner.work / ".gitconfig").write_text(settings)

    def call(*arguments: str) -> int:
        return runner.run([git, *arguments]).status

    if call("-C", str(ROOT), "rev-parse", "-q", "--verify", "HEAD") == 0:
        status = call("clone", "-q", "--bare", "--no-local", str(ROOT), str(copy))
    else:
        inside = (f"--git-dir={copy}", f"--work-tree={ROOT}")
        status = (call("init", "-q", "--bare", str(copy)) or call(*inside, "add", "-A", str(ROOT))
                  or call(*inside, "commit", "-q", "-m", "all"))
    if status:
        raise Failure(f"can't copy the repository {ROOT} for git to read")
    one = runner.run([values["python"], str(INPUTS / "git_passes.py"), git, str(copy), "1"])
    return {"repository": str(copy), "passes": str(min(20, max(1, round(1.2 / one.wall_s))))}


def link_server(runner: Runner, values: Values) -> Values:
    server = runner.work / "redis-server"  # the name it is called by decides what the program is
    server.symlink_to(values["exe"])
    return {"server": str(server)}


def redis_commands() -> Iterator[bytes]:
    """A fixed conversation over every type of value whose answers have one order."""
    for i in range(20000):
        key, text = f"key:{i * 7919 % 15013}", "v" * (i * 31 % 700)
        for words in (("SET", key, text), ("APPEND", key, str(i)), ("RPUSH", f"list:{i % 50}", text[:90]),
                      ("HSET", f"hash:{i % 999}", str(i), text[:40]), ("HGET", f"hash:{i % 500}", str(i - 999)),
                      ("ZADD", f"rank:{i % 9}", str(i * 13 % 997), str(i)), ("ZRANGE", f"rank:{i % 9}", "0", "2"),
                      ("LPOP", f"list:{i % 70}"), ("GET", f"key:{i}"), ("UNLINK", f"key:{i * 3 % 15013}")):
            yield b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words)


def drive_redis(values: Values) -> bytes:
    """Loads the server with redis-benchmark, holds a conversation, ends it. Returns the server's answers."""
    address = ("127.0.0.1", int(values["port"]))
    deadline = time.monotonic() + 20
    while True:
        try:
            client = socket.create_connection(address, timeout=60)
            break
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    with client:
        def ask(request: bytes, end: bytes) -> bytes:
            client.sendall(request)
            answer = bytearray()
            while not answer.endswith(end):
                part = client.recv(1 << 20)
                if not part:
                    raise ConnectionError("the server closed the connection")
                answer += part
            return bytes(answer)

        information = ask(b"INFO server\r\nECHO done\r\n", b"$4\r\ndone\r\n")
        pid = int(re.search(rb"process_id:(\d+)", information).group(1))  # type: ignore[union-attr]
        if values["library"] and not mapped(pid, values["library"]):
            raise Failure(f"the server (pid {pid}) runs without {values['library']}")
        load = ["redis-benchmark", "-h", address[0], "-p", values["port"], "-q", "-n", "60000", "-P", "16",
                "-r", "50000", "-d", "100", "-t", "set,get,lpush,rpop,sadd,hset,zpopmin"]
        if subprocess.run(load, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                          timeout=RUN_TIMEOUT_S).returncode:
            raise ConnectionError("redis-benchmark failed")
        ask(b"FLUSHALL\r\nECHO done\r\n", b"$4\r\ndone\r\n")
        answers = ask(b"".join(redis_commands()) + b"ECHO done\r\n", b"$4\r\ndone\r\n")
        client.sendall(b"SHUTDOWN NOSAVE\r\n")
        with contextlib.suppress(ConnectionResetError):
            client.recv(1)
    return answers


# ---- Running one command -----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """What one run printed and what it cost. CPU and faults: the whole tree of processes; peak: its largest process."""
    pid: int
    status: int  # exit status, or -signal
    wall_s: float
    cpu_s: float
    peak_mib: float
    faults: int
    outputs: Dict[str, bytes]


class Runner:
    """Starts commands through measure, each in an empty folder of its own under `work`, in an environment of its own:
    nothing of the caller's settings (LD_PRELOAD, HAKMEM_*, MALLOC_*, GIT_*) reaches them. Threads may share one."""

    def __init__(self, work: Path):
        self.work = work
        self.launcher = work / "measure"
        self.live: Dict[int, subprocess.Popen[bytes]] = {}
        self.closed = threading.Event()
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if not compiler:
            raise Failure("no C compiler (cc): ./dev build installs one")
        built = subprocess.run([compiler, "-O1", "-o", str(self.launcher), str(INPUTS / "measure.c")],
                               stderr=subprocess.PIPE, text=True)
        if built.returncode:
            raise Failure(f"can't compile measure.c:\n{built.stderr}")
        self.base = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(work), "TMPDIR": str(work), "LC_ALL": "C",
                     "TZ": "UTC", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        if "LD_LIBRARY_PATH" in os.environ:
            self.base["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]

    def run(self, command: Sequence[str], preload: str = "", environment: Mapping[str, str] = {},
            timeout_s: float = RUN_TIMEOUT_S, files: Sequence[str] = (),
            drive: Optional[Callable[[], bytes]] = None) -> Run:
        folder = Path(tempfile.mkdtemp(prefix="run-", dir=self.work))
        outputs, result = folder / "outputs", folder / "result"
        cwd = folder / "cwd"
        outputs.mkdir()
        cwd.mkdir()
        try:
            with open(outputs / "stdout", "wb") as stdout, open(outputs / "stderr", "wb") as stderr:
                process = subprocess.Popen([str(self.launcher), str(result), preload, *command], cwd=cwd,
                                           stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr,
                                           env={**self.base, **environment}, start_new_session=True)
            self.live[process.pid] = process
            driven = None
            try:
                if self.closed.is_set():
                    raise Failure("interrupted")
                if drive:
                    try:
                        driven = drive()
                    except (OSError, subprocess.TimeoutExpired) as error:
                        driven = f"client: {error}\n".encode()
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                raise Failure(f"still running after {timeout_s:.0f} s: {' '.join(command)}") from None
            finally:
                end_group(process)
                self.live.pop(process.pid, None)
            if process.returncode or not result.exists():
                raise Failure(f"can't run {command[0]}: {(outputs / 'stderr').read_text(errors='replace').strip()}")
            pid, status, wall_ns, cpu_us, peak_kib, faults = map(int, result.read_text().split())
            seen = {path.name: path.read_bytes() for path in outputs.iterdir()}
            seen.update({name: (cwd / name).read_bytes() if (cwd / name).exists() else b"" for name in files})
            if driven is not None:
                seen["the client's answers"] = driven
            return Run(pid, os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status),
                       wall_ns / 1e9, cpu_us / 1e6, peak_kib / 1024, faults, seen)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def close(self) -> None:
        self.closed.set()
        for process in list(self.live.values()):
            end_group(process)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """Ends whatever is left of the process and its descendants. (Its group is its own: see start_new_session.)"""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextlib.contextmanager
def new_runner() -> Iterator[Runner]:
    with tempfile.TemporaryDirectory(prefix="hakmem-demo-") as work:
        runner = Runner(Path(work))
        try:
            yield runner
        finally:
            runner.close()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


# ---- What must hold ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Proof:
    version: str
    processes: int
    allocations: int  # at least: a block that a thread frees and takes again at once isn't counted


def read_report(path: Path) -> Proof:
    """What the process <pid> left in <pid>.json at its end."""
    try:
        report = json.loads(path.read_text())
        version, pid, allocations = str(report["hakmem"]), int(report["pid"]), int(report["allocations"])
    except FileNotFoundError:
        raise Failure(f"takeover not proved: pid {path.stem} left no statistics") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(f"takeover not proved: {path.name} is no report of hakmem's ({error!r})") from None
    if path.stem != str(pid):
        raise Failure(f"takeover not proved: {path.name} says it is of pid {pid}")
    return Proof(version, 1, allocations)


def read_proof(folder: Path, main_pid: int, processes: int = 1, allocations: int = 1) -> Proof:
    """Reads the reports of all processes of one run. The run's first process must be among them and, like all of them
    together, must have allocated."""
    main = read_report(folder / f"{main_pid}.json")
    reports = [read_report(path) for path in sorted(folder.glob("*.json"))]
    total = sum(report.allocations for report in reports)
    if (allocations and not main.allocations) or total < allocations:
        raise Failure(f"takeover not proved: {total} allocations on hakmem ({main.allocations} by pid {main_pid}), "
                      f"expected {allocations} or more")
    if len(reports) < processes:
        raise Failure(f"takeover not proved: {len(reports)} processes on hakmem, expected {processes} or more")
    return Proof(main.version, len(reports), total)


def mapped(pid: int, library: str) -> bool:
    """Whether a running process has the library in its address space."""
    try:
        maps = Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return False
    return str(Path(library).resolve()) in maps


def first_difference(expected: bytes, actual: bytes) -> Optional[str]:
    """The first line that differs, told in words; None when all are equal."""
    if expected == actual:
        return None

    def show(lines: List[bytes], number: int) -> str:
        return repr(lines[number][:160])[1:] if number < len(lines) else "nothing"

    ours, theirs = actual.splitlines(keepends=True), expected.splitlines(keepends=True)
    number = next((n for n, (a, b) in enumerate(zip(ours, theirs)) if a != b), min(len(ours), len(theirs)))
    return f"line {number + 1}\n    expected: {show(theirs, number)}\n    received: {show(ours, number)}"


def check(reference: Run, run: Run, stdout_filter: Optional[Callable[[bytes], bytes]] = None) -> None:
    """Fails unless the run did exactly what the reference did."""
    if b"cannot be preloaded" in run.outputs["stderr"]:
        raise Failure(f"ran on glibc: {run.outputs['stderr'].decode(errors='replace').splitlines()[0]}")
    if run.status != reference.status:
        last = run.outputs["stderr"].decode(errors="replace").strip().splitlines()[-1:]
        raise Failure(": ".join([f"{ending(run.status)}, expected {ending(reference.status)}", *last]))
    for name, expected in reference.outputs.items():
        actual = run.outputs[name]
        if name == "stdout" and stdout_filter:
            expected, actual = stdout_filter(expected), stdout_filter(actual)
        difference = first_difference(expected, actual)
        if difference:
            raise Failure(f"{name} differs from glibc's at {difference}")


def ending(status: int) -> str:
    return f"exit status {status}" if status >= 0 else f"killed by {signal.Signals(-status).name}"


def find_library(path: Path, work: Path) -> str:
    """The library's path as LD_PRELOAD must have it: absolute, and without the separators of that variable."""
    library = Path(os.path.abspath(path))
    if not library.is_file():
        raise Failure(f"no library at {library}: ./dev build makes it")
    if re.search(r"[\s:]", str(library)):
        link = work / "libhakmem.so"
        link.symlink_to(library)
        library = link
    return str(library)


def read_version(runner: Runner, library: str) -> str:
    """Asks a process under the library who serves it: ld.so itself only warns and goes on with glibc."""
    ask = "import ctypes as c; v = c.CDLL(None).hak_version; v.restype = c.c_char_p; print(v().decode())"
    run = runner.run([PYTHON, "-c", ask], library)
    if run.status or not run.outputs["stdout"].strip() or b"cannot be preloaded" in run.outputs["stderr"]:
        said = run.outputs["stderr"].decode(errors="replace").strip().splitlines()
        raise Failure(f"a process under {library} doesn't run on hakmem: {(said or [ending(run.status)])[-1]}")
    return run.outputs["stdout"].decode().strip()


def glibc_path() -> str:
    """This process's own C library."""
    match = re.search(r"(/\S*/libc[.-]\S*)", Path("/proc/self/maps").read_text())
    if not match:
        raise Failure("can't find the C library")
    return match.group(1)


# ---- One program after the other ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Result:
    program: str
    proof: Proof
    glibc: List[Run]
    hakmem: List[Run]


class Progress:
    """One line that changes on a terminal; one line per finished program elsewhere."""

    def __init__(self, total: int):
        self.total, self.done, self.terminal = total, 0, sys.stdout.isatty()

    def show(self, program: str, doing: str) -> None:
        if self.terminal:
            print(f"\r\033[K[{self.done + 1}/{self.total}] {program}: {doing}", end="", flush=True)

    def finish(self, program: str, outcome: str) -> None:
        self.done += 1
        if self.terminal:
            print("\r\033[K", end="")
        print(f"{program}: {outcome}", flush=True)


def run_program(program: Program, paths: List[str], runner: Runner, library: str, rounds: int,
                say: Callable[[str], None]) -> Result:
    values = {"exe": paths[0], "inputs": str(INPUTS), "python": PYTHON}
    baseline = glibc_path() if program.brings_allocator else ""
    if program.prepare:
        say("preparing")
        values.update(program.prepare(runner, values))

    def run(preload: str, settings: Mapping[str, str] = {}) -> Run:
        now = {**values, "port": free_port(), "library": "" if preload == baseline else preload}
        drive = program.drive
        return runner.run([word.format(**now) for word in program.command], preload,
                          {"PYTHONMALLOC": "malloc", **settings}, files=program.files,
                          drive=(lambda: drive(now)) if drive else None)

    say("glibc, for its output")
    reference = run(baseline)
    if reference.status:
        raise Failure(f"{ending(reference.status)} on glibc: "
                      + reference.outputs["stderr"].decode(errors="replace").strip()[-300:])
    say("hakmem, for its output and the proof of takeover")
    with tempfile.TemporaryDirectory(prefix="proof-", dir=runner.work) as reports:
        proved = run(library, {"HAKMEM_STATS": f"json:{reports}/%p.json"})
        check(reference, proved, program.stdout_filter)
        proof = read_proof(Path(reports), proved.pid, program.processes, program.allocations)
    result = Result(program.name, proof, [], [])
    for number in range(rounds):
        for name, preload, runs in (("glibc", baseline, result.glibc), ("hakmem", library, result.hakmem)):
            say(f"{name}, round {number + 1} of {rounds}")
            timed = run(preload)
            try:
                check(reference, timed, program.stdout_filter)
            except Failure as failure:
                raise Failure(f"{name}, round {number + 1}: {failure}") from None
            timed.outputs.clear()
            runs.append(timed)
    return result


FIGURES: Tuple[Tuple[str, Callable[[Run], float], str, int], ...] = (  # heading, value, format, width
    ("wall, s", lambda run: run.wall_s, ".2f", 6),
    ("CPU, s", lambda run: run.cpu_s, ".2f", 6),
    ("peak RSS, MiB", lambda run: run.peak_mib, ".1f", 7),
    ("page faults", lambda run: run.faults, ".0f", 7),
)


def table(results: Sequence[Result]) -> str:
    """Medians of both, and hakmem over glibc: below 1.00 hakmem needs less."""
    head, columns = " " * 7, "program"
    for title, _, _, width in FIGURES:
        head += "  " + title.ljust(2 * width + 6)
        columns += f"  {'glibc':>{width}} {'hakmem':>{width}} ratio"
    lines = [head.rstrip(), columns]
    ratios: List[List[float]] = [[] for _ in FIGURES]
    for result in results:
        line = f"{result.program:<7}"
        for (_, value, form, width), column in zip(FIGURES, ratios):
            glibc, hakmem = (statistics.median(map(value, runs)) for runs in (result.glibc, result.hakmem))
            column.append(hakmem / glibc if glibc and hakmem else 1.0)
            line += f"  {glibc:{width}{form}} {hakmem:{width}{form}} {column[-1]:5.2f}"
        lines.append(line)
    if len(results) > 1:
        means = [math.exp(statistics.mean(map(math.log, column))) for column in ratios]
        lines.append("geomean" + "".join(f"  {'':{2 * width + 1}} {mean:5.2f}"
                                         for (_, _, _, width), mean in zip(FIGURES, means)))
    return "\n".join(lines)


def install(packages: Sequence[str]) -> None:
    """By apt, as root or through a sudo that asks nothing; otherwise says what to type."""
    lock = ["-o", "DPkg::Lock::Timeout=300"]
    apt = ["apt-get", *lock, "install", "-y", "--no-install-recommends", *packages]
    if not shutil.which("apt-get"):
        raise Failure(f"no apt-get here; to be installed by hand: {' '.join(packages)}")
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if sudo and (not shutil.which("sudo") or subprocess.run([*sudo, "true"], stderr=subprocess.DEVNULL).returncode):
        raise Failure(f"not root; type this first: sudo apt-get update && sudo {' '.join(apt)}")
    print("installing", *packages, flush=True)
    as_root = [*sudo, "env", "DEBIAN_FRONTEND=noninteractive"]
    subprocess.run([*as_root, "apt-get", *lock, "-qq", "update"], stdout=subprocess.DEVNULL)
    done = subprocess.run([*as_root, *apt], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        raise Failure(f"{' '.join(apt)} failed:\n{done.stdout[-2000:]}")


def machine() -> str:
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return (f"{model.group(1) if model else platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
            f"load {os.getloadavg()[0]:.1f}")


def demo(chosen: Sequence[Program], arguments: argparse.Namespace) -> int:
    results: List[Result] = []
    with new_runner() as runner:
        library = find_library(arguments.lib or arguments.build / "libhakmem.so", runner.work)
        version = read_version(runner, library)
        missing = sorted({program.package for program in chosen if not installed(program)})
        if missing and arguments.all:
            install(missing)
        found = {program: paths for program in chosen for paths in [installed(program)] if paths}
        if len(found) < len(chosen) and arguments.all:
            raise Failure(f"installed, but not to be found: {', '.join(p.name for p in chosen if p not in found)}")
        rounds = 0 if arguments.check else arguments.rounds
        print(f"hakmem {version} and glibc {platform.libc_ver()[1]}, "
              + (f"{rounds} rounds each, interleaved" if rounds else "outputs only") + f"\n{machine()}", flush=True)
        progress = Progress(len(found))
        for program, paths in found.items():
            def say(doing: str, name: str = program.name) -> None:
                progress.show(name, doing)

            try:
                result = run_program(program, paths, runner, library, rounds, say)
                if result.proof.version != version:
                    raise Failure(f"its processes report hakmem {result.proof.version}")
                results.append(result)
                progress.finish(program.name, f"output identical, {count(result.proof.processes, 'process')} on hakmem")
            except Failure as failure:
                progress.finish(program.name, f"FAILED: {failure}")
    for program in chosen:
        if program not in found:
            print(f"{program.name}: skipped: not installed (./dev demo --all installs it)")
    if results and rounds:
        print(f"\n{table(results)}\n")
    if len(results) < len(found):
        print(f"FAILED: {len(found) - len(results)} of {count(len(found), 'program')}", file=sys.stderr)
        return 1
    if not results:
        return NOTHING_TO_RUN
    processes = sum(result.proof.processes for result in results)
    allocations = sum(result.proof.allocations for result in results)
    print(f"proved: {count(len(results), 'program')}, {count(processes, 'process')} on hakmem "
          f"({allocations / 1e6:.1f} M blocks), outputs identical to glibc's")
    return 0


def count(number: int, noun: str) -> str:
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"


def main(words: Optional[Sequence[str]] = None, table_of_programs: Optional[Sequence[Program]] = None) -> int:
    known = {program.name: program for program in (programs() if table_of_programs is None else table_of_programs)}
    parser = argparse.ArgumentParser(prog="demo", description="Known programs on glibc's malloc and on hakmem.")
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release", help="folder of libhakmem.so")
    parser.add_argument("--lib", type=Path, help="the library itself, instead of --build")
    parser.add_argument("--all", action="store_true", help="install the programs that are missing (apt)")
    parser.add_argument("--rounds", type=int, default=3, help="timed runs of each program on each side (at least 3)")
    parser.add_argument("--only", action="append", choices=known, metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--check", action="store_true", help="no timing: outputs and takeover only")
    arguments = parser.parse_args(words)
    if arguments.rounds < 3:
        parser.error("--rounds: at least 3")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        return demo([known[name] for name in arguments.only or known], arguments)
    except Failure as failure:
        print(f"demo: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ndemo: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
