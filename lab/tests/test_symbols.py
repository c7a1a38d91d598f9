"""Names of functions: whose files are looked into, and how long what was read of them is kept."""

from __future__ import annotations

import contextlib
import shutil
import struct
from pathlib import Path
from random import Random

import pytest
from compiled import compile_c
from hakmem import elf, symbols
from hakmem.symbols import Mapping, Symbols


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return compile_c(tmp_path / "program", "int main(void) { return 0; }", "-Wl,--build-id")


def name(found: Symbols, program: Path) -> str:
    """Of the function at the entry of main, as it would be mapped at 0."""
    (mapping,) = found.mappings
    file = symbols.File(str(program))
    segments, spans, names = file._tables
    address = int(spans[names.index("main"), 0])
    offset = next(address - to + at for at, size, to in segments if to <= address < to + size)
    return found.name(mapping, offset)


def of(program: Path, root: str = "") -> Symbols:
    known = elf.build_id(program)
    assert known is not None
    return Symbols([Mapping(0, 1 << 20, 0, str(program), True)], {str(program): known}, root)


def test_what_has_gone_has_no_names_and_is_read_when_it_is_there(program: Path, tmp_path: Path) -> None:
    """As what is below the root of a process that has ended: the next process of the same file has names."""
    root = tmp_path / "root"
    place = root / program.relative_to("/")
    place.parent.mkdir(parents=True)
    shutil.copy(program, place)
    kept = program.rename(tmp_path / "kept")
    found = Symbols([Mapping(0, 1 << 20, 0, str(program), True)], {str(program): elf.build_id(kept) or ""}, str(root))
    assert found._place(str(program)) == str(place)
    found._places[str(program)] = str(place)
    place.unlink()
    assert name(found, kept).startswith("program+0x") and not found.strangers
    kept.rename(program)
    assert name(of(program), program) == "main"


def test_a_file_is_read_once_for_all_processes(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[str] = []
    read = symbols.File._read
    monkeypatch.setattr(symbols.File, "_read", staticmethod(lambda path: reads.append(path) or read(path)))
    for root in ("", "/", "/proc/self/root"):
        assert of(program, root).name(Mapping(0, 1 << 20, 0, str(program), True), 0)
    assert len(reads) == 1


def test_a_file_with_a_build_id_is_none_that_ran_without(program: Path, tmp_path: Path) -> None:
    """Of other files it is known that they have one."""
    lines, others = [Mapping(0, 1 << 20, 0, str(program), True)], {"/other": "00"}
    found = Symbols(lines, others)
    assert name(found, program).startswith("program+0x") and found.strangers == {"program"}
    assert name(Symbols(lines), program) == "main"  # of none it is
    compile_c(program, "int main(void) { return 0; }", "-Wl,--build-id=none")
    found = Symbols(lines, others)
    assert name(found, program) == "main" and not found.strangers


def test_a_damaged_file_has_names_or_none(program: Path) -> None:
    whole, random = program.read_bytes(), Random(1)
    (table,) = struct.unpack_from("<Q", whole, 40)
    size, count = struct.unpack_from("<HH", whole, 58)
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(4):
            at = table + random.randrange(count) * size + random.randrange(size // 8) * 8
            struct.pack_into("<Q", damaged, at, random.getrandbits(64) >> random.choice((0, 1, 2, 32, 48)))
        program.write_bytes(damaged)
        with contextlib.suppress(OSError):
            for offset in (0, 0x1000, 0x1100):
                symbols.File(str(program)).name(offset)


@pytest.mark.parametrize("address", [0, 1 << 63, (1 << 64) - 1])
def test_addresses_that_are_none(program: Path, address: int) -> None:
    """A file may say that it is mapped beyond what there is, and have functions there."""
    whole = bytearray(program.read_bytes())
    (parts,) = struct.unpack_from("<Q", whole, 32)
    (count,) = struct.unpack_from("<H", whole, 56)
    for at in range(parts, parts + 56 * count, 56):
        if struct.unpack_from("<I", whole, at) == (1,):
            struct.pack_into("<Q", whole, at + 16, address)
    (table,) = struct.unpack_from("<Q", whole, 40)
    size, sections = struct.unpack_from("<HH", whole, 58)
    for at in range(table, table + size * sections, size):
        kind, start, length = *struct.unpack_from("<I", whole, at + 4), *struct.unpack_from("<QQ", whole, at + 24)
        if kind in (2, 11):
            for entry in range(start, start + length, symbols.SYMBOL.itemsize):
                struct.pack_into("<QQ", whole, entry + 8, address, (1 << 64) - 1)
    program.write_bytes(whole)
    file = symbols.File(str(program))
    assert {type(file.name(offset)) for offset in range(0, len(whole), 64)} <= {str, type(None)}
