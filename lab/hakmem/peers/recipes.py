"""How a peer's sources become one shared library to preload, with the flags that its own release build has.

A recipe is data, so that the stamp of what was built can hold all of it. Where a crate has the original build
(configure, CMake), that is run; where it has only sources, they are compiled with the flags of the original build. No
peer is tuned to the machine (`-march=native`), as hakmem isn't.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hakmem.errors import LabError
from hakmem.peers.workshop import Workshop, compiler

CXX_SUFFIXES = (".cc", ".cpp")


@dataclass(frozen=True)
class Compile:
    """C, C++ and assembly files, each compiled by itself and linked into one library."""

    files: tuple[str, ...]
    flags: str
    c_flags: str = ""
    cxx_flags: str = ""
    link_flags: str = ""
    more_files: Callable[[Path], list[str]] = lambda folder: []

    @property
    def tools(self) -> tuple[str, ...]:
        return ("c", "c++") if self.cxx_flags else ("c",)

    @property
    def words(self) -> list[str]:
        return [flags for flags in (self.flags, self.c_flags, self.cxx_flags, self.link_flags) if flags]

    def build(self, folder: Path, workshop: Workshop) -> Path:
        files = [*self.files, *self.more_files(folder)]
        done = itertools.count(1)

        def compile_one(file: str) -> str:
            in_cxx = file.endswith(CXX_SUFFIXES)
            language, flags = ("c++", self.cxx_flags) if in_cxx else ("c", self.c_flags)
            target = f"{file.replace('/', '-')}.o"
            words = [*compiler(language), *self.flags.split(), *flags.split(), "-fPIC", "-c", file, "-o", target]
            workshop.run(*words, cwd=folder)
            workshop.say("building", next(done), len(files))
            return target

        with ThreadPoolExecutor(workshop.jobs) as pool:
            try:
                objects = list(pool.map(compile_one, files))
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        link = compiler("c++" if self.cxx_flags else "c")
        library = folder / "library.so"
        workshop.run(*link, "-shared", "-o", library.name, *objects, *self.link_flags.split(), "-pthread", cwd=folder)
        return library


@dataclass(frozen=True)
class Configure:
    """A configure script and make."""

    folder: str
    script: str
    options: tuple[str, ...]
    target: str
    library: str

    @property
    def tools(self) -> tuple[str, ...]:
        return ("c", "c++", "make")

    @property
    def words(self) -> list[str]:
        return ["configure", *self.options]

    def build(self, folder: Path, workshop: Workshop) -> Path:
        root = folder / self.folder
        shutil.copyfile(folder / self.script, root / "configure")
        workshop.run("sh", "./configure", *self.options, cwd=root)
        workshop.run("make", f"-j{workshop.jobs}", self.target, cwd=root)
        return root / self.library


@dataclass(frozen=True)
class CMake:
    """A CMake project, of which one target is built."""

    folder: str
    options: tuple[str, ...]
    target: str
    library: str

    @property
    def tools(self) -> tuple[str, ...]:
        return ("c", "c++", "cmake", "make")

    @property
    def words(self) -> list[str]:
        return ["cmake", *self.options]

    def build(self, folder: Path, workshop: Workshop) -> Path:
        build = workshop.folder / "build"
        source, makefiles = str(folder / self.folder), "Unix Makefiles"
        workshop.run("cmake", "-S", source, "-B", str(build), "-G", makefiles, *self.options)
        workshop.run("cmake", "--build", str(build), "--target", self.target, "--parallel", str(workshop.jobs))
        return build / self.library


@dataclass(frozen=True)
class Take:
    """A library that somebody else has built: the only file below the folder that matches."""

    pattern: str

    @property
    def tools(self) -> tuple[str, ...]:
        return ()

    @property
    def words(self) -> list[str]:
        return []

    def build(self, folder: Path, workshop: Workshop) -> Path:
        found = [path for path in folder.rglob(self.pattern) if not path.is_symlink()]
        if len(found) != 1:
            raise LabError(f"the package has {len(found)} files like {self.pattern}, expected one")
        return found[0]


def named_in(script: str, pattern: str) -> Callable[[Path], list[str]]:
    """The files that a crate's build script names: `pattern` with one group, the file."""
    return lambda folder: re.findall(pattern, (folder / script).read_text())
