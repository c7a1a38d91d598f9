"""Run as a program of its own under a preloaded allocator: prints, as JSON, which file each symbol given is resolved to
and, if the last of them can tell, the allocator's version. Allocates and frees with each function of the family.
"""

from __future__ import annotations

import ctypes
import json
import sys


class Symbol(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    ]


PROCESS = ctypes.CDLL(None)


def file_of(name: str) -> str | None:
    """The file that a look-up of `name` in the whole process ends in."""
    PROCESS.dlsym.restype = ctypes.c_void_p
    PROCESS.dlsym.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    address = PROCESS.dlsym(None, name.encode())
    found = Symbol()
    if address is None or not PROCESS.dladdr(ctypes.c_void_p(address), ctypes.byref(found)) or found.file is None:
        return None
    return str(found.file.decode())


def version(marker: str) -> str | None:
    """What those say that can be asked: mimalloc, jemalloc, gperftools."""
    if marker == "mi_version":
        number = int(PROCESS.mi_version())
        return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
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
