"""sandboxed.py: programs of others live on hakmem under systemd's @system-service, from their first instruction.

    sandboxed.py --lib LIBRARY --sandbox guest_sandbox

Each is run under the list, where any other call is fatal, and must say what it says without. Those that are not
installed are left out; exit status 77 where none is, or where no filter can be had.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

SKIPPED = 77
TIMEOUT_S = 1200

PYTHON = (
    "import zlib\n"
    "kept = [{i: str(i) * (i % 50)} for i in range(300000)]\n"
    "big = [bytearray(i % 97 * 10000) for i in range(300)]\n"
    "print(len(kept), sum(map(len, big)), zlib.crc32(str(kept[:1000]).encode()))\n"
)
PERL = 'my %h; $h{$_} = "x" x ($_ % 900) for 1 .. 200000; my $n = 0; $n += length for values %h; print "$n\\n";'
SQL = (
    "create table t(a integer primary key, b text); with recursive c(x) as (select 1 union all select x + 1 from c "
    "where x < 200000) insert into t select x, hex(randomblob(0)) || x from c; create index i on t(b); "
    "select count(*), max(length(b)) from t;"
)
REDIS = "for i = 1, 60000 do redis.call('SET', 'k' .. i, string.rep('x', 1000)) end return redis.call('DBSIZE')"

PROGRAMS = {
    "python3": ["python3", "-I", "-c", PYTHON],
    "perl": ["perl", "-e", PERL],
    "sqlite3": ["sqlite3", ":memory:", SQL],
}


def run(command: list[str], library: Path | None, sandbox: Path | None) -> tuple[int, str]:
    if library:
        command = ["env", f"LD_PRELOAD={library.resolve()}", *command]
    if sandbox:
        command = [str(sandbox), "system_service", "run", *command]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LD_PRELOAD", "HAKMEM_"))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.returncode, done.stdout


def redis_command(folder: str) -> list[str]:
    """The server fills itself, and is asked and ended through a socket, all by a shell that is in the same sandbox."""
    script = (
        f"redis-server --port 0 --unixsocket {folder}/s --dir {folder} --save '' >/dev/null & "
        f"for i in $(seq 3000); do redis-cli -s {folder}/s ping 2>/dev/null | grep -q PONG && break; sleep 0.1; done; "
        f'redis-cli -s {folder}/s eval "{REDIS}" 0; redis-cli -s {folder}/s shutdown nosave; wait $!'
    )
    return ["sh", "-c", script]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--sandbox", type=Path, required=True)
    arguments = parser.parse_args()
    programs = {name: command for name, command in PROGRAMS.items() if shutil.which(name)}
    if shutil.which("redis-server"):
        folder = Path.cwd() / f"sandboxed-{os.getpid()}"
        folder.mkdir()
        programs["redis-server"] = redis_command(str(folder))
    if run(["true"], None, arguments.sandbox)[0] == SKIPPED or not programs:
        return SKIPPED
    failed = 0
    for name, command in programs.items():
        expected, found = run(command, None, None), run(command, arguments.lib, arguments.sandbox)
        print(f"{name:14} {'lives' if found == expected else f'FAILED: {found} instead of {expected}'}", flush=True)
        failed += found != expected
    if "redis-server" in programs:
        shutil.rmtree(folder, ignore_errors=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
