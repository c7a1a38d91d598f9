"""From addresses in a process to functions: by the map of its memory and the symbol tables of its files.

Tables are read whole, as arrays: an object for every symbol of a browser takes seconds.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence
from collections.abc import Mapping as Mapped
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile
from numpy.typing import NDArray

from hakmem import elf, foreign

DELETED = " (deleted)"  # behind a name that is of another file by now, or of none
MOST_ADDRESS = (1 << 64) - 1
FUNCTION_TYPES = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
SYMBOL = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)


@dataclass(frozen=True)
class Mapping:
    """One line of /proc/PID/maps."""

    start: int
    end: int
    offset: int
    path: str
    is_code: bool

    @staticmethod
    def parse(line: str) -> Mapping | None:
        words = line.split(maxsplit=5)
        if len(words) < 5 or "-" not in words[0]:
            return None
        start, _, end = words[0].partition("-")
        path = words[5].rstrip("\n") if len(words) > 5 else ""
        return Mapping(int(start, 16), int(end, 16), int(words[2], 16), path, "x" in words[1])

    @property
    def module(self) -> str:
        return Path(self.path).name.removesuffix(DELETED) if self.path else "[anonymous]"


class File:
    """The functions of one ELF file, as far as it is one. OSError when it can't be read."""

    def __init__(self, path: str) -> None:
        self._tables = self._read(path)

    @staticmethod
    def _read(path: str) -> tuple[list[tuple[int, int, int]], NDArray[np.uint64], list[str]]:
        """Loaded segments (offset, size, address), and sorted [start, end] with names."""
        segments: list[tuple[int, int, int]] = []
        spans: list[tuple[int, int, str]] = []
        try:
            with foreign.opened(path) as file:
                elf = ELFFile(file)
                segments = [
                    (s["p_offset"], s["p_filesz"], s["p_vaddr"])
                    for s in elf.iter_segments()
                    if s["p_type"] == "PT_LOAD"
                ]
                for section in elf.iter_sections():
                    if section["sh_type"] in ("SHT_SYMTAB", "SHT_DYNSYM") and elf.elfclass == 64 and elf.little_endian:
                        spans += _functions(section.data(), elf.get_section(section["sh_link"]).data())
        except OSError:
            raise
        except Exception:  # pyelftools lets through whatever a damaged file makes it stumble over
            pass
        spans.sort()
        return segments, np.array([[a, b] for a, b, _ in spans], dtype=np.uint64).reshape(-1, 2), [n for *_, n in spans]

    def name(self, offset: int) -> str | None:
        """Of the function that has the code at an offset of the file."""
        segments, spans, names = self._tables
        place = next((offset - at + to for at, size, to in segments if at <= offset < at + size), None)
        if place is None or not names:
            return None
        address = place & MOST_ADDRESS
        index = int(np.searchsorted(spans[:, 0], np.uint64(address), side="right")) - 1
        return demangled(names[index]) if index >= 0 and address < int(spans[index, 1]) else None


def _functions(symbols: bytes, strings: bytes) -> list[tuple[int, int, str]]:
    table = np.frombuffer(symbols[: len(symbols) - len(symbols) % SYMBOL.itemsize], SYMBOL)
    table = table[np.isin(table["info"] & 15, FUNCTION_TYPES) & (table["section"] != 0) & (table["value"] != 0)]
    found = []
    for name, value, size in zip(table["name"].tolist(), table["value"].tolist(), table["size"].tolist(), strict=True):
        word = strings[name : strings.find(b"\0", name)].decode(errors="replace")
        found.append((value, min(value + max(size, 1), MOST_ADDRESS), word.partition("@")[0]))
    return found


def _demangler() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("libstdc++.so.6")
        library.__cxa_demangle.restype = ctypes.c_void_p
        return library
    except (OSError, AttributeError):
        return None


_LIBRARY = _demangler()


def demangled(name: str) -> str:
    """The name as C++ programmers write it, where this machine has a C++ library."""
    if not name.startswith("_Z") or _LIBRARY is None:
        return name
    status = ctypes.c_int()
    text = _LIBRARY.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    return ctypes.string_at(text).decode(errors="replace") if status.value == 0 and text else name


class Symbols:
    """Names for the addresses of one process. Files are read once, whatever process they are looked up for."""

    _files: dict[tuple[int, int, int], File] = {}  # by device, inode and time of change

    def __init__(self, mappings: Sequence[Mapping], ids: Mapped[str, str] = {}, root: str = "") -> None:
        """`ids` are the build ids of all files that have one, by path: another file of that path has no names to tell.
        None at all: nobody has looked. Below `root` are the process's files, if they are not those of the same paths
        here."""
        self.mappings = sorted(mappings, key=lambda mapping: mapping.start)
        self._starts = [mapping.start for mapping in self.mappings]
        self._ids, self._root = ids, root
        self._places: dict[str, str | None] = {}
        self.strangers: set[str] = set()  # modules that are other files here, of which a name was asked for

    def mapping(self, address: int) -> Mapping | None:
        """Of the code at an address; None where there is none."""
        index = int(np.searchsorted(self._starts, address, side="right")) - 1
        found = self.mappings[index] if index >= 0 else None
        return found if found and address < found.end and found.is_code else None

    def name(self, mapping: Mapping, address: int) -> str:
        offset = address - mapping.start + mapping.offset
        if mapping.path not in self._places:
            self._places[mapping.path] = self._place(mapping.path)
        place = self._places[mapping.path]
        if place is None:
            self.strangers.add(mapping.module)
        file = self._file(place) if place else None
        return (file and file.name(offset)) or f"{mapping.module}+{offset:#x}"

    def _file(self, place: str) -> File | None:
        """None when it is gone, as what is below the root of a process that has ended, or may not be read."""
        try:
            status = os.stat(place)
            key = status.st_dev, status.st_ino, status.st_mtime_ns
            if key not in self._files:
                self._files[key] = File(place)
            return self._files[key]
        except OSError:
            return None

    def _place(self, path: str) -> str | None:
        """Where the file is that the process has mapped; empty: nowhere; None: there are others only."""
        if not path.startswith("/"):
            return ""
        file = path if os.path.exists(self._root + path) else path.removesuffix(DELETED)
        places = [place for place in (self._root + file, file) if os.path.exists(place)]
        if path not in self._ids and file == path:
            fit = (place for place in places if not self._ids or elf.build_id(Path(place)) is None)
        else:
            fit = (place for place in reversed(places) if elf.build_id(Path(place)) == self._ids.get(path, ""))
        return next(fit, None if places else "")


def nameless(strangers: Iterable[str]) -> list[str]:
    """The line that tells of these modules, if there are any."""
    named = ", ".join(sorted(strangers))
    why = "what lies here under that name is another file than the one that ran"
    return [f"functions have no names in {named}: {why}"] if named else []
