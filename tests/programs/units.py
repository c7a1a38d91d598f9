"""units.py: a program as a service unit of systemd's runs it, without systemd, on glibc and on hakmem.

    units.py --lib LIBRARY --confined PROGRAM NAME

The settings of the unit that a program could notice become a seccomp filter that kills (seccomp.py), limits, a user
and bounds of rights. Those of redis, memcached, nginx and PostgreSQL are Debian 12's; where another version is
installed, the test is made with its unit too. Every program is also run as administrators confine what they write
themselves: systemd's @system-service with no memory that is written and executed, no namespaces, a limit of address
space. Both runs must print the same, and where the program can, its heap grows past the size from which hakmem does
all that it does with a large one.

Settings of file systems and the like are left out, and named. Exit status 77, "skipped", where the program isn't
installed, or where there is no seccomp.
"""

from __future__ import annotations

import argparse
import os
import pwd
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import seccomp
from on_hakmem import GLIBC, SKIPPED, LabError, ending, hakmem, programs
from hakmem import measure, servers

MIB = 1 << 20
GROWN_BYTES = 100 * MIB  # of the resident set at its peak
IDLE_S = 2  # between phases of a server: hakmem gives memory back by time, too

# What these units say, without comments and without [Unit] and [Install].
REDIS = """
LimitNOFILE=65535
UMask=007
User=redis
PrivateTmp=true
PrivateDevices=true
ProtectHome=true
ProtectSystem=strict
CapabilityBoundingSet=
LockPersonality=true
MemoryDenyWriteExecute=true
NoNewPrivileges=true
PrivateUsers=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectProc=invisible
RemoveIPC=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~ @privileged @resources
NoExecPaths=/
"""
MEMCACHED = """
PrivateTmp=true
ProtectSystem=full
NoNewPrivileges=true
PrivateDevices=true
CapabilityBoundingSet=CAP_SETGID CAP_SETUID CAP_SYS_RESOURCE
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
MemoryDenyWriteExecute=true
ProtectKernelModules=true
ProtectKernelTunables=true
ProtectControlGroups=true
RestrictRealtime=true
RestrictNamespaces=true
"""
NGINX = """
Type=forking
KillMode=mixed
"""
POSTGRESQL = """
Type=forking
OOMScoreAdjust=-900
"""
HARDENED = """
SystemCallFilter=@system-service
SystemCallArchitectures=native
MemoryDenyWriteExecute=true
RestrictNamespaces=true
RestrictRealtime=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK
LockPersonality=true
NoNewPrivileges=true
LimitAS=1G
LimitNOFILE=1024
"""

FOLDERS = ("/etc/systemd/system", "/lib/systemd/system", "/usr/lib/systemd/system")
SECTION = re.compile(r"^\[Service\]$(.*?)(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
UNTOLD = re.compile(r"^(Environment|Exec|Group|Kill|PIDFile|Restart|RuntimeDirectory|SyslogIdentifier|Timeout|Type)")


@dataclass(frozen=True)
class Unit:
    name: str  # of its file
    source: str
    text: str


UNITS = {
    "redis": Unit("redis-server.service", "redis-server 5:7.0.15-1~deb12u10", REDIS),
    "memcached": Unit("memcached.service", "memcached 1.6.18-1+deb12u1", MEMCACHED),
    "nginx": Unit("nginx.service", "nginx-common 1.22.1-9+deb12u11", NGINX),
    "postgres": Unit("postgresql@.service", "postgresql-common 248+deb12u1", POSTGRESQL),
}


# ---- Units ----


def settings_of(text: str) -> seccomp.Settings:
    found: seccomp.Settings = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            found.setdefault(name.strip(), []).append(value.strip())
    return found


def installed(unit: Unit) -> seccomp.Settings | None:
    for folder in FOLDERS:
        file = Path(folder, unit.name)
        section = SECTION.search(file.read_text()) if file.is_file() else None
        if section:
            return settings_of(section[1])
    return None


def is_translated(name: str) -> bool:
    return name in seccomp.TRANSLATED | {"CapabilityBoundingSet", "NoNewPrivileges", "User"} or name.startswith("Limit")


def translated(settings: seccomp.Settings) -> seccomp.Settings:
    return {name: values for name, values in settings.items() if is_translated(name)}


def settings_to_try(name: str) -> Iterator[tuple[str, seccomp.Settings]]:
    """Titles and settings of a program's runs."""
    if unit := UNITS.get(name):
        kept, here = settings_of(unit.text), installed(unit)
        yield f"{unit.name} of {unit.source}", kept
        if here is not None and translated(here) != translated(kept):
            yield f"{unit.name} as it is installed", here
    own = settings_of(HARDENED)
    if name == "postgres":
        del own["MemoryDenyWriteExecute"]  # it compiles expressions while it runs
        own["SystemCallFilter"].append("chroot")  # chroot(1) makes it its user's
    yield "@system-service", own


# ---- What they become ----


def limits(settings: seccomp.Settings) -> list[str]:
    """Of prlimit(1). None is above what this process may have."""
    words = ["--core=0"]
    for name, values in settings.items():
        if name.startswith("Limit"):
            kind = name.removeprefix("Limit")
            value = size(values[-1])
            _, hard = resource.getrlimit(getattr(resource, f"RLIMIT_{kind}"))
            words.append(f"--{kind.lower()}={value if hard == resource.RLIM_INFINITY else min(value, hard)}")
    return words


def size(text: str) -> int:
    found = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if not found:
        raise LabError(f"a limit of {text!r}: can't be translated")
    return int(found[1]) << " KMGT".index(found[2] or " ") * 10


def is_open(file: Path) -> bool:
    """Whether another user can load it: one who can't would run on the C library's malloc."""
    return all(path.stat().st_mode & 0o005 for path in [file, *file.parents])


def rights(settings: seccomp.Settings, library: Path) -> list[str]:
    """Of setpriv(1). Users and bounds are only what root can set; whoever is somebody else already gains none."""
    words = ["--no-new-privs"] if seccomp.is_on(settings, "NoNewPrivileges") or os.geteuid() != 0 else []
    if os.geteuid() != 0:
        return words
    if "CapabilityBoundingSet" in settings:
        kept = settings["CapabilityBoundingSet"][-1].lower().replace("cap_", "+").split()
        words.append(f"--bounding-set={','.join(['-all', *kept])}")
    if "User" in settings and is_open(library):
        user = settings["User"][-1]
        entry = pwd.getpwnam(user if user in {entry.pw_name for entry in pwd.getpwall()} else "nobody")
        words += [f"--reuid={entry.pw_uid}", f"--regid={entry.pw_gid}", "--clear-groups"]
    return words


def confinement(settings: seccomp.Settings, library: Path, confined: Path, folder: Path) -> list[str]:
    """The commands that become the program."""
    words = ["prlimit", *limits(settings)]
    if asked := rights(settings, library):
        words += ["setpriv", *asked]
    if filter_ := seccomp.program(settings):
        file = folder / "filter"
        file.write_bytes(filter_)
        words += [str(confined), str(file)]
    return words


# ---- Programs ----


def redis(values: Mapping[str, str]) -> bytes:
    """A heap of 120 MiB, saved by a child, and half of it freed; then the conversation of the laboratory."""
    fill = "for i=1,110000 do redis.call('SET','grown:'..i,string.rep('x',1000)) end return redis.call('DBSIZE')"
    drop = "for i=1,110000,2 do redis.call('DEL','grown:'..i) end return redis.call('DBSIZE')"
    with servers.connect(values["port"]) as client:
        answers = servers.ask(client, b'EVAL "%s" 0\r\n' % fill.encode(), b"\r\n")
        answers += servers.ask(client, b"SAVE\r\n", b"\r\n")
        answers += servers.ask(client, b"BGSAVE\r\n", b"\r\n")
        answers += servers.ask(client, b'EVAL "%s" 0\r\n' % drop.encode(), b"\r\n")
        answers += servers.await_snapshot(client)["rdb_last_bgsave_status"].encode()
        time.sleep(IDLE_S)
    return answers + servers.redis(values).answers


def memcached(values: Mapping[str, str]) -> bytes:
    with servers.connect(values["port"]) as client:
        item = b"set grown:%d 0 0 1000 noreply\r\n" + b"v" * 1000 + b"\r\n"
        client.sendall(b"".join(item % i for i in range(120_000)))
        answer = servers.ask(client, b"get grown:119999\r\nmn\r\n", b"MN\r\n")
        time.sleep(IDLE_S)
    return answer + servers.memcached(values).answers


def nginx(values: Mapping[str, str]) -> bytes:
    """Its master starts another worker where one died; only its log tells."""
    answer = servers.nginx(values).answers
    log = Path(values["cwd"], "error.log").read_text()
    if "exited on signal" in log:
        raise LabError(log.strip())
    return answer


def postgres(values: Mapping[str, str]) -> bytes:
    """A process of its own with a heap of 100 MiB; then the conversation of the laboratory."""
    folder = Path(values["exe"]).parent
    words = [str(folder / "psql"), "-X", "-A", "-t", "-h", servers.HOST, "-p", values["port"], "-U", "postgres", "-c"]
    servers.connect(values["port"]).close()
    for _ in range(6000):  # it listens before it answers
        if subprocess.run([*words, "select 1"], capture_output=True).returncode == 0:
            break
        time.sleep(0.05)
    grow = "select array_length(array_agg(md5(n::text)), 1) from generate_series(1, 1500000) n"
    done = subprocess.run([*words, grow], capture_output=True)
    if done.returncode != 0:
        raise LabError(done.stderr.decode().strip())
    return done.stdout + servers.postgres(values).answers


PYTHON = """
import threading, zlib
blocks = [bytes([i % 251]) * (i * 7919 % 3000 + 1) for i in range(100000)]
del blocks[::2]
def churn():
    for i in range(200): bytearray(i * 5000 % 700001)
threads = [threading.Thread(target=churn) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(blocks), zlib.crc32(b"".join(blocks)))
"""
PERL = """
my @blocks = map {{ chr(33 + $_ % 90) x ($_ * 7919 % 3000 + 1) }} 0 .. 99999;
my $sum = 0;
for my $i (0 .. 99999) {{ $sum += length($blocks[$i]) * ord($blocks[$i]) if $i % 3; undef $blocks[$i] if $i % 2 }}
my $pid = fork // die; if (!$pid) {{ my @more = @blocks; exit 0 }} waitpid $pid, 0;
print "$sum $?\\n";
"""
SQLITE = """
create table t(n integer primary key, b text);
with recursive c(n) as (select 1 union all select n + 1 from c where n < 100000)
    insert into t select n, printf('%*d', n * 7919 % 3000 + 1, n) from c;
delete from t where n % 2;
create index i on t(b);
select count(*), sum(length(b)), max(b) from (select b from t order by b desc limit 30000);
"""


SERVERS: dict[str, Callable[[Mapping[str, str]], bytes]] = {
    "redis": redis,
    "memcached": memcached,
    "nginx": nginx,
    "postgres": postgres,
}
ALONE = {"python3": ("-c", PYTHON), "perl": ("-e", PERL), "sqlite3": (":memory:", SQLITE)}
# Redis would say of a script on a busy machine that it is slow.
MORE_WORDS = {"memcached": ("-m", "256"), "redis": ("--lua-time-limit", "0")}
GROWING = {"redis", "memcached", *ALONE}  # the resident set of PostgreSQL's process is mostly not its heap


def listens(port: str) -> bool:
    try:
        socket.create_connection((servers.HOST, int(port)), timeout=10).close()
    except OSError:
        return False
    return True


def program_of(name: str, broken: list[str]) -> programs.Program:
    """Of a server that died in the middle, the way it ended says more than that the conversation broke off, which is
    then in `broken`."""
    if name in ALONE:
        return programs.Program(name, name, ((name,),), ("{exe}", *ALONE[name]))
    server = programs.by_name(name)

    def drive(values: Mapping[str, str]) -> servers.Told:
        try:
            return servers.Told(SERVERS[name](values))
        except (OSError, LabError) as error:
            time.sleep(0.5)
            if listens(values["port"]):
                raise
            broken.append(f"the conversation broke off: {error}")
            return servers.Told(b"")

    return replace(server, command=(*server.command, *MORE_WORDS.get(name, ())), drive=drive)


def said(failure: measure.Failure) -> str:
    signal_ = re.search(r"ended with (-\d+)", failure.reason)
    return f"{failure.reason} ({ending(int(signal_[1]))})" if signal_ else failure.reason


def try_all(name: str, library: Path, confined: Path) -> list[str]:
    """What went wrong."""
    wrong: list[str] = []
    prepared: programs.Values | None = None
    for title, settings in settings_to_try(name):
        broken: list[str] = []
        with tempfile.TemporaryDirectory(prefix="hakmem-units-") as work:
            folder = Path(work)
            folder.chmod(0o755)
            before = confinement(settings, library, confined, folder)
            starters = sum(word in ("prlimit", "setpriv", str(confined)) for word in before)
            program = program_of(name, broken)
            program = replace(program, command=(*before, *program.command), processes=program.processes + starters)
            case = programs.cases([program])[0][0]
            case.prepared = prepared
            done = measure.measure([case], measure.variants([GLIBC, hakmem(library)]), rounds=1, warmup=0)
            prepared = case.prepared
        left_out = sorted(other for other in settings if not is_translated(other) and not UNTOLD.match(other))
        print(title + (f", without {' '.join(left_out)}" if left_out else ""))
        found = [f"FAILED on {failure.variant}: {said(failure)}" for failure in done.failures]
        for variant, samples in done.samples[name].items():
            peak_bytes = samples[0].values["peak_rss_bytes"] if samples else 0
            told = f"{samples[0].digest}, {peak_bytes / MIB:.0f} MiB" if samples else "failed"
            print(f"    {variant}: {told}")
            if samples and name in GROWING and peak_bytes < GROWN_BYTES:
                found.append(f"FAILED on {variant}: its heap did not grow: {peak_bytes / MIB:.0f} MiB")
        found += [f"FAILED: {text}" for text in broken]
        print("".join(f"    {line}\n" for line in found), end="", flush=True)
        wrong += found
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--confined", type=Path, required=True)
    parser.add_argument("name", choices=[*SERVERS, *ALONE])
    arguments = parser.parse_args()
    program = program_of(arguments.name, [])
    if programs.installed(program) is None:
        print(f"skipped: {program.name} is not installed (Debian's package {program.package})")
        return SKIPPED
    if not seccomp.is_known_machine():
        print("skipped: no seccomp here, or system calls of an architecture that are not known")
        return SKIPPED
    try:
        return 1 if try_all(arguments.name, arguments.lib.resolve(), arguments.confined.resolve()) else 0
    except LabError as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
