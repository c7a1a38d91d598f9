"""The commands of bench/README.md for authors of other allocators run as they stand there, on a library made here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hakmem import native
from test_peers import MALLOC

pytestmark = pytest.mark.forms

WHOLE_SUITE = "hakmem bench --with mine=$LIBRARY,glibc"  # here one group of it
SHORT = {"bench": "--sanity -n 1", "replay": "--sanity -n 1", "compare": "-n 1 --warmup 0", "record": ""}
TIMEOUT_S = 600


def commands() -> list[str]:
    root = native.checkout()
    assert root is not None
    text = (root / "bench" / "README.md").read_text()
    section = text.partition("## For the author of another allocator")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```sh\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines() if line]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the folder has, an allocator, and a `hakmem` whose runs are short."""
    folder = tmp_path_factory.mktemp("bench")
    root = native.checkout()
    assert root is not None
    for file in [*(root / "bench").glob("*.[ch]")]:
        shutil.copy(file, folder)
    shutil.copytree(root / "bench" / "traces", folder / "traces")
    (folder / "malloc.c").write_text(MALLOC)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", "libmine.so", "malloc.c"], cwd=folder, check=True)
    short = "".join(f'{name}) shift; set -- {name} {words} "$@";;\n' for name, words in SHORT.items())
    script = f'#!/bin/sh\ncase $1 in\n{short}esac\nexec {sys.executable} -m hakmem "$@"\n'
    (folder / "bin").mkdir()
    (folder / "bin" / "hakmem").write_text(script)
    (folder / "bin" / "hakmem").chmod(0o755)
    return folder


def test_there_are_some() -> None:
    programs = {line.split()[0] for line in commands()}
    assert {"cc", "xz", "hakmem"} <= programs and WHOLE_SUITE in commands()
    assert {line.split()[1] for line in commands() if line.startswith("hakmem")} == set(SHORT)


def test_each_runs_on_the_library_that_it_names(place: Path) -> None:
    library = place / "libmine.so"
    path = f"{place / 'bin'}:{os.environ['PATH']}"
    for line in commands():
        done = subprocess.run(
            ["sh", "-c", f"{line} tail" if line == WHOLE_SUITE else line],
            cwd=place,
            env={**os.environ, "PATH": path, "LIBRARY": str(library)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        if "LD_PRELOAD" in line:
            assert f"allocator {library}\n" in done.stdout, line
        if "--with" in line:
            assert "mine" in done.stdout or "after" in done.stdout, line
            assert "FAILED" not in done.stdout + done.stderr, line
