"""Names of functions: whose files are looked into, and how long what was read of them is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

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
