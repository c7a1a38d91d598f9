"""What programs are linked with for an older glibc, on this processor or another, and a CMake toolchain file that links so.

    sysroot.py PROCESSOR GLIBC FOLDER        PROCESSOR: x86_64 or aarch64; GLIBC: a version, 2.28

zig has glibc's headers, and makes shared libraries that have nothing but the names of that version. gcc compiles, as it
does elsewhere, and its own linker links with these: a name that is newer is an error.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import ziglang

HEADERS = Path(ziglang.__file__).parent / "lib" / "libc" / "include"
BESIDE_LIBC = ("m", "pthread", "dl", "rt", "util")  # since 2.34 they are part of it


def said(*words: object) -> str:
    done = subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True)
    return done.stdout + done.stderr


def linked_by_zig(target: str, folder: Path) -> list[Path]:
    """The files that zig makes to link a program: its start, and libraries."""
    source = folder / "empty.c"
    source.write_text("int main(void) { return 0; }\n")
    zig = (sys.executable, "-m", "ziglang", "cc", "-target", target, "-fPIE", "-pie", "--verbose")
    lines = said(*zig, source, "-o", folder / "empty").splitlines()
    words = [line for line in lines if line.startswith("ld.lld")][-1].split()
    return [Path(word) for word in words if word.startswith("/") and Path(word).is_file() and Path(word) != source]


def make(processor: str, glibc: str, folder: Path) -> None:
    prefix = "" if processor == said("uname", "-m").strip() else f"{processor}-linux-gnu-"
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    for path in linked_by_zig(f"{processor}-linux-gnu.{glibc}", folder):
        if path.name != "empty.o":
            shutil.copy(path, libraries)
    for name in BESIDE_LIBC:
        (shared,) = libraries.glob(f"lib{name}.so.*")
        (libraries / f"lib{name}.so").symlink_to(shared.name)
    files = [libraries / name for name in ("libc.so.6", "libc_nonshared.a", "libpthread.so.0", "libdl.so.2")]
    (libraries / "libc.so").write_text("GROUP({} {} AS_NEEDED({} {}))\n".format(*files))

    family = "x86" if processor == "x86_64" else processor
    names = (f"{processor}-linux-gnu", "generic-glibc", f"{family}-linux-any", "any-linux-any")
    folders = [said(f"{prefix}gcc", "-print-file-name=include").strip(), *(HEADERS / name for name in names)]
    compiled = " ".join(["-nostdinc", *(f"-isystem {path}" for path in folders)])
    compiled += f" -D__GLIBC_MINOR__={glibc.partition('.')[2]} -DHAK_MALLINFO2"
    (folder / "toolchain.cmake").write_text(f"""set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR {processor})
set(CMAKE_C_COMPILER {prefix}gcc)
set(CMAKE_CXX_COMPILER {prefix}g++)
set(CMAKE_C_FLAGS_INIT "{compiled}")
set(CMAKE_CXX_FLAGS_INIT "{compiled}")
foreach(kind SHARED MODULE EXE)
    set(CMAKE_${{kind}}_LINKER_FLAGS_INIT "-B {libraries}/ -L{libraries} -static-libgcc")
endforeach()
""")


make(sys.argv[1], sys.argv[2], Path(sys.argv[3]).resolve())
