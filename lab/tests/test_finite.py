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


@pytest.mark.parametrize("words", [("ctl", "--timeout"), ("top", "--interval"), ("explain", "--after")])
def test_more_seconds_than_a_timer_takes_are_refused(words: tuple[str, str]) -> None:
    for number in ("1.1e9", "1e10", "1e300", "inf"):
        command = [sys.executable, "-m", "hakmem", *words, number, "1"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1 and "to 1000000000\n" in done.stderr, done.stderr


def test_the_most_seconds_are_taken() -> None:
    command = [sys.executable, "-m", "hakmem", "explain", "--after", "1e9", "--", "sleep", "0.1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == "hakmem: sleep ended with exit status 0 before the 1e+09 s were over\n"


@pytest.mark.parametrize(
    "words",
    [
        ("ctl", "abc"),
        ("top", "1.5"),
        ("doctor", "--pid", "0"),
        ("peers", "install", "-j", ""),
        ("compare", "-n", "9" * 20),
    ],
)
def test_what_is_no_whole_number_is_told_what_was_expected(words: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, "-m", "hakmem", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f": {words[-1]!r}: expected a whole number from 1 to 1000000000\n"), done.stderr


@pytest.mark.parametrize("seed", ["-1", "4294967296"])
def test_what_is_no_seed_is_refused(seed: str) -> None:
    words = [sys.executable, "-m", "hakmem", "sweep", "--seed", seed, "--", "true"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f"{seed} is not in the range 0<=x<=4294967295.\n"), done.stderr


@pytest.mark.parametrize(
    ("words", "bounds"), [(("ctl", "--timeout", "x"), "from 0.01"), (("compare", "--timeout", "0"), "above 0")]
)
def test_what_is_no_number_of_seconds_is_told_what_was_expected(words: tuple[str, ...], bounds: str) -> None:
    command = [sys.executable, "-m", "hakmem", *words, "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith(f": {words[-1]!r}: expected a number {bounds} to 1000000000\n"), done.stderr
