"""From a command to the programs it becomes, and what speaks against them. Nothing is run here but dynamic linkers."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import EXPORTED, HIDDEN, NOTED, PRINTS, compile_c
from hakmem import elf, native, takeover
from hakmem.errors import LabError
from hakmem.process import TakeoverError
from hakmem.takeover import CommandError

PATH = {"PATH": "/usr/bin:/bin"}
SH = Path("/bin/sh").resolve()
ENV = Path("/usr/bin/env").resolve()
CAT = Path("/bin/cat").resolve()


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def files(words: list[str], environment: dict[str, str] | None = None) -> list[Path]:
    return [program.file for program in takeover.follow(words, environment or PATH)]


def prepare(*words: object, children: bool = True) -> dict[str, str]:
    return takeover.prepare([str(word) for word in words], native.library(), PATH, children=children)[1]


# ---- Following -------------------------------------------------------------------------------------------------------


def test_a_program_is_itself() -> None:
    assert files(["cat", "file"]) == [CAT]
    assert files(["/bin/cat"]) == [CAT]


def test_a_script_is_its_interpreter(tmp_path: Path) -> None:
    assert files([script(tmp_path / "x", "#!/bin/sh\necho\n")]) == [SH]
    assert files([script(tmp_path / "x", "#! /bin/sh -e \necho\n")]) == [SH]


def test_a_script_on_the_path_is_found(tmp_path: Path) -> None:
    script(tmp_path / "x", "#!/bin/cat\n")
    assert files(["x"], {"PATH": str(tmp_path)}) == [CAT]


def test_a_script_of_a_script(tmp_path: Path) -> None:
    inner = script(tmp_path / "inner", "#!/bin/sh\n")
    assert files([script(tmp_path / "outer", f"#!{inner}\n")]) == [SH]


def test_a_script_of_itself_ends(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="too many levels"):
        files([script(tmp_path / "x", f"#!{tmp_path}/x\n")])


@pytest.mark.parametrize(
    "line", ["#!/usr/bin/env cat", "#!/usr/bin/env -S cat -n", "#!/usr/bin/env -S A=1 cat", "#!/usr/bin/env -vS cat"]
)
def test_env_is_followed(tmp_path: Path, line: str) -> None:
    assert files([script(tmp_path / "x", line + "\n")]) == [ENV, CAT]


def test_env_as_a_command_is_followed() -> None:
    assert files(["env", "-u", "A", "B=c", "cat"]) == [ENV, CAT]
    assert files(["env", "--unset=A", "--", "env", "cat"]) == [ENV, ENV, CAT]
    assert files(["env"]) == [ENV], "it prints the environment"


def test_env_changes_where_programs_are_found(tmp_path: Path) -> None:
    script(tmp_path / "x", "#!/bin/cat\n")
    assert files(["env", f"PATH={tmp_path}", "x"]) == [ENV, CAT]


def test_env_changes_from_where_programs_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several folders the last one counts; each `env` is where the one before has gone."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    script(tmp_path / "a" / "b" / "x", "#!/bin/cat\n")
    monkeypatch.chdir(tmp_path)
    for words in (["-C", f"{tmp_path}/a"], ["--chdir=a"], ["-C", "/no/such", "-C", "a"], ["-C", "/no/such", "-S-C a"]):
        assert files(["env", *words, "b/x"]) == [ENV, CAT]
        assert files(["env", *words, str(CAT)]) == [ENV, CAT]
    assert files(["env", "-C", "a", "env", "-C", "b", "./x"]) == [ENV, ENV, CAT]
    script(tmp_path / "a" / "b" / "starts", "#!/usr/bin/env -S -C b ./x\n")
    assert files(["env", "-C", "a", "b/starts"]) == [ENV, ENV, CAT]


def test_env_with_what_is_not_understood() -> None:
    with pytest.raises(CommandError, match="name that program instead"):
        files(["env", "--no-such-option", "cat"])


@pytest.mark.parametrize(
    "line, expected",
    [
        ("#!/no/such/interpreter\n", "its interpreter '/no/such/interpreter' is not"),
        ("#!/bin/sh\r\n", r"its interpreter '/bin/sh\\r' is not"),
        ("#!\n", "its interpreter '' is not"),
        ("#!/tmp\n", "its interpreter '/tmp' is not"),
        ("echo hello\n", "neither an ELF program nor a script"),
        ("", "neither an ELF program nor a script"),
    ],
)
def test_scripts_that_are_none(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(CommandError, match=expected):
        files([script(tmp_path / "x", line)])


def test_commands_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    for words, expected in [
        ([], "no command"),
        ([""], "'': command not found"),
        (["no-such-command"], "no-such-command: command not found"),
        ([f"{tmp_path}/none"], "none: no such file"),
        ([str(tmp_path)], "a directory"),
        ([f"{tmp_path}/text"], "not executable"),
        (["env", "no-such-command"], "no-such-command: command not found"),
    ]:
        with pytest.raises(CommandError, match=expected):
            files(words)


SAYS_ITS_NAME = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    free(malloc(count));
    puts(words[0]);
    fflush(stdout);
    return usleep(500000);
}
"""


@pytest.mark.forms
@pytest.mark.parametrize(
    "command",
    [("run",), ("profile", "-o", "out"), ("learn",), ("explain",), ("explain", "--after", "0.2"), ("record",)],
)
@pytest.mark.parametrize("name", ["ls", "of-no-other"])
def test_the_program_that_is_named_is_run(tmp_path: Path, command: tuple[str, ...], name: str) -> None:
    """It, and none of that name in PATH; and it is told its name as it was given."""
    compile_c(tmp_path / name, SAYS_ITS_NAME)
    words = [sys.executable, "-m", "hakmem", *command, "--", f"./{name}"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    status = 2 if command == ("learn",) else 0  # nothing was learned
    assert (done.returncode, done.stdout.partition("\n")[0]) == (status, f"./{name}"), done


def test_a_program_in_a_folder_of_the_path_that_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "linked").symlink_to("/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert takeover.find("cat", {"PATH": "linked"}) == tmp_path / "linked" / "cat"


# ---- What speaks against a program -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source, options, compiler, expected",
    [
        (PRINTS, ["-static"], "cc", "is statically linked"),
        (PRINTS, ["-static-pie"], "cc", "is statically linked"),
        (PRINTS, ["-fsanitize=address"], "cc", "which needs its own malloc"),
        (PRINTS, [], "musl-gcc", "is a program of musl.*`./dev build musl`"),
        (PRINTS + EXPORTED, [], "cc", "has a malloc of its own"),
        (PRINTS + HIDDEN, [], "cc", "has a malloc of its own"),
        (PRINTS + NOTED, [], "cc", "has hakmem linked in beside the C library's malloc: run it as it is"),
    ],
    ids=["static", "static-pie", "asan", "musl", "own malloc", "hidden malloc", "hakmem beside malloc"],
)
def test_refused(tmp_path: Path, source: str, options: list[str], compiler: str, expected: str) -> None:
    program = compile_c(tmp_path / "program", source, *options, compiler=compiler)
    with pytest.raises(TakeoverError, match=expected) as error:
        prepare(program)
    assert "\n" not in str(error.value)


def test_another_machine_is_refused(tmp_path: Path) -> None:
    """A program whose header says that it is for a 64-bit PowerPC."""
    image = bytearray(compile_c(tmp_path / "program", PRINTS).read_bytes())
    image[18:20] = (21).to_bytes(2, "little")
    (tmp_path / "foreign").write_bytes(image)
    (tmp_path / "foreign").chmod(0o755)
    with pytest.raises(TakeoverError, match="is for 64-bit"):
        prepare(tmp_path / "foreign")


def test_an_allocator_that_comes_as_a_library_is_no_reason(tmp_path: Path) -> None:
    library = compile_c(tmp_path / "libown.so", EXPORTED, "-shared", "-fPIC")
    prepare(compile_c(tmp_path / "program", PRINTS, str(library), "-Wl,--no-as-needed"))


def test_the_interpreter_of_a_script_is_what_counts(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS, "-static")
    with pytest.raises(TakeoverError, match="program is statically linked"):
        prepare(script(tmp_path / "x", f"#!/usr/bin/env {program}\n"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file to somebody else")
@pytest.mark.parametrize("mode, word", [(stat.S_ISUID | 0o755, "setuid"), (stat.S_ISGID | 0o755, "setgid")])
def test_setuid_and_setgid(tmp_path: Path, mode: int, word: str) -> None:
    program = tmp_path / "cat"
    shutil.copy(CAT, program)
    os.chown(program, 65534, 65534)
    program.chmod(mode)
    with pytest.raises(TakeoverError, match=f"is {word}: the dynamic linker ignores LD_PRELOAD"):
        prepare(program)
    os.chown(program, 0, 0)
    program.chmod(mode)
    prepare(program)  # the caller's own rights are no more rights


def test_file_capabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setattr(
        os, "getxattr", lambda file, name: b"\x01\x00\x00\x02" if name == "security.capability" else b""
    )
    assert takeover.gains_rights(CAT) == "a program with file capabilities"
    monkeypatch.setattr(takeover, "_no_new_privileges", lambda: True)
    assert takeover.gains_rights(CAT) is None


def test_env_that_drops_the_preload_is_refused() -> None:
    for words in (["env", "-i", "/bin/cat"], ["env", "-", "/bin/cat"], ["env", "-u", "LD_PRELOAD", "cat"]):
        with pytest.raises(TakeoverError, match="without LD_PRELOAD"):
            prepare(*words)


# ---- Dynamic linkers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("linker", "is_one"),
    [
        ("/lib64/ld-linux-x86-64.so.2", True),
        ("/usr/lib/x86_64-linux-gnu/ld-2.31.so", True),
        ("/lib/ld64.so.1", True),
        ("/lib/ld-musl-x86_64.so.1", True),
        ("/usr/lib/x86_64-linux-musl/libc.so", True),
        ("/nix/store/0123-glibc-2.40/lib/ld-linux-x86-64.so.2", True),
        ("/home/me/lib/ld-linux-x86-64.so.2", False),
        ("/opt/lib/ld-linux-x86-64.so.2", False),
        ("/usr/local/lib/ld-linux-x86-64.so.2", False),
        ("/usr/lib/git-core/git", False),
        ("ld-linux-x86-64.so.2", False),
    ],
)
def test_where_systems_have_them(linker: str, is_one: bool) -> None:
    assert (takeover.SYSTEMS_LINKER.fullmatch(linker) is not None) == is_one


def test_those_of_this_machine_are_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path(elf.read(Path("/proc/self/exe")).interpreter or "")
    monkeypatch.setattr(sys, "executable", "")  # as where nobody has told Python its name
    assert takeover._is_systems(os.path.realpath(own))
    assert takeover._is_systems(str(tmp_path / "that is not there"))
    shutil.copy(own, tmp_path)
    assert not takeover._is_systems(str(tmp_path / own.name))


# ---- The library -----------------------------------------------------------------------------------------------------


def test_a_library_that_was_moved_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="the library is not there"):
        takeover.prepare(["cat"], tmp_path / "libhakmem.so", PATH, children=True)


def test_a_path_that_a_preload_cannot_hold_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    shutil.copy(native.library(), folder / "libhakmem.so")
    with pytest.raises(LabError, match="a space or a colon"):
        takeover.prepare(["cat"], folder / "libhakmem.so", PATH, children=True)


def test_a_library_that_does_not_load_is_refused_before_anything_runs(tmp_path: Path) -> None:
    """Its file is there and is a shared library, but what it needs is not."""
    needed = compile_c(tmp_path / "libneeded.so", "int needed(void) { return 1; }\n", "-shared", "-fPIC")
    source = "int needed(void); int need(void) { return needed(); }\n"
    library = compile_c(tmp_path / "lib.so", source, "-shared", "-fPIC", str(needed))
    needed.unlink()
    with pytest.raises(TakeoverError, match="does not load .*lib.so .*libneeded.so"):
        takeover.prepare(["cat"], library, PATH, children=True)


# ---- The environment -------------------------------------------------------------------------------------------------


def test_the_caller_s_preload_comes_after() -> None:
    mine = str(native.helper("witness.so"))
    _, ready = takeover.prepare(["cat"], native.library(), {**PATH, "LD_PRELOAD": mine}, children=True)
    assert ready["LD_PRELOAD"] == f"{native.library()}:{native.helper('guard.so')}:{mine}"
    assert ready["ALLOCATOR_REQUIRED"] == f"{os.getpid():010d}:{native.library()}:"


def test_the_caller_s_copy_of_hakmem_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As that of an image is, in which everything runs on hakmem."""
    library, guard, mine = native.library(), native.helper("guard.so"), native.helper("witness.so")
    (tmp_path / "libhakmem.so.1").symlink_to(library)
    itself = f"{library} {tmp_path}/libhakmem.so.1 {library.name}"
    preload = f"/opt/libhakmem.so.1:{mine} /opt/libhakmem-secure.so {itself}"
    given = {**PATH, "LD_PRELOAD": preload}
    _, ready = takeover.prepare(["cat"], library, given, children=True)
    assert ready["LD_PRELOAD"] == f"{library}:{guard}:{mine}"
    told = "LD_PRELOAD=/opt/libhakmem.so.1:/opt/libhakmem-secure.so is not passed on to what is run"
    assert capsys.readouterr().err == f"hakmem: {told}: that is on {library}\n"
    _, ready = takeover.prepare(["cat"], library, {**PATH, "LD_PRELOAD": str(library)}, children=True)
    assert (ready["LD_PRELOAD"], capsys.readouterr().err) == (f"{library}:{guard}", "")
    _, ready = takeover.prepare(["cat"], library, given, children=False)  # whose children would be on none
    assert ready["LD_PRELOAD"].startswith(f"{library}:{guard}:/opt/libhakmem.so.1:") and not capsys.readouterr().err
    recorder = native.helper("record.so")  # has no allocator of its own
    assert takeover.with_preload(given, [recorder])["LD_PRELOAD"].startswith(f"{recorder}:/opt/libhakmem.so.1:")


def test_without_children_the_last_program_is_named(tmp_path: Path) -> None:
    text = script(tmp_path / "x", "#!/usr/bin/env cat\n")
    assert prepare(text, children=False)["ALLOCATOR_REQUIRED"].endswith(f":{CAT}")


def test_without_children_a_shell_script_or_a_wrapper_is_refused(tmp_path: Path) -> None:
    for words in ([script(tmp_path / "x", "#!/bin/sh\n")], ["nice", "cat"], ["env", "nice", "cat"]):
        with pytest.raises(TakeoverError, match="without its children"):
            prepare(*words, children=False)
    prepare("sh", children=False)  # asked for by name


@pytest.mark.parametrize("name", ["doas", "sudo", "systemd-run", "other"])
def test_who_cleans_the_environment_is_told_of_but_not_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    program = compile_c(tmp_path / name, PRINTS)
    prepare("env", program)
    said = "" if name == "other" else f"hakmem: {program}: {takeover.CLEANS}; {takeover.BEHIND}\n"
    assert capsys.readouterr().err == said
