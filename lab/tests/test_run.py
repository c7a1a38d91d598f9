"""`hakmem run` as a user types it: whatever it becomes, it is like running the program itself."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from compiled import EXPORTED, PRINTS, compile_c
from hakmem import native, settings
from hakmem.errors import LabError

RUN = [sys.executable, "-m", "hakmem", "run"]
PYTHON = os.path.realpath(sys.executable)
SAYS_MALLOC = """
import re, sys
maps = open("/proc/self/maps").read()
print("hakmem" if re.search(r"/libhakmem\\.so", maps) else "other")
"""


PEAK_OF_COMMAND = """
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
int main(int argc, char **argv) {
    (void)argc;
    struct rusage used;
    if (fork() == 0) return execvp(argv[1], argv + 1);
    if (wait4(-1, NULL, 0, &used) < 0) return 1;
    return printf("%ld\\n", used.ru_maxrss) < 0;
}
"""


def run(*words: object, **options: object) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *(str(word) for word in words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, **options)  # type: ignore[call-overload,no-any-return]


def refused(*words: object, **options: object) -> str:
    done = run(*words, **options)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("hakmem: ") and done.stderr.count("\n") == 1
    return done.stderr


# ---- Like the program itself -----------------------------------------------------------------------------------------


def test_output_and_exit_status_are_the_program_s() -> None:
    done = run("--", "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\n", "err\n")


def test_it_is_on_hakmem() -> None:
    assert run("--", PYTHON, "-c", SAYS_MALLOC).stdout == "hakmem\n"


def test_it_is_on_the_secure_build() -> None:
    says = SAYS_MALLOC.replace("libhakmem", "libhakmem-secure")
    assert run("--secure", "--", PYTHON, "-c", says).stdout == "hakmem\n"
    assert run("--", PYTHON, "-c", says).stdout == "other\n"


def test_without_the_secure_build_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = tmp_path / "libhakmem.so.1.0"
    there.touch()
    monkeypatch.setattr(native, "library", lambda: there)
    with pytest.raises(LabError, match=r"^.*/libhakmem-secure\.so\.1\.0 is not there: .* no secure build$"):
        native.secure_library()


def test_a_variable_without_a_name_is_left_out() -> None:
    words = ["env", "-i", "=x", "A=b", sys.executable, "-m", "hakmem", "run", "--", "env"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "A=b\n" in done.stdout and "=x\n" not in done.stdout


def test_options_of_the_program_are_its_own() -> None:
    assert run("--", "echo", "--set", "-x", "--", "-h").stdout == "--set -x -- -h\n"
    assert run("sh", "-c", "echo $0", "--help").stdout == "--help\n"


def test_standard_input_is_the_caller_s() -> None:
    assert run("cat", input="text\n").stdout == "text\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_ends_it_like_the_program(number: signal.Signals) -> None:
    assert run("--", "sh", "-c", f"kill -{int(number)} $$").returncode == -number
    shell = subprocess.run(["sh", "-c", '"$@"; echo $?', "sh", *RUN, "sh", "-c", f"kill -{int(number)} $$"], stdout=-1)
    assert int(shell.stdout) == 128 + number


def test_it_is_the_same_process_and_gets_the_signals() -> None:
    words = [*RUN, PYTHON, "-c", "import os, signal; print(os.getpid(), flush=True); signal.pause()"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout and int(child.stdout.readline()) == child.pid
        child.send_signal(signal.SIGINT)
        assert child.wait(600) in (-signal.SIGINT, 1, 130)


def test_a_closed_pipe_ends_it_silently() -> None:
    with subprocess.Popen([*RUN, "yes"], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout and child.stderr
        child.stdout.readline()
        child.stdout.close()
        assert child.wait(600) == -signal.SIGPIPE
        assert child.stderr.read() == b""


def test_a_terminal_is_a_terminal_and_a_pipe_is_none() -> None:
    ours, its = pty.openpty()
    try:
        assert run("test", "-t", "0", stdin=its).returncode == 0
        assert run("test", "-t", "0", stdin=subprocess.DEVNULL).returncode == 1
    finally:
        os.close(ours)
        os.close(its)


def test_who_measures_is_put_behind(tmp_path: Path) -> None:
    """In front of `hakmem run` it would see the memory of its start."""
    program = compile_c(tmp_path / "measure", PEAK_OF_COMMAND)
    behind, before = int(run("--", program, "true").stdout), int(subprocess.check_output([program, *RUN, "true"]))
    assert behind < 8 << 10 < before  # KiB


def test_closed_descriptors_stay_closed() -> None:
    words = ["sh", "-c", '"$@" <&- >&-', "sh", *RUN, "sh", "-c", "[ ! -e /proc/self/fd/0 ] && [ ! -e /proc/self/fd/1 ]"]
    assert subprocess.run(words, timeout=600).returncode == 0


def test_the_environment_is_the_caller_s() -> None:
    """Python adds a locale to its own environment when there is none."""
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "", "A": "b=c\nd", "LANG": "C"}
    mine = subprocess.run(["env", "-0"], env=environment, capture_output=True, text=True).stdout
    its = run("env", "-0", env=environment).stdout
    added = set(its.split("\0")) - set(mine.split("\0"))
    assert {word.partition("=")[0] for word in added} == {"LD_PRELOAD", "ALLOCATOR_REQUIRED"}
    assert set(mine.split("\0")) <= set(its.split("\0"))


# ---- Scripts, shims, children ----------------------------------------------------------------------------------------


def shim(folder: Path, target: str) -> Path:
    """A shell script that becomes another program, as version managers put them on the path."""
    path = folder / "shim"
    path.write_text(f'#!/bin/sh\nexec {target} "$@"\n')
    path.chmod(0o755)
    return path


def test_a_program_behind_a_shim_is_on_hakmem(tmp_path: Path) -> None:
    assert run("--", shim(tmp_path, PYTHON), "-c", SAYS_MALLOC).stdout == "hakmem\n"


def test_a_program_behind_a_shim_that_is_not_on_hakmem_never_starts(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS + EXPORTED)
    message = refused("--", shim(tmp_path, str(program)))
    assert f"{program}: not started: its malloc is that of" in message


def test_children_with_a_malloc_of_their_own_run(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS + EXPORTED)
    done = run("--", "sh", "-c", f"{program}; echo $?")
    assert done.stdout == "main\n3\n"


def test_children_inherit_hakmem_alone() -> None:
    done = run("--", "sh", "-c", "env; :")
    words = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert words["LD_PRELOAD"] == str(native.library())
    assert "ALLOCATOR_REQUIRED" not in words


def test_no_children(tmp_path: Path) -> None:
    script = "import subprocess, sys; exec(sys.argv[1]); sys.stdout.flush(); "
    script += "subprocess.run([sys.executable, '-c', sys.argv[1]])"
    says = SAYS_MALLOC + "import os; print(os.environ.get('LD_PRELOAD'), os.environ.get('ALLOCATOR_REQUIRED'))"
    assert run("--no-children", PYTHON, "-c", script, says).stdout == "hakmem\nNone None\nother\nNone None\n"
    copy = shutil.copy(native.library(), tmp_path / "libhakmem.so")
    for mine, is_on in ((native.helper("witness.so"), "other"), (copy, "hakmem")):  # children have what the caller has
        environment = {**os.environ, "LD_PRELOAD": str(mine)}
        its = run("--no-children", PYTHON, "-c", script, says, env=environment).stdout
        assert its == f"hakmem\n{mine} None\n{is_on}\n{mine} None\n"


@pytest.mark.parametrize("options", [(), ("--secure",)])
@pytest.mark.parametrize("name", ["libhakmem.so", "allocator.so"])
def test_statistics_are_not_those_of_a_copy_that_was_preloaded(
    options: tuple[str, ...], name: str, tmp_path: Path
) -> None:
    copy, written = tmp_path / name, tmp_path / "written"
    shutil.copy(native.library(), copy)
    environment = {**os.environ, "LD_PRELOAD": str(copy)}
    done = run(*options, "--set", f"STATS=json:{written}", "--", PYTHON, "-c", "pass", env=environment)
    assert done.returncode == 0 and json.loads(written.read_text())["refills"] > 0, done


# ---- Refusals --------------------------------------------------------------------------------------------------------


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("echo\n")
    assert "Missing argument" in refused()
    assert "Missing argument" in refused("--")
    assert "'': command not found" in refused("")
    assert "no-such-command: command not found" in refused("no-such-command")
    assert "a directory" in refused(tmp_path)
    assert "not executable" in refused(tmp_path / "text")
    (tmp_path / "text").chmod(0o755)
    assert "neither an ELF program nor a script" in refused(tmp_path / "text")
    assert "No such option" in refused("--no-such-option", "true")


def test_a_static_program_is_refused(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS, "-static")
    assert "is statically linked: link it with libhakmem.a instead" in refused(program)
    assert "is statically linked: the secure build is a shared library only" in refused("--secure", program)


def test_a_program_that_the_kernel_does_not_take_is_one_line(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS)
    with open(program, "ab"):  # nobody executes what somebody writes
        assert "Text file busy" in refused(program)


# ---- The preload trap ------------------------------------------------------------------------------------------------

WITH_LIBRARY = (
    "from pathlib import Path; from hakmem import cli, native; native.library = lambda: Path({!r}); cli.main({!r})"
)


def run_with(library: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """hakmem run, where the library is believed to be that file."""
    code = WITH_LIBRARY.format(str(library), ["run", *map(str, words)])
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)


def test_a_library_that_is_gone_runs_nothing(tmp_path: Path) -> None:
    done = run_with(tmp_path / "libhakmem.so", "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "the library is not there" in done.stderr


def test_a_library_that_is_no_allocator_runs_nothing(tmp_path: Path) -> None:
    """It loads, so that the dynamic linker has nothing to say: the guard finds that malloc is not its own."""
    library = compile_c(tmp_path / "lib.so", "int nothing(void) { return 0; }\n", "-shared", "-fPIC")
    done = run_with(library, "echo", "ran")
    assert (done.returncode, done.stdout) == (2, "")
    assert "echo: not started: its malloc is that of" in done.stderr and str(library) in done.stderr


def test_a_library_that_vanishes_at_the_last_moment_runs_nothing() -> None:
    """The dynamic linker prints a line and would run on with the C library's malloc."""
    guard = native.helper("guard.so")
    exec_echo = f"export LD_PRELOAD=/no/lib.so:{guard} ALLOCATOR_REQUIRED=$$:/no/lib.so:; exec echo ran"
    done = subprocess.run(["sh", "-c", exec_echo], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not started: its malloc is that of" in done.stderr


# ---- Settings --------------------------------------------------------------------------------------------------------


def test_settings_reach_the_library() -> None:
    done = run("--set", "STATS=json", "--", PYTHON, "-c", "print('main')")
    assert done.stdout == "main\n"
    assert '"live_blocks"' in done.stderr


def test_settings_that_are_none_are_one_line_with_the_names() -> None:
    message = refused("--set", "NO_SUCH=1", "true")
    assert "no setting 'NO_SUCH'; known are" in message and "STATS" in message
    assert "expected NAME=VALUE" in refused("--set", "STATS", "true")
    assert "expected NAME=VALUE" in refused("--set", "=1", "true")
    assert "STATS=xml: expected" in refused("--set", "STATS=xml", "true")
    assert "HELP=2: expected" in refused("--set", "HELP=2", "true")


def test_names_of_settings_are_the_library_s(tmp_path: Path) -> None:
    assert {"HELP", "STATS"} <= set(settings.known(native.library()))
    with pytest.raises(LabError, match="does not list its settings"):
        settings.known(tmp_path / "none.so")


def test_help_is_quick() -> None:
    """No timing: what makes it slow is not imported."""
    code = "import sys\nfrom hakmem import cli\n"
    code += "try: cli.main(['run', '-h'])\nexcept SystemExit: print(list(sys.modules))"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "'click'" in modules
    assert not any(f"'{name}'" in modules for name in ("numpy", "scipy", "msgspec", "elftools", "rich"))


def test_it_is_over_when_the_program_is() -> None:
    """Nothing waits behind: exec, not a child."""
    with subprocess.Popen([*RUN, "sleep", "60"]) as child:
        deadline = time.monotonic() + 300
        while Path(f"/proc/{child.pid}/comm").read_text() != "sleep\n" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text()
        child.kill()
