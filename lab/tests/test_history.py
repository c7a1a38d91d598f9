"""What git says of records and in messages: clones made here, looked at as `hakmem claims` does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem import claims, cli, ledger, native, tree
from hakmem.history import History
from sample_record import keep_unsigned, record

ID = "2026-01-02-sample"


def git(root: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", "-C", str(root), *who, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def commit(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """With one unsigned record."""
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    keep_unsigned(record(commit=commit(root, "Begin")), root / "evidence")
    commit(root, "First")
    return root


def first(root: Path) -> str:
    return git(root, "rev-list", "--max-parents=0", "HEAD")


def found(root: Path) -> list[str]:
    return [str(one) for one in claims.audit(root)]


def exempt(root: Path, at: str, name: str | None) -> None:
    of = f'record = "{name}"\n' if name else ""
    (root / "evidence" / "exceptions.toml").write_text(f'[[exception]]\n{of}commit = "{at}"\nwhy = "a test"\n')


def signed(root: Path) -> Path:
    path = ledger.keep(record(command="another", commit=first(root)), root / "evidence")
    commit(root, "Another record")
    return path


def test_a_record_that_is_what_was_committed_is_none_to_complain_of(clone: Path) -> None:
    signed(clone)
    ledger.keep(record(command="not committed yet", commit=first(clone)), clone / "evidence")
    assert found(clone) == []


def test_a_changed_record_is_found_before_and_after_it_is_committed(clone: Path) -> None:
    """Even if what else tells of an edit is made to fit: the digest, the id, the list."""
    evidence = clone / "evidence"
    (evidence / f"{ID}.json").unlink()
    (evidence / ledger.SUMS).unlink()
    keep_unsigned(record(notes=["edited"], commit=first(clone)), evidence)
    assert found(clone) == [f"evidence/{ID}.json:1: it is not what was committed; a record stays as it was"]
    at = commit(clone, "Edit")
    changed = f"evidence/{ID}.json:1: commit {at[:9]} changed it; a record stays as it was committed"
    assert found(clone) == [changed]
    exempt(clone, git(clone, "rev-parse", "HEAD~"), ID)
    assert found(clone) == [changed]
    exempt(clone, at, ID)
    assert found(clone) == []


def test_an_id_that_a_removed_record_had_is_not_given_again(clone: Path) -> None:
    evidence = clone / "evidence"
    (evidence / f"{ID}.json").unlink()
    (evidence / ledger.SUMS).unlink()
    assert found(clone) == [f"evidence/{ID}.json:1: it is not what was committed; a record stays as it was"]
    gone = commit(clone, "Remove")
    assert found(clone) == [
        f"evidence/{ID}.json:1: commit {gone[:9]} removed it; a record stays, whatever it shows",
    ]
    keep_unsigned(record(notes=["another"], commit=first(clone)), evidence)
    again = commit(clone, "Another of that name")
    assert found(clone) == [f"evidence/{ID}.json:1: commit {again[:9]} changed it; a record stays as it was committed"]


def test_a_record_that_a_merge_changed_is_found(clone: Path) -> None:
    path = signed(clone)
    git(clone, "checkout", "-q", "-b", "side", "HEAD~")
    commit(clone, "Beside")
    git(clone, "merge", "-q", "--no-commit", "--no-ff", "main")
    path.unlink()
    at = commit(clone, "Merge")
    assert found(clone) == [
        f"evidence/{path.name}:1: commit {at[:9]} removed it; a record stays, whatever it shows",
    ]


def test_a_record_of_a_commit_that_a_rebase_replaced_is_found(clone: Path) -> None:
    lost = commit(clone, "Measured")
    path = ledger.keep(record(command="another", commit=lost), clone / "evidence")
    assert found(clone) == []
    git(clone, "commit", "-q", "--amend", "--allow-empty", "-m", "Amended")
    said = f"it is of commit {lost[:9]}, which is not in this history: nobody can measure that again"
    assert found(clone) == [f"evidence/{path.name}:1: {said}"]
    exempt(clone, first(clone), path.stem)
    assert len(found(clone)) == 1
    exempt(clone, lost, path.stem)
    assert found(clone) == []


def test_a_record_of_no_commit_is_none_to_complain_of(clone: Path) -> None:
    ledger.keep(record(command="of an installed package", commit=None, clean=None), clone / "evidence")
    assert found(clone) == []


def test_what_can_not_be_looked_at_is_skipped_with_a_word(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(clone, "It is ten times faster.")
    shallow = clone.parent / "shallow"
    git(clone, "clone", "-q", "--depth", "1", clone.as_uri(), str(shallow))
    assert History(clone, clone / "evidence").missing() is None and found(clone) != []
    assert History(shallow, shallow / "evidence").missing() == "this clone is shallow" and found(shallow) == []
    monkeypatch.setattr(native, "checkout", lambda: shallow)
    monkeypatch.chdir(shallow)
    done = CliRunner().invoke(cli.cli, ["claims"])
    assert "hakmem: git's history was not looked at: this clone is shallow" in done.output
    assert History(clone.parent, clone.parent / "evidence").missing() == "this is no clone"


def test_exceptions_that_cannot_be_read_are_an_error(clone: Path) -> None:
    (clone / "evidence" / "exceptions.toml").write_text("[[exception]]\ncommit = 1\n")
    (one,) = found(clone)
    assert one.startswith("evidence/exceptions.toml:1: ")


# ---- Messages --------------------------------------------------------------------------------------------------------


def test_a_message_with_a_figure_names_a_record(clone: Path) -> None:
    at = commit(clone, "Bins grow\n\nIt is ten times\nfaster.")
    said = f"commit {at[:9]}:3: a figure, and the message names no record: ten times faster"
    assert found(clone) == [said]
    commit(clone, f"Bins grow\n\nIt is ten times faster (2026-01-02-other, {ID[:-1]}).")
    assert len(found(clone)) == 2
    commit(clone, f"Bins grow\n\nIt is ten times faster (evidence/{ID}.json).")
    assert len(found(clone)) == 2
    exempt(clone, at, None)
    assert said not in found(clone)


def test_messages_from_before_the_rule_and_of_released_commits_are_left_alone(clone: Path) -> None:
    sums = (clone / "evidence" / ledger.SUMS).read_text()
    git(clone, "checkout", "-q", "-b", "new", first(clone))
    git(clone, "checkout", "-q", "main", "--", "evidence")
    (clone / "evidence" / ledger.SUMS).unlink()
    commit(clone, "Ten times faster")
    (clone / "evidence" / ledger.SUMS).write_text(sums)
    git(clone, "checkout", "-q", "-b", "side")
    commit(clone, "The rule")
    git(clone, "checkout", "-q", "-b", "late", "HEAD~")
    commit(clone, "Twice the throughput, by somebody who knew nothing of the rule")
    git(clone, "checkout", "-q", "side")
    git(clone, "merge", "-q", "--no-ff", "-m", "Merge", "late")
    assert found(clone) == []
    commit(clone, "Three times faster")
    git(clone, "tag", "before-lunch")
    assert len(found(clone)) == 1
    git(clone, "tag", "v1")
    assert found(clone) == []
    commit(clone, "Four times faster")
    (one,) = found(clone)
    assert one.endswith("names no record: Four times faster")


def test_a_branch_from_before_a_release_that_comes_after_it_is_looked_at(clone: Path) -> None:
    git(clone, "checkout", "-q", "-b", "side")
    commit(clone, "Five times faster")
    git(clone, "checkout", "-q", "main")
    commit(clone, "Released")
    git(clone, "tag", "v1")
    git(clone, "merge", "-q", "--no-ff", "-m", "Merge", "side")
    (one,) = found(clone)
    assert one.endswith("names no record: Five times faster")


def test_a_library_is_of_the_tree_that_it_is_younger_than(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record of another commit's library, or of changes that are gone, would be one of this commit."""
    library, source = tmp_path / "libhakmem.so", tmp_path / "src" / "base" / "a.h"
    source.parent.mkdir(parents=True)
    for file in (library, source, source.with_name("a.md")):
        file.touch()
    monkeypatch.setattr(native, "checkout", lambda: tmp_path)
    monkeypatch.setattr(native, "library", lambda: library)
    os.utime(library, (2e9, 2e9))
    assert tree.is_built()
    os.utime(source.with_name("a.md"), (3e9, 3e9))
    assert tree.is_built()
    os.utime(source, (3e9, 3e9))
    assert not tree.is_built()


def test_a_record_that_was_just_kept_is_no_change_of_the_tree(clone: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several are kept in a row."""
    monkeypatch.setattr(native, "checkout", lambda: clone)
    ledger.keep(record(command="another"), clone / "evidence")
    assert tree.checked_out() == (git(clone, "rev-parse", "HEAD"), True)
    git(clone, "config", "status.showUntrackedFiles", "no")
    (clone / "a.c").touch()
    assert tree.checked_out()[1] is False
