"""Every rule of scripts/promises.py: pages and tables that break it, and others that keep it."""

from __future__ import annotations

import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import promises  # noqa: E402

KNOWN = {"api.symbols", "abuse.after_free.local"}


def findings(readme: str, *rows: str) -> list[str]:
    table = "# Promises\n\n## [README.md](../README.md)\n\n| it says | shown by |\n|---|---|\n" + "".join(
        f"| {row} |\n" for row in rows)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        (root / "docs").mkdir()
        (root / "README.md").write_text(readme, encoding="utf-8")
        (root / promises.TABLE).write_text(table, encoding="utf-8")
        (root / "lab").mkdir()
        (root / "lab/test_x.py").write_text("def test_it() -> None:\n    pass\n")
        return list(promises.check(root, KNOWN))


class Sentences(unittest.TestCase):
    def test_promises(self) -> None:
        for text in ("It never fails.\n", "A word.  It is always\nso.\n", "No lock is taken.\n", "| a | none |\n",
                     "- Nothing is written.\n", "**So.** There are no locks.\n", "1. None is kept; more.\n",
                     "One; nobody waits.\n"):
            with self.subTest(text):
                self.assertEqual(len(promises.promises(text)), 1)

    def test_what_is_none(self) -> None:
        for text in ("It has no lock.\n", "Nonetheless it works.\n", "x\n\n    it never fails\n\n    nothing\n",
                     "```\nalways\n```\n", "<!-- never -->\n", "Nothingness.\n", "[huge-pages-always](x.json)\n"):
            with self.subTest(text):
                self.assertEqual(promises.promises(text), [])

    def test_a_line_that_goes_on_in_a_list_is_no_code(self) -> None:
        self.assertEqual(promises.promises("1. A list,\n    which never ends.\n"), ["A list, which never ends."])


class Check(unittest.TestCase):
    def test_each_promise_has_a_row(self) -> None:
        rows = ("It never fails | `api.symbols`", "Always. | `api.symbols`")
        self.assertEqual(findings("It never fails. Always.\n", *rows), [])
        self.assertEqual(len(findings("It never fails.\n")), 1)
        self.assertEqual(len(findings("It never fails. Nothing more.\n", "It never fails | `api.symbols`")), 1)

    def test_a_row_is_said(self) -> None:
        self.assertEqual(findings("It works\nwell.\n", "It works well | `api.symbols`"), [])
        self.assertEqual(len(findings("It works.\n", "It works well | `api.symbols`")), 1)

    def test_a_short_promise_may_be_told_with_what_follows(self) -> None:
        self.assertEqual(findings("| x | none. It sleeps |\n", "none. It sleeps | `api.symbols`"), [])

    def test_tests_exist(self) -> None:
        for name in ("api.symbols", "abuse.after_free.*", "lab/test_x.py::test_it"):
            with self.subTest(name):
                self.assertEqual(findings("It works.\n", f"It works | `{name}`: so it is"), [])
        for name in ("api.symbol", "abuse.before.*", "lab/test_x.py::test_that", "lab/test_y.py::test_it"):
            with self.subTest(name):
                found = findings("It works.\n", f"It works | `{name}`")
                self.assertEqual(found, [f"{promises.TABLE}: there is no test {name}"])


if __name__ == "__main__":
    unittest.main()
