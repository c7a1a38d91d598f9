"""Finds what is compiled: the library, the benchmark programs, the helpers of lab/native.

In an installed package they lie in the folder `native` beside this file; in a checkout, where nothing is installed
but links, in build/release of the tree this file belongs to: what was built last is what is measured.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hakmem.errors import LabError

PACKAGE = Path(__file__).resolve().parent
BUNDLED = PACKAGE / "native"
LIBRARIES = ("libhakmem.so", "libhakmem-secure.so")  # how the names of their files begin
SYSTEMS = Path("/usr/lib/hakmem")  # where the system's package has this one, with links to the system's library


def checkout() -> Path | None:
    """The root of the source tree this module lies in; None in an installed package."""
    root = PACKAGE.parent.parent
    return root if _is_checkout(root) else None


def checkout_around(folder: Path) -> Path | None:
    """The root of the source tree that the folder lies in, of this or of another checkout."""
    return next(filter(_is_checkout, (folder, *folder.parents)), None)


def _is_checkout(folder: Path) -> bool:
    return (folder / "src" / "hakmem.c").is_file() and (folder / "lab").is_dir()


def is_systems() -> bool:
    """The system's package manager has installed this, not pip."""
    return PACKAGE.is_relative_to(SYSTEMS)


def is_secure(path: str | Path) -> bool:
    """hakmem's secure build, by its name."""
    return Path(path).name.startswith(LIBRARIES[1])


def is_library(path: str | Path) -> bool:
    """hakmem's, by its name: LD_PRELOAD may hold no more of it, and the file may have been replaced since."""
    return Path(path).name.startswith(LIBRARIES)


def _find(name: str, folder_in_build: str, how: str = "./dev build") -> Path:
    root = checkout()
    if root is None:
        path = BUNDLED / name
        hint = "this installation is incomplete: install it again"
    else:
        path = root / "build" / "release" / folder_in_build / name
        hint = f"to build it, type {how}"
    if not path.is_file():
        raise LabError(f"{path} is not there: {hint}")
    return path.resolve()


def library() -> Path:
    """libhakmem.so"""
    return _find("libhakmem.so", ".")


def secure_library() -> Path:
    """libhakmem-secure.so, beside the other"""
    other = library()
    path = other.with_name(other.name.replace("libhakmem", "libhakmem-secure", 1))
    if not path.is_file():
        raise LabError(f"{path} is not there: this installation has no secure build")
    return path


def program(name: str) -> Path:
    """A benchmark program, such as larson."""
    return _find(name, "bench", "./dev lab")


def expect_programs() -> None:
    """LabError before anything is run if the benchmark programs are not built: `./dev demo` builds none of them."""
    program("bench_replay")


def helper(name: str) -> Path:
    """launch, witness.so, record.so"""
    return _find(name, "lab")


def version(library: Path) -> str:
    """What the library says of itself in a process of its own."""
    ask = f"import ctypes as c; f = c.CDLL({str(library)!r}).hak_version; f.restype = c.c_char_p; print(f().decode())"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{library} can't be loaded, or is no libhakmem.so")
    return done.stdout.strip()
