"""Checks how libhakmem.so presents itself to the dynamic linker: its name, what it needs, how it is bound.

    shape.py LIBRARY --soname NAME

Owns nothing; reads the file through readelf. Exit code 0 when all holds, else 1 with what does not.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

LIBC = re.compile(r"libc\.so\.\d+|ld-linux[\w-]*\.so\.\d+")


def readelf(*options: str) -> str:
    return subprocess.run(["readelf", "-W", *options], capture_output=True, text=True, check=True, timeout=600).stdout


def problems(library: str, soname: str) -> list[str]:
    dynamic, segments = readelf("-d", library), readelf("-l", library)
    found: list[str] = []

    def expect(holds: bool, message: str) -> None:
        if not holds:
            found.append(message)

    def values(tag: str) -> list[str]:
        return re.findall(rf"\({tag}\).*\[(.*)\]", dynamic)

    expect(values("SONAME") == [soname], f"SONAME is {values('SONAME')}, wanted {soname}")
    strangers = [name for name in values("NEEDED") if not LIBC.fullmatch(name)]
    expect(not strangers, f"needs more than the C library: {strangers}")
    expect(not values("RPATH") and not values("RUNPATH"), "has a run path")
    flags = " ".join(re.findall(r"\(FLAGS(?:_1)?\)\s+(?:Flags: )?(.*)", dynamic))
    for flag, meaning in (("NODELETE", "can be unloaded"), ("NOW", "is bound lazily"), ("STATIC_TLS", "has slow TLS")):
        expect(flag in flags.split(), f"{meaning}: flag {flag} is missing among {flags}")
    expect("TEXTREL" not in dynamic, "has relocations in code")
    expect("GNU_RELRO" in segments, "has no RELRO segment")
    expect(not re.search(r"GNU_STACK.*RWE", segments), "asks for an executable stack")
    expect(not re.search(r"LOAD.* (RWE|RW E)\b", segments), "has memory both writable and executable")
    expect("Build ID" in readelf("-n", library), "has no build id")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("--soname", required=True)
    arguments = parser.parse_args()
    found = problems(arguments.library, arguments.soname)
    for problem in found:
        print(f"{arguments.library}: {problem}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
