"""What the machine says of itself and of a process: /proc, /sys and /etc below a root, and which C library there is."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hakmem.errors import LabError

AT_PAGESZ, AT_SECURE = 6, 23


def _glibc() -> tuple[int, int] | None:
    try:
        found = re.match(r"glibc (\d+)\.(\d+)", os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):
        return None
    return (int(found[1]), int(found[2])) if found else None


@dataclass(frozen=True)
class MemoryLimit:
    """The tightest memory limit of the control groups that a process is in."""

    limit_bytes: int
    used_bytes: int
    group: str


DELETED = " (deleted)"  # behind the name of a file that is there no more


@dataclass(frozen=True)
class Mapping:
    executable: bool
    file: str  # empty: none
    span: str  # its addresses, as the kernel writes them


@dataclass(frozen=True)
class Host:
    root: Path = Path("/")
    glibc: tuple[int, int] | None = field(default_factory=_glibc)  # None: another C library

    def text(self, path: str) -> str | None:
        """A file's text without white space around it; None when it isn't there or can't be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        return int(text) if text and text.isdigit() else None

    def process(self, pid: int | None = None) -> HostProcess:
        """This one (None), whose limits are those of what it starts, or another: LabError if it can't be looked at."""
        process = HostProcess(self, "self" if pid is None else str(pid))
        if pid is not None:
            if not (self.root / "proc" / str(pid)).is_dir():
                raise LabError(f"there is no process {pid}")
            if (process.status("State") or "").startswith("Z"):
                raise LabError(f"process {pid} has ended, and waits for its parent")
            if not process.auxiliary():
                raise LabError(f"process {pid} can't be looked at: a kernel's, or another user's")
        return process


@dataclass(frozen=True)
class HostProcess:
    host: Host
    name: str  # its folder in /proc

    def text(self, file: str) -> str:
        return self.host.text(f"proc/{self.name}/{file}") or ""

    def status(self, field_name: str) -> str | None:
        found = re.search(rf"^{field_name}:\s*(.*)$", self.text("status"), re.MULTILINE)
        return found[1] if found else None

    def limit(self, title: str) -> int | None:
        """A soft limit of its own, such as `Max address space`; None: unlimited."""
        found = re.search(rf"^{title}\s+(\d+)", self.text("limits"), re.MULTILINE)
        return int(found[1]) if found else None

    def auxiliary(self) -> dict[int, int]:
        """The auxiliary vector that the kernel gave the program."""
        try:
            words = (self.host.root / "proc" / self.name / "auxv").read_bytes()
        except OSError:
            return {}
        return dict(struct.iter_unpack("NN", words[: len(words) // 16 * 16]))

    def environment(self) -> dict[str, str]:
        pairs = (word.partition("=") for word in self.text("environ").split("\0"))
        return {name: value for name, equals, value in pairs if equals}

    def mappings(self) -> list[Mapping]:
        lines = (line.split(None, 5) for line in self.text("maps").splitlines())
        return [Mapping("x" in words[1], words[5] if len(words) > 5 else "", words[0]) for words in lines]

    def path(self, file: str) -> Path:
        """Where a file that the process knows by this name is to be found from here; also one that was replaced or
        deleted since it was mapped."""
        own = self.host.root / "proc" / self.name
        if file.endswith(DELETED):
            if file == self.executable():
                return own / "exe"
            spans = [mapping.span for mapping in self.mappings() if mapping.executable and mapping.file == file]
            return own / "map_files" / next(iter(spans), "none")
        return own / "root" / file.lstrip("/")

    def executable(self) -> str | None:
        try:
            return os.readlink(self.host.root / "proc" / self.name / "exe")
        except OSError:
            return None

    def memory_limit(self) -> MemoryLimit | None:
        found = list(self._memory_limits())
        return min(found, key=lambda limit: limit.limit_bytes) if found else None

    def _memory_limits(self) -> Iterator[MemoryLimit]:
        """Of its groups in both versions of control groups, and of all the groups around them that it sees: mounts are
        where the process has them, in its container."""
        for mount, version, group in self._memory_groups():
            limit, used = ("max", "current") if version == 2 else ("limit_in_bytes", "usage_in_bytes")
            folder = mount / group
            if not os.path.isdir(self.path(str(folder))):
                folder = mount  # a container that sees its own group as the root
            while folder.is_relative_to(mount):
                limit_bytes = self.host.number(f"proc/{self.name}/root{folder}/memory.{limit}")
                used_bytes = self.host.number(f"proc/{self.name}/root{folder}/memory.{used}")
                if limit_bytes is not None and limit_bytes < 1 << 62:  # above: unlimited, in version 1
                    yield MemoryLimit(limit_bytes, used_bytes or 0, str(folder))
                folder = folder.parent

    def _memory_groups(self) -> Iterator[tuple[Path, int, str]]:
        groups = [line.split(":", 2) for line in self.text("cgroup").splitlines()]
        for line in self.text("mountinfo").splitlines():
            before, _, after = line.partition(" - ")
            kind, _, options = [*after.split(), "", "", ""][:3]
            root, mount = before.split()[3:5]
            for number, controllers, group in groups:
                version = 2 if number == "0" else 1
                if (kind == "cgroup2" and version == 2) or (
                    kind == "cgroup" and "memory" in options.split(",") and "memory" in controllers.split(",")
                ):
                    yield Path(mount), version, os.path.relpath(group, root) if group.startswith(root) else "."
