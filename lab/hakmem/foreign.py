"""Text that other programs have made, such as names of processes and their answers, as it may reach a terminal."""

from __future__ import annotations


def lines(text: str) -> str:
    """Without what is no text to be read, such as the controls of a terminal: a question mark stands in its place."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


def line(text: str) -> str:
    """The same, and one line."""
    return lines(text).replace("\n", "?").replace("\t", "?")
