"""What a figure's reader has to know of the machine it was measured on."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import msgspec


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Facts at the start of a measurement. None: the machine doesn't tell."""

    cpu: str
    architecture: str
    cores: int
    cpu_mhz: float | None
    governor: str | None
    memory_bytes: int | None
    page_bytes: int
    kernel: str
    libc: str
    transparent_hugepage: str | None
    load: tuple[float, float, float]


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def _field(path: str, pattern: str) -> str | None:
    found = re.search(pattern, _text(path) or "", re.MULTILINE)
    return found[1] if found else None


def facts() -> Machine:
    mhz = _field("/proc/cpuinfo", r"^cpu MHz\s*:\s*([0-9.]+)$")
    memory_kib = _field("/proc/meminfo", r"^MemTotal:\s+(\d+) kB$")
    choice = _field("/sys/kernel/mm/transparent_hugepage/enabled", r"\[(\w+)\]")
    return Machine(
        cpu=_field("/proc/cpuinfo", r"^model name\s*:\s*(.+)$") or platform.machine(),
        architecture=platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        cpu_mhz=float(mhz) if mhz else None,
        governor=_text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        memory_bytes=int(memory_kib) * 1024 if memory_kib else None,
        page_bytes=os.sysconf("SC_PAGE_SIZE"),
        kernel=platform.release(),
        libc=" ".join(part for part in platform.libc_ver() if part) or "unknown",
        transparent_hugepage=choice,
        load=os.getloadavg(),
    )
