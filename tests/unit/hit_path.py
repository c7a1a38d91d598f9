"""Checks the hit paths of a release libhakmem.so on x86-64: how many instructions malloc and free take from their first one
straight to ret, and that nothing on the way waits, calls, or looks at a setting.

    hit_path.py LIBRARY [--objdump OBJDUMP] [--nm NM]

The straight path is the code in the order of its addresses: what a hit executes, because a compiler puts what is unlikely
elsewhere. Each conditional jump on it is one question; more of them than expected are branches on something else. Exit
code 0 when all holds, 1 with the findings, 77 where the library is for another processor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SKIPPED = 77


@dataclass(frozen=True)
class Limit:
    instructions: int
    questions: int  # conditional jumps


LIMITS = {
    "malloc": Limit(16, 2),  # is it small? is there a block?
    "free": Limit(22, 4),  # is it ours? is there room? is it not the newest? is it where a block begins?
    # operator new and delete; each asks whether what it would call, by the standard, is hakmem's own
    "_Znwm": Limit(19, 3),  # new: is malloc?
    "_Znam": Limit(22, 4),  # new[]: is new, too?
    "_ZdlPv": Limit(25, 5),  # delete: is free?
    "_ZdaPv": Limit(28, 6),  # delete[]: is delete, too?
    "_ZdlPvm": Limit(36, 8),  # delete of a size: is delete, too? is it small? do they agree?
}

INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+(?P<text>[a-z(].*?)\s*(?:#.*)?$")
PREFIX = re.compile(r"^(?:lock|rep[nz]*|bnd|notrack|cs|ds|es|gs|data16|rex(?:\.\w+)?)\b\s*")
FILLER = re.compile(r"^(?:nop|endbr64|xchg\s+%ax,%ax|data16|cs nop)")


def straight_path(listing: str) -> list[str]:
    """Instructions from the first to the first ret."""
    path: list[str] = []
    for line in listing.splitlines():
        if match := INSTRUCTION.match(line):
            path.append(match["text"])
            if re.match(r"(?:\w+ )?ret", match["text"]):
                return path
    return [*path, "(no ret)"]


def operation(text: str) -> str:
    while match := PREFIX.match(text):
        text = text[match.end() :]
    return text.split(None, 1)[0] if text else ""


def is_locked(text: str) -> bool:
    """xchg with memory locks without saying so."""
    return text.startswith("lock") or (operation(text) == "xchg" and "(" in text) or "fence" in text


def findings(name: str, listing: str, limit: Limit) -> list[str]:
    path = [text for text in straight_path(listing) if not FILLER.match(text)]
    found: list[str] = []
    if len(path) > limit.instructions:
        found.append(f"{len(path)} instructions, at most {limit.instructions} are allowed")
    questions = [text for text in path if re.match(r"j(?!mp)|loop", operation(text))]
    if len(questions) != limit.questions:
        found.append(f"{len(questions)} conditional jumps, {limit.questions} are expected")
    found += [f"locked: {text}" for text in path if is_locked(text)]
    found += [f"leaves: {text}" for text in path if re.match(r"call|jmp|syscall|int|push|pop", operation(text))]
    if path and path[-1] == "(no ret)":
        found.append("does not come to ret")
    return [f"{name}: {text}" for text in found]


GOOD = """
    10:\tcmp    $0x8000,%rdi
    17:\tja     80 <hak_malloc.cold>
    1a:\tmov    (%rax),%rdx
    1d:\tcmp    0x8(%rax),%rdx        # 40 <x>
    21:\tje     80 <hak_malloc.cold>
    24:\tret
    25:\tnopw   0x0(%rax,%rax,1)
"""

# One thing wrong each.
BAD = {
    "at most": GOOD.replace("    24:", "".join("    22:\tmov    %rax,%rdx\n" for _ in range(11)) + "    24:"),
    "conditional jumps": GOOD.replace("    24:", "    22:\tjne    90 <profile>\n    24:"),
    "locked: lock": GOOD.replace("    24:", "    22:\tlock xadd %rax,(%rdx)\n    24:"),
    "locked: xchg": GOOD.replace("    24:", "    22:\txchg   %rax,(%rdx)\n    24:"),
    "locked: mfence": GOOD.replace("    24:", "    22:\tmfence\n    24:"),
    "leaves: call": GOOD.replace("    24:", "    22:\tcall   90 <sample>\n    24:"),
    "leaves: bnd jmp": GOOD.replace("    24:", "    22:\tbnd jmp 90 <sample>\n    24:"),
    "does not come": GOOD.replace("    24:\tret\n", ""),
}


def check_myself() -> list[str]:
    """That each kind of finding is found, and nothing in what is good."""
    limit = LIMITS["malloc"]
    wrong = [f"self-check: good code has a finding: {text}" for text in findings("good", GOOD, limit)]
    for expected, listing in BAD.items():
        found = findings("bad", listing, limit)
        if len(found) != 1 or expected not in found[0]:
            wrong.append(f"self-check: expected {expected!r}, found {found}")
    return wrong


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


def disassemble(library: Path, objdump: str, nm: str) -> dict[str, str]:
    """By address: aliases of one function have one name in a listing."""
    listings: dict[str, str] = {}
    for line in run(nm, "-D", "-S", "--defined-only", str(library)).splitlines():
        words = line.split()
        if len(words) == 4 and words[3].split("@")[0] in LIMITS:
            start, size = int(words[0], 16), int(words[1], 16)
            listings[words[3].split("@")[0]] = run(objdump, "-d", "--no-show-raw-insn", f"--start-address={start:#x}",
                                                   f"--stop-address={start + size:#x}", str(library))
    return listings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=Path)
    parser.add_argument("--objdump", default="objdump")
    parser.add_argument("--nm", default="nm")
    options = parser.parse_args()
    if "file format elf64-x86-64" not in run(options.objdump, "-f", str(options.library)):
        print("not a library for x86-64: skipped")
        return SKIPPED
    listings = disassemble(options.library, options.objdump, options.nm)
    found = check_myself()
    for name, limit in LIMITS.items():
        if name not in listings:
            found.append(f"{name}: not exported")
            continue
        wrong = findings(name, listings[name], limit)
        path = [text for text in straight_path(listings[name]) if not FILLER.match(text)]
        print(f"{name}: {len(path)} instructions, at most {limit.instructions}")
        if wrong:
            print(*(f"    {text}" for text in path), sep="\n")
        found += wrong
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
