"""Installs hakmem into a tree of its own, moves that tree, and builds and runs programs against it: a CMake project
with every target of the package, and single compiler calls with the flags of pkg-config. Each program proves for
itself that its malloc is hakmem's.

    consumer.py --cmake CMAKE --build BUILD --cc CC --cxx CXX --version VERSION

Owns BUILD/tests/install/consumer. Exit code 0 when all of it works.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent / "consumer"


def run(*command: str | Path, **environment: str) -> str:
    """Output of the command; the test ends with it when it fails."""
    words = [str(word) for word in command]
    done = subprocess.run(words, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}: {shlex.join(words)}\n{done.stdout}")
    return done.stdout.strip()


def install(cmake: str, build: Path, work: Path) -> Path:
    """The installed tree, after it was moved to where nothing in it can know of."""
    first, moved = work / "first", work / "tree"
    run(cmake, "--install", build, "--prefix", first)
    first.rename(moved)
    return moved


def find_one(tree: Path, name: str) -> Path:
    found = list(tree.rglob(name))
    if len(found) != 1:
        sys.exit(f"{name} is installed {len(found)} times, wanted once")
    return found[0]


def check_cmake(arguments: argparse.Namespace, tree: Path, work: Path) -> int:
    build = work / "cmake"
    run(arguments.cmake, "-S", HERE, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={tree}",
        f"-DCMAKE_C_COMPILER={arguments.cc}", f"-DCMAKE_CXX_COMPILER={arguments.cxx}",
        f"-DWANTED_VERSION={arguments.version}")
    run(arguments.cmake, "--build", build)
    kinds = ("shared", "static", "object", "all_static")
    for program in [f"{language}_{kind}" for language in ("c", "cxx") for kind in kinds]:
        print(f"cmake, {program}: {run(build / program)}")
    for kind in kinds:
        check_active(build / f"plain_{kind}")
    return 3 * len(kinds)


def check_active(program: Path) -> None:
    """Of a program that doesn't say itself whose malloc it has."""
    if "HAKMEM_BACKGROUND" not in run(program, HAKMEM_HELP="1"):
        sys.exit(f"{program.name} is not on hakmem")
    print(f"{program.name}: is on hakmem")


def check_pkg_config(arguments: argparse.Namespace, tree: Path, work: Path) -> int:
    libraries = find_one(tree, "libhakmem.a").parent

    def ask(*options: str) -> list[str]:
        return shlex.split(run("pkg-config", *options, "hakmem", PKG_CONFIG_PATH=str(libraries / "pkgconfig")))

    if ask("--modversion") != [arguments.version]:
        sys.exit(f"hakmem.pc gives version {ask('--modversion')}, wanted {arguments.version}")
    cflags, libs = ask("--cflags"), ask("--libs")
    ways = {
        "shared": [*libs, f"-Wl,-rpath,{libraries}"],
        "static": ["-Wl,--undefined=malloc", str(libraries / "libhakmem.a")],
        "object": ask("--variable=object"),
        "all_static": [*ask("--variable=object"), "-static"],
    }
    for kind, link in ways.items():
        program = work / f"plain_{kind}"
        run(arguments.cc, *cflags, HERE / "main.c", "-o", program, *link)
        print(f"pkg-config, {kind}: {run(program)}")
        run(arguments.cc, "-Wl,--as-needed", *cflags, HERE / "plain.c", "-o", program.with_suffix(".needed"), *link)
        check_active(program.with_suffix(".needed"))
    print(f"secure: {run(work / 'plain_shared', LD_PRELOAD=str(find_one(tree, 'libhakmem-secure.so')))}")
    return 2 * len(ways) + 1


def check_absolute(arguments: argparse.Namespace, work: Path) -> None:
    """Folders outside of the prefix, as Nix gives them."""
    build = work / "absolute"
    run(arguments.cmake, "-S", HERE.parents[2], "-B", build, "-G", "Ninja", "-DHAK_TESTS=OFF",
        f"-DCMAKE_C_COMPILER={arguments.cc}", f"-DCMAKE_CXX_COMPILER={arguments.cxx}",
        "-DCMAKE_INSTALL_LIBDIR=/there/lib", "-DCMAKE_INSTALL_INCLUDEDIR=/elsewhere/include")
    flags = run("pkg-config", "--cflags", "--libs", build / "package" / "hakmem.pc").split()
    needed = ["-Wl,--push-state,--no-as-needed", "-lhakmem", "-Wl,--pop-state"]
    if flags != ["-I/elsewhere/include", "-L/there/lib", *needed]:
        sys.exit(f"hakmem.pc of absolute folders gives {shlex.join(flags)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in ("cmake", "build", "cc", "cxx", "version"):
        parser.add_argument(f"--{option}", required=True)
    arguments = parser.parse_args()
    work = Path(arguments.build) / "tests" / "install" / "consumer"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    tree = install(arguments.cmake, Path(arguments.build), work)
    for name in ("hakmem.h", "hakmem.hpp", "hakmem.o", "libhakmem.so", "libhakmem-secure.so", "hakmem.1", "hakmem.7"):
        find_one(tree, name)
    secure = str(find_one(tree, "libhakmem-secure.so"))
    if secure.rpartition("/")[2] not in run("grep", "-o", "libhakmem-secure[.]so", "/proc/self/maps", LD_PRELOAD=secure):
        sys.exit(f"{secure} can't be preloaded")
    check_absolute(arguments, work)
    count = check_cmake(arguments, tree, work) + check_pkg_config(arguments, tree, work)
    print(f"{count} programs run on the installed hakmem")


if __name__ == "__main__":
    main()
