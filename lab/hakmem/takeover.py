"""Whether a command can run on an allocator that is preloaded, and the environment in which it must or ends.

Three checks, each blind to what the next one sees. The ELF facts of every program that the command becomes by exec, as
far as its scripts and `env` say, name what a preload can't reach. The dynamic linker of each lists what it would load,
without running it: that finds a library it can't read or whose C library it lacks. And in the process itself a guard
(lab/native/guard.c) looks whose malloc it is before main, in every program that the process becomes.
"""

from __future__ import annotations

import getopt
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hakmem import ctl, elf, native
from hakmem.errors import LabError
from hakmem.process import STARTERS, TakeoverError, preloadable, why_not_started

SCRIPT_LEVELS = 5  # of scripts whose interpreter is a script; more than the kernel's

# Where systems have their dynamic linkers. That of musl is its C library.
SYSTEMS_LINKER = re.compile(r"(/(usr/)?lib\w*|/(nix|gnu)/store)/(.*/)?(ld(64)?[-.][^/]*|libc\.so)")

# Programs that start others, besides STARTERS.
SHELLS = frozenset({"sh", "bash", "dash", "ksh", "mksh", "zsh", "fish", "busybox"})
# Those of STARTERS that give what they start an environment of its own, unless they are told otherwise.
CLEANERS = frozenset({"doas", "sudo", "systemd-run"})
CLEANS = "it cleans the environment of what it starts, unless it is told otherwise"
BEHIND = 'name hakmem behind it, as in `sudo "$(command -v hakmem)" run -- COMMAND`'


class CommandError(LabError):
    """The command can't be started at all."""


@dataclass(frozen=True)
class Program:
    """An ELF file that the command becomes by exec."""

    path: Path
    environment: Mapping[str, str]
    is_interpreter: bool  # of a script that was to be run

    @property
    def file(self) -> Path:
        return self.path.resolve()

    @property
    def only_starts_others(self) -> bool:
        """A shell that was asked for by name may be meant itself."""
        name = self.file.name
        return name in STARTERS or (self.is_interpreter and name in SHELLS)

    @property
    def cleans(self) -> bool:
        return self.file.name in CLEANERS


# ---- From a command to the programs it becomes -----------------------------------------------------------------------


def find(word: str, environment: Mapping[str, str]) -> Path:
    """The file that a shell would execute. Its path is absolute: nobody looks for it in PATH once more."""
    found = shutil.which(word, path=environment.get("PATH", os.defpath))
    if found:
        return Path(found).absolute()
    raise CommandError(f"{word or repr(word)}: {why_not_started(word)}")


def expect_no_script(word: str, environment: Mapping[str, str]) -> None:
    """LabError for a program that others run: its build id is not its own."""
    try:
        with open(find(word, environment), "rb") as file:
            first = file.readline(256)
    except PermissionError:
        return  # who can't read it can't run it as a script either
    if first.startswith(b"#!"):
        interpreter = os.fsdecode(first[2:]).strip()
        raise LabError(f"--install: {word} is a script: the policy would be that of all programs of {interpreter}")


def follow(words: Sequence[str], environment: Mapping[str, str]) -> list[Program]:
    """The programs that the command becomes, in order. What a program does once it runs is not known, but for `env`."""
    if not words:
        raise CommandError("no command: expected `-- COMMAND [ARGUMENT...]`")
    return _follow(find(words[0], environment), list(words), dict(environment), 0)


def _follow(path: Path, words: list[str], environment: dict[str, str], level: int, folder: str = "") -> list[Program]:
    """`folder` is where it is started, seen from here."""
    try:
        with open(path, "rb") as file:
            start = file.read(256)
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror}: whether it takes an allocator can't be told") from None
    if start.startswith(b"#!"):
        if level == SCRIPT_LEVELS:
            raise CommandError(f"{path}: too many levels of scripts")
        line = os.fsdecode(start[2:].partition(b"\n")[0]).strip(" \t")
        interpreter, *argument = re.split(r"[ \t]+", line, maxsplit=1)
        if not os.access(interpreter, os.X_OK) or os.path.isdir(interpreter):
            raise CommandError(f"{path}: its interpreter {interpreter!r} is not an executable file")
        words = [interpreter, *argument, str(path), *words[1:]]
        return _follow(Path(interpreter), words, environment, level + 1, folder)
    if not start.startswith(elf.MAGIC):
        raise CommandError(f"{path}: neither an ELF program nor a script that begins with #!")
    program = Program(path, dict(environment), is_interpreter=level > 0)
    if path.name != "env":
        return [program]
    rest, own = _after_env(words[1:], environment)
    if not rest:
        return [program]
    folder = os.path.join(folder, own)
    word = os.path.join(folder, rest[0]) if "/" in rest[0] else rest[0]
    return [program, *_follow(find(word, environment), rest, environment, level, folder)]


def _after_env(words: list[str], environment: dict[str, str], folder: str = "") -> tuple[list[str], str]:
    """The command that `env` becomes, empty where it only prints, and the folder that it goes to; applies to
    `environment` what it changes."""
    long = ["ignore-environment", "unset=", "chdir=", "split-string=", "debug", "null"]
    try:
        options, rest = getopt.getopt(words, "iu:C:S:v0", long)
    except getopt.GetoptError:
        raise CommandError(f"env {shlex.join(words)}: can't tell what it starts; name that program instead") from None
    for name, value in options:
        if name in ("-S", "--split-string"):
            return _after_env([*shlex.split(value), *rest], environment, folder)
        if name in ("-i", "--ignore-environment"):
            environment.clear()
        elif name in ("-u", "--unset"):
            environment.pop(value, None)
        elif name in ("-C", "--chdir"):
            folder = value
    if rest[:1] == ["-"]:
        environment.clear()
        del rest[0]
    while rest and "=" in rest[0]:
        name, _, value = rest.pop(0).partition("=")
        environment[name] = value
    return rest, folder


# ---- What stands against it ------------------------------------------------------------------------------------------


def gains_rights(file: Path) -> str | None:
    """Why the dynamic linker would distrust the caller's environment; None when it wouldn't. As execve(2) decides."""
    found = os.stat(file)
    if os.statvfs(file).f_flag & os.ST_NOSUID or _no_new_privileges():
        return None
    if found.st_mode & stat.S_ISUID and found.st_uid != os.getuid():
        return "setuid"
    if found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IXGRP and found.st_gid != os.getgid():
        return "setgid"
    try:
        has_capabilities = os.getuid() != 0 and bool(os.getxattr(file, "security.capability"))
    except OSError:
        has_capabilities = False
    return "a program with file capabilities" if has_capabilities else None


def _no_new_privileges() -> bool:
    try:
        return "\nNoNewPrivs:\t1\n" in Path("/proc/self/status").read_text(errors="replace")
    except FileNotFoundError:
        return False  # there is no /proc to say so


def unsuitable(file: Path, program: elf.Elf, library: elf.Elf) -> str | None:
    """Why a program, as it was built, can't have that library preloaded; None when nothing speaks against it."""
    if (program.machine, program.bits) != (library.machine, library.bits):
        ours, its = f"{library.bits}-bit {library.machine}", f"{program.bits}-bit {program.machine}"
        return f"{file} is for {its}, the library for {ours}"
    if program.interpreter is None and not ctl.has_note(str(file)):
        is_secure = native.is_secure(library.path)
        hint = "the secure build is a shared library only" if is_secure else "link it with libhakmem.a instead"
        return f"{file} is statically linked: {hint}"
    if program.libc == "musl" and library.libc == "glibc":
        return f"{file} is a program of musl, the library is for glibc: preload the one that `./dev build musl` makes"
    if program.sanitizer:
        return f"{file} is built with {program.sanitizer}, which needs its own malloc"
    has_malloc = "malloc" in program.exports | program.hides
    if ctl.has_note(str(file)):  # the copy in it takes the settings, and so would the other
        if hides_malloc(program):
            return f"{file} {HIDDEN}"
        beside = "" if has_malloc else " beside the C library's malloc"  # as one in Rust
        return f"{file} has hakmem linked in{beside}: run it as it is, it takes HAKMEM_ settings"
    return f"{file} has a malloc of its own linked in, which no preload replaces" if has_malloc else None


HIDDEN = (
    "has hakmem linked in, and hides its malloc: libraries that it loads have the C library's, and one frees what the"
    " other has allocated"
)


def hides_malloc(program: elf.Elf) -> bool:
    """Of one that hakmem is linked into: its libraries don't see its malloc. None of them is loaded by a static one."""
    return program.interpreter is not None and "malloc" in program.hides


def strangers(program: Program) -> str | None:
    """Whose code would run, beside the system's, if the program's dynamic linker listed what it would load; None when
    nobody's would. That is no matter where the program is run anyhow."""
    found = elf.read(program.file)
    if found.interpreter and not _is_systems(os.path.realpath(found.interpreter)):
        return f"its dynamic linker, {found.interpreter}, is not the system's"
    if found.has_auditors or program.environment.get("LD_AUDIT"):
        return "its dynamic linker would run libraries that are named to it (DT_AUDIT, LD_AUDIT)"
    return None


def _is_systems(linker: str) -> bool:
    """Also where it can't be run, or is the one that this very program has."""
    try:
        found = os.stat(linker)
    except OSError:
        return True
    if SYSTEMS_LINKER.fullmatch(linker) and found.st_uid == 0 and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return True
    own = elf.read(Path("/proc/self/exe")).interpreter
    return own is not None and os.path.realpath(own) == linker


def rehearse(program: Program, preload: Sequence[Path]) -> str | None:
    """Lets the program's dynamic linker list what it would load. None when all of `preload` is there, else why not."""
    interpreter = elf.read(program.file).interpreter
    words = [str(interpreter), "--list", str(program.file)]
    try:
        done = subprocess.run(words, env=program.environment, capture_output=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the dynamic linker of {program.file}, {interpreter}, does not work: {error}"
    # glibc's says a preloaded file's path, musl's says it twice: PATH => PATH (0xADDRESS)
    loaded = {os.fsdecode(line.split(b" (0x")[0].split(b" => ")[-1].strip()) for line in done.stdout.splitlines()}
    missing = next((path for path in preload if str(path) not in loaded), None)
    if missing is None:
        return None
    if str(missing) not in program.environment.get("LD_PRELOAD", ""):
        return f"{program.file} is started without LD_PRELOAD, or with another one"
    said = re.search(
        r"cannot be preloaded \((.*)\)|error while loading shared libraries: (.*)", os.fsdecode(done.stderr)
    )
    why = f" ({said[1] or said[2]})" if said else ""
    return f"the dynamic linker of {program.file} does not load {missing}{why}"


# ---- All of it -------------------------------------------------------------------------------------------------------


def preload_words(library: Path) -> list[Path]:
    """What is preloaded: the library and the guard, by paths that LD_PRELOAD can hold."""
    if not library.is_file():
        raise LabError(f"the library is not there: {library}")
    return [preloadable(path) for path in (library.resolve(), native.helper("guard.so"))]


def preloaded(environment: Mapping[str, str]) -> list[str]:
    """What the caller preloads."""
    return [word for word in re.split(r"[ :]", environment.get("LD_PRELOAD", "")) if word]


def copies(environment: Mapping[str, str]) -> list[str]:
    """What the caller preloads of hakmem. A process has use for one only."""
    return [word for word in preloaded(environment) if native.is_library(word)]


def is_link_to(library: Path, word: str) -> bool:
    """Whether what the caller preloads is this library. A name without a folder is looked for where systems have their
    libraries, which have their links beside them."""
    return os.path.realpath(word if "/" in word else library.parent / word) == str(library)


def with_preload(
    environment: Mapping[str, str], preload: Sequence[Path], left_out: Collection[str] = ()
) -> dict[str, str]:
    """The environment with `preload` before what the caller preloads, but for what is left out."""
    callers = [word for word in preloaded(environment) if word not in left_out]
    return {**environment, "LD_PRELOAD": ":".join([*map(str, preload), *callers])}


def examine(
    programs: Sequence[Program], preload: Sequence[Path], may_ask: Callable[[Program], bool] = lambda program: True
) -> str | None:
    """Why one of these programs would not run on the first of `preload`; None when nothing speaks against it. `may_ask`
    tells whether a program's dynamic linker is asked."""
    library = elf.read(preload[0])
    for program in programs:
        rights = gains_rights(program.file)
        why = f"{program.file} is {rights}: the dynamic linker ignores LD_PRELOAD there" if rights else None
        why = why or unsuitable(program.file, elf.read(program.file), library)
        if not why and may_ask(program):
            why = rehearse(program, preload)
        if why:
            return why
    return None


def prepare(
    words: Sequence[str], library: Path, environment: Mapping[str, str], *, children: bool
) -> tuple[Path, dict[str, str]]:
    """The file to execute and its environment, in which this process becomes the command on `library` or ends.

    Raises TakeoverError when it can't, CommandError when there is nothing to run. Tells the user where what the command
    starts may not be on it."""
    preload = preload_words(library)
    left_out = copies(environment) if children else []  # those that get none of `preload` keep the caller's
    ready = with_preload(environment, preload, left_out)
    programs = follow(words, ready)
    why = examine(programs, preload)
    last = programs[-1]
    if not why and not children and last.only_starts_others:
        why = f"without its children: {last.file} does nothing but start them; name the program that is meant"
    if why:
        raise TakeoverError(f"{words[0]} can't run on hakmem: {why}")
    others = [word for word in left_out if not is_link_to(preload[0], word)]
    if others:
        told = f"LD_PRELOAD={':'.join(others)} is not passed on to what is run"
        print(f"hakmem: {told}: that is on {preload[0]}", file=sys.stderr)
    if last.cleans:
        print(f"hakmem: {last.file}: {CLEANS}; {BEHIND}", file=sys.stderr)
    # As long for each pid: the size of the environment says where the stack begins.
    ready["ALLOCATOR_REQUIRED"] = f"{os.getpid():010d}:{preload[0]}:{'' if children else last.file}"
    return find(words[0], environment), ready


def prepare_child(words: Sequence[str], library: Path, environment: Mapping[str, str]) -> tuple[Path, dict[str, str]]:
    """The same for a command that this process starts. What hakmem gathers in it is written also where a signal ends it
    (lab/native/ending.c)."""
    ending = preloadable(native.helper("ending.so"))
    file, ready = prepare(words, library, with_preload(environment, [ending]), children=True)
    del ready["ALLOCATOR_REQUIRED"]  # of this process, which doesn't become the command
    return file, ready
