"""What other programs have made reaches a terminal as text, and keeps nobody waiting."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hakmem import elf, foreign
from hakmem.errors import LabError
from hakmem.report import text
from hakmem.report.model import Report, Share, Shares, Table

RAW = "a\x1b[2J\x07\r\x9b\u202e\udc80 \u0436"
SHOWN = "a?[2J????? \u0436"


def test_what_is_no_text_is_a_question_mark() -> None:
    assert foreign.line(RAW) == SHOWN
    assert foreign.lines(f"{RAW}\n\t{RAW}") == f"{SHOWN}\n\t{SHOWN}"
    assert foreign.line("a\nb\tc") == "a?b?c"


def test_reports_are_text() -> None:
    sections = (
        Shares(RAW, "B", 10, (Share(RAW, 10, 0, ((RAW, 5),)),), (RAW,)),
        Table(RAW, ("x",), ((RAW,),), (RAW,)),
    )
    file = io.StringIO()
    text.write(Report(RAW, RAW, sections, summary=(RAW,)), file)
    assert SHOWN in file.getvalue()
    assert all(letter.isprintable() or letter == "\n" for letter in file.getvalue())


def test_only_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"content")
    with foreign.opened(tmp_path / "file") as file:
        assert file.read() == b"content"
    for path in (tmp_path / "pipe", Path("/dev/null"), tmp_path, tmp_path / "none"):
        with pytest.raises(OSError):
            foreign.opened(path)
    with pytest.raises(LabError, match="pipe: not a regular file"):
        elf.read(tmp_path / "pipe")
