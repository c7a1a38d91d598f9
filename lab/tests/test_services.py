"""hakmem services: what is read of a service at work and at rest, who proves what, and what an interruption keeps."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hakmem import allocators, ledger, loads, measure, native, process, programs, resting, servers, services
from hakmem.errors import InterruptedEarly, LabError
from hakmem.measure import Sample, Variant
from hakmem.programs import PYTHON, Program
from hakmem.report.model import Table
from sample_record import record

GLIBC = Variant("glibc", allocators.glibc())
OTHER = replace(GLIBC, name="other")
MIB = 1 << 20

# A service that holds 40 MiB while it works, and 10 when it rests, in itself and in a child of it.
SERVICE = """
import os, pathlib, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGTERM}})
held = [b"x" * (1 << 20) for _ in range(10)]
child = os.fork()
if child == 0:
    os.setsid()  # as a database's processes do
    held = [b"y" * (1 << 20) for _ in range(10)]
    signal.sigwait({{signal.SIGTERM}})
    os._exit(0)
more = bytearray(b"x") * (30 << 20)
time.sleep(1.5)  # however busy the machine is, memory is read meanwhile
del more
pathlib.Path(sys.argv[1]).touch()
print("worked", flush=True)
HOW
signal.sigwait({{signal.SIGTERM}})
os.kill(child, signal.SIGTERM)
os.waitpid(child, 0)
"""


def case(place: resting.OneAtWork, how: str = "", rest_s: float = 0.3, name: str = "small") -> services.ServiceCase:
    text = SERVICE.replace("HOW", how)
    program = Program(name, "python3", ((PYTHON,),), ("{exe}", "-c", text, "{cwd}/resting"))
    return services.ServiceCase(program, [PYTHON], talk=loads.by_itself, place=place, rest_s=rest_s)


def measured(own: list[services.ServiceCase], place: resting.OneAtWork, rounds: int = 1) -> measure.Measurement:
    return measure.measure(own, [GLIBC, OTHER], rounds, warmup=0, place=place, keeps_parts=True)


def test_memory_of_all_processes_is_read_at_work_and_after_a_rest() -> None:
    """What a child has in common with its parent counts once."""
    place = resting.OneAtWork()
    found = measured([case(place)], place, rounds=2)
    assert found.rounds == 2 and not found.failures
    for variant in ("glibc", "other"):
        peak, rest, end, mean = (
            found.values("small", variant, metric)
            for metric in (services.PEAK, services.REST, services.END, services.MEAN)
        )
        assert all(50 * MIB < value < 75 * MIB for value in peak)
        assert all(20 * MIB < value < 45 * MIB for value in rest) and all(value <= 75 * MIB for value in end)
        assert all(least < value < most for least, value, most in zip(rest, mean, peak, strict=True))


def test_what_is_in_a_file_is_no_memory_of_a_service(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (20 << 20))
    text = (
        "import mmap, sys; file = open(sys.argv[1]); m = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ);"
        "n = len(m[:]); print(n, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [PYTHON, "-c", text, tmp_path / "file"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout and child.stdout.readline()
        assert services.anonymous_bytes([child.pid]) < 15 * MIB < process.proportional_bytes([child.pid])
        child.communicate()
    with pytest.raises(LabError, match="gone"):
        services.anonymous_bytes([child.pid])


@pytest.mark.parametrize("how", ["os._exit(0)", "time.sleep(0.1); os._exit(0)", "os.kill(os.getpid(), 9)"])
def test_a_service_that_ends_by_itself_has_no_figures(how: str) -> None:
    """While it rests; the others have theirs."""
    place = resting.OneAtWork()
    found = measured([case(place, how, name="fleeting"), case(place)], place)
    assert {failure.case for failure in found.failures} == {"fleeting"} and len(found.failures) == 2
    assert found.values("small", "glibc", services.REST)


def test_a_process_without_the_library_is_named() -> None:
    hakmem = replace(allocators.glibc(), name="hakmem", library=Path(sys.executable).resolve().parent / "nothing.so")
    with subprocess.Popen(["sleep", "100"]) as child:
        try:
            services.expect_allocator([child.pid], allocators.glibc())
            with pytest.raises(process.TakeoverError, match=r"process \d+ of the service, runs without hakmem"):
                services.expect_allocator([child.pid], hakmem)
        finally:
            child.kill()


def test_one_service_works_at_a_time_and_others_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    place = resting.OneAtWork()
    at_work: list[int] = []
    resting_now: list[int] = []
    lock, count = threading.Lock(), [0, 0]

    def run(case: object, variant: Variant) -> Sample:
        with lock:
            count[0] += 1
            at_work.append(count[0])
        time.sleep(0.05)
        with lock:
            count[0] -= 1
            count[1] += 1
            resting_now.append(count[1])
        place.rests()
        place.rest(0.2)
        with lock:
            count[1] -= 1
        return Sample({"cpu_s": 1.0}, "same", full_size=True)

    monkeypatch.setattr(services.ServiceCase, "run", run)
    found = measured([case(place, name=f"of {i}") for i in range(3)], place)
    assert not found.failures and at_work == [1] * 6 and max(resting_now) > 1


def test_ctrl_c_keeps_services_that_were_finished_under_all_allocators() -> None:
    """And ends those that work or rest: no process of any of them is left."""
    place = resting.OneAtWork()
    cases = [case(place, rest_s=0), case(place, rest_s=60, name="second")]

    def interrupt(step: measure.Step) -> None:
        if step.number == 4:
            time.sleep(0.5)  # the first one's are ended by then
            signal.raise_signal(signal.SIGINT)

    start = time.monotonic()
    found = measure.measure(cases, [GLIBC, OTHER], 1, warmup=0, place=place, keeps_parts=True, on_step=interrupt)
    assert found.interrupted and list(found.samples) == ["small"] and time.monotonic() - start < 60
    assert found.values("small", "other", services.REST)
    place = resting.OneAtWork()
    with pytest.raises(InterruptedEarly):
        measure.measure([case(place, rest_s=60)], [GLIBC, OTHER], 1, warmup=0, place=place, on_step=_at(2))


def _at(number: int) -> Callable[[measure.Step], None]:
    def interrupt(step: measure.Step) -> None:
        if step.number == number:
            signal.raise_signal(signal.SIGINT)

    return interrupt


# ---- A service of one's own ------------------------------------------------------------------------------------------


def run(*words: str, timeout: float = 100) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hakmem", "services", *words], capture_output=True, text=True, timeout=timeout
    )


def test_a_service_of_ones_own_is_loaded_and_left_alone(tmp_path: Path) -> None:
    wait = f"until [ -e {tmp_path}/there ]; do sleep 0.01; done; rm {tmp_path}/there; echo loaded"
    text = f"import pathlib, time; pathlib.Path('{tmp_path}/there').touch(); x = b'x' * (30 << 20); time.sleep(100)"
    done = run("--rest", "0.1", "--with", "glibc", "--load", f"sh -c '{wait}'", "--", PYTHON, "-c", text)
    assert done.returncode == 0, done.stderr
    head, row = (line.split() for line in done.stdout.splitlines() if line.startswith(("allocator", "glibc ")))
    assert head[1:4] == ["after", "its", "rest"] and 30 < float(row[1]) < 60 and row[2] == "MiB"


def test_what_a_load_leaves_behind_is_not_waited_for() -> None:
    start = time.monotonic()
    done = run("--rest", "0", "--with", "glibc", "--load", "sh -c 'sleep 1000 & echo done'", "--", "sleep", "1000")
    assert done.returncode == 0 and time.monotonic() - start < 500


def test_a_service_is_named_once_in_any_letters() -> None:
    found, missing = services.cases(["Python", "python", "PYTHON"], resting.OneAtWork(), 1)
    assert [one.name for one in (*found, *missing)] == ["Python"]


@pytest.mark.parametrize(
    ("load", "service", "said"),
    [
        ("sh -c 'exit 3'", "sleep 100", "the load sh ended with exit status 3"),
        ("sleep 100", "true", "the service has ended before its load"),
        ("true", "sh -c 'trap : TERM; sleep 100 & while :; do wait; done'", "was ended after"),
    ],
)
def test_what_goes_wrong_with_ones_own_is_told(
    load: str, service: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "END_S", 2.0)
    place = resting.OneAtWork()
    own = services.OwnCase(tuple(shlex.split(service)), load=tuple(shlex.split(load)), place=place, rest_s=0)
    with pytest.raises(LabError, match=said):
        measure.measure([own], [GLIBC], 1, warmup=0, place=place)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--load", "true"], "expected `hakmem services --load COMMAND -- COMMAND"),
        (["--", "true"], "expected `hakmem services --load COMMAND -- COMMAND"),
        (["--only", "Oracle"], "no service 'Oracle'; there are MariaDB, PostgreSQL"),
        (["--only", "Redis", "--load", "true", "--", "true"], "--only is for the ten services"),
        (["--load", "'", "--", "true"], "--load '"),
        (["--load", "nosuch-command", "--", "true"], "nosuch-command: command not found"),
        (["--rest", "-1"], "--rest"),
    ],
)
def test_bad_input_is_one_line(words: list[str], said: str) -> None:
    done = run("--with", "glibc", *words)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr


# ---- What it says ----------------------------------------------------------------------------------------------------


def test_services_in_which_hakmem_is_as_good_as_the_lowest_are_counted() -> None:
    rest = {("a", "hakmem"): 10.0, ("a", "glibc"): 20.0, ("b", "hakmem"): 10.3, ("b", "glibc"): 10.0}
    rest |= {("c", "hakmem"): 10.4, ("c", "glibc"): 10.0, ("c", "other"): 11.0}
    own = record({(case, name, services.REST): [value * MIB] for (case, name), value in rest.items()})
    assert services.standing(own, services.REST) == {"a": 1.0, "b": 1.03, "c": 1.04}
    shown = services.report(own)
    assert shown.summary == (
        "hakmem is the lowest, or within 3 % of it, in 2 of 3 services after their rest; as multiples of the lowest: "
        "c 1.04.",
    )
    table = shown.sections[2]
    assert isinstance(table, Table) and [row[0] for row in table.rows] == ["hakmem", "glibc", "other"]
    assert [row[-1] for row in table.rows] == ["1.04", "1.00", "1.10"]


def test_sides_that_are_not_built_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = [allocators.glibc(), replace(allocators.glibc(), name="jemalloc")]
    monkeypatch.setattr(allocators, "installed", lambda: there)
    ready, missing = services.sides()
    assert [one.name for one in ready] == ["glibc", "glibc, 2 arenas", "jemalloc", "jemalloc, thread"]
    assert missing == ["hakmem", "mimalloc", "mimalloc2", "snmalloc", "tcmalloc"]
    assert ready[3].settings == {"MALLOC_CONF": "background_thread:true"}


def test_the_first_claim_of_the_readme_is_its_records() -> None:
    root = native.checkout()
    if root is None:
        pytest.skip("the documents are not part of the package")
    first = "\n".join((root / "README.md").read_text().splitlines()[:10])
    (name,) = re.findall(r"^record = \"(.*services-at-rest.*)\"$", (root / "docs/tables/README.toml").read_text(), re.M)
    found = services.standing(ledger.load(name, root / "evidence"), services.REST)
    good = sum(value <= services.CLOSE for value in found.values())
    assert len(found) == len(services.SERVICES) and f"in {good} of {len(found)} services" in first
    assert "<!-- picture: services-at-rest -->" in first
    assert (root / "docs/tables/services.toml").read_text().count(f'record = "{name}"') == 3


# ---- The ten ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As little as shows that each is asked, answers and ends."""
    monkeypatch.setattr(loads, "REDIS_KEYS", 3000)
    monkeypatch.setattr(servers, "texts", lambda: [b"line\n" * (1 + i * 997) for i in range(40)])
    for name, value in (("POSTGRES_SESSIONS", 2), ("POSTGRES_ROUNDS", 1), ("MARIADB_SESSIONS", 2)):
        monkeypatch.setattr(loads, name, value)
    monkeypatch.setattr(loads, "MARIADB_ROUNDS", 1)
    few = {"60": "2", "1200": "20", "600": "8", "12000": "50", "4": "1"}

    def with_little(service: services.Service) -> services.Service:
        command = tuple(few.get(word, word) for word in service.program.command)
        return replace(service, program=replace(service.program, command=command))

    monkeypatch.setattr(services, "SERVICES", tuple(map(with_little, services.SERVICES)))
    yield


@pytest.mark.forms
@pytest.mark.parametrize("name", [service.program.name for service in services.SERVICES])
@pytest.mark.usefixtures("small_work")
def test_each_of_the_ten_works_and_rests(name: str) -> None:
    place = resting.OneAtWork()
    cases, missing = services.cases([name], place, 0.1)
    if missing:
        pytest.skip(f"{missing[0].package} is not installed")
    found = measure.measure(cases, [GLIBC, Variant("hakmem", allocators.hakmem())], 1, warmup=0, place=place)
    assert not found.failures
    for variant in ("glibc", "hakmem"):
        (peak,), (rest,) = (found.values(name, variant, metric) for metric in (services.PEAK, services.REST))
        assert 0 < rest <= peak * 1.1


def test_the_ten_are_told_in_help() -> None:
    from hakmem.commands import services as commands

    told = " ".join((commands.command.help or "").split())
    names = [service.program.name for service in services.SERVICES]
    assert len(names) == 10 and all(name in told for name in names)


# ---- At rest, as long as it takes ------------------------------------------------------------------------------------

BURSTS = {
    "lua": (
        "lua5.4",
        "-e",
        'for _ = 1, 4 do local t = {} for i = 1, 300000 do t[i] = i .. ("x"):rep(60) end t = nil collectgarbage() end '
        'io.open("RESTING", "w"):close() os.execute("exec sleep 1000")',
    ),
    "perl": (
        "perl",
        "-e",
        'for (1..4) { my @a = map { "x" x 100 . $_ } 1..200000; undef @a; } '
        'open(F, ">", "RESTING"); close(F); sleep 1000',
    ),
    "php": (
        "php",
        "-n",
        "-r",
        "for ($r = 0; $r < 4; $r++) { $a = []; for ($i = 0; $i < 200000; $i++) $a[] = str_repeat('x', 100) . $i; "
        "unset($a); } touch('RESTING'); sleep(1000);",
    ),
    "workers": (
        PYTHON,
        "-c",
        "import os, pathlib, time\n"
        "def work():\n"
        "    for _ in range(6): held = [bytes(3000 + i % 700) for i in range(8000)]; del held; time.sleep(0.05)\n"
        "for n in range(4):\n"
        "    if os.fork() == 0: work(); pathlib.Path(f'RESTING.{n}').touch(); time.sleep(1000); os._exit(0)\n"
        "while not all(os.path.exists(f'RESTING.{n}') for n in range(4)): time.sleep(0.05)\n"
        "pathlib.Path('RESTING').touch(); time.sleep(1000)",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("name", BURSTS)
def test_interpreters_and_their_workers_hold_what_they_need(name: str, tmp_path: Path) -> None:
    """Four bursts of some 30 MiB in processes with one thread, under hakmem as under glibc, which gives back what lies
    at the end of its heap; twenty seconds later."""
    command = tuple(word.replace("RESTING", f"{tmp_path}/resting") for word in BURSTS[name])
    if programs.find((command[0],)) is None:
        pytest.skip(f"{command[0]} is not installed")
    wait = f"until [ -e {tmp_path}/resting ]; do sleep 0.1; done; rm {tmp_path}/resting*"
    place = resting.OneAtWork()
    own = services.OwnCase(command, load=("sh", "-c", wait), place=place, rest_s=20)
    variants = [GLIBC, Variant("hakmem", allocators.hakmem(), {"PYTHONMALLOC": "malloc", "USE_ZEND_ALLOC": "0"})]
    variants[0] = replace(variants[0], settings=variants[1].settings)
    found = measure.measure([own], variants, 1, warmup=0, place=place)
    assert not found.failures
    glibc, hakmem = (found.values(own.name, variant.name, services.REST)[0] for variant in variants)
    assert hakmem <= glibc + 4 * MIB


@pytest.mark.long
@pytest.mark.parametrize(("name", "most"), [("PostgreSQL", 0.5), ("pandas", 1.1)])
def test_processes_with_one_thread_hold_little_at_rest(name: str, most: float) -> None:
    """As multiples of glibc's, which gives back what lies at the end of its heap."""
    place = resting.OneAtWork()
    cases, missing = services.cases([name], place, 20)
    if missing:
        pytest.skip(f"{missing[0].package} is not installed")
    found = measure.measure(cases, [GLIBC, Variant("hakmem", allocators.hakmem())], 1, warmup=0, place=place)
    assert not found.failures
    glibc, hakmem = (found.values(name, variant, services.REST)[0] for variant in ("glibc", "hakmem"))
    assert hakmem <= most * glibc
