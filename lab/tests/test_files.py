"""Files that can't be written are found before anything is run, by every command that writes some; and none is left
half written."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import subprocess
import sys
from collections.abc import Iterator
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


@contextlib.contextmanager
def room_for(size: int) -> Iterator[None]:
    """In every file."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("old", ["as it was", "longer than it is now " * 1000])
def test_what_is_written_is_all_there_is(old: str, tmp_path: Path) -> None:
    file, link, other = tmp_path / "file", tmp_path / "link", tmp_path / "other"
    file.write_text(old)
    file.chmod(0o604)
    link.symlink_to("file")
    os.link(file, other)
    for path in (file, link, other):
        files.write(path, f"new at {path}")
        assert file.read_text() == other.read_text() == f"new at {path}"
    assert link.is_symlink() and file.stat().st_mode & 0o777 == 0o604
    files.write(file, "")
    assert file.read_text() == ""


def test_a_new_file_is_made_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / "link").symlink_to("new")
    files.write(tmp_path / "link", "text")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "new").read_text() == "text"
    assert (tmp_path / "new").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_file_without_room_is_left_as_it_was(tmp_path: Path) -> None:
    old, new, link, lost = (tmp_path / name for name in ("old", "new", "link", "lost"))
    old.write_text("as it was")
    link.symlink_to("old")
    lost.symlink_to("none")
    for path in (old, new, link, lost):
        with room_for(5000), pytest.raises(LabError, match=f"^can't write {path}: File too large$"):
            files.write(path, "x" * 5001)
        assert old.read_text() == "as it was" and link.is_symlink() and lost.is_symlink()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "lost", "old"]


def test_pipes_and_devices_are_written_to(tmp_path: Path) -> None:
    pipe, text = tmp_path / "pipe", "text\n" * 500
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reading:
        files.write(pipe, text)
        assert reading.communicate(timeout=600)[0] == text
    assert pipe.is_fifo()
    files.write(Path("/dev/null"), text)
    with pytest.raises(LabError, match="^can't write /dev/full: No space left on device$"):
        files.write(Path("/dev/full"), text)
    script = "from pathlib import Path; from hakmem import files; files.write(Path('/dev/stdout'), 'text')"
    assert subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE).stdout == b"text"
    with open(tmp_path / "out", "w+") as out:
        subprocess.run([sys.executable, "-c", script], stdout=out)
        assert out.read() == "text"


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
