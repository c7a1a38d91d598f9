from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from compiled import EXPORTED, HIDDEN, PRINTS, compile_c
from hakmem import elf, native
from hakmem.errors import LabError


def test_facts_of_a_dynamic_program(tmp_path: Path) -> None:
    found = elf.read(compile_c(tmp_path / "program", PRINTS))
    assert found.bits == 64
    assert found.interpreter and found.interpreter.startswith("/lib")
    assert found.needed == ("libc.so.6",)
    assert found.libc == "glibc"
    assert found.glibc and found.glibc >= (2, 2)
    assert found.sanitizer is None
    assert found.private_allocators == []
    assert not found.exports | found.hides


def test_a_static_program_has_no_interpreter(tmp_path: Path) -> None:
    found = elf.read(compile_c(tmp_path / "program", PRINTS, "-static"))
    assert found.interpreter is None
    assert found.needed == ()
    assert "malloc" in found.hides


def test_the_library_exports_malloc() -> None:
    found = elf.read(native.library())
    assert "malloc" in found.exports
    assert found.libc == "glibc" and found.glibc
    assert found.interpreter is None


def test_own_malloc_is_found_where_it_shows(tmp_path: Path) -> None:
    assert "malloc" in elf.read(compile_c(tmp_path / "program", PRINTS + EXPORTED)).exports


def test_own_malloc_is_found_where_it_hides(tmp_path: Path) -> None:
    program = compile_c(tmp_path / "program", PRINTS + HIDDEN)
    found = elf.read(program)
    assert "malloc" in found.hides and "malloc" not in found.exports
    subprocess.run(["strip", program], check=True)
    assert not elf.read(program).hides, "no symbol table is left to tell it"


def test_a_name_that_ends_in_malloc_is_not_malloc(tmp_path: Path) -> None:
    source = PRINTS + '__attribute__((visibility("default"))) void *xmalloc(void) { return malloc(1); }\n'
    found = elf.read(compile_c(tmp_path / "program", source, "-rdynamic"))
    assert "malloc" not in found.exports | found.hides


def test_data_called_malloc_is_not_malloc(tmp_path: Path) -> None:
    found = elf.read(compile_c(tmp_path / "program", "int malloc = 1; int main(void) { return malloc; }\n"))
    assert "malloc" not in found.exports | found.hides


@pytest.mark.parametrize("option", ["-fsanitize=address", "-fsanitize=thread"])
def test_sanitizer_of_gcc(tmp_path: Path, option: str) -> None:
    assert elf.read(compile_c(tmp_path / "program", PRINTS, option)).sanitizer


def test_sanitizer_that_is_linked_in(tmp_path: Path) -> None:
    """As clang does it: no library gives it away, only the start of its runtime."""
    program = compile_c(tmp_path / "program", PRINTS + "void __asan_init(void) {}\n")
    assert elf.read(program).sanitizer == "AddressSanitizer"


def test_undefined_behaviour_sanitizer_leaves_malloc_alone(tmp_path: Path) -> None:
    assert elf.read(compile_c(tmp_path / "program", PRINTS, "-fsanitize=undefined")).sanitizer is None


def test_musl(tmp_path: Path) -> None:
    assert elf.read(compile_c(tmp_path / "program", PRINTS, compiler="musl-gcc")).libc == "musl"


def test_an_allocator_under_another_name(tmp_path: Path) -> None:
    source = PRINTS + "void *mi_malloc(size_t n) { return malloc(n); }\n"
    assert elf.read(compile_c(tmp_path / "program", source)).private_allocators == ["mimalloc"]


@pytest.mark.parametrize(
    "content, expected",
    [
        (b"", "not an ELF file"),
        (b"#!/bin/sh\n", "not an ELF file"),
        (b"\x7fELF", "a damaged ELF file"),
    ],
    ids=["empty", "script", "cut off"],
)
def test_what_is_no_program(tmp_path: Path, content: bytes, expected: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(LabError, match=expected):
        elf.read(file)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="No such file"):
        elf.read(tmp_path / "none")
    with pytest.raises(LabError, match="directory"):
        elf.read(tmp_path)


def test_a_program_cut_off_anywhere_is_one_line(tmp_path: Path) -> None:
    whole = compile_c(tmp_path / "program", PRINTS).read_bytes()
    file = tmp_path / "cut"
    for length in range(0, len(whole), 211):
        file.write_bytes(whole[:length])
        try:
            elf.read(file)
        except LabError as error:
            assert "\n" not in str(error)
