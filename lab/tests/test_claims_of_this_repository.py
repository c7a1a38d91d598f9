"""The documents of this repository pass the audit that `hakmem claims` makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from hakmem import claims, cli, native
from hakmem.errors import LabError


def test_a_record_stands_behind_every_figure() -> None:
    root = native.checkout()
    assert root is not None
    assert "\n".join(map(str, claims.audit(root))) == ""


def test_records_that_no_page_cites_are_listed() -> None:
    root = native.checkout()
    assert root is not None
    assert "<!-- uncited: records -->" in (root / "docs" / "records.md").read_text()


def test_a_figure_that_is_edited_is_found_on_every_page() -> None:
    root = native.checkout()
    assert root is not None
    records, every = claims.Ledger(root / "evidence"), claims.documents(root)
    edited = 0
    for document in every:
        for kind in ("figure", "table"):
            marker = next((one for one in document.markers if one.kind == kind), None)
            if marker is None:
                continue
            body = re.sub(r"(?<=\d\.)\d", lambda digit: str(9 - int(digit[0])), marker.body, count=1)
            assert body != marker.body
            text = document.text[: marker.body_start] + body + document.text[marker.body_start + len(marker.body) :]
            found = list(claims.check(claims.Document(document.path, text), root, records, every))
            assert any("not what the record gives" in one.message for one in found), document.path
            edited += 1
    assert edited > 10


def test_another_checkout_is_not_taken_for_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is in it would take the silence for an answer."""
    for name in ("src", "lab", "docs"):
        (tmp_path / name).mkdir()
    (tmp_path / "src" / "hakmem.c").touch()
    monkeypatch.chdir(tmp_path / "docs")
    done = CliRunner().invoke(cli.cli, ["claims"])
    assert isinstance(done.exception, LabError), done.output
    assert str(done.exception).endswith(f"not {tmp_path}: type ./dev lab claims there")


def test_elsewhere_it_says_what_it_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a repository of somebody's own, say."""
    monkeypatch.setattr(claims, "audit", lambda root: [])
    for folder, told in ((tmp_path, True), (native.checkout() or tmp_path, False)):
        monkeypatch.chdir(folder)
        done = CliRunner().invoke(cli.cli, ["claims"], catch_exceptions=False)
        assert (f"what is checked is {native.checkout()}" in done.stderr) is told and done.stdout == ""
