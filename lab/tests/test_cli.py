"""hakmem COMMAND: what is typed nearly right, and files that are not what they should be."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from compiled import compile_c
from hakmem import cli, measure, progress
from pytest import CaptureFixture, MonkeyPatch


def hakmem(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "hakmem", *words], capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["compre", "--", "true"], "no command 'compre': did you mean compare?"),
        (["xyzzy"], "no command 'xyzzy': `hakmem --help` lists them"),
        (["explain", "abc"], "abc: command not found, and no number of a process: expected PID, or -- COMMAND"),
        (["pins", "abc"], "abc: command not found, and no number of a process: expected PID, or -- COMMAND"),
        (["explain", "--", "./missing"], "./missing: no such file"),
        (["run", "--", "./missing", "1"], "./missing: no such file"),
        (["compare", "--", "./missing"], "./missing: no such file"),
    ],
)
def test_what_was_meant_is_told(words: list[str], said: str) -> None:
    done = hakmem(*words)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"hakmem: {said}\n")


def test_help_and_version_have_their_usual_names() -> None:
    assert hakmem("help").stdout == hakmem("--help").stdout
    assert hakmem("help", "ctl").stdout == hakmem("ctl", "--help").stdout
    assert hakmem("-V").stdout == hakmem("--version").stdout


def test_an_allocator_that_is_none_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("text")
    library = compile_c(tmp_path / "other.so", "int other(void) { return 1; }", "-shared", "-fPIC")
    for path, why in ((tmp_path / "text", f": {tmp_path}/text: not an ELF file"), (library, " with a malloc; ")):
        done = hakmem("compare", "--with", f"x={path}", "--", "touch", str(tmp_path / "ran"))
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert f"x={path}: expected NAME=PATH of a shared library{why}" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_how_long_it_takes_is_told_after_the_warm_up(monkeypatch: MonkeyPatch, capsys: CaptureFixture[str]) -> None:
    """By what it took until then; not where that is a moment."""
    clock = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock[0])
    for each_s, told in ((4.0, ", about 80 s to go"), (40.0, ", about 13 min to go"), (0.1, "")):
        with progress.shown() as on_step:
            for number in range(1, 23):
                on_step(measure.Step(number, 22, (number - 1) // 2, 10, "case", "variant"))
                clock[0] += each_s
        lines = capsys.readouterr().err.splitlines()
        assert lines[0] == "hakmem: warm-up" and lines[1] == f"hakmem: round 1 of 10{told}"


def test_help_has_its_commands_in_groups() -> None:
    shown = hakmem("--help").stdout
    titles = [line[:-1] for line in shown.splitlines() if line.endswith(":")]
    assert titles == ["Options", *cli.GROUPS]
    assert re.findall(r"^  ([a-z][a-z-]*) {2,}\S", shown, re.MULTILINE) == list(cli.COMMANDS)
    assert len(cli.COMMANDS) == sum(map(len, cli.GROUPS.values())) and max(map(len, shown.splitlines())) <= 80
