"""Probes as tracers find them: ELF notes that name OpenTelemetry's, at no-operation instructions, with semaphores.

    probes.py FILE --readelf READELF --objdump OBJDUMP
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

EXPECTED = {"alloc": 3, "free": 1}  # arguments, each of 8 bytes in a register
NOTE = re.compile(
    r"Provider: otel_memory\s+Name: (\w+)\s+"
    r"Location: (0x[0-9a-f]+), Base: (0x[0-9a-f]+), Semaphore: (0x[0-9a-f]+)\s+Arguments: (.*)"
)
NO_OPERATION = {"nop", "xchg"}


def output(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def sections(readelf: str, file: str) -> dict[str, tuple[int, int, str]]:
    """Start, end and flags, by name."""
    found = {}
    line = re.compile(r"\] (\S+)\s+\S+\s+([0-9a-f]+) [0-9a-f]+ ([0-9a-f]+) \S+\s+([A-Z]*)")
    for name, start, size, flags in line.findall(output(readelf, "-SW", file)):
        found[name] = int(start, 16), int(start, 16) + int(size, 16), flags
    return found


def problems(file: str, readelf: str, objdump: str) -> list[str]:
    wrong = []
    parts = sections(readelf, file)
    notes = NOTE.findall(output(readelf, "-n", file))
    if sorted(name for name, *_ in notes) != sorted(EXPECTED):
        return [f"probes are {notes}"]
    semaphores = set()
    for name, location, base, semaphore, arguments in notes:
        at = int(location, 16)
        listing = output(objdump, "-d", f"--start-address={at}", f"--stop-address={at + 4}", "--no-show-raw-insn", file)
        instruction = re.search(rf"^\s*{at:x}:\s+(\w+)", listing, re.MULTILINE)
        if instruction is None or instruction[1] not in NO_OPERATION:
            wrong.append(f"{name}: at {location} is {instruction and instruction[1]}")
        if not any(start <= at < end and "X" in flags for start, end, flags in parts.values()):
            wrong.append(f"{name}: {location} is no code")
        if int(base, 16) != parts[".stapsdt.base"][0]:
            wrong.append(f"{name}: base {base} is not .stapsdt.base")
        start, end, flags = parts[".probes"]
        if not start <= int(semaphore, 16) <= end - 2 or "W" not in flags:
            wrong.append(f"{name}: semaphore {semaphore} is not in .probes")
        semaphores.add(semaphore)
        places = re.findall(r"8@%?[a-z0-9]+", arguments)
        if places != arguments.split() or len(places) != EXPECTED[name]:
            wrong.append(f"{name}: arguments {arguments}")
    if len(semaphores) != len(notes):
        wrong.append("probes share a semaphore")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--readelf", default="readelf")
    parser.add_argument("--objdump", default="objdump")
    given = parser.parse_args()
    wrong = problems(given.file, given.readelf, given.objdump)
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
