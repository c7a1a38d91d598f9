"""Tests of cpython_tests.py's judgement: what is excused by a run on glibc and what never is."""
import sys
import unittest
from pathlib import Path
from typing import Optional

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cpython_tests import Failure, Outcome, judge, process, read_outcome


def outcome(status: int = 0, *failed: str) -> Outcome:
    return Outcome(status, status == 0, frozenset(failed), "last lines")


class Judgement(unittest.TestCase):
    def wrong(self, hakmem: Outcome, glibc: Optional[Outcome], words: str) -> None:
        with self.assertRaisesRegex(Failure, words):
            judge(hakmem, glibc)

    def test_passed(self) -> None:
        self.assertEqual(judge(outcome(), None), "passed")

    def test_fails_on_hakmem_only(self) -> None:
        self.wrong(outcome(2, "test_a"), outcome(), "exit status 2, passes on glibc\nlast lines")

    def test_fails_on_both(self) -> None:
        self.assertIn("excused", judge(outcome(2, "test_a"), outcome(2, "test_a", "test_b")))

    def test_fails_in_more_tests_than_on_glibc(self) -> None:
        self.wrong(outcome(2, "test_a", "test_c"), outcome(2, "test_a"), "on hakmem only: test_c")

    def test_crash_is_excused_by_the_same_crash_only(self) -> None:
        self.wrong(outcome(-11), outcome(), "killed by SIGSEGV, passes on glibc")
        self.wrong(outcome(-11), outcome(2, "test_a"), "killed by SIGSEGV, on glibc exit status 2")
        self.assertIn("excused", judge(outcome(-11), outcome(-11)))

    def test_ends_otherwise_without_a_failed_test(self) -> None:
        self.wrong(outcome(1), outcome(2, "test_a"), "exit status 1, on glibc exit status 2")

    def test_reading(self) -> None:
        def read(status: int, text: bytes) -> Outcome:
            return read_outcome(process.Run(1, status, 1.0, 1.0, 0.0, 1, 1, 0, (), text, b""))

        self.assertTrue(read(0, b"== Tests result: SUCCESS ==\n\n1 test OK.\n").passed)
        self.assertTrue(read(0, b"All 1 test OK.\n").passed)
        self.assertFalse(read(0, b"1 test skipped:\n    test_x\n").passed)
        self.assertFalse(read(2, b"1 test OK.\n").passed)
        self.assertEqual(read(2, b"ERROR: test_a (m.C) (x=1)\nFAIL: test_b (m.C)\n  FAIL: no\n").failed,
                         {"test_a (m.C) (x=1)", "test_b (m.C)"})


if __name__ == "__main__":
    unittest.main()
