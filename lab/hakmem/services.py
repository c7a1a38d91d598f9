"""Services as people run them, under each allocator: the memory that they have of the kernel while they work, and when
they have rested.

What is counted is anonymous memory (Pss_Anon of the kernel's smaps_rollup): each page once, however many processes
share it, and no files. That is the part of a process's memory that an allocator decides on. It is read several times
a second while a service works, and once more at the end of its rest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from hakmem import allocators, comparison, loads, measure, process, programs, servers, words
from hakmem.allocators import OWN, SYSTEM, Allocator
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.measure import CommandCase, Sample, Variant
from hakmem.programs import PYTHON, Program, ProgramCase, Values
from hakmem.report.model import Report, Table
from hakmem.resting import OneAtWork

REST_S = 20.0
LOOK_S = 0.2
REST, PEAK, MEAN, END = (f"{name}_anonymous_bytes" for name in ("rest", "peak", "mean", "end"))
COLUMNS = ("allocator", "after its rest", "peak", "mean", "end of work", "faults", "CPU time", "rest / lowest")
METRICS = (REST, PEAK, MEAN, END, "minor_faults", "cpu_s")
CLOSE = 1.03  # times the lowest: as good as that
SIDES: tuple[tuple[str, str, dict[str, str]], ...] = (  # a name, the allocator, and what is set for it
    (SYSTEM, SYSTEM, {}),
    ("glibc, 2 arenas", SYSTEM, {"MALLOC_ARENA_MAX": "2"}),
    ("jemalloc", "jemalloc", {}),
    ("jemalloc, thread", "jemalloc", {"MALLOC_CONF": "background_thread:true"}),
    ("mimalloc2", "mimalloc2", {}),
    ("mimalloc3", "mimalloc", {}),
    ("tcmalloc", "tcmalloc", {}),
    ("snmalloc", "snmalloc", {}),
    (OWN, OWN, {}),
)


# ---- The table -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Service:
    """A program of Debian's with work to do. Its command gets a port, and a folder (`cwd`) that is empty before."""

    program: Program
    talk: loads.Talk


def _database(values: Values) -> Values:
    """A MariaDB of no tables, which each run starts from a copy of."""
    user = programs.as_user("mysql")
    cluster = Path(values["work"], "cluster")
    cluster.mkdir()
    if os.geteuid() == 0:
        shutil.chown(cluster, "mysql", "mysql")
    install = programs.find(("mariadb-install-db", "mysql_install_db"))
    if install is None:
        raise LabError("mariadb-install-db is not installed")
    own = ["--no-defaults", f"--datadir={cluster}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    done = subprocess.run([*user, install, *own], cwd="/", capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"mariadb-install-db failed: {done.stderr.strip().splitlines()[-1:]}")
    return {"cluster": str(cluster), "as_user": " ".join(user)}


def _compiled(built: str, *compiler: str) -> Values:
    """A program of ours, in the folder {built}."""
    done = subprocess.run(compiler, capture_output=True, text=True)
    if done.returncode:
        raise LabError(f"{compiler[0]} failed: {done.stderr.strip().splitlines()[-1:]}")
    return {"built": built}


def _java_class(values: Values) -> Values:
    return _compiled(values["work"], "javac", "-d", values["work"], f"{programs.INPUTS}/NativeMemory.java")


def _pool(values: Values) -> Values:
    source = f"{programs.INPUTS}/pool.cpp"
    return _compiled(values["work"], values["exe"], "-O2", "-pthread", source, "-o", f"{values['work']}/pool")


def _without_pools(*command: str) -> tuple[str, ...]:
    """By env: programs of the laboratory run with PYTHONMALLOC=malloc, and services of people don't."""
    return ("env", "-u", "PYTHONMALLOC", *command)


_POSTGRES = "fsync=off shared_buffers=64MB work_mem=16MB jit=off autovacuum=off max_parallel_workers_per_gather=0"
SERVICES = (
    Service(
        Program(
            "MariaDB",
            "mariadb-server",
            (("mariadbd", "mysqld"), ("mariadb-install-db", "mysql_install_db"), ("mariadb", "mysql")),
            (
                *("{as_user}", "{exe}", "--no-defaults", "--datadir={data}", "--socket={cwd}/db.sock"),
                *("--skip-networking", "--pid-file={cwd}/pid", "--innodb-buffer-pool-size=32M"),
                "--innodb-flush-log-at-trx-commit=0",
            ),
            errors=programs.nothing,
            prepare=_database,
            set_up=programs.copy_cluster,
        ),
        loads.mariadb,
    ),
    Service(
        Program(
            "PostgreSQL",
            "postgresql",
            (("/usr/lib/postgresql/*/bin/postgres",),),
            (
                *("{as_user}", "{exe}", "-D", "{data}", "-p", "{port}", "-k", "{cwd}", "-c", "listen_addresses="),
                *(word for setting in _POSTGRES.split() for word in ("-c", setting)),
            ),
            output=programs.nothing,
            errors=programs.nothing,
            prepare=programs.postgres_cluster,
            set_up=programs.copy_cluster,
        ),
        loads.postgres,
    ),
    Service(
        Program(
            "Redis",
            "redis-tools",
            (("redis-server", "redis-check-rdb"),),
            ("{server}", "--port", "{port}", "--bind", servers.HOST, "--save", "", "--appendonly", "no"),
            output=programs.without_numbers,
            prepare=programs.redis_server,
        ),
        loads.redis,
    ),
    Service(
        Program("Python", "python3", ((PYTHON,),), _without_pools("{exe}", "{inputs}/service.py", "{port}")),
        loads.documents,
    ),
    Service(
        Program(
            "Pillow",
            "python3-pil",
            ((programs.SYSTEM_PYTHON,), ("/usr/lib/python3/dist-packages/PIL/_imaging.*.so",)),
            _without_pools("{exe}", "{inputs}/thumbnails.py", "60", "{cwd}/resting"),
        ),
        loads.by_itself,
    ),
    Service(
        Program("node", "nodejs", (("node", "nodejs"),), ("{exe}", "{inputs}/service.js", "{port}")), loads.documents
    ),
    Service(
        Program("Ruby", "ruby", (("ruby",),), ("{exe}", "{inputs}/jobs.rb", "1200", "{cwd}/resting")), loads.by_itself
    ),
    Service(
        Program(
            "Java",
            "default-jdk-headless",
            (("java",), ("javac",)),
            ("{exe}", "-Xmx64m", "-cp", "{built}", "NativeMemory", "600", "{cwd}/resting"),
            prepare=_java_class,
        ),
        loads.by_itself,
    ),
    Service(
        Program("C++ pool", "g++", (("g++",),), ("{built}/pool", "12000", "{cwd}/resting"), prepare=_pool),
        loads.by_itself,
    ),
    Service(
        Program(
            "pandas",
            "python3-pandas",
            ((programs.SYSTEM_PYTHON,), ("/usr/lib/python3/dist-packages/pandas/__init__.py",)),
            _without_pools("{exe}", "{inputs}/frames.py", "4", "{cwd}/resting"),
        ),
        loads.by_itself,
    ),
)


# ---- A run -----------------------------------------------------------------------------------------------------------


def anonymous_bytes(pids: Sequence[int]) -> float:
    """Of all of these that are there. LabError when none is, or when the kernel doesn't tell (before 5.9)."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):  # it has ended, or doesn't let itself be looked at
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            found += re.findall(r"^Pss_Anon: +(\d+) kB$", text, re.MULTILINE)
    if not found:
        raise LabError("the processes are gone, or their memory can't be read")
    return sum(map(int, found)) * 1024.0


class _Course(threading.Thread):
    """Reads a service's memory again and again, from when its process is there until it is told to stop."""

    def __init__(self, session: int) -> None:
        super().__init__(daemon=True)
        self._session = session
        self._stopped = threading.Event()
        self.values: list[float] = []

    def run(self) -> None:
        while not self._stopped.wait(LOOK_S):
            with contextlib.suppress(LabError):
                self.values.append(anonymous_bytes(self.pids()))

    def pids(self) -> list[int]:
        pid = process.command_in(self._session)
        return [] if pid is None else process.tree(pid)

    def __enter__(self) -> _Course:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self.join()

    def worked(self) -> dict[str, float]:
        """When its work is over. What was over before anybody had looked has no figures."""
        self.__exit__()
        end = anonymous_bytes(self.pids())
        values = [*self.values, end]
        return {PEAK: max(values), MEAN: sum(values) / len(values), END: end}


def expect_allocator(pids: Sequence[int], allocator: Allocator) -> None:
    """TakeoverError for a process that has not loaded the allocator's library. Children that were forked have the
    malloc of their parent, which has proved it."""
    library = allocator.library and str(allocator.library.resolve())
    for pid in pids:
        with contextlib.suppress(OSError):
            if library and library not in Path(f"/proc/{pid}/maps").read_text():
                name = Path(f"/proc/{pid}/comm").read_text().strip()
                raise process.TakeoverError(f"{name}, process {pid} of the service, runs without {allocator.name}")


def _held(
    values: Mapping[str, str], talk: loads.Talk, allocator: Allocator, place: OneAtWork, rest_s: float
) -> servers.Told:
    """Of one service: has it work, lets it rest, and ends it."""
    session = int(values["session"])
    course = _Course(session)
    with place.endable(session), course, contextlib.contextmanager(talk)(values) as answers:
        figures = course.worked()
        expect_allocator(course.pids(), allocator)
        place.rests()
        place.rest(rest_s)
        figures[REST] = anonymous_bytes(course.pids())
    return servers.Told(answers, figures)


@dataclass
class ServiceCase(ProgramCase):
    """A service of the table."""

    talk: loads.Talk = field(kw_only=True)
    place: OneAtWork = field(kw_only=True)
    rest_s: float = field(kw_only=True)

    def run(self, variant: Variant) -> Sample:
        def drive(values: Mapping[str, str]) -> servers.Told:
            return _held(values, self.talk, variant.allocator, self.place, self.rest_s)

        return ProgramCase(replace(self.program, drive=drive), self.paths, seconds=self.rest_s).run(variant)


@dataclass(frozen=True, kw_only=True)
class OwnCase(CommandCase):
    """A service of the user's, with a command that loads it and ends."""

    load: tuple[str, ...]
    place: OneAtWork
    rest_s: float

    def run(self, variant: Variant) -> Sample:
        told: list[servers.Told] = []

        def drive(session: int) -> None:
            values = {"session": str(session)}
            told.append(_held(values, loads.by_command(self.load), variant.allocator, self.place, self.rest_s))

        run = process.run(self.command, variant.allocator, variant.settings, drive=drive, timeout_s=loads.END_S)
        if run.status not in process.ENDED_BY:
            raise LabError(run.how_it_ended(self.command[0]))
        process.prove_takeover(run, self.command[0], variant.allocator)
        digest = hashlib.sha256(told[0].answers).hexdigest()[:16]
        return Sample(
            {**measure.values_of(run), **told[0].values}, digest, True, remarks=run.remarks(variant.allocator)
        )


def cases(names: Sequence[str], place: OneAtWork, rest_s: float) -> tuple[list[ServiceCase], list[Program]]:
    """Those of the table that are wanted (all where none is named), and those of them that aren't installed. LabError
    for a name that isn't there."""
    known = {service.program.name: service for service in SERVICES}
    small = {name.lower(): name for name in known}
    for name in names:
        if name.lower() not in small:
            raise LabError(f"no service {name!r}; there are {', '.join(known)}")
    ready: list[ServiceCase] = []
    missing: list[Program] = []
    for name in dict.fromkeys(small[name.lower()] for name in names or known):
        program, paths = known[name].program, programs.installed(known[name].program)
        if paths is None:
            missing.append(program)
        else:
            ready.append(ServiceCase(program, paths, talk=known[name].talk, place=place, rest_s=rest_s))
    return ready, missing


def sides() -> tuple[list[Variant], list[str]]:
    """Those of the table that are built on this machine, and the peers that aren't."""
    there = {one.name: one for one in allocators.installed()}
    ready = [Variant(name, there[of], dict(settings)) for name, of, settings in SIDES if of in there]
    return ready, sorted({of for _, of, _ in SIDES if of not in there})


# ---- What it shows ---------------------------------------------------------------------------------------------------


def standing(record: Record, metric: str, variant: str = OWN) -> dict[str, float]:
    """By case: the variant's median, as a multiple of the lowest of all. Cases in which it has none are left out."""
    found = {}
    for case in record.cases:
        medians = {name: values for name in record.variants if (values := record.values(case, name, metric))}
        if variant in medians:
            found[case] = median(medians[variant]) / min(map(median, medians.values()))
    return found


def report(record: Record, kept: str | None = None) -> Report:
    base = comparison.report(record, "services", baseline=_baseline(record), primary=REST, metrics=(), kept=kept)
    tables = tuple(_table(record, case) for case in record.cases)
    summary = (_standing(record, REST, "after their rest"), _standing(record, PEAK, "at their peak"))
    return replace(base, sections=tables, summary=tuple(line for line in summary if line))


def _table(record: Record, case: str) -> Table:
    """Medians over the rounds."""
    rows = []
    for name in record.variants:
        found = {metric: median(values) for metric in METRICS if (values := record.values(case, name, metric))}
        if found:
            shown = (words.amount(found[one], comparison.metric(record, one).unit) for one in found)
            rows.append((name, *shown, f"{standing(record, REST, name)[case]:.2f}"))
    return Table(case, COLUMNS, tuple(rows))


def _standing(record: Record, metric: str, when: str) -> str:
    """A sentence; empty where hakmem took no part."""
    found = standing(record, metric)
    good = sum(value <= CLOSE for value in found.values())
    others = ", ".join(f"{name} {value:.2f}" for name, value in found.items() if value > CLOSE)
    said = f"{OWN} is the lowest, or within 3 % of it, in {good} of {len(found)} services {when}"
    return said + (f"; as multiples of the lowest: {others}." if others else ".") if found else ""


def _baseline(record: Record) -> str:
    return SYSTEM if SYSTEM in record.variants else next(iter(record.variants))
