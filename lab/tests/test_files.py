"""Files that can't be written are found before anything is run, by every command that writes some."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest
from hakmem import cli, files
from hakmem.errors import LabError


def test_a_check_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("as it was")
    files.check(tmp_path / "new")
    files.check(tmp_path / "old")
    files.check(Path("-"))
    assert [path.name for path in tmp_path.iterdir()] == ["old"] and (tmp_path / "old").read_text() == "as it was"
    with pytest.raises(LabError, match="^can't write .*/no/file: No such file or directory$"):
        files.check(tmp_path / "no" / "file")


def test_a_check_leaves_links_and_pipes(tmp_path: Path) -> None:
    link, pipe = tmp_path / "link", tmp_path / "pipe"
    link.symlink_to("none")
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as reading:
        files.check(pipe)
        waiting = select.poll()
        waiting.register(reading)
        assert not waiting.poll(0), "somebody has had it open"
    files.check(link)
    assert link.is_symlink() and not (tmp_path / "none").exists()
    (tmp_path / "lost").symlink_to("no/file")
    with pytest.raises(LabError, match="lost: No such file or directory"):
        files.check(tmp_path / "lost")


@pytest.mark.parametrize(
    "words",
    [
        ("profile", "-o", "FILE"),
        ("learn", "-o", "FILE"),
        ("learn", "--statistics", "FILE"),
        ("explain", "--json", "FILE"),
        ("explain", "--markdown", "FILE"),
        ("explain", "--html", "FILE"),
        ("record", "-o", "FILE"),
    ],
)
def test_no_command_runs_in_vain(words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "no" / "file")
    with pytest.raises(SystemExit) as ended:
        cli.main([*(file if word == "FILE" else word for word in words), "--", "touch", str(tmp_path / "ran")])
    error = capsys.readouterr().err
    assert ended.value.code == 2 and error.count("\n") == 1, error
    assert error.startswith(f"hakmem: can't write {file}") and error.endswith(": No such file or directory\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("profile", ""), ("profile", "folder/"), ("profile", "-"), ("learn", "-"), ("record", "-")]
)
def test_what_is_no_name_of_a_file_is_refused(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    with pytest.raises(SystemExit) as ended:
        cli.main([words[0], "-o", words[1], "--", "touch", "ran"])
    said = f"hakmem: -o {words[1] or repr('')}: expected the name of a file\n"
    assert (ended.value.code, capsys.readouterr().err) == (2, said)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_the_policy_without_a_name_is_checked_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "touch.policy").mkdir()
    with pytest.raises(SystemExit):
        cli.main(["learn", "--", "touch", "ran"])
    assert capsys.readouterr().err == "hakmem: can't write touch.policy: Is a directory\n"
    assert not (tmp_path / "ran").exists()
