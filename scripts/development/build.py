"""Builds by CMake's presets, each in build/PRESET."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from development import environment, packages
from development.steps import ROOT, Command, Stop, step

PRESETS = Path(__file__).resolve().parents[2] / "CMakePresets.json"
LEAST = (3, 25)  # CMake's version
JOBS = len(os.sched_getaffinity(0))
PROGRAMS = ("hakmem_shared", "hakmem_lab")  # what the demo runs
COMPILERS = ("CC", "CXX", "CFLAGS", "CXXFLAGS", "CPPFLAGS", "LDFLAGS")  # settings of the caller's
EVERYTHING = (*PROGRAMS, "hakmem_secure", "hakmem_bench")  # what any command of the laboratory runs


def tool(name: str) -> Path:
    """CMake or one of its programs: the system's where it is recent enough, else that of .venv."""
    system = shutil.which("cmake")
    if system and environment.version_of(system) >= LEAST:
        return Path(shutil.which(name) or name)
    own = environment.VENV / "bin"
    if environment.version_of(own / "cmake") < LEAST:
        environment.tool("cmake>=3.25,<4")
    return own / name


def presets() -> list[str]:
    found = json.loads(PRESETS.read_text(encoding="utf-8"))["configurePresets"]
    return [preset["name"] for preset in found if not preset.get("hidden")]


def expect_preset(name: str) -> None:
    """Stop for a word that is none: it would be the name of a folder."""
    if name not in presets():
        raise Stop(f"there is no preset {name}; there are {' '.join(presets())}")


def prepare(*groups: str, later: Sequence[str] = ()) -> None:
    """What builds need from the system, and these groups of packages."""
    packages.install(["build", *groups], later=later)
    tool("cmake")


def whole(preset: str, *targets: str) -> bool:
    """With the tests, but for those of `--forms` and `--long` unless their targets are named."""
    return _build(preset, ["-DHAK_TESTS=ON", "-DHAK_LAB=OFF"] if preset == "release" else [], targets)


def programs(*targets: str) -> bool:
    """Some targets of the release build, which need none of the tests' packages. A build with tests keeps them."""
    cache = ROOT / "build" / "release" / "CMakeCache.txt"
    is_ours = cache.is_file() and not _is_of_another("release")
    has_tests = is_ours and "HAK_TESTS:BOOL=ON" in cache.read_text(encoding="utf-8")
    return _build("release", [] if has_tests else ["-DHAK_TESTS=OFF", "-DHAK_LAB=ON"], targets)


def _is_of_another(preset: str) -> bool:
    """A build of a clone that was moved or copied, which CMake refuses unless it begins anew."""
    cache = ROOT / "build" / preset / "CMakeCache.txt"
    if not cache.is_file():
        return False
    home = re.search("^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache.read_text(encoding="utf-8"), re.MULTILINE)
    return home is None or Path(home[1]).resolve() != ROOT  # a shell in a link tells CMake the link


def _build(preset: str, definitions: Sequence[str], targets: Sequence[str]) -> bool:
    """What else lies in the build's folder stays, as what fuzzing has found."""
    expect_preset(preset)
    if "," in str(ROOT):
        raise Stop(f"linkers take no path with a comma: {ROOT}; clone to another folder")
    cmake = tool("cmake")
    # CMake takes these of its first run only.
    chosen = "".join(f"{name}={os.environ[name]}\n" for name in COMPILERS if os.environ.get(name))
    stamp = ROOT / "build" / preset / "made-with"
    before = stamp.read_text(encoding="utf-8") if stamp.is_file() else ""
    is_new = _is_of_another(preset) or before != chosen
    stamp.parent.mkdir(parents=True, exist_ok=True)
    stamp.write_text(chosen, encoding="utf-8")
    configure: Command = [cmake, "--preset", preset, *(["--fresh"] if is_new else []), *definitions]
    wanted = ["--target", *targets] if targets else []
    build: Command = [cmake, "--build", f"build/{preset}", "--parallel", str(JOBS), *wanted]
    return step(f"build {preset}", configure, build)
