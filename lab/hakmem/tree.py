"""The source tree that the laboratory lies in, as git sees it."""

from __future__ import annotations

import subprocess

from hakmem import native


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
