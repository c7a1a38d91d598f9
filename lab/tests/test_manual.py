"""The manual's pages, which the repository has as files."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hakmem import cli, manual, native, settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("man1/hakmem.1", "man3/hakmem.3", "man7/hakmem.7")


@pytest.mark.parametrize("page", PAGES)
def test_the_page_is_what_the_program_says(page: str, tmp_path: Path) -> None:
    manual.write(tmp_path)
    there = (ROOT / "docs" / "man" / page).read_text()
    assert there == (tmp_path / page).read_text(), "python -m hakmem.manual docs/man writes it"


def test_every_command_and_setting_has_its_place() -> None:
    commands, library = manual.commands(), manual.library()
    assert all(f"\n.SS hakmem {name}".replace("-", "\\-") in commands for name in cli.COMMANDS)
    assert all(f"HAKMEM_{one.name}=" in library for one in settings.listed(native.library()))


def test_every_function_of_the_header_has_its_place() -> None:
    declared = re.findall(r"^HAK_API .*?\b(hak_\w+)\(", (ROOT / "include/hakmem/hakmem.h").read_text(), re.MULTILINE)
    page = manual.interface()
    assert len(declared) > 20 and all(f"{name}(" in page for name in declared)
    assert "__attribute__" not in page and "/* ----" not in page and "\n * " not in page


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("page", PAGES)
def test_the_formatter_has_nothing_to_say(page: str) -> None:
    words = ["groff", "-man", "-Tutf8", "-ww", "-z", str(ROOT / "docs" / "man" / page)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
