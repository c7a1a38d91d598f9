"""hakmem.finite: numbers that options take."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "x"])
def test_what_is_no_number_of_seconds_is_refused(number: str) -> None:
    words = [sys.executable, "-m", "hakmem", "compare", "--timeout", number, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1 and number in done.stderr
