"""`./dev`, where nothing can be written."""

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
