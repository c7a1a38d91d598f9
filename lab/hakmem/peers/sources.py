"""Where peers come from: crates of crates.io, which carry the original sources, and packages of the distribution.

A crate is pinned: its version and the SHA-256 of its archive are the catalogue's, and no other archive is ever opened.
Archives are kept in one folder, the shelf, so that a second build downloads nothing. Where cargo is installed it does
the download, as it knows which registry, mirror or proxy this machine is to use; elsewhere crates.io is asked
directly. A distribution's package is whatever version the distribution has, vouched for by apt's signed index; it is
unpacked, not installed, which needs no root and pulls in nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from hakmem.errors import LabError
from hakmem.peers.workshop import Workshop

CRATES = "https://crates.io/api/v1/crates"
AGENT = "hakmem-peers (an allocator's benchmark suite)"  # crates.io refuses requests that don't say what they are
TIMEOUT_S = 60


@dataclass(frozen=True)
class Delivery:
    """Sources or a built library, unpacked."""

    folder: Path
    source: str  # as a person would name it
    sha256: str  # of the archive
    version: str | None = None  # None: the catalogue's


@dataclass(frozen=True)
class Crate:
    name: str
    version: str
    sha256: str

    @property
    def label(self) -> str:
        return f"crate {self.name} {self.version.partition('+')[0]}"

    @property
    def file(self) -> str:
        return f"{self.name}-{self.version}.crate"

    def deliver(self, shelf: Path, workshop: Workshop, site: str = CRATES) -> Delivery:
        archive = self.fetch(shelf, workshop, site)
        with tarfile.open(archive) as tar:
            tar.extraction_filter = getattr(
                tarfile, "data_filter", None
            )  # older libraries have none; it's checked anyway
            tar.extractall(workshop.folder)
        return Delivery(workshop.folder / f"{self.name}-{self.version}", self.label, self.sha256)

    def fetch(self, shelf: Path, workshop: Workshop, site: str = CRATES) -> Path:
        """The archive on the shelf, put there if it isn't: from cargo's cache, by cargo, or from `site`."""
        kept = shelf / self.file
        if digest(kept) == self.sha256:
            return kept
        shelf.mkdir(parents=True, exist_ok=True)
        found = self._in_cargo() or (self._by_cargo(workshop) if shutil.which("cargo") else None)
        fresh = workshop.folder / self.file
        if found:
            shutil.copyfile(found, fresh)
        else:
            _download(f"{site}/{quote(self.name)}/{quote(self.version)}/download", fresh)
        got = digest(fresh)
        if got != self.sha256:
            raise LabError(f"{self.file} has SHA-256 {got}, expected {self.sha256}: refused")
        fresh.replace(kept)
        return kept

    def _in_cargo(self) -> Path | None:
        home = Path(os.environ.get("CARGO_HOME") or Path.home() / ".cargo")
        archives = (home / "registry" / "cache").glob(f"*/{self.file}")
        return next((path for path in archives if digest(path) == self.sha256), None)

    def _by_cargo(self, workshop: Workshop) -> Path | None:
        """Has cargo fetch a package that depends on this crate and nothing else; what it says is in the log."""
        folder = workshop.folder / "fetch"
        folder.mkdir()
        (folder / "lib.rs").touch()
        (folder / "Cargo.toml").write_text(
            '[package]\nname = "fetch"\nversion = "0.0.0"\n[lib]\npath = "lib.rs"\n'
            f'[dependencies]\n{self.name} = "={self.version.partition("+")[0]}"\n'
        )
        manifest = str(folder / "Cargo.toml")
        return self._in_cargo() if workshop.succeeds("cargo", "fetch", "--manifest-path", manifest) else None


@dataclass(frozen=True)
class DistributionPackage:
    names: tuple[str, ...]  # in different releases; the first that this one has

    @property
    def label(self) -> str:
        return f"package {self.names[0]}"

    def deliver(self, shelf: Path, workshop: Workshop) -> Delivery:
        if shutil.which("apt-get") is None:
            raise LabError(f"{self.names[0]} is a package of Debian and Ubuntu, and there is no apt-get here")
        archive = self._download(workshop)
        if archive is None:
            _update_lists(self.names[0], workshop)
            archive = self._download(workshop)
        if archive is None:
            raise LabError(f"apt-get can't download {' or '.join(self.names)}")
        version = workshop.run("dpkg-deb", "--field", str(archive), "Version").strip()
        folder = workshop.folder / "package"
        workshop.run("dpkg-deb", "--extract", str(archive), str(folder))
        label = f"package {archive.name.partition('_')[0]} {version}"
        return Delivery(folder, label, digest(archive) or "", upstream(version))

    def _download(self, workshop: Workshop) -> Path | None:
        for name in self.names:
            if workshop.succeeds("apt-get", "download", name):
                return next(workshop.folder.glob(f"{name}_*.deb"), None)
        return None


def _update_lists(package: str, workshop: Workshop) -> None:
    """Brings apt's lists up to date, which only root may do."""
    is_root = os.geteuid() == 0
    if not is_root and not (shutil.which("sudo") and workshop.succeeds("sudo", "-n", "true")):
        raise LabError(f"apt-get can't download {package}; type: sudo apt-get update")
    workshop.run(*([] if is_root else ["sudo", "-n"]), "apt-get", "update")


def upstream(version: str) -> str:
    """The upstream part of a Debian version: 19.1.7 of 1:19.1.7-3~deb12u1, 2.0.9 of 2.0.9+ds-2."""
    without_epoch = version.partition(":")[2] or version
    return (without_epoch.rpartition("-")[0] or without_epoch).partition("+")[0]


def digest(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def _download(address: str, path: Path) -> None:
    request = urllib.request.Request(address, headers={"User-Agent": AGENT})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file)
    except OSError as error:
        raise LabError(f"can't download {address}: {error}") from None
