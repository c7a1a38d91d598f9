"""The repository's rules, the format of its sources, and clang-tidy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from development import environment
from development.steps import ROOT, Tally, listed

FORMATTED = (".c", ".h", ".cpp", ".hpp")
FOLDERS = ("bench", "examples", "include", "lab", "packaging", "src", "tests")  # that have sources
CLANG_FORMAT = 14  # versions disagree with each other; this is the oldest of the systems we build on


def quick(tally: Tally) -> None:
    tally.check("lint", ["python3", "-B", "scripts/lint.py"])
    if not tally.check("format", [clang_format(), "--dry-run", "--Werror", "--ferror-limit=1", "--", *_sources()]):
        print("./dev fmt formats them")


def clang_tidy(tally: Tally) -> None:
    """Of the release build."""
    names = sorted(Path("/usr/bin").glob("clang-tidy-[0-9]*"), key=lambda path: int(path.name.rpartition("-")[2]))
    program = shutil.which("clang-tidy") or (names[-1] if names else "clang-tidy")
    options = ["--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-ignored-optimization-argument"]
    tally.check("clang-tidy", [program, "--quiet", "-p", "build/release", *options, "src/hakmem.c"])


def clang_format() -> str | Path:
    own = environment.VENV / "bin" / "clang-format"
    for program in ("clang-format-14", "clang-format", own):
        if environment.version_of(program)[:1] == (CLANG_FORMAT,):
            return program
    environment.tool("clang-format==14.0.6")
    return own


def format_sources() -> bool:
    return subprocess.run([clang_format(), "-i", "--", *_sources()], cwd=ROOT).returncode == 0


def _is_own(file: Path) -> bool:
    """Not behind a link: what it leads to may be somebody else's."""
    return file.is_file() and file.resolve() == file


def _sources() -> list[str]:
    """What git has or would take; outside of a checkout all."""
    names = listed()
    names = names or [str(path.relative_to(ROOT)) for top in FOLDERS for path in (ROOT / top).rglob("*")]
    names = [name for name in names if name.startswith(tuple(f"{folder}/" for folder in FOLDERS))]
    return sorted(name for name in names if name.endswith(FORMATTED) and _is_own(ROOT / name))
