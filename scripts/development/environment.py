"""The Python environment `.venv`: the laboratory, and tools from PyPI. A stamp in it says what it was made of."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

from development.steps import ROOT, Command, Stop, log_of, step

VENV = ROOT / ".venv"
PIP: Command = [VENV / "bin" / "pip", "install", "--disable-pip-version-check", "--no-compile", "--quiet"]
HAKMEM = VENV / "bin" / "hakmem"
MARK = "made-by-dev"
BASE, ALL = "requirements.txt", "requirements-all.txt"  # in lab/: what most commands need; what each and the tests need


def make() -> None:
    """Empties one that doesn't work, if MARK says that it is of its own making. It may be interrupted at any moment."""
    if _is_here():
        return
    if VENV.is_symlink() or VENV.exists() and not (VENV / MARK).exists() and any(VENV.iterdir()):
        raise Stop(".venv doesn't work, and isn't known to be of ./dev's making: move it away, or remove it")
    VENV.mkdir(exist_ok=True)
    (VENV / MARK).touch()
    for child in VENV.iterdir():
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        elif child.name != MARK:
            child.unlink()
    if not step("python3 -m venv", ["python3", "-m", "venv", VENV]):
        raise Stop("there is no Python environment in .venv, and none can be made")


def _is_here() -> bool:
    """Its programs begin with its path: in a clone that was moved or copied they run those of the old one. After an
    upgrade of the system's Python it finds nothing that is installed in it."""
    try:
        begins = rf"(#!|.*\n'''exec' \"?){re.escape(str(VENV))}/bin/python"
        if not re.match(begins, (VENV / "bin" / "pip").read_text(encoding="utf-8")):
            return False
        asked: Command = [VENV / "bin" / "python", "-c", "import pip"]
        return subprocess.run(asked, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0
    except (OSError, UnicodeError):
        return False


def pip(title: str, *words: str | Path, settings: tuple[str, ...] = ()) -> None:
    """`settings`: NAME=VALUE, for the package's own build."""
    make()
    without = ["env", "-u", "PYTHONPATH"]  # what lies there would count as installed
    if not step(title, [*without, *settings, *PIP, *words], tail=0):
        raise Stop(f"pip could not install it{_why(log_of(title))}")


def _why(log: Path) -> str:
    """In pip's own words, but for those with which it takes a network that fails for an index without packages."""
    is_no_package = re.compile("^ERROR: (No matching distribution|Could not find a version)")
    said = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in said if line.startswith("ERROR")]
    last = (errors or said)[-1:]
    name = log.relative_to(ROOT)
    if last and is_no_package.match(last[0]) and any("after connection broken by" in line for line in said):
        return f": is there a network? {name} tells more"
    return f": {last[0].strip()[:200]} ({name} tells more)" if last else f"; {name} is empty: is the disk full?"


def _made_of(requirements: str) -> str:
    files = [f"lab/{requirements}", f"lab/{BASE}", "pyproject.toml"]
    header = (ROOT / "include" / "hakmem" / "hakmem.h").read_text(encoding="utf-8")
    versions = re.findall("^#define HAK_VERSION_.*", header, re.MULTILINE)
    return "\n".join([*((ROOT / name).read_text(encoding="utf-8") for name in files), *versions])


def install_laboratory(requirements: str) -> None:
    """`.venv/bin/hakmem` runs the laboratory of this tree, with the library that was built last."""
    stamps = {name: VENV / f"made-of-{name}" for name in {requirements, ALL}}
    said = {name: path.read_text(encoding="utf-8") for name, path in stamps.items() if path.is_file()}
    if HAKMEM.exists() and _is_here() and any(text == _made_of(name) for name, text in said.items()):
        return
    pip("pip install (laboratory)", "-r", f"lab/{requirements}")
    # Without the library. By a variable of scikit-build-core: the pip of Ubuntu 22.04 has no --config-settings.
    options = ("--no-deps", "--no-build-isolation", "--editable", ".")
    pip("pip install (hakmem)", *options, settings=("SKBUILD_WHEEL_CMAKE=false",))
    stamps[requirements].write_text(_made_of(requirements), encoding="utf-8")


def tool(words: str) -> None:
    """A program of PyPI's, as `cmake>=3.25`."""
    pip(f"pip install {re.split('[>=]', words)[0]}", words)


def version_of(program: str | Path) -> tuple[int, ...]:
    """Of its first line; () where it isn't there."""
    try:
        said = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, text=True).stdout
    except OSError:
        return ()
    found = re.search(r"\d+(?:\.\d+)+", said)
    return tuple(map(int, found[0].split("."))) if found else ()
