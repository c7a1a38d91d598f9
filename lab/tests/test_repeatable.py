"""`hakmem run --repeatable`: the same instructions, the same pages, at the same addresses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hakmem import native, repeatable
from hakmem.errors import LabError

RUN = [sys.executable, "-m", "hakmem", "run"]
PYTHON = os.path.realpath(sys.executable)
TOLERANCE = 1e-4  # of instructions

# Sets of objects by address, strings by a seed, and memory that is given back and taken again.
WORKS = """
import random
draw = random.Random(1)
kept = {object() for _ in range(30000)}
names = {f"name {draw.random()}": bytearray(draw.randrange(9000)) for _ in range(4000)}
for _ in range(3):
    large = [bytearray(300000) for _ in range(40)]
    del large
    for name in sorted(names)[::3]:
        names[name] = bytearray(draw.randrange(30000))
print(sum(len(one) for one in names.values()), [hash(one) for one in list(names)[:3]], len(kept))
"""
# Not Rss: around a page of a file the kernel maps those that happen to be in its cache.
SAYS_PAGES = """
import hashlib, re
maps = re.findall(r"^([0-9a-f]+-[0-9a-f]+) |^Anonymous: +(\\d+)", open("/proc/self/smaps").read(), re.M)
print(hashlib.sha256(repr(maps).encode()).hexdigest())
"""
SQL = """
create table t(n integer primary key, name text, value real);
with recursive c(n) as (select 1 union all select n + 1 from c where n < 8000)
    insert into t select n, printf('name %d', n * 7919 % 8000), n * 0.5 from c;
create index i on t(name);
select count(*), sum(value) from t where name > 'name 5';
delete from t where n % 3 = 0;
select group_concat(name) from (select name from t order by name limit 5);
"""
PERL = "my %h; $h{$_ * 7919 % 10007} .= 'v' x ($_ % 300) for 1 .. 30000; print scalar(keys %h), (keys %h)[0];"


def run(*words: object, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **settings}
    command = [*RUN, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)


def succeeded(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done
    return done.stdout


def instructions(folder: Path, *words: object) -> tuple[int, str]:
    """What callgrind counts, and what the program printed."""
    file = folder / "counts"
    valgrind = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={file}"]
    printed = succeeded(run("--repeatable", "--", *valgrind, *words))
    found = re.search(r"^(?:summary|totals): (\d+)", file.read_text(), re.MULTILINE)
    assert found
    file.unlink()
    return int(found[1]), printed


@pytest.mark.skipif(not shutil.which("valgrind"), reason="valgrind is not installed")
@pytest.mark.parametrize(
    "words",
    [
        pytest.param((PYTHON, "-c", WORKS), id="python"),
        pytest.param(("sqlite3", ":memory:", SQL), id="sqlite3"),
        pytest.param(("perl", "-e", PERL), id="perl"),
        pytest.param(("bench", "bench_random_mixed", "300000", "400", "1"), id="bench"),
    ],
)
@pytest.mark.long
def test_two_runs_execute_the_same_instructions(words: tuple[str, ...], tmp_path: Path) -> None:
    if words[0] == "bench":
        words = (str(native.program(words[1])), *words[2:])
    elif not shutil.which(words[0]):
        pytest.skip(f"{words[0]} is not installed")
    first, printed = instructions(tmp_path, *words)
    second, again = instructions(tmp_path, *words)
    assert abs(second - first) <= TOLERANCE * first, (first, second)
    assert words[0].endswith("bench_random_mixed") or printed == again


@pytest.mark.forms
def test_two_runs_touch_the_same_pages_at_the_same_addresses() -> None:
    """Without it neither is so."""
    words = ["--", PYTHON, "-c", WORKS + SAYS_PAGES]
    runs = [succeeded(run("--repeatable", *words)) for _ in range(4)]
    assert len(set(runs)) == 1
    assert len({succeeded(run(*words)) for _ in range(2)}) == 2


# What is taken again and again stays with the program; after a rest in which nobody took it, a part goes back.
PAUSES = """
import os, time
for turn in range(60):
    blocks = [bytearray(40000) for _ in range(300)]
    del blocks
for _ in range(4):
    time.sleep(float(os.environ["PAUSE"]))
    few = [bytearray(40000) for _ in range(6)]
    del few
"""


@pytest.mark.forms
def test_time_that_passes_changes_nothing() -> None:
    words = ["--", PYTHON, "-c", PAUSES + SAYS_PAGES]
    fast, slow = (succeeded(run("--repeatable", *words, PAUSE=pause)) for pause in ("0.000", "1.100"))
    assert fast == slow


FAULTS = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt)
"""


@pytest.mark.forms
def test_runs_take_as_many_page_faults() -> None:
    """But for some on files, of which the kernel maps more or less around. Without it they differ by hundreds."""
    words = ["--repeatable", "--", PYTHON, "-c", FAULTS, PYTHON, "-c", WORKS]
    counts = [int(succeeded(run(*words))) for _ in range(4)]
    assert max(counts) - min(counts) <= 40 < min(counts) / 100, counts


def test_the_size_of_the_pid_doesn_t_move_the_stack() -> None:
    says = "import os; print(len(os.environ['ALLOCATOR_REQUIRED'].partition(':')[0]))"
    assert int(succeeded(run("--repeatable", "--", PYTHON, "-c", says))) == 10


def test_programs_that_it_starts_are_the_same_too() -> None:
    inner = f"import subprocess; subprocess.run([{PYTHON!r}, '-c', {SAYS_PAGES!r}], check=True)"
    runs = [succeeded(run("--repeatable", "--", PYTHON, "-c", inner)) for _ in range(3)]
    assert len(set(runs)) == 1


def test_hakmem_has_no_thread_and_no_clock_decides() -> None:
    """Eight threads would have it start its own, within a call of malloc; free memory would go back after a second."""
    says = """
import threading, os
grown, gate = threading.Barrier(9), threading.Event()
def work():
    blocks = [bytearray(300000) for _ in range(20)]
    grown.wait()
    gate.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for one in threads: one.start()
grown.wait()
print(len(os.listdir("/proc/self/task")))
gate.set()
"""
    assert int(succeeded(run("--repeatable", "--", PYTHON, "-c", says))) == 9
    assert int(succeeded(run("--", PYTHON, "-c", says))) > 9


def test_seeds_of_interpreters_are_set_where_the_caller_has_set_none() -> None:
    says = "import os; print(os.environ['PYTHONHASHSEED'])"
    assert succeeded(run("--repeatable", "--", "sh", "-c", "echo $PERL_HASH_SEED")) == "0\n"
    assert succeeded(run("--repeatable", "--", PYTHON, "-c", says, PYTHONHASHSEED="7")) == "7\n"


# ---- Settings --------------------------------------------------------------------------------------------------------


def test_other_settings_stay() -> None:
    words = repeatable.settings(["PROFILE=speed", "KNOBS=held_slabs=4"], {})
    assert words[0] == "PROFILE=speed" and words[-1] == "KNOBS=held_slabs=4:decay_ms=3600000"
    assert repeatable.settings([], {"HAKMEM_KNOBS": "bin_bytes=4096"})[-1] == "KNOBS=bin_bytes=4096:decay_ms=3600000"
    from_before = {"HAKMEM_KNOBS": "decay_ms=50:bin_bytes=4096"}
    assert repeatable.settings([], from_before)[-1] == "KNOBS=bin_bytes=4096:decay_ms=3600000"
    assert repeatable.settings(["KNOBS=none", "SEED=1"], {})[-1] == "KNOBS=decay_ms=3600000"


@pytest.mark.parametrize(
    ("word", "said"),
    [("BACKGROUND=1", "BACKGROUND=0"), ("SEED=7", "SEED=1"), ("KNOBS=decay_ms=50", "decay_ms=3600000")],
)
def test_a_setting_that_it_needs_otherwise_is_refused(word: str, said: str) -> None:
    with pytest.raises(LabError, match=f"--repeatable needs {said}"):
        repeatable.settings([word], {})
    done = run("--repeatable", "--set", word, "--", "true")
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and said in done.stderr


@pytest.mark.parametrize("word", ["KNOBS=rubbish", "KNOBS=held_slabs=5:rubbish"])
def test_knobs_that_are_none_are_refused(word: str) -> None:
    with pytest.raises(LabError, match="expected none, or NAME=NUMBER"):
        repeatable.settings([word], {})
    repeatable.settings(["KNOBS=none"], {})


def test_the_library_takes_all_of_it() -> None:
    done = run("--repeatable", "--", "true", HAKMEM_HELP="1")
    for name, value in repeatable.SETTINGS.items():
        assert re.search(rf"^ *HAKMEM_{name} += {value} ", done.stderr, re.MULTILINE), name


def test_an_experiment_of_the_fleet_changes_nothing() -> None:
    done = run("--repeatable", "--", "true", HAKMEM_HELP="1", HAKMEM_EXPERIMENT="x:100%:decay_ms=50")
    assert re.search(r"^ *decay_ms += 3600000 ", done.stderr, re.MULTILINE), done.stderr


def test_where_addresses_can_t_be_fixed_nothing_is_run(tmp_path: Path) -> None:
    """In a sandbox whose filter refuses personality(2), as containers' do."""
    program = tmp_path / "refuse.py"
    program.write_text(REFUSES_PERSONALITY)
    words = [sys.executable, program, *RUN, "--repeatable", "--", "echo", "ran"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2 and done.stdout == "", done
    said = "hakmem: --repeatable: the kernel keeps choosing addresses"
    assert done.stderr.startswith(said) and done.stderr.count("\n") == 1


REFUSES_PERSONALITY = """
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
number = {"x86_64": 135, "aarch64": 92}[os.uname().machine]
steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (6, 0, 0, 0x50001), (6, 0, 0, 0x7FFF0000)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in steps))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(steps), ctypes.addressof(code)), 16)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
