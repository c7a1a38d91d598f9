"""Real programs as cases: what everybody has from packages, with inputs of ours and outputs that are checked.

Every run happens in an empty folder and in an environment of its own, so that nothing of the caller's settings reaches
it. Its outputs (standard output and error, files, a client's answers) must be the same under every allocator, and at
least as many processes as the program is known to have must prove their allocator. A program that isn't installed is
left out by whoever asks for the list, and named.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from hakmem import native, process, servers
from hakmem.errors import LabError
from hakmem.measure import CEILING, SameOutput, Sample, Variant, values_of
from hakmem.suite import LONG

INPUTS = Path(__file__).resolve().parent / "inputs"
SYSTEM_PYTHON = "/usr/bin/python3"
PYTHON = SYSTEM_PYTHON if os.access(SYSTEM_PYTHON, os.X_OK) else sys.executable
TIMEOUT_S = 180
MOST_WRITTEN = 256 << 20  # by a program, which may have removed it before it fails
GROUP = "programs"

Values = dict[str, str]


@dataclass(frozen=True)
class Program:
    """A row of the table. Words of `command` may have {placeholders}: exe, inputs, python, cwd, port, and what
    `prepare` adds. `drive` also gets session, the process that the run was started as."""

    name: str
    package: str  # Debian's
    needs: tuple[tuple[str, ...], ...]  # of each group the first one installed; the first group's is {exe}
    command: tuple[str, ...]
    files: tuple[str, ...] = ()  # outputs besides standard output and error
    processes: int = 1  # at least so many must prove their allocator
    output: Callable[[bytes], bytes] = field(default=lambda text: text)  # what must not differ of standard output
    errors: Callable[[bytes], bytes] = field(default=lambda text: text)
    prepare: Callable[[Values], Values] | None = None  # once per process, from {exe} and {work}, a folder of its own
    set_up: Callable[[Values], None] | None = None  # before each run, in its folder
    drive: Callable[[Mapping[str, str]], servers.Told] | None = None  # talks to a server until it ends
    group: str = GROUP


def find(group: Iterable[str]) -> str | None:
    """The first of these that is installed: a command, or an absolute path with wildcards, of which the last in
    order."""
    for name in group:
        if name.startswith("/"):
            found = sorted(Path("/").glob(name[1:]))
            if found:
                return str(found[-1])
        elif path := shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"):
            return path
    return None


def installed(program: Program) -> list[str] | None:
    """The programs it needs, by path; None when one is missing."""
    found = [find(group) for group in program.needs]
    return None if None in found else [path for path in found if path]


@cache
def _work() -> Path:
    """A folder for what is prepared once, gone when this process ends. Others may look into it: servers that refuse to
    be root run as somebody else. It is locked, and so systemd-tmpfiles doesn't take what gets old in it."""
    folder = Path(tempfile.mkdtemp(prefix="hakmem-programs-"))
    folder.chmod(0o755)
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def _prepared(prepare: Callable[[Values], Values], exe: str) -> Values:
    """For all runs of this process: a machine of a cluster gets its cases anew for each round."""
    folder = Path(tempfile.mkdtemp(dir=_work()))
    folder.chmod(0o755)
    return prepare({"exe": exe, "work": str(folder)})


@dataclass
class ProgramCase:
    """A program, ready to run."""

    program: Program
    paths: list[str]
    same_output: SameOutput = "on a machine"
    seconds: float = 0  # that a service is kept busy

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def command(self) -> tuple[str, ...]:
        """As a reader of a record sees it: placeholders for what only exists during a run."""
        known = {"exe": self.paths[0], "inputs": "inputs", "python": PYTHON}
        return tuple(re.sub(r"\{(\w+)\}", lambda m: known.get(m[1], m[0]), word) for word in self.program.command)

    def supports(self, variant: Variant) -> bool:
        return variant.name != CEILING  # it never gives memory back

    def run(self, variant: Variant) -> Sample:
        program = self.program
        cwd = Path(tempfile.mkdtemp(dir=_work()))
        cwd.chmod(0o777)
        try:
            return self._run_in(cwd, program, variant)
        except (LabError, OSError) as error:  # also of what made its inputs
            if isinstance(error, OSError) and error.errno in process.NO_ROOM:
                raise
            process.expect_room(cwd, MOST_WRITTEN)
            raise error if isinstance(error, LabError) else LabError(f"{program.name}: {error}") from None
        finally:
            shutil.rmtree(cwd, ignore_errors=True)

    def _run_in(self, cwd: Path, program: Program, variant: Variant) -> Sample:
        values = {"exe": self.paths[0], "inputs": str(INPUTS), "python": PYTHON}
        values |= _prepared(program.prepare, self.paths[0]) if program.prepare else {}
        values |= {"cwd": str(cwd), "port": servers.free_port(), "seconds": f"{self.seconds}"}
        if program.set_up:
            program.set_up(values)
        answers: list[servers.Told] = []
        drive = program.drive
        run = process.run(
            command_of(program, values),
            variant.allocator,
            variant.settings,
            environment=environment(cwd),
            timeout_s=TIMEOUT_S + self.seconds,
            cwd=cwd,
            drive=(lambda session: answers.append(drive({**values, "session": str(session)}))) if drive else None,
        )
        if run.status != 0:
            said = (run.stderr or run.stdout).decode(errors="replace").strip().splitlines()
            raise LabError(f"{program.name} {process.ending(run.status)}" + (f": {said[-1]}" if said else ""))
        own = [one for one in run.processes if process.is_allocator(one.malloc, variant.allocator)]
        if len(own) < program.processes:
            raise process.TakeoverError(
                f"{program.name}: {len(own)} programs on {variant.name}, expected {program.processes} or more"
            )
        parts = {"stdout": program.output(run.stdout), "stderr": program.errors(run.stderr)}
        parts |= {name: (cwd / name).read_bytes() for name in program.files}
        told = answers[0] if answers else servers.Told(b"")
        if answers:
            parts["answers"] = told.answers
        digest = " ".join(f"{name}:{hashlib.sha256(data).hexdigest()[:12]}" for name, data in parts.items())
        return Sample(
            {**values_of(run, told.operations), **told.values}, digest, full_size=run.wall_s >= 1, units=told.units
        )


def command_of(program: Program, values: Values) -> list[str]:
    """Its words, of which {as_user} stands for as many as it takes to be somebody else."""
    found: list[str] = []
    for word in program.command:
        found += values["as_user"].split() if word == "{as_user}" else [word.format(**values)]
    return found


def environment(home: Path) -> Values:
    """What a program gets to see. PYTHONMALLOC: Python's own arenas would hide the work."""
    known = {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
    fixed = {"HOME": str(home), "TMPDIR": str(home), "LC_ALL": "C", "TZ": "UTC", "PYTHONMALLOC": "malloc"}
    fixed |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
    return {
        "PATH": os.environ.get("PATH", os.defpath) + ":/usr/sbin:/sbin",
        **known,
        **process.caller_settings(),
        **fixed,
    }


# ---- Preparation
# -------------------------------------------------------------------------------------------------------


def _git(values: Values) -> Values:
    """A repository for git to read: a bare copy of this one, so that nobody's commit changes it halfway; where there
    is none, one commit of the Python library's sources, the same one whenever it is made."""
    copy, git, home = Path(values["work"], "repository.git"), values["exe"], Path(values["work"])
    config = home / ".gitconfig"
    config.write_text("[safe]\n\tdirectory = *\n[user]\n\tname = lab\n\temail = lab@localhost\n")
    dates = dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2000-01-01T00:00:00Z")

    def call(*words: str) -> int:
        return subprocess.run([git, *words], env={**environment(home), **dates}, capture_output=True).returncode

    root = native.checkout()
    if root and call("-C", str(root), "rev-parse", "-q", "--verify", "HEAD") == 0:
        failed = call("clone", "-q", "--bare", "--no-local", str(root), str(copy))
    else:
        tree = Path(os.__file__).parent
        inside = (f"--git-dir={copy}", f"--work-tree={tree}")
        failed = call("init", "-q", "--bare", str(copy)) or call(
            *inside, "add", "-A", str(tree / "json"), str(tree / "email")
        )
        failed = failed or call(*inside, "commit", "-q", "-m", "all")
    if failed:
        raise LabError("git: can't prepare a repository for it to read")
    return {"repository": str(copy), "config": str(config)}


def _git_home(values: Values) -> None:
    shutil.copy(values["config"], values["cwd"])


def redis_server(values: Values) -> Values:
    """Debian's redis-tools holds the server too; the name it is called by decides what the program is."""
    server = Path(values["work"], "redis-server")
    server.symlink_to(values["exe"])
    return {"server": str(server)}


NGINX = """daemon off; worker_processes 2; pid {cwd}/nginx.pid; error_log {cwd}/error.log crit;
events {{ worker_connections 256; }}
http {{ access_log off; client_body_temp_path {cwd}/body; proxy_temp_path {cwd}/proxy; fastcgi_temp_path {cwd}/fastcgi;
  uwsgi_temp_path {cwd}/uwsgi; scgi_temp_path {cwd}/scgi; gzip on; gzip_types *; keepalive_requests 100000;
  server {{ listen 127.0.0.1:{port}; root {cwd}/files; }} }}
"""


def _nginx(values: Values) -> None:
    cwd = Path(values["cwd"])
    (cwd / "files").mkdir()
    (cwd / "files" / "small").write_text("small\n" * 40)
    (cwd / "files" / "large").write_text("".join(f"line {i}\n" for i in range(40000)))
    (cwd / "nginx.conf").write_text(NGINX.format(**values))


def as_user(name: str) -> list[str]:
    """Words before the command of a server that refuses to be root: its package's user. Not setpriv, which ends with an
    allocator that has a thread by then: it checks what the C library did for all threads."""
    if os.geteuid() != 0:
        return ["env"]
    return ["chroot", f"--userspec={name}:{name}", "--groups=", "--skip-chdir", "/"]


def postgres_cluster(values: Values) -> Values:
    """A cluster that each run starts from a copy of. The server refuses to be root; then it runs as its package's
    user."""
    user = as_user("postgres")
    cluster = Path(values["work"], "cluster")
    cluster.mkdir()
    if os.geteuid() == 0:
        shutil.chown(cluster, "postgres", "postgres")
    initdb = [str(Path(values["exe"]).parent / "initdb"), "-D", str(cluster), "-A", "trust", "-U", "postgres", "-N"]
    done = subprocess.run([*user, *initdb], cwd="/", capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"initdb failed: {done.stderr.strip().splitlines()[-1:]}")
    return {"cluster": str(cluster), "as_user": " ".join(user)}


def copy_cluster(values: Values) -> None:
    values["data"] = str(Path(values["cwd"], "data"))
    done = subprocess.run(["cp", "-a", values["cluster"], values["data"]], capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"postgres: can't copy its data: {done.stderr.strip().splitlines()[-1:]}")


def without_numbers(text: bytes) -> bytes:
    return re.sub(rb"\d+:[A-Z] .{24}|\d+", b"#", text)  # pids, dates, the port


def nothing(text: bytes) -> bytes:
    return b""  # a log of times and pids


# ---- The table
# ---------------------------------------------------------------------------------------------------------

PROGRAMS = (
    Program("python3", "python3", ((PYTHON,),), ("{exe}", "{inputs}/objects.py")),
    Program("sqlite3", "python3", ((PYTHON,),), ("{exe}", "{inputs}/rows.py", "500000")),
    Program(
        "gcc",
        "g++",
        (("g++",),),
        ("{exe}", "-std=c++17", "-O1", "-c", "{inputs}/headers.cpp", "-o", "headers.o"),
        files=("headers.o",),
        processes=3,
    ),
    Program(
        "git",
        "git",
        (("git",),),
        ("{python}", "{inputs}/git_passes.py", "{exe}", "{repository}", "1"),
        processes=4,
        prepare=_git,
        set_up=_git_home,
    ),
    Program(
        "redis",
        "redis-tools",
        (("redis-server", "redis-check-rdb"), ("redis-benchmark",)),
        ("{server}", "--port", "{port}", "--bind", servers.HOST, "--save", "", "--appendonly", "no"),
        output=without_numbers,
        prepare=redis_server,
        drive=servers.redis,
    ),
    Program(
        "redis snapshot",
        "redis-tools",
        (("redis-server", "redis-check-rdb"),),
        (
            *("{server}", "--port", "{port}", "--bind", servers.HOST, "--save", "", "--appendonly", "no"),
            *("--rdbcompression", "no", "--rdb-key-save-delay", "-10"),
        ),
        output=without_numbers,
        prepare=redis_server,
        drive=servers.redis_snapshot,
        group=LONG,
    ),
    Program(
        "memcached",
        "memcached",
        (("memcached",),),
        ("{exe}", "-p", "{port}", "-l", servers.HOST, "-U", "0", "-m", "64", "-A", "-u", "nobody", "-t", "2"),
        drive=servers.memcached,
    ),
    Program(
        "nginx",
        "nginx-light",
        (("nginx",),),
        ("{exe}", "-p", "{cwd}", "-c", "{cwd}/nginx.conf", "-e", "{cwd}/error.log"),
        set_up=_nginx,
        drive=servers.nginx,
    ),
    Program(
        "postgres",
        "postgresql",
        (("/usr/lib/postgresql/*/bin/postgres",),),
        ("{as_user}", "{exe}", "-D", "{data}", "-p", "{port}", "-h", servers.HOST, "-k", "", "-F"),
        output=nothing,
        errors=nothing,
        processes=2,
        prepare=postgres_cluster,
        set_up=copy_cluster,
        drive=servers.postgres,
    ),
    Program("node", "nodejs", (("node", "nodejs"),), ("{exe}", "{inputs}/objects.js")),
    Program("lua", "lua5.4", (("lua5.4", "lua5.3", "lua"),), ("{exe}", "{inputs}/objects.lua")),
    Program("ruby", "ruby", (("ruby",),), ("{exe}", "{inputs}/objects.rb")),
)

# The same programs with less to do, half a second or less: processes that must prove their allocator, and the command.
SHORT = {
    "python3": (1, ("{exe}", "{inputs}/objects.py", "2")),
    "sqlite3": (1, ("{exe}", "{inputs}/rows.py", "200000")),
    "gcc": (3, ("{exe}", "-std=c++17", "-O1", "-c", "{inputs}/containers.cpp", "-o", "headers.o")),
    "git": (1, ("{exe}", "-C", "{repository}", "log", "-p", "-300", "--stat")),
}

# What goes on for as long as it is told. How much it does by then differs, and what it answers doesn't.
SERVICES = (
    Program("python3", "python3", ((PYTHON,),), ("{exe}", "{inputs}/service.py", "{port}"), drive=servers.documents),
    Program(
        "redis",
        "redis-tools",
        (("redis-server", "redis-check-rdb"),),
        ("{server}", "--port", "{port}", "--bind", servers.HOST, "--save", "", "--appendonly", "no"),
        output=without_numbers,
        prepare=redis_server,
        drive=servers.redis_documents,
    ),
    Program(
        "node", "nodejs", (("node", "nodejs"),), ("{exe}", "{inputs}/service.js", "{port}"), drive=servers.documents
    ),
)


def by_name(name: str) -> Program:
    for program in PROGRAMS:
        if program.name == name:
            return program
    raise LabError(f"no program {name!r}; there are {', '.join(program.name for program in PROGRAMS)}")


def short(name: str) -> Program:
    """A program of SHORT."""
    processes, command = SHORT[name]
    return replace(by_name(name), command=command, processes=processes)


def cases(programs: Iterable[Program]) -> tuple[list[ProgramCase], list[Program]]:
    """Those that are installed, and those that aren't."""
    ready: list[ProgramCase] = []
    missing: list[Program] = []
    for program in programs:
        paths = installed(program)
        if paths is None:
            missing.append(program)
        else:
            ready.append(ProgramCase(program, paths))
    return ready, missing
