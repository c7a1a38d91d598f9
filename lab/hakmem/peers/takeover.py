"""Proves that a library, preloaded into an unmodified program, is the program's malloc, and is the peer it should be.

Needed because LD_PRELOAD of something that can't be loaded prints one line and runs the program on the C library's
malloc, and because two builds of one allocator differ in nothing but what they say of themselves.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hakmem.errors import LabError
from hakmem.process import ending, linked

PROBE = Path(__file__).resolve().parent / "probe.py"
FAMILY = ("malloc", "calloc", "realloc", "free", "posix_memalign", "aligned_alloc", "malloc_usable_size")
TIMEOUT_S = 60


def prove(library: Path, marker: str, version: str, settings: Mapping[str, str] | None = None) -> None:
    """Raises LabError unless all of FAMILY and the marker are the library's, and the version, where it can be asked for
    one, is this one or begins with it."""
    words = [sys.executable, "-I", str(PROBE), *FAMILY, marker]
    environment = {**os.environ, **(settings or {}), "LD_PRELOAD": str(linked(library))}
    try:
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise LabError(f"a program under {library.name} did not end within {TIMEOUT_S} s") from None
    said = done.stderr.strip().splitlines()
    if done.returncode != 0:
        how = ending(done.returncode) + (f": {said[-1]}" if said else "")
        raise LabError(f"a program under {library.name} {how}")
    answer = json.loads(done.stdout)
    for name, file in answer["files"].items():
        if file is None or not os.path.samefile(file, library):
            why = f" ({said[0]})" if said else ""
            raise LabError(f"{name} is not that of {library.name} but of {file or 'nothing'}{why}")
    told = answer["version"]
    if told is not None and told != version and not told.startswith((f"{version}.", f"{version}-")):
        raise LabError(f"{library.name} says it is version {told}, expected {version}")
