"""The source tree that the laboratory lies in, as git sees it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from hakmem import native
from hakmem.errors import LabError

SOURCES = (".c", ".cpp", ".h", ".def")  # of the library, all of which are in it


def checked_out() -> tuple[str | None, bool | None]:
    """Of the checkout that this is, and whether its tree is as committed. None: not known."""
    root = native.checkout()
    if root is None:
        return None, None

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", "-C", str(root), *words], capture_output=True, text=True
            )
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # Records that were kept since then change nothing that is measured.
    status = git("status", "--porcelain", "--untracked-files=normal", "--", ":/", ":(top,exclude)evidence")
    return git("rev-parse", "HEAD"), None if status is None else status == ""


def is_built() -> bool:
    """Whether the library is younger than its sources: else it is of another commit, or of changes that are gone. True
    where there are no sources, or no library."""
    root = native.checkout()
    try:
        built = native.library().stat().st_mtime_ns
    except LabError:
        return True
    return root is None or all(source.stat().st_mtime_ns <= built for source in _sources(root))


def _sources(root: Path) -> Iterator[Path]:
    for top in ("src", "include"):
        for folder, _, names in os.walk(root / top):
            yield from (Path(folder, name) for name in names if name.endswith(SOURCES))
