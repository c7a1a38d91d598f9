"""A tracer that attaches to otel_memory:alloc switches the heap profile on, and off when it detaches. The tracer here
does by hand what the kernel does for an eBPF program: it reads the library's notes, and counts in the semaphore."""

from __future__ import annotations

import contextlib
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from compiled import compile_c, wait_for_control
from elftools.elf.elffile import ELFFile
from hakmem import ctl, native
from hakmem.errors import LabError

SOURCE = """
#include <stdio.h>
#include <stdlib.h>
static void *blocks[20000];
int main(void) {
    setvbuf(stdin, NULL, _IONBF, 0);
    do {
        for (int i = 0; i < 20000; i++) blocks[i] = malloc(1000);
        for (int i = 0; i < 20000; i++) free(blocks[i]);
        puts("done");
        fflush(stdout);
    } while (getchar() >= 0);
}
"""


def semaphore_of(probe: str) -> int:
    """Its address in the library's file. A note has the addresses of the probe, of the base and of the semaphore, then
    provider, name and arguments."""
    with open(native.library(), "rb") as file:
        elf = ELFFile(file)
        notes = elf.get_section_by_name(".note.stapsdt").data()
        base = elf.get_section_by_name(".stapsdt.base")["sh_addr"]
        at = 0
        while at < len(notes):
            owner, size, _ = struct.unpack_from("<III", notes, at)
            at += 12 + (owner + 3) // 4 * 4
            _, link_base, semaphore = struct.unpack_from("<QQQ", notes, at)
            provider, name = notes[at + 24 : at + size].split(b"\0")[:2]
            if (provider, name) == (b"otel_memory", probe.encode()):
                return int(semaphore + base - link_base)
            at += (size + 3) // 4 * 4
    raise AssertionError(f"no probe {probe}")


def count(pid: int, change: int) -> None:
    """As the kernel does when a tracer comes or goes."""
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    start = next(int(line.split("-")[0], 16) for line in lines if "libhakmem.so" in line)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(start + semaphore_of("alloc"))
        (before,) = struct.unpack("<H", memory.read(2))
        memory.seek(start + semaphore_of("alloc"))
        memory.write(struct.pack("<H", before + change))


@contextlib.contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    environment = {"LD_PRELOAD": str(native.library()), "HAKMEM_CTL": "1"}
    program = compile_c(folder / "program", SOURCE)
    with subprocess.Popen(
        [program], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as child:
        try:
            assert child.stdout and child.stdout.readline() == b"done\n"
            wait_for_control(child.pid)
            yield child
        finally:
            child.kill()


def interval_after_work(child: subprocess.Popen[bytes]) -> int:
    """0: the profile is off."""
    assert child.stdin and child.stdout
    child.stdin.write(b"\n")
    assert child.stdout.readline() == b"done\n"
    lines = ctl.ask(child.pid, "profile dump").splitlines()
    if "is_off" in lines:
        return 0
    return next(int(line.split()[1]) for line in lines if line.startswith("interval_bytes"))


def test_attaching_begins_and_detaching_ends(tmp_path: Path) -> None:
    with running(tmp_path) as child:
        with pytest.raises(LabError, match="there never was a profile"):
            interval_after_work(child)
        count(child.pid, 1)
        assert interval_after_work(child) == 512 << 10
        count(child.pid, 1)
        count(child.pid, -1)  # one of two
        assert interval_after_work(child) == 512 << 10
        assert "\nsite " in ctl.ask(child.pid, "profile dump")
        count(child.pid, -1)
        assert interval_after_work(child) == 0


def test_what_was_asked_for_otherwise_stays(tmp_path: Path) -> None:
    with running(tmp_path) as child:
        ctl.ask(child.pid, "profile on 4K")
        count(child.pid, 1)
        assert interval_after_work(child) == 4096
        count(child.pid, -1)
        assert interval_after_work(child) == 4096
