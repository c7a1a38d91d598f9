"""The seccomp filter that systemd 252 makes of a unit's settings, as instructions for tests/programs/confined.c.

One filter instead of systemd's one per setting: first what is not allowed at all kills the process, then what is
refused fails with an errno. A system call that is newer than the list kills as well, where systemd lets it fail with
ENOSYS.
"""

from __future__ import annotations

import errno
import mmap
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from on_hakmem import LabError

Settings = dict[str, list[str]]  # of a unit's [Service] section, in the order of their lines

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}  # AUDIT_ARCH_*
KILL, ALLOW, FAIL = 0x80000000, 0x7FFF0000, 0x00050000  # SECCOMP_RET_*
NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16  # offsets in struct seccomp_data; of an argument the low half is looked at
LOAD, AND, IS, AT_LEAST, ABOVE, RETURN = 0x20, 0x54, 0x15, 0x35, 0x25, 0x06  # BPF: LD|W|ABS, ALU|AND, JMP|..., RET

NAMESPACES = (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)  # CLONE_NEW*
SCHED_OTHER, SCHED_BATCH, SCHED_IDLE, SHM_EXEC = 0, 3, 5, 0o100000

# Settings that refuse whole groups, with EPERM.
REFUSED_GROUPS = {
    "PrivateDevices": ("@raw-io",),
    "ProtectClock": ("@clock",),
    "ProtectHostname": ("sethostname", "setdomainname"),
    "ProtectKernelLogs": ("syslog",),
    "ProtectKernelModules": ("@module",),
    "ProtectKernelTunables": ("_sysctl",),
}
TRANSLATED = {
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "SystemCallArchitectures",
    "SystemCallFilter",
    *REFUSED_GROUPS,
}

WORDS_OF_YES, WORDS_OF_NO = {"1", "yes", "true", "on"}, {"0", "no", "false", "off"}


@lru_cache(maxsize=1)
def groups() -> dict[str, list[str]]:
    text = (Path(__file__).parent / "system_calls.txt").read_text().replace("\n    ", " ")
    lines = [line.partition(":") for line in text.splitlines() if line.startswith("@")]
    return {name: members.split() for name, _, members in lines}


def expand(words: Iterable[str]) -> set[str]:
    """The system calls behind these names and groups."""
    found: set[str] = set()
    for word in words:
        if word.startswith("@"):
            if word not in groups():
                raise LabError(f"SystemCallFilter: no group {word} in system_calls.txt, which has those of systemd 252")
            found |= expand(groups()[word])
        else:
            found.add(word)
    return found


@lru_cache(maxsize=1)
def numbers() -> dict[str, int]:
    """Of the system calls of this machine, by the headers of the C library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LabError("no C compiler: it knows the numbers of the system calls")
    source = b"#include <sys/syscall.h>\n"
    text = subprocess.run([compiler, "-E", "-dM", "-"], input=source, capture_output=True, check=True).stdout.decode()
    return {name: int(number) for name, number in re.findall(r"^#define __NR_(\w+) (\d+)$", text, re.MULTILINE)}


# ---- Instructions. The accumulator holds the system call's number between two rules. ----


def instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def fail(number: int) -> bytes:
    return instruction(RETURN, FAIL | number)


def rule(call: str, *body: bytes) -> bytes:
    """What happens at that system call; nothing where this machine has none of that name."""
    if call not in numbers():
        return b""
    whole = b"".join((*body, instruction(LOAD, NUMBER)))
    return instruction(IS, numbers()[call], 0, len(whole) // 8) + whole


def refuse_bits(call: str, argument: int, bits: int) -> bytes:
    load = instruction(LOAD, ARGUMENTS + 8 * argument)
    return rule(call, load, instruction(AND, bits), instruction(IS, bits, 0, 1), fail(errno.EPERM))


def refuse_others(call: str, argument: int, allowed: list[int], number: int) -> bytes:
    tests = [instruction(IS, value, len(allowed) - i) for i, value in enumerate(allowed)]
    return rule(call, instruction(LOAD, ARGUMENTS + 8 * argument), *tests, fail(number))


def kill_outside(allowed: set[int]) -> Iterator[bytes]:
    """One test for each run of numbers that are not allowed."""
    ends = [-1, *sorted(allowed), 1 << 32]
    for before, after in zip(ends, ends[1:], strict=False):
        if after - before > 1:
            yield (
                instruction(AT_LEAST, before + 1, 0, 2)
                + instruction(ABOVE, after - 1, 1, 0)
                + instruction(RETURN, KILL)
            )


# ---- Settings ----


def is_on(settings: Settings, name: str) -> bool:
    value = settings.get(name, ["no"])[-1].lower()
    if value not in WORDS_OF_YES | WORDS_OF_NO:
        raise LabError(f"{name}={value}: can't be translated")
    return value in WORDS_OF_YES


def allowed_calls(lines: list[str]) -> set[str] | None:
    """None: every one. The first line says whether a list is of what is allowed or, with ~, of what is not."""
    if not lines:
        return None
    is_allow_list = not lines[0].startswith("~")
    allowed = expand(["@default"]) if is_allow_list else set(numbers())
    for line in lines:
        calls = expand(line.removeprefix("~").split())
        allowed = allowed - calls if line.startswith("~") else allowed | calls
    return allowed


def program(settings: Settings) -> bytes:
    """The filter; empty when these settings need none."""
    rules: list[bytes] = []
    allowed = allowed_calls(settings.get("SystemCallFilter", []))
    if allowed is not None:
        rules += kill_outside({number for name, number in numbers().items() if name in allowed})
    for name, words in REFUSED_GROUPS.items():
        if is_on(settings, name):
            rules += [rule(call, fail(errno.EPERM)) for call in sorted(expand(words))]
    if is_on(settings, "MemoryDenyWriteExecute"):
        rules.append(refuse_bits("mmap", 2, mmap.PROT_EXEC | mmap.PROT_WRITE))
        rules += [refuse_bits(call, 2, mmap.PROT_EXEC) for call in ("mprotect", "pkey_mprotect")]
        rules.append(refuse_bits("shmat", 2, SHM_EXEC))
    if is_on(settings, "RestrictNamespaces"):
        rules.append(rule("setns", fail(errno.EPERM)))
        rules += [refuse_bits(call, 0, bit) for call in ("unshare", "clone") for bit in NAMESPACES]
    if is_on(settings, "RestrictRealtime"):
        rules.append(refuse_others("sched_setscheduler", 1, [SCHED_OTHER, SCHED_BATCH, SCHED_IDLE], errno.EPERM))
    if is_on(settings, "LockPersonality"):
        rules.append(refuse_others("personality", 0, [0], errno.EPERM))
    if families := " ".join(settings.get("RestrictAddressFamilies", [])).split():
        known = [int(getattr(socket, family)) for family in families if hasattr(socket, family)]
        if len(known) < len(families):
            raise LabError(f"RestrictAddressFamilies={' '.join(families)}: can't be translated")
        rules.append(refuse_others("socket", 0, known, errno.EAFNOSUPPORT))
    if not any(rules) and "SystemCallArchitectures" not in settings:
        return b""
    start = [
        instruction(LOAD, ARCHITECTURE),
        instruction(IS, ARCHITECTURES[platform.machine()], 1),
        instruction(RETURN, KILL),
        instruction(LOAD, NUMBER),
    ]
    return b"".join([*start, *rules, instruction(RETURN, ALLOW)])


def is_known_machine() -> bool:
    return platform.machine() in ARCHITECTURES and os.path.exists("/proc/sys/kernel/seccomp")
