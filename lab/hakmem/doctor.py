"""What would stop or hurt hakmem: on this machine, in this command, in that running process.

A finding is a fact that was looked up, what it means for hakmem, and what to do about it. Only a problem stops it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hakmem import ctl, elf, native, settings, takeover
from hakmem.errors import LabError
from hakmem.host import AT_PAGESZ, AT_SECURE, DELETED, Host, HostProcess
from hakmem.process import C_LIBRARY, is_preloadable

Level = Literal["ok", "note", "problem"]

MIB, GIB = 1 << 20, 1 << 30
PAGE_SIZES = (4096, 16384, 65536)
LEAST_ADDRESS_SPACE = 32 * MIB  # a program, the C library and a first SuperSlab
USUAL_MAX_MAP_COUNT = 65530
CALLS_AFTER_MAIN = ("mmap", "munmap", "mremap", "madvise", "mprotect", "brk", "futex")  # docs/guest.md

BUILD_OTHERWISE = "no preload can change that: build or install it otherwise"
LINK_OTHERWISE = "link hakmem.o in place of libhakmem.a, or leave malloc visible (no --exclude-libs, no version script)"
HAKMEMS = "hakmem's"
ASK_AS_OWNER = "look at it as its user, or as root"


@dataclass(frozen=True)
class Finding:
    topic: str
    level: Level
    fact: str
    advice: str = ""


def ok(topic: str, fact: str) -> Finding:
    return Finding(topic, "ok", fact)


def note(topic: str, fact: str, advice: str) -> Finding:
    return Finding(topic, "note", fact, advice)


def problem(topic: str, fact: str, advice: str) -> Finding:
    return Finding(topic, "problem", fact, advice)


def size(count: int) -> str:
    unit, name = next(((u, n) for u, n in ((GIB, "GiB"), (MIB, "MiB")) if count >= u), (1024, "KiB"))
    return f"{count / unit:.4g} {name}"


# ---- The library and the machine -------------------------------------------------------------------------------------


def of_library(library: Path, host: Host) -> Iterator[Finding]:
    needs, has = elf.read(library).glibc, host.glibc
    if needs and has:
        fact = f"glibc {has[0]}.{has[1]}; the library needs {needs[0]}.{needs[1]}"
        yield problem("C library", fact, "build hakmem on this machine") if has < needs else ok("C library", fact)
    elif needs:
        yield problem("C library", "not glibc, for which the library is built", "build hakmem on this machine")
    try:
        settings.known(library)
    except LabError as error:
        yield problem("library", str(error), "./dev build, or install the package again")
    else:
        yield _loads(library)


def _loads(library: Path) -> Finding:
    if is_preloadable(library.resolve()):
        return ok("library", f"{library} loads")
    return problem("library", f"LD_PRELOAD can't name {library}, for the space or colon in it", "move it")


def of_machine(host: Host) -> Iterator[Finding]:
    yield ok("kernel", host.text("proc/sys/kernel/osrelease") or "unknown")
    yield _page_size(host)
    pages = host.text("sys/kernel/mm/transparent_hugepage/enabled")
    choice = re.search(r"\[(\w+)\]", pages or "")
    yield ok("huge pages", f"transparent huge pages: {choice[1] if choice else 'none'}")
    yield _max_map_count(host)
    yield _overcommit(host)
    everywhere = host.text("etc/ld.so.preload")
    if everywhere:
        advice = "check that none of them is an allocator that other programs count on; hakmem comes before it"
        yield note("ld.so.preload", f"/etc/ld.so.preload names {everywhere}", advice)


def _page_size(host: Host) -> Finding:
    page = host.process().auxiliary().get(AT_PAGESZ)
    if page is None:
        return note("page size", "unknown: /proc/self/auxv can't be read", "mount /proc")
    if page not in PAGE_SIZES:
        return problem("page size", f"{page} bytes; hakmem knows 4, 16 and 64 KiB", "use another kernel")
    return ok("page size", size(page))


def _max_map_count(host: Host) -> Finding:
    most = host.number("proc/sys/vm/max_map_count")
    if most is None:
        return note("mappings", "unknown: vm.max_map_count can't be read", "mount /proc")
    if most < USUAL_MAX_MAP_COUNT:
        advice = f"sysctl vm.max_map_count={USUAL_MAX_MAP_COUNT}"
        return note("mappings", f"a process may have {most}, fewer than usual", advice)
    return ok("mappings", f"a process may have {most}")


def _overcommit(host: Host) -> Finding:
    mode, ratio = host.number("proc/sys/vm/overcommit_memory"), host.number("proc/sys/vm/overcommit_ratio")
    if mode == 2:
        fact = f"strict (vm.overcommit_memory=2, ratio {ratio} %): what is committed counts, even untouched"
        return note("overcommit", fact, "nothing: hakmem maps what it uses, a small heap 2 MiB at a time")
    words = {0: "heuristic", 1: "always"}
    return ok("overcommit", words.get(-1 if mode is None else mode, "unknown"))


# ---- What a process has from its surroundings ------------------------------------------------------------------------


def of_surroundings(process: HostProcess) -> Iterator[Finding]:
    yield _memory_limit(process)
    yield _address_space(process)
    data = process.limit("Max data size")
    if data is not None:
        fact, advice = f"limited to {size(data)} (RLIMIT_DATA)", "ulimit -d unlimited: the heap counts as data"
        yield problem("data", fact, advice) if data < 4 * MIB else note("data", fact, advice)
    yield _seccomp(process)
    others = [
        file
        for file in takeover.preloaded(process.environment())
        if not native.is_library(file) and Path(file).name != "guard.so"
    ]
    if others:
        yield note(
            "LD_PRELOAD", f"preloaded already: {' '.join(others)}", "nothing: `hakmem run` puts hakmem before it"
        )


def _memory_limit(process: HostProcess) -> Finding:
    limit = process.memory_limit()
    if limit is None:
        return ok("memory limit", "none")
    used = limit.used_bytes / limit.limit_bytes if limit.limit_bytes else 1
    fact = f"{size(limit.limit_bytes)}, {used:.0%} of it in use ({limit.group})"
    if used >= 0.9:
        return note("memory limit", fact, "raise it: the kernel is about to end processes of this group")
    return ok("memory limit", fact)


def _address_space(process: HostProcess) -> Finding:
    limit = process.limit("Max address space")
    if limit is None:
        return ok("address space", "unlimited")
    fact = f"limited to {size(limit)} (RLIMIT_AS)"
    if limit < LEAST_ADDRESS_SPACE:
        return problem("address space", f"{fact}: too little for most programs", "ulimit -v unlimited")
    return note("address space", fact, "ulimit -v unlimited, if the heap outgrows it: what is mapped counts")


def _seccomp(process: HostProcess) -> Finding:
    mode = process.status("Seccomp")
    if mode == "1":
        return problem("seccomp", "strict mode: no memory can be had from the kernel", "nothing can be done")
    if mode == "2":
        advice = f"let it allow {', '.join(CALLS_AFTER_MAIN)}; docs/guest.md has the rest"
        return note("seccomp", "a filter decides which system calls are allowed", advice)
    return ok("seccomp", "no filter")


# ---- A command, a running process ------------------------------------------------------------------------------------


def of_command(words: Sequence[str], library: Path, environment: dict[str, str]) -> Iterator[Finding]:
    preload = takeover.preload_words(library)
    if copies := takeover.copies(environment):
        yield note("LD_PRELOAD", f"hakmem is preloaded already: {' '.join(copies)}", "nothing: it is left out")
    programs = takeover.follow(words, takeover.with_preload(environment, preload, copies))
    why = takeover.examine(programs, preload, lambda program: takeover.strangers(program) is None)
    path = " -> ".join(str(program.file) for program in programs)
    cleans = programs[-1].cleans
    if why:
        yield _unfit(programs[-1].file, why, cleans)
        return
    if missing := _missing_script(words):
        yield problem("script", f"{missing}: no such file, from here", "name a file that is there")
    unasked = [f"{program.file}: {whose}: not asked" for program in programs if (whose := takeover.strangers(program))]
    yield from (note("command", fact, "`hakmem run` asks it, and then runs the program") for fact in unasked)
    if not unasked:
        yield ok("command", f"{path} takes hakmem")
    if cleans:
        yield note("what it starts", takeover.CLEANS, takeover.BEHIND)
    last = programs[-1].environment  # as `env` may have changed it
    yield from _ignored_settings(last, library)
    if last.get(f"{settings.PREFIX}DEEPBIND") == "1":
        yield note("plug-ins", "those with RTLD_DEEPBIND get the C library's malloc", "leave out HAKMEM_DEEPBIND")
    yield from _private_allocators(programs[-1].file, last)


def _unfit(program: Path, why: str, cleans: bool) -> Finding:
    if cleans or not ctl.has_note(str(program)):
        return problem("command", why, takeover.BEHIND if cleans else BUILD_OTHERWISE)
    if takeover.hides_malloc(elf.read(program)):
        return problem("command", f"{program} {takeover.HIDDEN}", LINK_OTHERWISE)
    return ok("command", f"{program} has hakmem linked in: run it as it is")


INTERPRETERS = re.compile(r"(python|pypy|ruby|perl|node|nodejs|lua|php)[0-9.]*")


def _missing_script(words: Sequence[str]) -> str | None:
    """What an interpreter is to read, where it is not there. After options nobody knows what it is."""
    if len(words) < 2 or not INTERPRETERS.fullmatch(Path(words[0]).name):
        return None
    script = words[1]
    return script if not script.startswith("-") and not Path(script).exists() else None


def _private_allocators(program: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    for name in elf.read(program).private_allocators:
        if name == elf.PYTHONS_POOLS and environment.get("PYTHONMALLOC") in ("malloc", "malloc_debug"):
            continue
        fact = f"it has {name} beside malloc: what it takes from there is not on hakmem"
        yield note("own allocator", fact, "build or set it so that it uses malloc, if that is wanted")


def of_running(process: HostProcess, library: Path) -> Iterator[Finding]:
    program = process.executable()
    is_linked = program is not None and ctl.has_note(str(process.path(program)))
    if program is None:
        yield note("program", "unknown: /proc/PID/exe can't be read", ASK_AS_OWNER)
    else:
        yield from _running_program(process, program, is_linked, library)
    if process.auxiliary().get(AT_SECURE) and not is_linked:
        advice = "start it without setuid, setgid or capabilities"
        yield problem("rights", "it runs with more rights than its caller: LD_PRELOAD is ignored", advice)
    count, most = len(process.mappings()), process.host.number("proc/sys/vm/max_map_count")
    if most and count > most * 0.9:
        yield problem("its mappings", f"{count} of {most}: soon no memory can be mapped", "raise vm.max_map_count")
    else:
        yield ok("its mappings", f"{count} of {most}")


def _running_program(process: HostProcess, program: str, is_linked: bool, library: Path) -> Iterator[Finding]:
    """`is_linked`: hakmem is in the program's own file."""
    file = process.path(program)
    malloc = program if is_linked else malloc_of(process, program)
    is_on = is_linked or (malloc is not None and _is_hakmems(process, malloc))
    try:
        built = elf.read(file)
        fits = built if is_on else elf.read(library)  # the one that it has is for its system, and may be gone by now
        why = None if is_linked else takeover.unsuitable(file, built, fits)
    except LabError as error:
        yield note("program", str(error), ASK_AS_OWNER)
        return
    if is_linked and takeover.hides_malloc(built):
        yield problem("program", f"{program} {takeover.HIDDEN}", LINK_OTHERWISE)
        return
    if why:
        own = str(process.path("/")).rstrip("/")
        yield problem("program", why.replace(own, ""), BUILD_OTHERWISE)
        return
    yield ok("program", program)
    yield from _private_allocators(file, process.environment())
    if malloc is None:
        yield note("malloc", "unknown: files it maps can't be read", ASK_AS_OWNER)
    elif is_on:
        yield ok("malloc", f"{HAKMEMS} ({malloc})")
        yield from _version_and_settings(process, process.path(malloc or program), library)
    else:
        yield problem("malloc", f"that of {malloc}", "start it with `hakmem run -- COMMAND`")


def _version_and_settings(process: HostProcess, file: Path, library: Path) -> Iterator[Finding]:
    is_same = _is_same(file, library)
    yield ok("version", native.version(library) if is_same else "another build than this command's")
    given = [f"{name}={value}" for name, value in process.environment().items() if name.startswith(settings.PREFIX)]
    yield ok("its settings", " ".join(sorted(given)) or "none: all have their defaults")
    if is_same:
        yield from _ignored_settings(process.environment(), library, of_another=True)


def _ignored_settings(environment: Mapping[str, str], library: Path, *, of_another: bool = False) -> Iterator[Finding]:
    for line in settings.ignored(environment, library, of_another=of_another):
        yield note("setting", f"ignored: {line}", "docs/settings.md lists them, and what they take")


def _is_same(file: Path, library: Path) -> bool:
    try:
        return file.read_bytes() == library.read_bytes()
    except OSError:
        return False


def _mapped(process: HostProcess) -> list[str]:
    """The files of its code."""
    return list(
        {mapping.file: None for mapping in process.mappings() if mapping.executable and mapping.file[:1] == "/"}
    )


def malloc_of(process: HostProcess, program: str) -> str | None:
    """Which of the files that the process maps its malloc is from: the program's own, else the first that is preloaded,
    else another library's, else the C library's. A program may hide hakmem's: that is asked before. None where that
    can't be told: one of them was replaced, and is not the caller's to read."""
    first = [Path(file).name for file in takeover.preloaded(process.environment())]

    def rank(file: str) -> tuple[int, int]:
        name = Path(file).name.removesuffix(DELETED)
        if file == program:
            return 0, 0
        if name in first:
            return 1, first.index(name)
        return (3, 0) if C_LIBRARY.match(name) else (2, 0)

    for file in sorted(_mapped(process), key=rank):
        try:
            if native.is_library(file) or "malloc" in elf.read(process.path(file)).exports:
                return file  # a library that hides it has it for itself
        except LabError:
            if file.endswith(DELETED):
                return None
    return None


def _is_hakmems(process: HostProcess, file: str) -> bool:
    return ctl.has_note(str(process.path(file))) or native.is_library(file)


# ---- The whole -------------------------------------------------------------------------------------------------------


def examine(
    host: Host, library: Path, words: Sequence[str], pid: int | None, environment: dict[str, str]
) -> list[Finding]:
    """Of the machine, and of a command or a running process if one is given."""
    process = host.process(pid)
    findings = [*of_library(library, host), *of_machine(host), *of_surroundings(process)]
    if pid is not None:
        findings += of_running(process, library)
    if words:
        findings += of_command(words, library, environment)
    return findings
