"""Commands without the packages that only some of them need."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hakmem import extras, native
from hakmem.errors import LabError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = ("numpy", "scipy", "matplotlib", "jinja2", "google")
WITHOUT = f"""
import sys
from importlib import metadata
def distribution(name):
    raise metadata.PackageNotFoundError(name)
metadata.distribution = distribution
sys.modules.update(dict.fromkeys({BLOCKED!r}))
from hakmem import cli
cli.main(sys.argv[1:])
"""


def without(*words: str) -> subprocess.CompletedProcess[str]:
    """hakmem in a process that can't import them."""
    return subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=600)


def test_they_are_those_of_the_package() -> None:
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, names in extras.EXTRAS.items():
        assert names == tuple(re.split(r"[<>=~!]", word)[0] for word in given[extra])


@pytest.mark.parametrize(
    ("words", "what", "missing", "extra"),
    [
        (["profile", "--", "true"], "hakmem profile", "jinja2 and numpy and protobuf", "profile"),
        (["compare", "--html", "page.html", "--", "true"], "--html", "jinja2 and matplotlib", "plots"),
        (["tune-log", "--html", "page.html", "none"], "--html", "jinja2 and matplotlib", "plots"),
    ],
)
def test_what_needs_them_says_what_to_type(words: list[str], what: str, missing: str, extra: str) -> None:
    done = without(*words)
    said = f"hakmem: {what} needs {missing}: pip install 'hakmem[{extra}]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


def test_run_and_compare_do_without() -> None:
    assert without("run", "--", "true").returncode == 0
    done = without("compare", "-n", "2", "--warmup", "0", "--", "true")
    assert done.returncode == 0, done.stderr
    assert "ratio" in done.stdout


@pytest.mark.forms
def test_every_command_has_its_help_without() -> None:
    from hakmem.cli import COMMANDS

    for name in COMMANDS:
        assert without(name, "--help").returncode == 0


def test_the_systems_package_names_its_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "is_systems", lambda: True)
    monkeypatch.setattr(extras, "_is_installed", lambda name: name == "jinja2")
    with pytest.raises(LabError, match=r"^--html needs matplotlib: apt install python3-matplotlib$"):
        extras.expect("plots", "--html")
