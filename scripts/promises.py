"""Every promise of the documents names the test that shows it: docs/promises.md. Run by ctest as lint.promises.

    promises.py ROOT --ctest CTEST --build FOLDER

A promise is a sentence, or a cell of a table, that has the word "never" or "always", or begins with "no", "none",
"nothing", "nobody" or "there is no": in README.md, docs/*.md and docs/questions/. docs/promises.md has a heading for
each page, with a table of what it says, word for word, and of the tests that show it: names of CTest's, which may end
in `.*`, or FILE::FUNCTION for pytest's. Prints a line per finding: a promise without a row, a row that the page does
not say, a test that doesn't exist. Exits with 1 when there is one.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TABLE = "docs/promises.md"
PAGES = ("README.md", "docs/*.md", "docs/questions/*.md")

PROMISE = re.compile(r"(?<!-)\b(?:never|always)\b|^(?:no|none|nothing|nobody|there (?:is|are) no)\b", re.IGNORECASE)
BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*] |\||#|\d+\. ))")
SENTENCES = re.compile(r"(?<=[.;!?])\s+|(?<=\.\*\*)\s+")
HEADING = re.compile(r"^## \[([^\]]+)\]", re.MULTILINE)
ROW = re.compile(r"^\| (.+?) \| (.+?) \|$", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    page: str
    words: str
    tests: tuple[str, ...]


def plain(text: str) -> str:
    return " ".join(text.split())


def is_indented_code(lines: list[str], index: int) -> bool:
    """Four blanks after an empty line, or after such a line, and not in a list."""
    while index > 0 and lines[index].startswith("    "):
        index -= 1
        if not lines[index].strip():
            before = next((line for line in reversed(lines[:index]) if line.strip()), "")
            return before.startswith("    ") or not re.match(r"\s*(?:[-*]|\d+\.) ", before)
    return False


def prose(text: str) -> str:
    """Without code and comments."""
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = text.split("\n")
    return "\n".join("" if is_indented_code(lines, i) else line for i, line in enumerate(lines))


def sentences(text: str) -> Iterator[str]:
    for block in BLOCKS.split(prose(text)):
        block = plain(block)
        for part in block.split("|") if block.startswith("|") else [block]:
            for sentence in SENTENCES.split(part):
                yield sentence.strip(" -*#|")


def promises(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if PROMISE.search(sentence)]


def rows(text: str) -> Iterator[Row]:
    parts = HEADING.split(text)
    for page, table in zip(parts[1::2], parts[2::2], strict=True):
        for words, tests in ROW.findall(table):
            if "`" in tests:
                yield Row(page, plain(words), tuple(re.findall(r"`([^`]+)`", tests)))


def pages(root: Path) -> dict[str, str]:
    files = [file for pattern in PAGES for file in sorted(root.glob(pattern))]
    names = [file.relative_to(root).as_posix() for file in files]
    return {name: file.read_text(encoding="utf-8") for name, file in zip(names, files, strict=True) if name != TABLE}


def exists(root: Path, test: str, known: set[str]) -> bool:
    file, is_pytest, function = test.partition("::")
    if is_pytest:
        text = (root / file).read_text() if (root / file).is_file() else ""
        return re.search(rf"^ *def {re.escape(function)}\(", text, re.MULTILINE) is not None
    if test.endswith(".*"):
        return any(name.startswith(test[:-1]) for name in known)
    return test in known


def check(root: Path, known: set[str]) -> Iterator[str]:
    texts = pages(root)
    table = list(rows((root / TABLE).read_text(encoding="utf-8")))
    for name, text in texts.items():
        own = [row.words for row in table if row.page == name]
        for sentence in promises(text):
            if not any(words in sentence or words.startswith(sentence) for words in own):
                yield f"{name}: no row in {TABLE} for: {sentence}"
    for row in table:
        if row.words not in plain(prose(texts.get(row.page, ""))):
            yield f"{TABLE}: {row.page} does not say: {row.words}"
        for test in row.tests:
            if not exists(root, test, known):
                yield f"{TABLE}: there is no test {test}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("--ctest", default="ctest")
    parser.add_argument("--build", type=Path, required=True)
    options = parser.parse_args()
    command = [options.ctest, "--test-dir", options.build, "-N"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    findings = list(check(options.root, set(re.findall(r"^ *Test +#\d+: (\S+)", listed, re.MULTILINE))))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
