"""The allocators that hakmem is measured against: Debian's and Ubuntu's packages, found or installed.

Owns: which peers there are, where their libraries lie, and the command that installs them. As root, or where sudo asks
no password, the command is run; elsewhere it is printed for the user to type.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LIBRARY_FOLDERS = ("usr/lib/*", "usr/lib", "usr/lib64", "usr/local/lib")


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


class MissingPeers(Exception):
    """Says what to type."""


@dataclass(frozen=True)
class Peer:
    name: str
    library: str
    packages: tuple[str, ...]  # names in different releases; the first that exists

    def find(self) -> Path | None:
        found = (path for folder in LIBRARY_FOLDERS for path in sorted(Path("/").glob(f"{folder}/{self.library}")))
        return next((path.resolve() for path in found if path.is_file()), None)

    def package(self) -> str:
        known = (name for name in self.packages if shutil.which("apt-cache") and succeeds("apt-cache", "show", name))
        return next(known, self.packages[0])


PEERS = (
    Peer("mimalloc", "libmimalloc.so.2", ("libmimalloc2.0",)),
    Peer("jemalloc", "libjemalloc.so.2", ("libjemalloc2",)),
    Peer("tcmalloc", "libtcmalloc_minimal.so.4", ("libtcmalloc-minimal4", "libtcmalloc-minimal4t64")),
)


def privilege() -> list[str] | None:
    """The words before a command that root must run; None when there are none that need no password."""
    if os.geteuid() == 0:
        return []
    if shutil.which("sudo") and succeeds("sudo", "-n", "true"):
        return ["sudo", "-n"]
    return None


def install(peers: list[Peer]) -> None:
    packages = [peer.package() for peer in peers]
    words = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends", *packages]
    prefix = privilege()
    if prefix is None or not shutil.which("apt-get"):
        names = ", ".join(peer.name for peer in peers)
        raise MissingPeers(f"to measure against {names}, type:\n\n  sudo apt-get install -y {' '.join(packages)}")
    if not succeeds(*prefix, *words):
        succeeds(*prefix, "apt-get", "update")
        subprocess.run([*prefix, *words], stdout=sys.stderr)


def ensure() -> dict[str, Path]:
    """Each peer's library by name, all of them."""
    missing = [peer for peer in PEERS if peer.find() is None]
    if missing:
        install(missing)
    libraries: dict[str, Path] = {}
    for peer in PEERS:
        path = peer.find()
        if path is None:
            raise MissingPeers(f"{peer.library} (package {peer.package()}) is not there and could not be installed")
        libraries[peer.name] = path
    return libraries
