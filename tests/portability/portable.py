"""Builds hakmem for another compiler, C library or processor, warnings as errors, and runs the stress test on it.

    portable.py aarch64|emulated|musl|clang BUILD_FOLDER CMAKE

`emulated` runs this machine's own library under qemu's user mode, as images for containers often are built.
Exit status 77 when the tools are not installed. The aarch64 program runs under qemu, which shows that it works, but not
what a weakly ordered processor may do: that is the model checker's part (tests/model). qemu's own locks are not safe across a
fork of a program with threads, and once in a while a child waits for one for ever: the run is made again then, once.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FLAGS = (
    "-std=gnu17 -D_GNU_SOURCE -DHAK_CHECK_LEVEL=1 -O2 -fvisibility=hidden -ftls-model=initial-exec -fexceptions -Wall -Wextra "
    "-Werror -fno-builtin-malloc -fno-builtin-calloc -fno-builtin-realloc -fno-builtin-free"
).split()
INCLUDES = [f"-I{ROOT}/src", f"-I{ROOT}/include"]
INDEX = "-Wl,--eh-frame-hdr"  # musl-gcc leaves it out, and others do of what is linked statically


def first_of(*names: str) -> str | None:
    return next((name for name in names if shutil.which(name)), None)


def run(*command: str, attempts: int = 1) -> None:
    """One that hangs is ended with all it has started, and tried again while there are attempts left."""
    print(" ".join(command), flush=True)
    with subprocess.Popen(command, start_new_session=True) as process:
        try:
            status = process.wait(timeout=300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = -signal.SIGKILL
            print("hangs", flush=True)
    if status == -signal.SIGKILL and attempts > 1:
        run(*command, attempts=attempts - 1)
    elif status != 0:
        raise subprocess.CalledProcessError(status, command)


def static_stress(compiler: str, folder: Path, runner: list[str], operations: int, *flags: str) -> None:
    """hak_* names, linked statically: the C library's own malloc is beside it."""
    program = str(folder / "stress")
    run(compiler, *FLAGS, *INCLUDES, *flags, "-DHAK_NO_OVERRIDE=1", "-DSTRESS_HAK", "-static", "-pthread",
        f"{ROOT}/src/hakmem.c", f"{ROOT}/tests/stress/stress.c", "-o", program)
    run(*runner, program, "4", str(operations), "1", attempts=2 if runner else 1)


def stacks(compiler: str, folder: Path, runner: list[str], *flags: str) -> None:
    """Functions are followed to the program's beginning, in code without frame pointers."""
    program = str(folder / "stacks")
    run(compiler, *FLAGS, *INCLUDES, *flags, "-fomit-frame-pointer", "-DHAK_NO_OVERRIDE=1", "-pthread",
        f"{ROOT}/src/hakmem.c", f"{ROOT}/tests/portability/stacks.c", "-o", program)
    run(*runner, program)


def aarch64_stacks(compiler: str, folder: Path, emulator: str) -> None:
    """Also where return addresses are signed."""
    stacks(compiler, folder, [emulator], "-static", INDEX)
    stacks(compiler, folder, [emulator, "-L", "/usr/aarch64-linux-gnu"])
    stacks(compiler, folder, [emulator, "-cpu", "max", "-L", "/usr/aarch64-linux-gnu"], "-mbranch-protection=standard")


def shared_library(compiler: str, cxx: str, folder: Path) -> Path:
    library, handler = folder / "libhakmem.so", str(folder / "new_handler.o")
    run(cxx, "-c", "-O2", "-fPIC", "-fexceptions", f"{ROOT}/src/api/new_handler.cpp", "-o", handler)
    run(compiler, *FLAGS, *INCLUDES, "-fPIC", "-shared", "-Wl,-z,now,-z,nodelete", f"{ROOT}/src/hakmem.c", handler,
        "-o", str(library))
    return library


def rests(compiler: str, folder: Path, library: Path, *emulator: str) -> None:
    """Ten seconds after its last call a program has little more than its live blocks' pages."""
    bursts, program = ROOT / "tests" / "abuse" / "resource", str(folder / "burst")
    run(compiler, "-std=gnu17", "-D_GNU_SOURCE", "-O1", "-fno-builtin", "-pthread", f"-I{ROOT}/include", f"-I{ROOT}/bench",
        f"{bursts}/burst.c", "-o", program)
    run(sys.executable, f"{bursts}/bursts.py", "--lib", str(library), "--program", program, "--emulator", shlex.join(emulator))


def aarch64_rests(compiler: str, folder: Path, emulator: str) -> None:
    """With pages of a larger kernel's."""
    library = shared_library(compiler, compiler.removesuffix("gcc") + "g++", folder)
    for page_bytes in (16384, 65536):
        rests(compiler, folder, library, emulator, "-p", str(page_bytes), "-L", "/usr/aarch64-linux-gnu")


def clang_preload(compiler: str, folder: Path) -> None:
    library, program = shared_library(compiler, compiler, folder), str(folder / "stress")
    run(compiler, *FLAGS, *INCLUDES, "-fno-builtin", "-pthread", f"{ROOT}/tests/stress/stress.c", "-o", program, "-ldl")
    run("env", f"LD_PRELOAD={library}", program, "4", "500000", "1")


def musl_preload(compiler: str, folder: Path, cmake: str, glibc_library: Path) -> None:
    """The library of preset `musl`, preloaded and linked statically: stress itself looks whose malloc it has. The
    library for glibc stops a program of musl before main, and what the dynamic linker says names the library."""
    build, program = folder / "library", str(folder / "preloaded")
    run(cmake, "--preset", "musl", "-S", str(ROOT), "-B", str(build))
    run(cmake, "--build", str(build), "--target", "hakmem")
    stress = [compiler, *FLAGS, *INCLUDES, "-fno-builtin", "-pthread", f"{ROOT}/tests/stress/stress.c", "-ldl"]
    run(*stress, "-o", program)
    run("env", f"LD_PRELOAD={build}/libhakmem.so", program, "4", "200000", "1")
    run(*stress, "-DSTRESS_HAK", "-static", f"{build}/hakmem.o", "-o", f"{program}-static")
    run(f"{program}-static", "4", "200000", "1")
    rests(compiler, folder, build / "libhakmem.so")

    environment = {"LD_PRELOAD": str(glibc_library)}
    done = subprocess.run([program, "1", "1", "1"], env=environment, capture_output=True, text=True)
    lines = done.stderr.splitlines()
    if done.returncode != 127 or done.stdout or not lines or not all(str(glibc_library) in line for line in lines):
        raise SystemExit(f"with {glibc_library}: exit status {done.returncode}\n{done.stdout}{done.stderr}")


def emulated_preload(compiler: str, emulator: str, folder: Path, *libraries: Path) -> None:
    program = str(folder / "emulated")
    run(compiler, "-O1", "-fno-builtin", f"{ROOT}/tests/portability/emulated.c", "-o", program)
    run(emulator, program)
    for library in libraries:
        run(emulator, "-E", f"LD_PRELOAD={library}", program)


def main() -> int:
    target, folder = sys.argv[1], Path(sys.argv[2]).resolve() / f"portability-{sys.argv[1]}"
    compilers = {
        "aarch64": first_of("aarch64-linux-gnu-gcc"),
        "emulated": first_of("cc"),
        "musl": first_of("musl-gcc"),
        "clang": first_of("clang", *(f"clang-{version}" for version in range(21, 13, -1))),
    }
    machine = platform.machine() if target == "emulated" else "aarch64"
    compiler, emulator = compilers[target], first_of(f"qemu-{machine}", f"qemu-{machine}-static")
    if compiler is None or (target in ("aarch64", "emulated") and emulator is None):
        print(f"skipped: a compiler or an emulator for {target} is not installed")
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    if target == "clang":
        clang_preload(compiler, folder)
    elif target == "emulated":
        build = Path(sys.argv[2]).resolve()
        emulated_preload(compiler, str(emulator), folder, build / "libhakmem.so", build / "libhakmem-secure.so")
    else:
        for flags in ([], ["-DHAK_SECURE=1"]):
            static_stress(compiler, folder, [emulator] if target == "aarch64" and emulator else [], 60_000, *flags)
    if target == "aarch64":
        aarch64_stacks(compiler, folder, str(emulator))
        aarch64_rests(compiler, folder, str(emulator))
    elif target != "emulated":
        stacks(compiler, folder, [], INDEX)
        stacks(compiler, folder, [], "-static", INDEX)
    if target == "musl":
        musl_preload(compiler, folder, sys.argv[3], Path(sys.argv[2]).resolve() / "libhakmem.so")
    return 0


if __name__ == "__main__":
    sys.exit(main())
