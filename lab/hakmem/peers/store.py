"""What is installed: one folder per peer, with its library and a stamp. What has no good stamp is not there.

    NAME/libNAME.so   the library
    NAME/stamp.json   what it is and how it came to be; the last file written into the folder
    logs/NAME.log     every command of the last attempt, with its output
    sources/          archives, as downloaded
    .building/        where a peer is made; moved to NAME/ as a whole when it is done and proved

The root is .peers/ in a checkout, which git ignores, and hakmem/peers in the user's cache for an installed package.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

import msgspec

from hakmem import native, process
from hakmem.errors import LabError
from hakmem.peers.catalogue import PEERS, Peer
from hakmem.peers.sources import Crate, digest


class Stamp(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    version: str
    source: str
    source_sha256: str
    library_sha256: str
    flags: list[str]  # the recipe's; empty for a library that the distribution built
    compiler: str | None
    build_s: float


class State(Enum):
    INSTALLED = "installed"
    MISSING = "not installed"
    OUTDATED = "outdated"  # of another version or source, or built by another recipe
    DAMAGED = "damaged"


def root() -> Path:
    checkout = native.checkout()
    if checkout is not None:
        return checkout / ".peers"
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(cache) if os.path.isabs(cache) else Path.home() / ".cache") / "hakmem" / "peers"


def library(name: str) -> Path:
    return root() / name / f"lib{name}.so"


def log(name: str) -> Path:
    return root() / "logs" / f"{name}.log"


def building(name: str) -> Path:
    return root() / ".building" / name


def stamp(name: str) -> Stamp | None:
    """None when there is none, or none that can be read."""
    try:
        return msgspec.json.decode((root() / name / "stamp.json").read_bytes(), type=Stamp)
    except (OSError, msgspec.DecodeError):
        return None


def state(peer: Peer) -> State:
    found = stamp(peer.name)
    if found is None:
        return State.DAMAGED if (root() / peer.name).exists() else State.MISSING
    if digest(library(peer.name)) != found.library_sha256:
        return State.DAMAGED
    pin = (peer.version, peer.source.sha256) if isinstance(peer.source, Crate) else None
    is_pinned = pin in (None, (found.version, found.source_sha256))
    return State.INSTALLED if is_pinned and found.flags == peer.recipe.words else State.OUTDATED


def installed() -> dict[str, Path]:
    """The libraries of the peers that are there, whole and current, in the catalogue's order."""
    return {name: library(name) for name, peer in PEERS.items() if state(peer) is State.INSTALLED}


def keep(made: Path, built: Path, description: Stamp) -> None:
    """Turns the workshop's folder `made` with the library `built` in it into the installed peer."""
    finished = made / "finished"
    finished.mkdir()
    shutil.copyfile(built, finished / library(description.name).name)
    (finished / "stamp.json").write_bytes(msgspec.json.format(msgspec.json.encode(description)) + b"\n")
    target = root() / description.name
    with process.interrupted_later():
        if target.exists():
            target.rename(made / "replaced")
        finished.rename(target)


@contextmanager
def locked() -> Iterator[None]:
    """One installation at a time; a second one says that it waits."""
    try:
        root().mkdir(parents=True, exist_ok=True)
        file = (root() / "lock").open("w")
    except OSError as error:
        hint = "" if native.checkout() else "; XDG_CACHE_HOME=FOLDER keeps peers elsewhere"
        raise LabError(f"can't write {root()}: {error.strerror}{hint}") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"hakmem: another installation into {root()} is waited for", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
