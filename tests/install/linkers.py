"""Links programs to hakmem by every linker and compiler that is here, in each form that hakmem comes in, with the options
that leave out what a program doesn't name, or change what it is. Each program must be on hakmem. What can't be linked
without hakmem either is passed over.

    linkers.py --cmake CMAKE --build BUILD

Owns BUILD/tests/install/linkers. Exit code 0 when all of it works.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from consumer import HERE, find_one, run

COMPILERS = {"gcc": "g++", "clang": "clang++"}
LINKERS = ("bfd", "gold", "lld", "mold")
OPTIONS = {
    "plain": (),
    "as-needed": ("-Wl,--as-needed",),
    "gc-sections": ("-Wl,--gc-sections", "-ffunction-sections", "-fdata-sections"),
    "exclude-libs": ("-Wl,--exclude-libs,ALL",),
    "lto": ("-flto", "-O2"),
    "static": ("-static",),
    "static-pie": ("-static-pie",),
}
SOURCES = ("plain.c", "plain.cpp")  # neither says whose malloc it has
PASSED_OVER = "passed over"


class Way(NamedTuple):
    compiler: str
    linker: str
    form: str
    options: str
    source: str

    def is_possible(self) -> bool:
        """A static program takes no shared library. Who hides what archives have hides malloc (hakmem doctor tells)."""
        is_static, hides = self.options.startswith("static"), self.options == "exclude-libs"
        return not (self.form == "shared" and is_static) and not (self.form == "archive" and hides)


def forms_of(tree: Path) -> dict[str, list[str]]:
    libraries = find_one(tree, "libhakmem.a").parent
    asked = run("pkg-config", "--libs", "hakmem", PKG_CONFIG_PATH=str(libraries / "pkgconfig")).split()
    return {
        "shared": [*asked, f"-Wl,-rpath,{libraries}"],
        "archive": ["-Wl,--undefined=malloc", str(libraries / "libhakmem.a")],
        "object": [str(find_one(tree, "hakmem.o"))],
    }


def build(way: Way, program: Path, link: list[str]) -> str | None:
    """What the compiler says when it fails."""
    compiler = COMPILERS[way.compiler] if way.source.endswith("cpp") else way.compiler
    words = [compiler, f"-fuse-ld={way.linker}", *OPTIONS[way.options], HERE / way.source, "-o", program, *link, "-pthread"]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600)
    return done.stdout if done.returncode != 0 else None


def check(way: Way, program: Path, link: list[str]) -> str | None:
    """What is wrong. None: it works."""
    said = build(way, program, link)
    if said is not None:
        return said if build(way, program, []) is None else PASSED_OVER
    for environment, wanted in (({}, ""), ({"HAKMEM_HELP": "1"}, "HAKMEM_BACKGROUND")):
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600,
                              env={**os.environ, **environment})
        if done.returncode != 0 or wanted not in done.stdout:
            return f"ended with {done.returncode}: {done.stdout[-500:]}"
    program.unlink()
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("cmake", "build"):
        parser.add_argument(f"--{option}", required=True)
    arguments = parser.parse_args()
    work = Path(arguments.build) / "tests" / "install" / "linkers"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    run(arguments.cmake, "--install", arguments.build, "--prefix", work / "tree")
    forms = forms_of(work / "tree")
    compilers = [name for name, cxx in COMPILERS.items() if shutil.which(name) and shutil.which(cxx)]
    linkers = [name for name in LINKERS if shutil.which(f"ld.{name}")]
    print(f"compilers {' '.join(compilers)}; linkers {' '.join(linkers)}")
    ways = [Way(*words) for words in itertools.product(compilers, linkers, forms, OPTIONS, SOURCES)]
    ways = [way for way in ways if way.is_possible()]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda way: check(way, work / "-".join(way), forms[way.form]), ways))
    failed = 0
    for way, wrong in zip(ways, found):
        failed += wrong not in (None, PASSED_OVER)
        if wrong is not None:
            print(f"{' '.join(way)}: {wrong}")
    print(f"{found.count(None)} of {len(ways)} programs run on hakmem, {failed} don't, the others can't be linked at all")
    sys.exit(1 if failed or found.count(None) < len(ways) * 0.9 else 0)


if __name__ == "__main__":
    main()
