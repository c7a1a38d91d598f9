"""What people wrote into files that are no documents: comments and docstrings of sources, all of any other text.

There a figure has no record to be compared with, so there is none: a rate, a cost or a comparison belongs on a page.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator

from hakmem.performance import CLAIM

C_LIKE = (".c", ".h", ".cpp", ".hpp", ".def", ".rs")
DATA = (".md", ".json", ".svg")  # documents have rules of their own
# A string, so that what looks like a comment in it is none; or a comment, with those in the lines below.
_IN_C = re.compile(
    r"""(?P<string>R"\(.*?\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])')"""
    r"|//[^\n]*(?:\n[ \t]*//[^\n]*)*|/\*.*?\*/",
    re.DOTALL,
)


def claims(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Line and words of each figure of performance in a file of this name."""
    for line, words in _remarks(name, text):
        prose = re.sub(r"\n[ \t]*(?://|\*|#+)", lambda mark: "\n" + " " * (len(mark[0]) - 1), words)
        for match in CLAIM.finditer(prose):
            yield line + prose.count("\n", 0, match.start()), " ".join(match[0].split())


def _remarks(name: str, text: str) -> Iterator[tuple[int, str]]:
    if name.endswith(C_LIKE):
        for match in _IN_C.finditer(text):
            if match["string"] is None:
                yield text.count("\n", 0, match.start()) + 1, match[0]
    elif name.endswith(".py"):
        yield from _of_python(text)
    elif not name.endswith(DATA):
        yield 1, text


def _of_python(text: str) -> Iterator[tuple[int, str]]:
    """Strings that are a statement, as docstrings are, and comments, with those in the lines below."""
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError):
        return  # whoever runs it is told
    comment, begin, last = "", 0, 0
    begins_statement = True
    for token, following in zip(tokens, [*tokens[1:], tokens[-1]], strict=True):
        if token.type == tokenize.COMMENT:
            if comment and token.start[0] == last + 1 and token.line.lstrip().startswith("#"):
                comment += "\n" + token.string
            else:
                yield begin, comment
                comment, begin = token.string, token.start[0]
            last = token.start[0]
        elif token.type != tokenize.NL:
            if token.type == tokenize.STRING and begins_statement and following.type == tokenize.NEWLINE:
                yield token.start[0], token.string
            begins_statement = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    yield begin, comment
