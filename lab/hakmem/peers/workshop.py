"""A place where one peer is made: runs its commands, and writes each of them with its output into one log."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from hakmem.errors import LabError

# Would change what the recipes say, or take part in the build.
NOT_FOR_BUILDS = frozenset(("CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS", "LIBS", "MAKEFLAGS", "LD_PRELOAD"))


class Say(Protocol):
    """Hears what is being done, and how many of how many parts of it are, where that is known."""

    def __call__(self, what: str, done: int = 0, total: int = 0) -> None: ...


class Workshop:
    """Commands run in the caller's environment without NOT_FOR_BUILDS. `run` may be called by several threads."""

    def __init__(self, folder: Path, log: Path, jobs: int, say: Say) -> None:
        self.folder = folder
        self.jobs = jobs
        self.say = say
        self._log = log
        self._lock = threading.Lock()

    def run(self, *words: str, cwd: Path | None = None) -> str:
        """The command's standard output. Raises LabError when it fails."""
        environment = {name: value for name, value in os.environ.items() if name not in NOT_FOR_BUILDS}
        done = subprocess.run(
            words,
            cwd=cwd or self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
        with self._lock, self._log.open("a") as log:
            print(f"$ {shlex.join(words)}", done.stdout + done.stderr, sep="\n", file=log)
        if done.returncode != 0:
            said = [line for line in done.stderr.splitlines() if "error" in line.lower()] or done.stderr.splitlines()
            why = f": {said[0].strip()}" if said else ""
            raise LabError(f"{words[0]} ended with {done.returncode}{why}")
        return done.stdout

    def succeeds(self, *words: str) -> bool:
        try:
            self.run(*words)
        except (LabError, OSError):
            return False
        return True


def compiler(language: str) -> list[str]:
    """The words that call the compiler of `c` or `c++`: CC or CXX where the caller has set them."""
    variable, usual = ("CC", "cc") if language == "c" else ("CXX", "c++")
    return shlex.split(os.environ.get(variable) or usual)


# What a recipe may need, and the package that has it on Debian and Ubuntu.
TOOLS = {"c": "gcc", "c++": "g++", "make": "make", "cmake": "cmake"}


def require(tools: Sequence[str]) -> None:
    """Raises LabError that names what to install when one of these is missing."""
    commands = {tool: compiler(tool)[0] if tool in ("c", "c++") else tool for tool in tools}
    missing = [tool for tool, command in commands.items() if shutil.which(command) is None]
    if missing:
        names = " and ".join(commands[tool] for tool in missing)
        packages = " ".join(TOOLS[tool] for tool in missing)
        raise LabError(f"{names} not found; on Debian and Ubuntu: sudo apt-get install -y {packages}")
