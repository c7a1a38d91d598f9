"""Debian's packages that hakmem's build and tests need: which are missing, and their installation."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from development.steps import ROOT, Stop, log_of, step

TABLE = Path(__file__).with_name("packages.txt")
KINDS = ("source", "debian", "wheel", "crate", "release", "container", "recipes", "site", "tasks")  # of ./dev package
INSTALL = "apt-get install -y --no-install-recommends"


def _said(*words: str) -> str:
    """What a command prints; nothing where it fails or isn't there."""
    try:
        plain = {**os.environ, "LC_ALL": "C", "LANGUAGE": ""}  # apt translates what it says
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=plain)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _versions() -> dict[str, str]:
    """What stands for the placeholders of the table, by what is installed now."""
    python = _said("python3", "-c", 'import sys; print("%d.%d" % sys.version_info[:2])').strip()
    clang = re.match(r"\d+", _said("clang", "-dumpversion"))
    has_web = "Candidate" in _said("apt-cache", "policy", "cargo-web")
    return {"python": python or "3", "clang": clang[0] if clang else "14", "web": "-web" if has_web else ""}


def needs(groups: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Packages of the groups, each with the command that succeeds where it is there."""
    wanted = {name for group in groups for name in (group, f"{group}@{platform.machine()}")}
    versions = _versions()
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            group, package, probe = line.split(maxsplit=2)
            if group in wanted:
                yield package.format(**versions), probe


def missing(groups: Iterable[str]) -> list[str]:
    def is_there(probe: str) -> bool:
        shell = ["sh", "-c", probe]
        return subprocess.run(shell, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0

    return [package for package in dict.fromkeys(package for package, probe in needs(groups) if not is_there(probe))]


def as_root() -> list[str] | None:
    """What stands before a command that needs root's rights. None: there are none without a password."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and subprocess.run(["sudo", "-n", "true"], capture_output=True).returncode == 0:
        return ["sudo", "-n"]
    return None


def install(groups: Iterable[str], *, later: Iterable[str] = ()) -> None:
    """All that the groups need is there when it returns. Stop says what to type, with what `later` groups need too."""
    groups = list(groups)
    packages = missing(groups)
    if not packages:
        return
    if not shutil.which("apt-get"):
        raise Stop(f"there is no apt here; please install what this system calls {' '.join(packages)}")
    root = as_root()
    if root is None:
        packages = missing([*groups, *later])
        raise Stop(f"packages are missing; type: sudo apt-get update && sudo {INSTALL} {' '.join(packages)}")
    print(f"Installing {' '.join(packages)}", flush=True)
    _update(root)
    if not _install(root, packages):
        log = log_of("apt-get install").relative_to(ROOT)
        raise Stop(f"apt-get could not install {' '.join(packages)}: is there a network? {log} tells more")
    packages = missing(groups)
    if packages:
        raise Stop(f"after their installation these packages still don't work: {' '.join(packages)}")


def try_to_install(groups: Iterable[str]) -> None:
    """Those of them that the system has: tests that need one of the others say so, and are skipped."""
    packages, root = missing(groups), as_root()
    if not packages or root is None or not shutil.which("apt-get"):
        return
    _update(root)
    known = [name for name in packages if re.search(r"Candidate: [^(]", _said("apt-cache", "policy", name))]
    if known:
        _install(root, known)


WAITING = ("-o", "DPkg::Lock::Timeout=300")  # for another apt


def _update(root: list[str]) -> None:
    step("apt-get update", [*root, "apt-get", *WAITING, "update"], tail=0)


def _install(root: list[str], packages: list[str]) -> bool:
    words = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", *WAITING, "install", "-y"]
    return step("apt-get install", [*words, "--no-install-recommends", *packages], tail=0)
