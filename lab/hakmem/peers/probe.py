"""Run as a program of its own under a preloaded allocator: prints, as JSON, which file each symbol given is resolved to
and, if the last of them can tell, the allocator's version. Allocates and frees with each function of the family.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator


class Symbol(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


class Library(ctypes.Structure):
    """struct link_map of link.h."""


Library._fields_ = [
    ("base", ctypes.c_void_p),
    ("file", ctypes.c_char_p),
    ("dynamic", ctypes.c_void_p),
    ("next", ctypes.POINTER(Library)),
]


class Entry(ctypes.Structure):
    """The beginning of Elf64_Sym of elf.h."""

    _fields_ = [
        ("name", ctypes.c_uint32),
        ("info", ctypes.c_uint8),
        ("other", ctypes.c_uint8),
        ("section", ctypes.c_uint16),
    ]


NO_LOAD_LAZY, WITH_ENTRY, WITH_LIBRARY = (
    4 | 1,
    1,
    2,
)  # of dlfcn.h: RTLD_NOLOAD | RTLD_LAZY, RTLD_DL_SYMENT, RTLD_DI_LINKMAP
PROCESS = ctypes.CDLL(None)
PROCESS.dlsym.restype = PROCESS.dlopen.restype = ctypes.c_void_p
PROCESS.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
PROCESS.dlopen.argtypes = [ctypes.c_char_p, ctypes.c_int]
PROCESS.dladdr1.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int]
PROCESS.dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]


def found_at(handle: int | None, name: str) -> tuple[str | None, bool]:
    """The file that a look-up of `name` ends in, and whether the symbol is defined there. A program that is linked to
    a fixed address has entries of functions that are elsewhere: stubs, whose addresses stand for them."""
    address, found, entry = PROCESS.dlsym(handle, name.encode()), Symbol(), ctypes.POINTER(Entry)()
    where = ctypes.byref(found), ctypes.byref(entry)
    if address is None or not PROCESS.dladdr1(address, *where, WITH_ENTRY) or found.file is None:
        return None, False
    return found.file.decode(), not entry or entry.contents.section != 0


def libraries() -> Iterator[str]:
    """Those of the process behind the program itself, in the order in which symbols are looked up."""
    library = ctypes.POINTER(Library)()
    PROCESS.dlinfo(PROCESS._handle, WITH_LIBRARY, ctypes.byref(library))
    while library.contents.next:
        library = library.contents.next
        yield library.contents.file.decode()


def file_of(name: str) -> str | None:
    """The file that a look-up of `name` in the whole process ends in."""
    file, is_defined = found_at(None, name)
    if file is None or is_defined:
        return file
    for library in libraries():
        handle = PROCESS.dlopen(library.encode(), NO_LOAD_LAZY)
        if handle and found_at(handle, name) == (library, True):
            return library
    return None


def version(marker: str) -> str | None:
    """What those say that can be asked: mimalloc, jemalloc, gperftools."""
    if marker == "mi_version":
        number = int(PROCESS.mi_version())
        base = 100 if number >= 10000 else 10  # a digit each until 2.2
        return f"{number // base**2}.{number // base % base}.{number % base}"
    text = ctypes.c_char_p()
    if marker == "mallctl":
        size = ctypes.c_size_t(ctypes.sizeof(text))
        PROCESS.mallctl(b"version", ctypes.byref(text), ctypes.byref(size), None, ctypes.c_size_t(0))
    elif marker == "tc_version":
        PROCESS.tc_version(None, None, ctypes.byref(text))
        major, minor = ctypes.c_int(), ctypes.c_int()
        PROCESS.tc_version(ctypes.byref(major), ctypes.byref(minor), ctypes.byref(text))
        return f"{major.value}.{minor.value}"
    return text.value.decode() if text.value else None


def exercise() -> None:
    for function in ("malloc", "calloc", "realloc", "aligned_alloc"):
        getattr(PROCESS, function).restype = ctypes.c_void_p
    PROCESS.free.argtypes = [ctypes.c_void_p]
    size = ctypes.c_size_t
    block = PROCESS.realloc(ctypes.c_void_p(PROCESS.malloc(size(100))), size(100_000))
    zeroed = PROCESS.calloc(size(10), size(100))
    aligned = PROCESS.aligned_alloc(size(4096), size(8192))
    if not block or not zeroed or any(ctypes.string_at(zeroed, 1000)) or not aligned or aligned % 4096:
        raise SystemExit("its malloc family gives wrong answers")
    for each in (block, zeroed, aligned):
        PROCESS.free(each)


if __name__ == "__main__":
    exercise()
    files = {name: file_of(name) for name in sys.argv[1:]}
    marker = sys.argv[-1]
    print(json.dumps({"files": files, "version": version(marker) if files[marker] else None}))
