"""Facts of an ELF file that decide whether an allocator can be preloaded into it.

Headers and what hangs on them are read by pyelftools. Names of functions are looked up in the raw symbol tables: an
object for every symbol of a browser takes seconds.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.sections import Section
from elftools.elf.segments import InterpSegment, NoteSegment

from hakmem import foreign
from hakmem.errors import LabError

MAGIC = b"\x7fELF"

# A function that only a sanitizer's runtime has, where it is linked into the program.
SANITIZERS = {
    "__asan_init": "AddressSanitizer",
    "__hwasan_init": "HWAddressSanitizer",
    "__lsan_init": "LeakSanitizer",
    "__msan_init": "MemorySanitizer",
    "__tsan_init": "ThreadSanitizer",
}
SANITIZER_LIBRARY = re.compile(r"^(lib|libclang_rt\.)(asan|hwasan|lsan|msan|tsan)\b")

PYTHONS_POOLS = "Python's own pools (PYTHONMALLOC=malloc turns them off)"

# A function of an allocator that a program may have beside malloc: preloading another malloc doesn't reach it.
PRIVATE_ALLOCATORS = {
    "_rjem_malloc": "jemalloc",
    "je_malloc": "jemalloc",
    "mi_malloc": "mimalloc",
    "tc_malloc": "tcmalloc",
    "PyObject_Malloc": PYTHONS_POOLS,
}
NAMES = frozenset({"malloc", *SANITIZERS, *PRIVATE_ALLOCATORS})

_DEFINED_FUNCTION = {2, 10}  # STT_FUNC, STT_GNU_IFUNC


@dataclass(frozen=True)
class Elf:
    path: Path
    bits: int
    machine: str
    interpreter: str | None  # None: a static program, or a library
    needed: tuple[str, ...]  # shared libraries, by the names it asks for
    has_auditors: bool  # names libraries that the dynamic linker runs before all others, to tell them what it does
    glibc: tuple[int, int] | None  # the oldest glibc that has all it asks for
    exports: frozenset[str]  # of NAMES: functions that the dynamic linker sees
    hides: frozenset[str]  # of NAMES: functions that only its own code sees; empty when stripped

    @property
    def libc(self) -> str | None:
        """glibc or musl; None when it says nothing of either."""
        words = [os.path.basename(self.interpreter or ""), *self.needed]
        if any(re.match(r"(ld-musl-|libc\.musl-|libc\.so$)", word) for word in words):
            return "musl"
        if self.glibc or any(re.match(r"(ld-linux|ld64\.so|libc\.so\.6$)", word) for word in words):
            return "glibc"
        return None

    @property
    def sanitizer(self) -> str | None:
        for name, title in SANITIZERS.items():
            if name in self.exports | self.hides:
                return title
        library = next((name for name in self.needed if SANITIZER_LIBRARY.match(name)), None)
        return library and f"a sanitizer ({library})"

    @property
    def private_allocators(self) -> list[str]:
        return sorted({PRIVATE_ALLOCATORS[name] for name in self.exports | self.hides if name in PRIVATE_ALLOCATORS})


def is_elf(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def build_id(path: Path) -> str | None:
    """As hexadecimal digits. None: it has none, or is no ELF file that can be read."""
    try:
        with foreign.opened(path) as file:
            segments = [one for one in ELFFile(file).iter_segments() if isinstance(one, NoteSegment)]
            notes = [note for segment in segments for note in segment.iter_notes()]
    except Exception:  # whatever pyelftools lets through
        return None
    return next((note["n_desc"] for note in notes if note["n_type"] == "NT_GNU_BUILD_ID"), None)


def read(path: Path) -> Elf:
    """Raises LabError for what is no ELF file, damaged, or not to be read."""
    try:
        with foreign.opened(path) as file:
            return _read(path, file)
    except OSError as error:
        raise LabError(f"{path}: {error.strerror}") from None
    except Exception as error:  # pyelftools lets through whatever a damaged file makes it stumble over
        if isinstance(error, ELFError) and "Magic" in str(error):
            raise LabError(f"{path}: not an ELF file") from None
        raise LabError(f"{path}: a damaged ELF file") from None


def _read(path: Path, file: BinaryIO) -> Elf:
    elf = ELFFile(file)
    interpreter = next((s.get_interp_name() for s in elf.iter_segments() if isinstance(s, InterpSegment)), None)
    dynamic = next((s for s in elf.iter_segments() if isinstance(s, DynamicSegment)), None)
    needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []  # type: ignore[attr-defined]
    tags = {tag.entry.d_tag for tag in dynamic.iter_tags()} if dynamic else set()
    exports = _functions(elf, file, "SHT_DYNSYM")
    return Elf(
        path=path,
        bits=elf.elfclass,
        machine=elf.get_machine_arch(),
        interpreter=interpreter,
        needed=tuple(needed),
        has_auditors=not tags.isdisjoint(("DT_AUDIT", "DT_DEPAUDIT")),
        glibc=_newest_glibc(elf),
        exports=exports,
        hides=_functions(elf, file, "SHT_SYMTAB") - exports,
    )


def _newest_glibc(elf: ELFFile) -> tuple[int, int] | None:
    names = [
        version.name
        for section in elf.iter_sections()
        if isinstance(section, GNUVerNeedSection)
        for _, versions in section.iter_versions()
        for version in versions
    ]
    found = [re.match(r"GLIBC_(\d+)\.(\d+)", name) for name in names]
    return max(((int(match[1]), int(match[2])) for match in found if match), default=None)


def _functions(elf: ELFFile, file: BinaryIO, kind: str) -> frozenset[str]:
    """Which of NAMES are functions that this file defines, according to its tables of one kind."""
    return frozenset(
        name for section in elf.iter_sections() if section["sh_type"] == kind for name in _defined(elf, file, section)
    )


def _defined(elf: ELFFile, file: BinaryIO, section: Section) -> Iterable[str]:
    if elf.elfclass != 64:
        return
    symbols, strings = _bytes(file, section), _bytes(file, elf.get_section(section["sh_link"]))
    wanted = {offset: name for name in NAMES for offset in _offsets(strings, name.encode() + b"\0")}
    layout = ("<" if elf.little_endian else ">") + "IBBHQQ"
    whole = len(symbols) - len(symbols) % struct.calcsize(layout)
    for name_offset, info, _, index, _, _ in struct.iter_unpack(layout, symbols[:whole]):
        if name_offset in wanted and index != 0 and info & 0xF in _DEFINED_FUNCTION:
            yield wanted[name_offset]


def _bytes(file: BinaryIO, section: Section) -> bytes:
    file.seek(section["sh_offset"])
    return file.read(section["sh_size"])


def _offsets(strings: bytes, word: bytes) -> Iterable[int]:
    """Where the word ends a string: linkers let a name share the tail of a longer one."""
    at = strings.find(word)
    while at >= 0:
        yield at
        at = strings.find(word, at + 1)
