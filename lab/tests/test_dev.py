"""`./dev`, where nothing can be written, and where nothing can be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hakmem import native

ROOT = native.checkout() or Path()
POWERLESS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="takes another user's folder")
def test_somebody_elses_clone_is_refused_in_a_line(tmp_path: Path) -> None:
    shutil.copy(ROOT / "dev", tmp_path)
    os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o755)
    for command in ("demo", "test", "build", "lab"):
        done = subprocess.run([*POWERLESS, tmp_path / "dev", command], capture_output=True, text=True, timeout=60)
        expected = f"dev: you can't write in {tmp_path}: work in a clone of your own\n"
        assert (done.returncode, done.stdout, done.stderr) == (1, "", expected)
    done = subprocess.run([*POWERLESS, tmp_path / "dev", "help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "./dev demo" in done.stdout


TOOLS = ("apt-get", "bash", "cat", "cut", "dirname", "env", "grep", "head", "nproc", "sed", "sort", "tr", "uname")


def test_who_cannot_install_is_told_once_what_to_type(tmp_path: Path) -> None:
    """All that the tests want, and nothing that is there already."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in TOOLS:
        (tools / tool).symlink_to(shutil.which(tool) or "/bin/true")
    (tools / "git").symlink_to("/bin/true")
    (tools / "id").write_text("#!/bin/sh\necho 65534\n")
    (tools / "id").chmod(0o755)
    shutil.copy(ROOT / "dev", tmp_path)
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run([tmp_path / "dev", "test"], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    first, line = done.stderr.splitlines()
    assert first == "dev: these packages are missing; to install them, type:"
    typed, _, packages = line.partition(" --no-install-recommends ")
    assert typed == "sudo apt-get update && sudo apt-get install -y"
    wanted = packages.split()
    assert {"gcc", "ninja-build", "libcmocka-dev", "musl-tools", "valgrind"} <= set(wanted)
    assert "git" not in wanted and len(set(wanted)) == len(wanted)
