"""The documents of this repository pass the audit that `hakmem claims` makes."""

from __future__ import annotations

from hakmem import claims, native


def test_a_record_stands_behind_every_figure() -> None:
    root = native.checkout()
    assert root is not None
    assert "\n".join(map(str, claims.audit(root))) == ""


def test_records_that_no_page_cites_are_listed() -> None:
    root = native.checkout()
    assert root is not None
    assert "<!-- uncited: records -->" in (root / "docs" / "records.md").read_text()
