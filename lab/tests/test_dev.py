"""`./dev`, where nothing can be written, where nothing can be installed, and on a system that is too old; and what CI
keeps of it."""

from __future__ import annotations

import fnmatch
import os
import re
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


def test_debian_packages_are_not_begun_on_a_system_that_is_too_old_for_them(tmp_path: Path) -> None:
    """Their build takes the system's CMake, whatever another one is in .venv. Nothing else that they need, debhelper as
    an example, is asked for then; other packages are made."""
    tools, own = tmp_path / "tools", tmp_path / ".venv/bin"
    tools.mkdir()
    own.mkdir(parents=True)
    for tool in (*TOOLS, "cmp", "mkdir", "tail"):
        (tools / tool).symlink_to(shutil.which(tool) or "/bin/true")
    for tool in (*(tools / name for name in ("g++", "gcc", "git", "ninja", "pkg-config", "python3")), own / "pip"):
        tool.symlink_to("/bin/true")
    (tools / "cc").symlink_to("/bin/cat")  # who reads all that it is given
    for tool, said in ((tools / "id", "65534"), (tools / "cmake", "cmake version 3.22.1"), (own / "cmake", "x 3.31.0")):
        tool.write_text(f"#!/bin/sh\necho {said}\n")
        tool.chmod(0o755)
    for name in ("include", "lab", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "packaging").mkdir()
    for kind in ("debian", "other"):
        for script in (f"{kind}.sh", f"test_{kind}.sh"):
            (tmp_path / "packaging" / script).symlink_to("/bin/true")
    (tmp_path / "dev").write_text((ROOT / "dev").read_text().replace("/usr/bin/", f"{tools}/"))
    command = [shutil.which("bash") or "bash", tmp_path / "dev", "package", "debian", "other"]
    environment = {"PATH": str(tools), "HOME": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    said = "dev: Debian packages are made on Debian 12, Ubuntu 24.04 or later; here take ./dev package wheel\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert re.search(r"^test package other .* ok$", done.stdout, re.MULTILINE) and "package debian" not in done.stdout
    assert done.stdout.endswith("\n1 passed, 1 failed\n")


def test_pages_say_where_debian_packages_are_made() -> None:
    pages = [page.read_text() for page in (ROOT / "docs").glob("*.md")]
    told = [page for page in pages if "    ./dev package debian\n" in page]
    assert told and all("Debian 12, Ubuntu 24.04 or later" in page for page in told)


def test_ci_keeps_all_packages() -> None:
    (kept,) = re.findall(
        r"name: packages, path: build/packages/(\S+)}", (ROOT / ".github/workflows/test.yml").read_text()
    )
    debian = re.findall(r"^Package: (\S+)$", (ROOT / "packaging/debian/control").read_text(), re.MULTILINE)
    assert len(debian) == 3 and all(fnmatch.fnmatch(f"{name}_1.deb", kept) for name in debian)
