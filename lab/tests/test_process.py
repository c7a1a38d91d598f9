"""What stands between a figure and a lie: the proof of takeover, on real processes."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compiled import EXPORTED, NOTED, PRINTS, compile_c
from hakmem import control, elf, measure, native, process, settings
from hakmem.allocators import Allocator, glibc, hakmem
from hakmem.dossier import cases
from hakmem.errors import LabError
from hakmem.process import PolicyError, RunError, TakeoverError, run

pytestmark = pytest.mark.skipif(
    not (Path(native.__file__).parents[2] / "build" / "release" / "lab" / "witness.so").is_file(),
    reason="the release build is not there: ./dev build",
)


def python(program: str) -> list[str]:
    return [sys.executable, "-S", "-E", "-c", program]


@pytest.mark.parametrize("allocator", [hakmem(), glibc()], ids=lambda allocator: allocator.name)
def test_a_run_proves_its_allocator_and_has_figures(allocator: Allocator) -> None:
    done = run(python("print('out'); import sys; print('err', file=sys.stderr); sys.exit(3)"), allocator)
    assert (done.status, done.stdout, done.stderr) == (3, b"out\n", b"err\n")
    root = done.root()
    assert root is not None and process.is_allocator(root.malloc, allocator)
    assert root.peak_rss_bytes is not None and min(done.peak_rss_bytes, root.peak_rss_bytes) > 1 << 20
    assert done.wall_s > 0 and done.user_s + done.system_s > 0 and done.minor_faults > 0


GROWING = """
import time
time.sleep(0.5)
held = bytearray(b"x") * (200 << 20)
time.sleep(0.5)
"""


def test_the_mean_of_memory_is_over_time() -> None:
    """It has the memory for one of two equal parts of its time."""
    done = run(python(GROWING), glibc())
    assert done.mean_rss_bytes is not None
    assert 0.35 * done.peak_rss_bytes < done.mean_rss_bytes < 0.75 * done.peak_rss_bytes
    assert measure.values_of(done)["mean_rss_bytes"] == done.mean_rss_bytes
    assert "mean_rss_bytes" not in measure.values_of(replace(done, mean_rss_bytes=None))


def test_what_is_of_the_first_process_alone_says_so() -> None:
    """A script that starts a program has a memory of its own."""
    grows = python("held = bytearray(b'x') * (100 << 20); import time; time.sleep(0.2)")
    values = measure.values_of(run(python(f"import subprocess; subprocess.run({grows!r})"), glibc()))
    assert values["peak_rss_bytes"] > 100 << 20
    for name in ("mean_rss_bytes", "end_rss_bytes"):
        assert values[name] < 50 << 20
        assert "of the first process" in measure.METRICS[name].title


FEW_PROCESSES = """
import os, resource, sys
launch = os.open(sys.argv[1], os.O_RDONLY)
if os.geteuid() == 0: os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
os.execve(launch, ["launch", "/dev/null", "", "true"], {})
"""


def test_a_program_that_is_over_at_once_has_no_mean(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "nothing", "int main(void) { return 0; }", "-static")
    assert all(run([str(program)], glibc(), prove=False).mean_rss_bytes is None for _ in range(5))


def test_a_process_that_can_not_be_started_says_why() -> None:
    said = subprocess.run([*python(FEW_PROCESSES), str(native.helper("launch"))], capture_output=True, text=True)
    assert said.stderr == "launch: Resource temporarily unavailable\n"


def test_a_program_has_the_signals_of_its_caller() -> None:
    blocked = "import signal; print(signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    assert run(python(blocked), glibc()).stdout == b"False\n"


# ---- The preload trap ------------------------------------------------------------------------------------------------


def test_a_library_that_vanished_is_an_error_before_the_program_runs(tmp_path: Path) -> None:
    gone = Allocator("mine", tmp_path / "gone.so")
    with pytest.raises(LabError, match=r"the library of mine is not there: .*/gone\.so"):
        run(["touch", str(tmp_path / "ran")], gone)
    assert not (tmp_path / "ran").exists()


def test_a_library_that_does_not_override_malloc_gives_no_figure(tmp_path: Path) -> None:
    library = compile_c(tmp_path / "idle.so", "int idle;", "-shared", "-fPIC")
    with pytest.raises(TakeoverError, match=r"true ran on malloc of .*libc\.so\.6, not on idle"):
        run(["true"], Allocator("idle", library))


def test_a_library_that_the_linker_can_not_read_gives_no_figure(tmp_path: Path) -> None:
    library = tmp_path / "text.so"
    library.write_text("not ELF")
    with pytest.raises(TakeoverError, match="not on text"):
        run(["true"], Allocator("text", library))


@pytest.mark.parametrize("folder", ["with space", "with:colon"])
def test_a_library_whose_path_the_linker_splits_is_linked(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir()
    library = tmp_path / folder / "lib hakmem.so"
    library.write_bytes(native.library().read_bytes())
    allocator = Allocator("split", library)
    done = run(["sh", "-c", "env true; :"], allocator)
    assert done.stderr == b"" and len(done.processes) >= 2
    assert all(process.is_allocator(one.malloc, allocator) for one in done.processes)
    assert settings.known(library) == settings.known(native.library())


def test_where_no_link_can_be_named_there_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "with space").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "with space"))
    for function in (process._folder_of_links, process.linked):
        monkeypatch.setattr(process, function.__name__, functools.cache(function.__wrapped__))
    (tmp_path / "with space" / "lib.so").write_bytes(native.library().read_bytes())
    with pytest.raises(LabError, match="^LD_PRELOAD can't name a path with a space or a colon in it: .*; move it$"):
        run(["touch", str(tmp_path / "ran")], Allocator("split", tmp_path / "with space" / "lib.so"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.forms
@pytest.mark.parametrize(
    ("words", "fails"),
    [
        (("compare", "-n", "1", "--warmup", "0", "--", "true"), False),
        (("demo", "--check", "--only", "python3"), False),
        (("run", "--set", "PREFAULT=1", "--", "touch", "ran"), True),
        (("record", "--", "touch", "ran"), True),
        (("profile", "--", "touch", "ran"), True),
        (("learn", "--", "touch", "ran"), True),
        (("explain", "--", "touch", "ran"), True),
        (("doctor", "--", "touch", "ran"), True),
    ],
    ids=lambda words: words[0] if isinstance(words, tuple) else "",
)
def test_a_clone_in_a_folder_with_a_space(tmp_path: Path, words: tuple[str, ...], fails: bool) -> None:
    """What can't work there says why, in one line, before it runs anything."""
    clone = tmp_path / "my clone"
    root = Path(native.__file__).parents[2]
    (clone / "src").mkdir(parents=True)
    (clone / "src" / "hakmem.c").touch()
    shutil.copytree(root / "lab", clone / "lab", ignore=shutil.ignore_patterns("__pycache__"))
    (clone / "build" / "release").mkdir(parents=True)
    shutil.copytree(root / "build" / "release" / "lab", clone / "build" / "release" / "lab")
    shutil.copy(native.library(), clone / "build" / "release" / "libhakmem.so")
    lab = str(clone / "lab")
    start = (  # from there, wherever the laboratory of the tests is installed
        "import sys; sys.meta_path = [one for one in sys.meta_path if not hasattr(one, 'known_source_files')]; "
        f"sys.path.insert(0, {lab!r}); from hakmem import cli; cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", start, *words], cwd=tmp_path, capture_output=True, text=True)
    line = "LD_PRELOAD can't name a path with a space or a colon in it: "
    assert done.returncode == (2 if fails else 0), done.stdout + done.stderr
    assert (line in done.stderr) == fails and not (tmp_path / "ran").exists()


def test_a_program_that_brings_its_own_malloc_gives_no_figure(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "own", PRINTS + EXPORTED)
    for allocator in (hakmem(), glibc()):
        with pytest.raises(TakeoverError, match=f"own ran on malloc of (mixed|.*/own), not on {allocator.name}"):
            run([str(program)], allocator)


def test_a_static_program_gives_no_figure_where_another_starts_it(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "static", PRINTS.replace("return 3", "return 0"), "-static")
    with pytest.raises(TakeoverError, match="^timeout started no program that left a proof of its allocator"):
        run(["timeout", "60", str(program)], hakmem())
    assert run(["timeout", "60", "true"], hakmem()).status == 0


def test_children_on_another_malloc_are_told(tmp_path: Path) -> None:
    """The command itself is on it, so its figures stand; a reader could take them for those of what it starts."""
    program = compile_c(tmp_path / "own", PRINTS + EXPORTED)
    for allocator in (hakmem(), glibc()):
        sample = measure.CommandCase(("sh", "-c", f"{program}; ls /; true")).run(measure.Variant("x", allocator))
        assert sample.remarks == ("programs that it started ran on another malloc than what is compared: own",)
        assert measure.CommandCase(("sh", "-c", "ls /; true")).run(measure.Variant("x", allocator)).remarks == ()


# Starts a program with an empty environment, and waits for it.
CLEANS = """
#include <sys/wait.h>
#include <unistd.h>
int main(int count, char **words) {
    int status;
    if (fork() == 0) execve(words[1], words + 1, (char *[]){words[count]});
    return wait(&status) < 0 || status != 0;
}
"""
LASTS = "#include <unistd.h>\nint main(void) { return usleep(200000); }"


def test_one_that_only_starts_others_gives_no_figure_where_they_have_no_proof(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "sudo", CLEANS)
    with pytest.raises(TakeoverError, match="/sudo started no program that left a proof of its allocator: [^;]*$"):
        run([str(program), shutil.which("true") or ""], hakmem())


def test_one_that_only_starts_others_says_how_it_ended_where_it_started_none() -> None:
    with pytest.raises(TakeoverError, match="; timeout ended with exit status 127: .*/no/such"):
        run(["timeout", "60", "/no/such"], hakmem())


@pytest.mark.parametrize("options", [(), ("-static",)])
def test_children_without_a_proof_are_told(tmp_path: Path, options: tuple[str, ...]) -> None:
    """Their environment was cleaned, or they are static. That their program has a proof elsewhere is none of theirs."""
    program = compile_c(tmp_path / "program", LASTS, *options)
    start = str(program) if options else f"{compile_c(tmp_path / 'cleans', CLEANS)} {program}"
    command = measure.CommandCase(("sh", "-c", f"{program} & {start}; wait"))
    remarks = {one.name: command.run(measure.Variant("x", one)).remarks for one in (hakmem(), glibc())}
    said = (
        "program, which it started, left no proof of its malloc (static, setuid, or with another environment): "
        "its share of the figures may be of another malloc than what is compared"
    )
    assert remarks == {"hakmem": (said,), "glibc": ()}


def test_each_program_without_a_proof_has_a_remark_of_its_own() -> None:
    """So it is told once, whatever others were seen in another run."""
    remarks = replace(run(["true"], hakmem()), unproved=("a", "b")).remarks(hakmem())
    assert [remark.partition(",")[0] for remark in remarks] == ["a", "b"]


def test_many_short_children_without_a_proof_are_told(tmp_path: Path) -> None:
    """None of them is there at two looks, but some are at each."""
    program = compile_c(tmp_path / "program", LASTS.replace("200000", "30000"), "-static")
    starts = f"sleep 0.2; for i in $(seq 30); do {program} & sleep 0.01; done; wait"
    assert run(["sh", "-c", starts], hakmem()).unproved == ("program",)


THREADS = """
import subprocess, sys, threading
threads = [threading.Thread(target=subprocess.run, args=[sys.argv[1:]]) for _ in range(3)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


def test_children_of_any_thread_are_told(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", LASTS, "-static")
    assert run([*python(THREADS), str(program)], hakmem()).unproved == ("program",)


FORKS = """
import os, time
if os.fork() == 0:
    time.sleep(0.2)
    os._exit(0)
os.execvp("sh", ["sh", "-c", "sleep 0.3; (sleep 0.1; :); for i in $(seq 100); do env true; done"])
"""


def test_forks_and_helpers_are_not_told() -> None:
    """Of a program that has become another one meanwhile, too."""
    done = run(python(FORKS), hakmem())
    assert done.status == 0 and done.unproved == () and len(done.processes) > 100


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        (["600 200 /bin/a", "600 200 /bin/a"], ("a",)),
        (["600 200 /bin/a", "600 300 /bin/a"], ("a",)),
        (["60000 200 /bin/a"], ()),  # it may have ended before it had a proof
        (["400 200 /bin/a", "400 200 /bin/a"], ()),  # at two looks at the beginning
        (["600 100 /bin/a", "600 100 /bin/a", "600 200 /bin/a"], ()),
        (["600 0 sudo", "600 0 sudo"], ("sudo",)),  # a proof without a stack is none of these
        (["600 200 /bin/with space", "600 0 sudo", "600 200 /bin/with space", "600 0 sudo"], ("sudo", "with space")),
    ],
)
def test_what_has_no_proof_is_told_from_a_share_on(seen: list[str], told: tuple[str, ...]) -> None:
    proved = [process.Process(4, "/bin/a", "", None, None, stack=stack) for stack in (0, 100)]
    lines = "".join(f"seen {line}\n" for line in seen)
    assert process._unproved(lines, proved, wall_ns=100000) == told


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a program that becomes root")
def test_a_child_with_more_rights_is_seen() -> None:
    """As sudo and what it starts: of their memory nobody else is told anything."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        if os.statvfs(folder).f_flag & os.ST_NOSUID:
            pytest.skip(f"{folder} gives no rights")
        program = compile_c(folder / "program", LASTS)
        program.chmod(0o4755)
        shutil.copy(native.helper("launch"), folder)
        words = [str(folder / "launch"), str(folder / "result"), "", "sh", "-c", f"{program}; :"]
        subprocess.run(words, user=65534, group=65534, extra_groups=[], check=True)
        seen = re.findall(r"^seen \d+ 0 program$", (folder / "result").read_text(), re.MULTILINE)
    assert len(seen) > 1


def test_a_static_program_gives_no_figure(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "static", PRINTS.replace("return 3", "return 0"), "-static")
    with pytest.raises(TakeoverError, match="left no proof of its allocator"):
        run([str(program)], hakmem())


def test_a_program_may_be_replaced_while_it_runs(tmp_path: Path) -> None:
    source = "#include <unistd.h>\nint main(int count, char **words) { unlink(words[0]); usleep(300000); return 0; }\n"
    program = compile_c(tmp_path / "goes", source)
    assert run([str(program)], hakmem()).status == 0 and not program.exists()


def test_half_an_allocator_is_none(tmp_path: Path) -> None:
    half = """
    #include <stddef.h>
    extern void *__libc_malloc(size_t);
    void *malloc(size_t n) { return __libc_malloc(n); }
    """
    library = compile_c(tmp_path / "half.so", half, "-shared", "-fPIC")
    with pytest.raises(TakeoverError, match="ran on malloc of mixed"):
        run(["true"], Allocator("half", library))


def test_a_program_that_becomes_another_is_the_last_one() -> None:
    done = run(["sh", "-c", "exec true"], hakmem())
    root = done.root()
    assert root is not None and Path(root.program).samefile(shutil.which("true") or "")
    assert [one.pid for one in done.processes] == [done.pid, done.pid]


@pytest.mark.parametrize("how", ["env -i {}", "env LD_PRELOAD= {}", "sh -c 'unset LD_PRELOAD; exec {}'", "nice {}"])
def test_a_program_that_becomes_one_without_a_proof_gives_no_figure(tmp_path: Path, how: str) -> None:
    """A start script that preloads another allocator is one of these."""
    source = "#include <unistd.h>\nint main(void) { return usleep(100000); }"
    program = compile_c(tmp_path / "program", source, *(["-static"] if how == "nice {}" else []))
    words = shlex.split(how.format(program))
    with pytest.raises(TakeoverError, match=f"^{words[0]} became a program without a proof of its allocator"):
        run(words, hakmem())
    assert run(words, hakmem(), prove=False).status == 0


def test_a_program_that_moves_itself_is_the_same_one(tmp_path: Path) -> None:
    source = "#include <unistd.h>\nint main(int c, char **v) { return rename(v[0], v[1]) || usleep(100000); }"
    program = compile_c(tmp_path / "program", f"#include <stdio.h>\n{source}")
    assert run([str(program), str(tmp_path / "moved")], hakmem()).status == 0


def test_children_say_their_allocator_too() -> None:
    done = run(["sh", "-c", "env true; :"], hakmem())
    assert len({one.pid for one in done.processes}) >= 2
    assert all(process.is_allocator(one.malloc, hakmem()) for one in done.processes)


# ---- Environment, limits, signals ------------------------------------------------------------------------------------


def test_the_callers_preload_does_not_reach_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/else.so")
    done = run(["true"], hakmem())
    assert done.stderr == b""


def test_settings_are_added_to_the_environment() -> None:
    show = python("import os; print(os.environ.get('HAKMEM_PREFAULT'), os.environ.get('MINE'))")
    environment = {"PATH": os.environ["PATH"], "MINE": "1"}
    done = run(show, hakmem(), {"HAKMEM_PREFAULT": "1"}, environment=environment)
    assert done.stdout == b"1 1\n"


def test_tunables_are_added_to_those_of_the_caller() -> None:
    """The last one of a name counts."""
    show = python("import os; print(os.environ.get('GLIBC_TUNABLES'))")
    own = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    for given, expected in (
        ({"GLIBC_TUNABLES": "glibc.malloc.arena_max=1"}, "glibc.malloc.arena_max=1:glibc.malloc.hugetlb=1"),
        ({}, "glibc.malloc.hugetlb=1"),
    ):
        done = run(show, glibc(), own, environment={"PATH": os.environ["PATH"], **given})
        assert done.stdout.decode() == f"{expected}\n"


def test_a_signal_that_killed_it_is_told() -> None:
    done = run(python("import os; os.kill(os.getpid(), 9)"), glibc())
    assert done.status == -signal.SIGKILL


def test_a_command_that_can_not_be_started_is_named(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="^no-such-command: command not found$"):
        run(["no-such-command"], glibc())
    with pytest.raises(RunError, match="a directory$"):
        run([str(tmp_path)], glibc())
    script = tmp_path / "script"
    script.write_text("#!/nowhere/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(RunError, match=r"^can't run .*/script: .*/script: No such file or directory$"):
        run([str(script)], glibc())
    with pytest.raises(LabError, match="no command"):
        run([], glibc())


def test_a_program_that_is_linked_with_an_allocator_is_told(tmp_path: Path) -> None:
    """As Debian's redis-server is: on the C library's malloc it isn't what its users have now."""
    own = compile_c(tmp_path / "libown.so", EXPORTED, "-shared", "-fPIC")
    program = compile_c(tmp_path / "program", PRINTS.replace("return 3", "return 0"), str(own))
    user = compile_c(
        tmp_path / "libuser.so", "int use(void) { return 0; }", "-shared", "-fPIC", "-Wl,--no-as-needed", str(own)
    )
    source = PRINTS.replace("return 3", "return use()").replace("int main", "int use(void); int main")
    plain = compile_c(tmp_path / "plain", source, str(user))  # the C library comes before what a library brings
    said = f"program is linked with {own}: where nothing is preloaded, that is its malloc, not glibc's"
    for allocator in (glibc(), hakmem()):
        for command in ([str(program)], ["sh", "-c", f"{program}; true"]):
            assert run(command, allocator).remarks(allocator) == (said,)
        assert run([str(plain)], allocator).remarks(allocator) == ()
    assert run([str(program)], Allocator("own", own)).remarks(Allocator("own", own)) == ()


def test_an_allocator_that_no_preload_reaches_is_told(tmp_path: Path) -> None:
    """As that of a program in Rust with jemalloc, whose own malloc next to nothing is taken from."""
    private = "void *_rjem_malloc(void) { return 0; } int main(void) { return _rjem_malloc() != 0; }"
    program = compile_c(tmp_path / "program", private)
    said = "program has jemalloc beside malloc: what it takes from there is not compared"
    for command in ([str(program)], ["sh", "-c", f"{program}; true"]):
        assert run(command, glibc()).remarks(glibc()) == (said,)


def test_hakmem_s_crate_is_told_under_each_allocator(tmp_path: Path) -> None:
    """It has no malloc for the program's other parts; a note says that it is there."""
    program = compile_c(tmp_path / "program", NOTED + "int main(void) { return 0; }")
    said = "program has hakmem beside malloc: what it takes from there is not compared"
    for allocator in (glibc(), hakmem()):
        assert run([str(program)], allocator).remarks(allocator) == (said,)


def test_python_s_pools_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be in a library, and turned off by who starts the program."""
    monkeypatch.delenv("PYTHONMALLOC", raising=False)
    pools = "void *PyObject_Malloc(void) { return 0; }"
    library = compile_c(tmp_path / "libpython3.so", pools, "-shared", "-fPIC")
    whole = compile_c(tmp_path / "python3", f"{pools} int main(void) {{ return PyObject_Malloc() != 0; }}", "-rdynamic")
    (tmp_path / "linked").mkdir()
    users = "void *PyObject_Malloc(void); int main(void) { return PyObject_Malloc() != 0; }"
    for python3 in (whole, compile_c(tmp_path / "linked" / "python3", users, str(library))):
        for command in ([str(python3)], ["sh", "-c", f"{python3}; true"]):
            (remark,) = run(command, glibc()).remarks(glibc())
            said = "python3 has Python's own pools (PYTHONMALLOC=malloc turns them off) beside malloc: "
            assert remark.startswith(said)
        assert run(["env", "PYTHONMALLOC=malloc", str(python3)], glibc()).remarks(glibc()) == ()


@pytest.mark.parametrize("before", ["delay.so", "record.so"])
def test_a_user_is_told_of_the_allocator_that_he_has_named(before: str, tmp_path: Path) -> None:
    """And not of what is preloaded before it."""
    program = compile_c(tmp_path / "static", "int main(void) { return 0; }", "-static")
    with pytest.raises(TakeoverError, match="no figure of it under glibc$"):
        run([str(program)], glibc(), before=native.helper(before))


@pytest.mark.parametrize(
    ("given", "is_told"),
    [
        ("< FILE", True),
        ("< /dev/null", False),
        ("<&-", False),
        ("< EMPTY", False),
        ("< LARGE", True),
    ],
)
def test_input_that_no_run_gets_is_told(given: str, is_told: bool, tmp_path: Path) -> None:
    """`hakmem compare -- sort < FILE` would compare how fast nothing is sorted."""
    (tmp_path / "FILE").write_text("b\na\n")
    (tmp_path / "EMPTY").touch()
    with open(tmp_path / "LARGE", "wb") as large:
        large.truncate(3 << 30)
    ask = "from hakmem import process; process.expect_command(['sort', '-t', ' '])"
    done = subprocess.run(
        ["sh", "-c", f'"$0" -c "$1" {given}', sys.executable, ask], cwd=tmp_path, capture_output=True, text=True
    )
    shown = "hakmem: standard input is not passed on: each run has an empty one. To give it a file: sh -c "
    command = shlex.quote("sort -t ' ' < FILE")
    assert (done.returncode, done.stderr) == (0, f"{shown}{command}\n" if is_told else "")


def test_libraries_that_no_run_gets_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An image may preload another allocator for all that runs in it."""
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    process.expect_command(["true"])
    assert "LD_PRELOAD" not in capsys.readouterr().err
    monkeypatch.setenv("LD_PRELOAD", "libjemalloc.so.2")
    process.expect_command(["true"])
    said = "hakmem: LD_PRELOAD=libjemalloc.so.2 is not passed on to what is run\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("wall_s", "cpu_s", "is_told"), [(2, 0.1, True), (2, 0.3, False), (0.5, 0.0, False)])
def test_a_client_is_not_taken_for_its_server(
    monkeypatch: pytest.MonkeyPatch, wall_s: float, cpu_s: float, is_told: bool
) -> None:
    """`docker run IMAGE`, say, is a client, and its own malloc is proved to be the allocator's."""
    done = replace(run(["true"], glibc()), wall_s=wall_s, user_s=cpu_s / 2, system_s=cpu_s / 2)
    monkeypatch.setattr(process, "run", lambda *_, **__: done)
    sample = measure.CommandCase(("client",)).run(measure.Variant("glibc", glibc()))
    assert sample.remarks == ((measure.WAITED,) if is_told else ())


def test_input_by_a_pipe_is_told() -> None:
    ask = "from hakmem import process; process.expect_command(['wc'])"
    for said, is_told in ((b"x", True), (b"", False)):
        done = subprocess.run([sys.executable, "-c", ask], input=said, capture_output=True)
        assert (b"standard input is not passed on" in done.stderr) is is_told


def test_a_run_that_outlives_its_limit_is_ended_with_all_it_started(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with pytest.raises(RunError, match="sh was ended after 1 s under glibc"):
        run(["sh", "-c", f"sleep 600 & echo $! >{pids}; wait"], glibc(), timeout_s=1)
    assert is_gone(int(pids.read_text()))


def test_the_limit_is_told_as_it_was_given() -> None:
    with pytest.raises(RunError, match="^sleep was ended after 0.2 s under glibc$"):
        run(["sleep", "60"], glibc(), timeout_s=0.2)


def test_a_policy_of_another_program_is_not_measured(tmp_path: Path) -> None:
    """Nor by a command that starts no program that it is for. The library's line goes where nobody sees it."""
    program, policy = tmp_path / "program", tmp_path / "some.policy"
    compile_c(program, "int main(void) { return 0; }", "-Wl,--build-id")
    environment = {"HAKMEM_POLICY": str(policy)}

    def written_for(whom: str) -> None:
        learned = control.Learned({"decay_ms": 2000}, {})
        policy.write_text(control.policy_text(native.version(native.library()), whom, learned, []))

    own = elf.build_id(program)
    assert own is not None
    for whom in (own, "any"):
        written_for(whom)
        assert run([str(program)], hakmem(), environment).status == 0
        assert run(["sh", "-c", f"{program}; exit 3"], hakmem(), environment).status == 3
    written_for("ab" * 20)
    assert run([str(program)], glibc(), environment).status == 0
    line = f"{program} does not take POLICY={policy}: it is made for another program"
    with pytest.raises(PolicyError, match=f"^{line}$"):
        run([str(program)], hakmem(), environment)
    variants = [measure.Variant("a", hakmem(), {}), measure.Variant("b", hakmem(), environment)]
    steps: list[measure.Step] = []
    with pytest.raises(PolicyError, match=line):
        measure.measure([measure.CommandCase((str(program),))], variants, 3, on_step=steps.append)
    assert [step.round for step in steps] == [0, 0]
    policy.unlink()
    with pytest.raises(PolicyError, match="some.policy: No such file"):
        run([str(program)], hakmem(), environment)


# ---- On the caller's terminal ----------------------------------------------------------------------------------------

SENDS = "kill -INT $$ $PPID; exit 7"


def test_what_a_terminal_sends_is_the_command_s() -> None:
    before = signal.getsignal(signal.SIGINT)
    with process.undisturbed() as came:
        command = process.attend(["sh", "-c", "trap : INT; " + SENDS], os.environ)
        assert command.pid > 0 and command.status == 7 and command.came == [signal.SIGINT]
        os.kill(os.getpid(), signal.SIGINT)
    assert came == [signal.SIGINT] and signal.getsignal(signal.SIGINT) is before


def test_how_a_process_ended_is_said_in_one_place() -> None:
    assert process.ending(-11) == "was killed by signal 11" and process.ending(3) == "ended with exit status 3"
    package = Path(process.__file__).parent
    sayings = [path.name for path in package.rglob("*.py") if re.search(r"killed by signal \{", path.read_text())]
    assert sayings == ["process.py"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_is_asked_to_end_asks_the_command(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    command = process.attend(
        ["sh", "-c", f"trap 'exit 5' {number.value}; kill -{number.value} $PPID; while :; do sleep 0.1; done"],
        os.environ,
    )
    assert command.status == 5 and command.came == [number] and signal.getsignal(number) is before


COUNTS = """
import os, signal, sys, time
seen = []
signal.signal(signal.SIGINT, signal.SIG_IGN)
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda received, _: seen.append(received))
print("ready", flush=True)
while not seen:
    time.sleep(0.01)
time.sleep(0.7)
print(len(seen), flush=True)
"""
ATTENDS = f"""
import os, sys
from hakmem import process
sys.exit(process.attend([sys.executable, "-c", {COUNTS!r}], os.environ).exit_status)
"""


def _to_group(pid: int, number: int) -> None:
    os.killpg(pid, number)


def _as_timeout(pid: int, number: int) -> None:
    os.kill(pid, number)
    os.killpg(pid, number)


def _after_ctrl_c(pid: int, number: int) -> None:
    os.killpg(pid, signal.SIGINT)
    time.sleep(0.1)
    os.killpg(pid, number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("send", [os.kill, _to_group, _as_timeout, _after_ctrl_c])
def test_the_command_is_asked_once(number: signal.Signals, send: Callable[[int, int], None]) -> None:
    """By whom it may be: one process is signalled, or the group that the command is in, too."""
    words = [sys.executable, "-c", ATTENDS]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as attending:
        assert attending.stdout and attending.stdout.readline() == b"ready\n"
        send(attending.pid, number)
        assert attending.stdout.read() == b"1\n" and attending.wait() == 0


def test_without_a_witness_each_signal_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise BlockingIOError

    monkeypatch.setattr(os, "posix_spawnp", refuse)
    command = process.attend(["sh", "-c", "trap 'exit 5' TERM; kill -TERM $PPID; sleep 9 & wait"], os.environ)
    assert command.status == 5


def test_a_signal_that_comes_just_before_the_wait_is_passed_on() -> None:
    """Nor is one lost that another thread takes, which is the same for who waits: no call of his is interrupted."""
    unblock = f"import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, [{signal.SIGTERM.value}])"
    words = [sys.executable, "-c", f"{unblock}; import time; print('ready', flush=True); time.sleep(60)"]

    def take_it(child: subprocess.Popen[bytes]) -> None:
        assert child.stdout and child.stdout.readline() == b"ready\n"
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    try:
        with process.passed_on([]) as to, subprocess.Popen(words, stdout=subprocess.PIPE) as child:
            to(child)
            other = threading.Thread(target=take_it, args=[child])
            other.start()
            assert process.wait_for(child) == -signal.SIGTERM
            other.join()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_what_is_ignored_stays_ignored(number: signal.Signals) -> None:
    """Of nohup's command, above all."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        command = process.attend(["sh", "-c", f"kill -{number.value} $$ $PPID; exit 7"], os.environ)
    finally:
        signal.signal(number, before)
    assert command.status == 7 and command.came == []


def test_what_a_run_leaves_behind_is_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    done = run(["sh", "-c", f"sleep 600 & echo $! >{pids}"], glibc())
    assert is_gone(int(pids.read_text()))
    (remark,) = done.remarks(glibc())
    assert remark == "processes of it went on when it had ended: they were ended, and are in no figure"


@pytest.mark.skipif(cases.strace_refusal() is not None, reason=str(cases.strace_refusal()))
@pytest.mark.parametrize("leaves", ["", "setsid "])
def test_so_it_is_where_a_tool_would_follow_it(tmp_path: Path, leaves: str) -> None:
    """And would go on as long as it does."""
    pids, calls = tmp_path / "pids", tmp_path / "calls"
    start = f"{leaves}sh -c 'echo $$ >{pids}; exec sleep 600' & until [ -s {pids} ]; do sleep 0.01; done"
    tool = ["strace", "-f", "-c", "-o", str(calls)]
    done = run(["sh", "-c", start], glibc(), timeout_s=60, tool=tool)
    assert done.status == 0 and done.left_behind and is_gone(int(pids.read_text()))
    assert cases.counted_calls(calls.read_text())


def test_a_tool_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the command: it is looked at meanwhile. It may also never get there."""
    monkeypatch.setattr(process, "LOOK_S", 0.01)
    assert run(["true"], glibc(), tool=["sh", "-c", 'sleep 0.3; exec "$@"', "slow"]).status == 0
    with pytest.raises(RunError, match="can't run true: launch ended with 0"):
        run(["true"], glibc(), tool=["sh", "-c", "exit 0"])


def test_what_is_printed_may_be_more_than_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MOST_KEPT", 5)
    first, again, other = (run(["sh", "-c", f"printf 'line {end}'; echo error >&2"], glibc()) for end in "aab")
    assert (first.stdout, first.stderr) == (b"line ", b"error")
    assert first.digest() == again.digest() != other.digest()


@pytest.mark.parametrize("leaves", ["timeout 600", "setsid"])
@pytest.mark.parametrize("limit", [None, 1])
def test_so_is_what_has_left_its_group_or_its_session(tmp_path: Path, leaves: str, limit: float | None) -> None:
    pids = tmp_path / "pids"
    start = f"{leaves} sh -c 'echo $$ >{pids}; exec sleep 600' & until [ -s {pids} ]; do sleep 0.01; done"
    with contextlib.suppress(RunError):
        assert run(["sh", "-c", f"{start}; sleep {600 if limit else 0}"], glibc(), timeout_s=limit).left_behind
    assert is_gone(int(pids.read_text()))


def test_of_processes_from_before_a_run_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be as many as a large machine has, and other people's."""
    looked_at: list[int] = []
    monkeypatch.setattr(process, "_environment", lambda pid: looked_at.append(pid) or [])
    with subprocess.Popen(["sleep", "600"]) as other:
        time.sleep(0.05)  # the clock of /proc has steps of a hundredth of a second
        run(["true"], glibc())
        other.kill()
    assert not {os.getpid(), os.getppid(), other.pid} & {*looked_at}


def test_what_interrupts_a_start_comes_when_it_is_known_what_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would go on, and nobody would end it."""

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, words: list[str], **more: object) -> None:
            super().__init__(words, **more)  # type: ignore[call-overload]
            pids.append(self.pid)
            os.kill(os.getpid(), signal.SIGINT)

    pids: list[int] = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(["sleep", "600"], glibc())
    assert is_gone(pids[0]) and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "raises"), [(errno.ENOSPC, OSError), (errno.EOPNOTSUPP, RunError)])
def test_a_full_disk_is_no_fault_of_the_command(
    number: int, raises: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(descriptor: int, start: int, length: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "posix_fallocate", answer)
    assert run(["true"], glibc()).status == 0
    with pytest.raises(raises):
        run(["sleep", "60"], glibc(), timeout_s=0.1)


def is_gone(pid: int) -> bool:
    """Whether it ends; a process that is dead but not waited for counts as gone."""
    for _ in range(30000):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state in "ZX":
            return True
        time.sleep(0.01)
    return False


def test_no_folder_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    run(["true"], glibc())
    with pytest.raises(RunError):
        run(["sleep", "60"], glibc(), timeout_s=0.1)
    assert list(tmp_path.iterdir()) == []


def test_a_signal_right_after_its_folder_is_made_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Path.mkdir

    def interrupted(folder: Path, mode: int = 0o777) -> None:
        made(folder, mode)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        run(["true"], glibc())
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_was_ended_before_it_had_said_anything_is_none(tmp_path: Path) -> None:
    """As one that a run has left behind, right after it began."""
    (tmp_path / "5.0.start").touch()
    (tmp_path / "6.0.start").write_text("malloc /a\ncalloc /a\nrealloc /a\nfree /a\nprogram /b\n")
    assert [one.pid for one in process.read_witnesses(tmp_path)] == [6]
