"""Records the traces beside this file anew: all, or those named.

    .venv/bin/python bench/traces/record.py [NAME...]

Each is NAME.trace.xz and NAME.json, which says what was recorded. Needs Debian, the programs' packages, and what
./dev build makes. A trace that is recorded anew is another one: measurements of the two can't be compared.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hakmem import native, servers, suite, trace

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
HAKMEM = Path(sys.executable).parent / "hakmem"


@dataclass(frozen=True)
class Program:
    package: str
    does: str
    command: tuple[str, ...]  # run in inputs/; {port} is a free one
    environment: dict[str, str] = field(default_factory=dict)
    drive: Callable[[str], None] | None = None


def drive_redis(port: str) -> None:
    servers.connect(port).close()
    tests = "set,get,incr,lpush,lpop,sadd,hset,zadd,mset"
    load = ["redis-benchmark", "-p", port, "-q", "-n", "6000", "-c", "20", "-P", "8", "-r", "2000", "-d", "100"]
    subprocess.run([*load, "-t", tests], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["redis-cli", "-p", port, "shutdown", "nosave"], check=True)


def cc1plus() -> str:
    found = subprocess.run(["g++-12", "-print-prog-name=cc1plus"], check=True, capture_output=True, text=True)
    return found.stdout.strip()


def path_with_redis_server() -> str:
    """Debian's redis-tools holds the server too; the name it is called by decides what the program is."""
    folder = Path(tempfile.mkdtemp())
    (folder / "redis-server").symlink_to(shutil.which("redis-check-rdb") or "redis-check-rdb")
    return f"/usr/bin:/bin:{folder}"


PROGRAMS = {
    "gcc": Program(
        "cpp-12",
        "the C++ compiler proper compiles index.cpp at -O1",
        (cc1plus(), *"-quiet -imultiarch x86_64-linux-gnu -D_GNU_SOURCE -std=c++17 -O1 index.cpp -o -".split()),
    ),
    "git": Program(
        "git",
        "log of this repository, with all changes",
        ("git", "log", "-p", "--stat", "-M"),
    ),
    "lua": Program("lua5.4", "runs words.lua: all of its memory comes from realloc", ("lua5.4", "words.lua")),
    "python": Program(
        "python3.11-minimal",
        "prints the syntax tree of argparse.py",
        ("/usr/bin/python3", "-m", "ast", "/usr/lib/python3.11/argparse.py"),
        {"PYTHONMALLOC": "malloc"},
    ),
    "redis": Program(
        "redis-tools",
        "serves 54,000 requests of redis-benchmark with two threads for input and output",
        ("redis-server", "--port", "{port}", "--bind", servers.HOST, "--save", "", "--io-threads", "2"),
        drive=drive_redis,
    ),
    "ripgrep": Program(
        "ripgrep",
        "looks for a pattern in all of /usr/include with four threads",
        ("rg", "-j4", "-c", r"(static|inline)\s+\w+", "/usr/include"),
    ),
    "sqlite": Program("sqlite3", "runs parts.sql on a database in memory", ("sqlite3", ":memory:", ".read parts.sql")),
}


def record(name: str, program: Program, path: str) -> None:
    file = HERE / f"{name}.trace{trace.PACKED}"
    file.unlink(missing_ok=True)
    port = servers.free_port()
    words = [word.replace("{port}", port) for word in program.command]
    child = subprocess.Popen(
        [HAKMEM, "record", "-o", file, "--", *words],
        cwd=HERE / "inputs",
        env={"PATH": path, "LC_ALL": "C", **program.environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    if program.drive:
        program.drive(port)
    if child.wait() != 0:
        sys.exit(f"{name} ended with {child.returncode}")
    describe(name, program, file)


def describe(name: str, program: Program, file: Path) -> None:
    data = trace.unpacked(file)
    found = trace.parse(data, name)
    with tempfile.NamedTemporaryFile() as unpacked:
        unpacked.write(data)
        unpacked.flush()
        words = [str(native.program("bench_replay")), unpacked.name, "1"]
        output = subprocess.run(words, check=True, capture_output=True, text=True).stdout
    figures = {match["name"]: int(float(match["value"])) for match in suite.FIGURE.finditer(output)}
    version = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", program.package], check=True, capture_output=True)
    facts = {
        "package": f"{program.package} {version.stdout.decode()}",
        "does": program.does,
        "command": found.command,
        "environment": program.environment,
        "events": found.event_count,
        "threads": found.thread_count,
        "calls": figures["calls"],
        "turns": figures["turns"],
        "live_peak_bytes": figures["live_peak"],
    }
    (HERE / f"{name}.json").write_text(json.dumps(facts, indent=2) + "\n")
    print(f"{name}: {found.event_count:,} events, {file.stat().st_size:,} bytes")


search_path = path_with_redis_server()
for name in sys.argv[1:] or PROGRAMS:
    record(name, PROGRAMS[name], search_path)
