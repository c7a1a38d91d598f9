"""`hakmem pins`: freeing the blocks of the sites that it names gives back what it says, and what it doesn't know it
calls unknown."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random

import pytest
from compiled import compile_c
from hakmem import elf, explain, native, pins, pprof
from hakmem.pins import Pins
from hakmem.report.model import Shares
from test_explain import Structures

MIB = 1 << 20
FRAMES = ("-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
# No thread looks away meanwhile, and no page comes or goes but by what the program does.
QUIET = {"HAKMEM_BACKGROUND": "0", "HAKMEM_THP": "off", "HAKMEM_PREFAULT": "0"}
SAMPLED = {"HAKMEM_PINS": "1", "HAKMEM_HEAP_PROFILE_INTERVAL": "64K"}

# A program that does a step at each line of its input, and says how much memory it has when all free memory is back.
STEPS = """
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define SITE(name) __attribute__((noinline)) void *name(size_t n) { char *p = malloc(n); memset(p, 1, n); return p; }
static unsigned seed = 1;
static unsigned drawn(unsigned below) { seed = seed * 1103515245 + 12345; return (seed >> 16) % below; }
static void step(void) {
    long all, resident;
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    if (fscanf(file, "%ld %ld", &all, &resident) != 2) exit(1);
    fclose(file);
    printf("%ld\\n", resident * 4096);
    fflush(stdout);
    if (getchar() < 0) exit(0);
}
static void free_all(void **blocks, int count) { for (int i = 0; i < count; i++) free(blocks[i]); }
"""

# One block in some 30 stays, of two sites that share pages; beside them blocks that fill theirs.
SCATTERED = (
    STEPS
    + """
enum { MANY = 200000, RARE = 10000, DENSE = 40000 };
static void *burst[MANY], *entries[RARE], *names[RARE], *dense[DENSE];
SITE(make_burst)
SITE(make_entry)
SITE(make_name)
SITE(make_dense)
int main(void) {
    int entry_count = 0, name_count = 0;
    setvbuf(stdin, NULL, _IONBF, 0);
    for (int i = 0; i < DENSE; i++) dense[i] = make_dense(252);
    for (int i = 0; i < MANY; i++) {
        burst[i] = make_burst(256);
        unsigned which = drawn(60);
        if (which == 0 && entry_count < RARE) entries[entry_count++] = make_entry(250);
        if (which == 1 && name_count < RARE) names[name_count++] = make_name(246);
    }
    free_all(burst, MANY);
    step();
    free_all(entries, entry_count);
    step();
    free_all(names, name_count);
    step();
}
"""
)

# Blocks of many sizes in turn, by requests; each session leaves some behind, in a heap that is used again and again.
SESSIONS = (
    STEPS
    + """
enum { SESSIONS_COUNT = 6000, PARTS = 60, KEPT = 4 };
static void *logs[SESSIONS_COUNT * KEPT], *caches[SESSIONS_COUNT / 2], *parts[PARTS];
SITE(make_part)
SITE(make_log)
SITE(make_cache)
int main(void) {
    int log_count = 0, cache_count = 0;
    setvbuf(stdin, NULL, _IONBF, 0);
    for (int session = 0; session < SESSIONS_COUNT; session++) {
        static void *late[PARTS];
        for (int i = 0; i < PARTS; i++) parts[i] = make_part(32 + drawn(900));
        for (int i = 0; i < KEPT; i++) logs[log_count++] = make_log(100 + drawn(400));
        if (session % 2 == 0) caches[cache_count++] = make_cache(9000 + drawn(20000));
        free_all(late, session == 0 ? 0 : PARTS);
        memcpy(late, parts, sizeof late);
        if (session == SESSIONS_COUNT - 1) free_all(late, PARTS);
    }
    step();
    free_all(logs, log_count);
    step();
    free_all(caches, cache_count);
    step();
}
"""
)


class Program:
    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child

    def step(self) -> int:
        """Its resident bytes when it has done one."""
        assert self.child.stdout and self.child.stdin
        line = self.child.stdout.readline()
        assert line, "the program has ended"
        return int(line)

    def go_on(self) -> None:
        assert self.child.stdin
        self.child.stdin.write(b"\n")

    def pins(self) -> Pins:
        return pins.pins(explain.look(self.child.pid, "--pins"))


@contextlib.contextmanager
def running(program: Path, settings: Mapping[str, str]) -> Iterator[Program]:
    environment = {"LD_PRELOAD": str(native.library()), **QUIET, **settings}
    with subprocess.Popen(
        [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        try:
            yield Program(child)
        finally:
            child.kill()


def returned(found: Pins, *functions: str) -> float:
    """What freeing the blocks of all sites in these functions is said to give back."""
    return found.returned(site.key for site in found.sites() if site.key and site.key[0][1] in functions)


def all_returned(found: Pins) -> float:
    return found.returned(site.key for site in found.sites() if site.key)


@pytest.mark.parametrize(
    "source, steps",
    [
        pytest.param(SCATTERED, [("make_entry",), ("make_entry", "make_name")], id="scattered"),
        pytest.param(SESSIONS, [("make_log",), ("make_log", "make_cache")], id="sessions"),
    ],
)
def test_freeing_the_named_sites_gives_back_what_is_said(
    tmp_path: Path, source: str, steps: list[tuple[str, ...]]
) -> None:
    """Within a tenth of it."""
    with running(compile_c(tmp_path / "program", source, *FRAMES), SAMPLED) as program:
        before = program.step()
        found = program.pins()
        assert found.lost_samples == 0
        assert found.unknown_held <= 0.05 * found.held, found.plain()
        for functions in steps:
            program.go_on()
            gone = before - program.step()
            assert gone > 4 * MIB
            assert returned(found, *functions) == pytest.approx(gone, rel=0.1), (functions, found.plain())


@pytest.mark.forms
def test_a_server_gives_back_what_is_said(tmp_path: Path) -> None:
    """Redis keeps one key in twenty, then none. All but a little of what its own functions allocate is for keys."""
    if not (shutil.which("redis-server") and shutil.which("redis-cli")):
        pytest.skip("redis is not installed")
    place = str(tmp_path / "socket")
    words = ["redis-server", "--port", "0", "--unixsocket", place, "--save", "", "--enable-debug-command", "yes"]
    environment = {**os.environ, **QUIET, **SAMPLED, "LD_PRELOAD": str(native.library())}
    environment["HAKMEM_HEAP_PROFILE_INTERVAL"] = "256K"

    def ask(*request: str) -> str:
        return subprocess.run(["redis-cli", "-s", place, *request], capture_output=True, text=True).stdout.strip()

    with subprocess.Popen(words, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL) as child:
        try:
            for _ in range(3000):
                if ask("ping") == "PONG":
                    break
                time.sleep(0.1)
            for part in range(4):
                ask("debug", "populate", "100000", f"key{part}", "150")
            most = "for i = 0, 99999 do if i % 20 ~= 0 then redis.call('del', KEYS[1] .. ':' .. i) end end"
            for part in range(4):
                ask("eval", most, "1", f"key{part}")
            assert ask("dbsize") == "20000"
            found = pins.pins(explain.look(child.pid, "--pins"))
            ask("flushall", "sync")
            gone = found.held - pins.pins(explain.look(child.pid, "--pins")).held
        finally:
            child.kill()
    keys = {site.key[0][1] for site in found.sites() if site.key and site.key[0][1].startswith("z")}
    assert gone > 40 * MIB
    assert returned(found, *keys) == pytest.approx(gone, rel=0.1), found.plain()


# Keeps what clients have told it, parsed, until they leave. `expire` sends away nineteen of twenty, or all; each answer
# is what is resident when all free memory is back.
SERVICE = """
import ctypes, gc, http.server, json
sessions = {}
class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        what, _, which = self.path[1:].partition("/")
        for i in range(60000):
            if what == "load":
                said = {"user": f"name {i}", "rights": [str(i % 97), str(i)], "seen": i * 1.5}
                sessions[f"{which}.{i}"] = json.loads(json.dumps(said))
            elif what == "expire" and (which == "all" or i % 20):
                for part in "abcd":
                    sessions.pop(f"{part}.{i}", None)
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        body = str(int(open("/proc/self/statm").read().split()[1]) * 4096).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
server = http.server.HTTPServer(("127.0.0.1", 0), Service)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.mark.forms
def test_a_python_service_gives_back_what_is_said(tmp_path: Path) -> None:
    """All sites together, less what they said when it had no sessions yet."""
    environment = {**os.environ, **QUIET, **SAMPLED, "LD_PRELOAD": str(native.library()), "PYTHONMALLOC": "malloc"}
    environment["HAKMEM_HEAP_PROFILE_INTERVAL"] = "1M"
    (tmp_path / "service.py").write_text(SERVICE)
    words = [sys.executable, str(tmp_path / "service.py")]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout
            port = int(child.stdout.readline())

            def ask(what: str) -> int:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{what}") as answer:
                    return int(answer.read())

            ask("nothing")
            empty = all_returned(pins.pins(explain.look(child.pid, "--pins")))
            for part in "abcd":
                ask(f"load/{part}")
            before = ask("expire/most")
            found = pins.pins(explain.look(child.pid, "--pins"))
            gone = before - ask("expire/all")
        finally:
            child.kill()
    assert gone > 40 * MIB
    assert all_returned(found) - empty == pytest.approx(gone, rel=0.1), found.plain()


HOLDER = """
def keep(i):
    kept.append(str(i) * 20)


kept = []
for i in range(400000):
    keep(i)
kept[:] = kept[::40]
print("ready", flush=True)
input()
"""


@pytest.mark.skipif(not (3, 11) <= sys.version_info < (3, 14), reason="functions of Python 3.11 to 3.13 are known")
def test_functions_of_python_have_their_names(tmp_path: Path) -> None:
    environment = {**os.environ, **QUIET, **SAMPLED, "LD_PRELOAD": str(native.library()), "PYTHONMALLOC": "malloc"}
    (tmp_path / "holder.py").write_text(HOLDER)
    words = [sys.executable, "-S", str(tmp_path / "holder.py")]
    with subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout and child.stdout.readline() == "ready\n"
            found = pins.pins(explain.look(child.pid, "--pins"))
        finally:
            child.kill()
    first = max(found.sites(), key=lambda site: site.figures.pinned)
    assert first.key[0] == (str(tmp_path / "holder.py"), "keep (holder.py:3)"), first.key


# The same without a network, in an interpreter without symbols.
REGISTER = """
local sessions = {}
local function step(text) collectgarbage() print(text) io.flush() io.read() end
step("empty")
for i = 1, 200000 do sessions[i] = {user = "name " .. i, rights = {tostring(i % 97), tostring(i)}} end
for i = 1, 200000 do if i % 20 ~= 0 then sessions[i] = nil end end
step("few")
sessions = nil
step("none")
"""


@pytest.mark.forms
def test_an_interpreter_gives_back_what_is_said(tmp_path: Path) -> None:
    lua = shutil.which("lua5.4") or shutil.which("lua")
    if not lua:
        pytest.skip("Lua is not installed")
    (tmp_path / "register.lua").write_text(REGISTER)
    environment = {**QUIET, **SAMPLED, "LD_PRELOAD": str(native.library()), "HAKMEM_HEAP_PROFILE_INTERVAL": "1M"}
    looks: list[Pins] = []
    with subprocess.Popen(
        [lua, tmp_path / "register.lua"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        try:
            assert child.stdin and child.stdout
            for step in (b"empty\n", b"few\n", b"none\n"):
                assert child.stdout.readline() == step
                looks.append(pins.pins(explain.look(child.pid, "--pins")))
                child.stdin.write(b"\n")
        finally:
            child.kill()
    empty, few, none = looks
    gone = few.held - none.held
    assert gone > 20 * MIB
    assert all_returned(few) - all_returned(empty) == pytest.approx(gone, rel=0.1), few.plain()


def test_sites_that_pin_nothing_are_told_from_those_that_do(tmp_path: Path) -> None:
    with running(compile_c(tmp_path / "program", SCATTERED, *FRAMES), SAMPLED) as program:
        program.step()
        found = program.pins()
    pinned = {site.key[0][1]: site.figures.pinned for site in found.sites() if site.key}
    live = {site.key[0][1]: site.figures.live_bytes for site in found.sites() if site.key}
    assert live["make_dense"] > 10 * live["make_entry"]
    assert pinned["make_dense"] < 0.05 * found.pinned
    assert pinned["make_entry"] + pinned["make_name"] > 0.85 * found.pinned
    assert "make_burst" not in live
    assert found.held >= found.live and found.held <= found.resident
    for site in found.sites():
        assert site.pinned_with <= min(found.pinned, site.returned_with) * 1.001
    assert sum(found.holders.values()) == pytest.approx(found.held - found.unknown_held, rel=0.01)


def test_another_file_of_the_same_name_tells_no_functions(tmp_path: Path) -> None:
    """As where a container's libraries have the names of the machine's."""
    named_too = (*FRAMES, "-Wl,--build-id")
    with running(compile_c(tmp_path / "program", SCATTERED, *named_too), SAMPLED) as program:
        program.step()
        measured = explain.look(program.child.pid, "--pins")
    name = str(tmp_path / "program")
    assert {row["build_id"] for row in measured["mappings"] if row["name"] == name} >= {elf.build_id(Path(name))}
    named = {frame.name for stack in pins.pins(measured).stacks for frame in stack}
    own = {"make_dense", "make_entry"}
    assert own <= named
    compile_c(tmp_path / "program", SCATTERED + "void other(void) {}", *named_too)
    found = pins.pins(measured)
    assert not {frame.name for stack in found.stacks for frame in stack} & own
    (line,) = found.nameless
    assert line.startswith("functions have no names in program: ")
    assert line in next(one.notes for one in pins.report(found, "").sections if isinstance(one, Shares))
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(pins.encode(found)))
    assert [message.string_table[number] for number in message.comment] == [line]


def test_blocks_from_before_are_unknown(tmp_path: Path) -> None:
    asked = {"HAKMEM_BACKGROUND": "auto", "HAKMEM_CTL": "1"}
    with running(compile_c(tmp_path / "program", SCATTERED, *FRAMES), asked) as program:
        program.step()
        found = program.pins()
        assert not found.stacks and found.unknown_pinned == found.pinned > 8 * MIB
        assert found.unknown_held == found.held
        said = subprocess.run(
            [sys.executable, "-m", "hakmem", "ctl", str(program.child.pid), "pins", "on", "64K"],
            capture_output=True,
            text=True,
        )
        assert said.stdout == "one run of samples per 65536 bytes\n", said
        found = program.pins()
        assert found.unknown_pinned == pytest.approx(found.pinned, rel=0.01) and found.interval_bytes == 65536
        shown = subprocess.run(
            [sys.executable, "-m", "hakmem", "ctl", str(program.child.pid), "pins"], capture_output=True, text=True
        )
        assert "blocks from before are unknown" in shown.stdout and shown.returncode == 0, shown
        assert "Most is unknown. Blocks from before become fewer" in shown.stdout


@pytest.mark.parametrize("sparse", [2, 200])
def test_spoiled_tables_end_in_an_answer(tmp_path: Path, sparse: int) -> None:
    with running(compile_c(tmp_path / "program", SCATTERED, *FRAMES), SAMPLED) as program:
        program.step()
        structures = Structures(program.child.pid)
        structures.tables.clear()
        assert structures.spoil(Random(1), sparse) > 1 << 20
        found = program.pins()
        assert 0 <= found.unknown_pinned <= found.pinned
        assert pins.report(found, "").sections and pins.encode(found)


def test_trimming_is_foretold(tmp_path: Path) -> None:
    program = compile_c(
        tmp_path / "program",
        SCATTERED.replace("    step();\n    free_all(entries", "    getchar();\n    step();\n    free_all(entries"),
        *FRAMES,
    )
    with running(program, {**SAMPLED, "HAKMEM_KNOBS": f"dirty_limit_bytes={1 << 40}"}) as run:
        found = run.pins()
        while run.pins().resident != found.resident or found.resident < 40 * MIB:
            found = run.pins()
        run.go_on()
        assert found.resident - run.step() == pytest.approx(found.trimmed, rel=0.1)


def test_a_profile_is_no_text_for_standard_output() -> None:
    command = [sys.executable, "-m", "hakmem", "pins", "--pprof", "-", "--", "true"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "hakmem: --pprof -: expected the name of a file\n")


def test_a_command_is_looked_at_when_it_ends(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", SCATTERED, *FRAMES)
    files = {name: tmp_path / name for name in ("found.json", "found.html", "found.md", "found.pb.gz")}
    done = subprocess.run(
        [sys.executable, "-m", "hakmem", "pins", "--interval", "64K", "--json", str(files["found.json"])]
        + ["--html", str(files["found.html"]), "--markdown", str(files["found.md"]), "--pprof"]
        + [str(files["found.pb.gz"]), "--", str(program)],
        env={**os.environ, **QUIET},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done
    found = json.loads(files["found.json"].read_text())
    assert {site["functions"][0] for site in found["sites"][:2]} == {"make_entry", "make_name"}
    assert all("make_entry" in files[name].read_text() for name in ("found.html", "found.md"))
    assert "Most is unknown" not in files["found.md"].read_text()
    message = pprof.profile_class()()
    message.ParseFromString(gzip.decompress(files["found.pb.gz"].read_bytes()))
    kinds = [message.string_table[kind.type] for kind in message.sample_type]
    assert kinds[0] == "pinned_space" and message.string_table[message.default_sample_type] == "pinned_space"
    total = sum(sample.value[0] for sample in message.sample)
    assert total == pytest.approx(found["pinned"], rel=0.001)  # what is unknown is a sample of its own


@pytest.mark.forms
def test_what_other_placements_would_save_is_told_by_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    words = ["pins", "--trace", "git", "--json", str(file), "--after", "0", "--", "sleep", "5"]
    done = subprocess.run([sys.executable, "-m", "hakmem", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"what other placements would have saved at the peak, by git\n", done.stdout)
    assert re.search(r"packed with hindsight: .* [0-9.]+ MiB", done.stdout)
    (found,) = json.loads(file.read_text())["placements"]
    assert found["trace"] == "git" and found["hindsight"]["peak_bytes"] < found["policies"][0]["peak_bytes"]


def test_a_trace_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    words = ["pins", "--trace", "nowhere.trace", "--", "touch", str(tmp_path / "ran")]
    done = subprocess.run([sys.executable, "-m", "hakmem", *words], capture_output=True, text=True)
    assert done.returncode == 2 and "nowhere.trace: no such file" in done.stderr
    assert not (tmp_path / "ran").exists()
