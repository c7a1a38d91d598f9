"""Packages that only some commands need, and what to type where one of them is missing."""

from __future__ import annotations

from importlib import metadata

from hakmem import native
from hakmem.errors import LabError

# As pyproject.toml has them.
PROFILE = ("jinja2", "numpy", "protobuf")
EXTRAS = {
    "plots": ("jinja2", "matplotlib"),
    "profile": PROFILE,
    "serve": (*PROFILE, "waitress"),
    "cluster": ("distributed", "asyncssh"),
    "sweep": ("optuna",),
}


def expect(extra: str, purpose: str) -> None:
    """LabError when a package of the extra is missing. `purpose` is what needs it."""
    missing = [name for name in EXTRAS[extra] if not _is_installed(name)]
    if missing:
        way = f"apt install {' '.join(f'python3-{name}' for name in missing)}"
        if not native.is_systems():
            way = f"pip install 'hakmem[{extra}]'"
        raise LabError(f"{purpose} needs {' and '.join(missing)}: {way}")


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
