"""Tests of what units.py runs programs under: each setting refuses what it says, and nothing more.

    test_seccomp.py CONFINED

CONFINED is the program that tests/programs/confined.c becomes.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import seccomp
import units
from on_hakmem import SKIPPED, LabError

# Makes the system calls that its arguments say, numbers with commas between, and prints for each its errno or 0.
CALLS = """
import ctypes, sys
call = ctypes.CDLL(None, use_errno=True).syscall
for words in sys.argv[1:]:
    found = call(*(ctypes.c_long(int(word)) for word in words.split(",")))
    print(ctypes.get_errno() if found == -1 else 0, flush=True)
"""
CLONE_NEWUSER, SCHED_FIFO, AF_PACKET, AF_UNIX = 0x10000000, 1, 17, 1
PRIVATE, READ, WRITE, EXECUTE = 0x22, 1, 2, 4
confined = Path()


def under(text: str, *calls: tuple[Any, ...]) -> tuple[int, list[int]]:
    """How a program ended under these settings and what its calls gave. Of one that died, those before."""
    with tempfile.TemporaryDirectory() as folder:
        before = units.confinement(units.settings_of(text), confined, confined, Path(folder))
        words = [",".join([str(seccomp.numbers()[name]), *map(str, values)]) for name, *values in calls]
        done = subprocess.run([*before, sys.executable, "-S", "-c", CALLS, *words], capture_output=True, text=True)
        return done.returncode, [int(line) for line in done.stdout.split()]


class Refusals(unittest.TestCase):
    def refused(self, text: str, *calls: tuple[Any, ...], by: int = errno.EPERM) -> None:
        """Exactly when that setting is on. A filter needs rights to make one, or none to gain."""
        self.assertEqual(under(f"NoNewPrivileges=yes\n{text}", *calls), (0, [by] * len(calls)))

    def allowed(self, text: str, *calls: tuple[Any, ...]) -> None:
        self.assertEqual(under(f"NoNewPrivileges=yes\n{text}", *calls), (0, [0] * len(calls)))

    def dies(self, text: str, *calls: tuple[Any, ...]) -> None:
        """At the last of these."""
        self.assertEqual(under(f"NoNewPrivileges=yes\n{text}", *calls), (-signal.SIGSYS, [0] * (len(calls) - 1)))

    def test_outside_of_the_list(self) -> None:
        mincore = ("mincore", 0, 0, 0)
        self.dies("SystemCallFilter=@system-service", ("getpid",), mincore)
        self.allowed("SystemCallFilter=@system-service mincore", mincore)
        self.allowed("SystemCallFilter=@system-service\nSystemCallFilter=mincore", mincore)
        self.allowed("", mincore)

    def test_taken_out_of_the_list(self) -> None:
        nice = ("setpriority", 0, 0, 0)
        self.allowed("SystemCallFilter=@system-service", nice)
        self.dies("SystemCallFilter=@system-service\nSystemCallFilter=~ @privileged @resources", ("getpid",), nice)

    def test_list_of_what_is_forbidden(self) -> None:
        self.dies("SystemCallFilter=~@debug", ("mincore", 0, 0, 0), ("ptrace", 0, 0, 0, 0))

    def test_calls_of_the_x32_kind(self) -> None:
        if os.uname().machine == "x86_64":
            with unittest.mock.patch.dict(seccomp.numbers(), {"x32": 0x40000000 + seccomp.numbers()["getpid"]}):
                self.dies("SystemCallFilter=@system-service", ("getpid",), ("x32",))

    def test_memory_that_is_written_and_executed(self) -> None:
        text = "MemoryDenyWriteExecute=yes"
        self.refused(text, ("mmap", 0, 4096, WRITE | EXECUTE, PRIVATE, -1, 0))
        self.allowed(
            text, ("mmap", 0, 4096, READ | WRITE, PRIVATE, -1, 0), ("mmap", 0, 4096, READ | EXECUTE, PRIVATE, -1, 0)
        )
        address = 0x10000000000
        at = ("mmap", address, 4096, READ | WRITE, PRIVATE | 0x10, -1, 0)
        self.assertEqual(
            under(f"NoNewPrivileges=yes\n{text}", at, ("mprotect", address, 4096, READ | EXECUTE))[1][1], errno.EPERM
        )
        self.assertEqual(under("NoNewPrivileges=yes", at, ("mprotect", address, 4096, READ | EXECUTE))[1][1], 0)

    def test_namespaces(self) -> None:
        self.refused(
            "RestrictNamespaces=yes", ("unshare", CLONE_NEWUSER), ("clone", CLONE_NEWUSER, 0, 0, 0, 0), ("setns", -1, 0)
        )
        self.allowed("RestrictNamespaces=yes", ("unshare", 0))

    def test_realtime(self) -> None:
        self.refused("RestrictRealtime=yes", ("sched_setscheduler", 0, SCHED_FIFO, 0))
        self.refused("RestrictRealtime=yes", ("sched_setscheduler", 0, 0, 0), by=errno.EINVAL)

    def test_personality(self) -> None:
        self.refused("LockPersonality=yes", ("personality", 8))
        self.allowed("LockPersonality=yes", ("personality", 0))

    def test_families_of_addresses(self) -> None:
        text = "RestrictAddressFamilies=AF_INET AF_UNIX"
        self.refused(text, ("socket", AF_PACKET, 1, 0), by=errno.EAFNOSUPPORT)
        self.allowed(text, ("socket", AF_UNIX, 1, 0))

    def test_groups_with_an_error(self) -> None:
        self.refused("ProtectHostname=yes", ("sethostname", 0, -1))
        self.refused("ProtectKernelModules=yes", ("delete_module", 0, 0))

    def test_limits(self) -> None:
        mapping = ("mmap", 0, 2 << 30, 0, PRIVATE, -1, 0)
        self.refused("LimitAS=1G", mapping, by=errno.ENOMEM)
        self.allowed("", mapping)


class Translation(unittest.TestCase):
    def test_units(self) -> None:
        redis = units.settings_of(units.REDIS)
        self.assertEqual(redis["SystemCallFilter"], ["@system-service", "~ @privileged @resources"])
        self.assertEqual(len(seccomp.allowed_calls(redis["SystemCallFilter"]) or ()), 345)
        self.assertEqual(len(seccomp.allowed_calls(["@system-service"]) or ()), 376)

    def test_the_unit_that_is_installed(self) -> None:
        text = "[Unit]\nUser=no\n[Service]\n# LimitAS=1\nLimitAS=2G\nUMask=7\nUser=redis\n\n[Install]\nUser=no\n"
        with tempfile.TemporaryDirectory() as folder, unittest.mock.patch.object(units, "FOLDERS", (folder,)):
            self.assertEqual(len(list(units.settings_to_try("redis"))), 2)
            Path(folder, "redis-server.service").write_text(text)
            (_, kept), (title, here), _ = units.settings_to_try("redis")
        self.assertEqual(
            (title, here),
            ("redis-server.service as it is installed", {"LimitAS": ["2G"], "UMask": ["7"], "User": ["redis"]}),
        )
        self.assertEqual(units.translated(here), {"LimitAS": ["2G"], "User": ["redis"]})
        self.assertIn("SystemCallFilter", kept)

    def test_what_cannot_be_translated_is_said(self) -> None:
        for text in ("SystemCallFilter=@no-such-group", "RestrictNamespaces=user", "RestrictAddressFamilies=~AF_UNIX"):
            with self.assertRaises(LabError, msg=text):
                seccomp.program(units.settings_of(text))

    def test_sizes(self) -> None:
        self.assertEqual([units.size(text) for text in ("7", "2K", "1G")], [7, 2048, 1 << 30])
        with self.assertRaises(LabError):
            units.size("infinite")


if __name__ == "__main__":
    if not seccomp.is_known_machine():
        print("skipped: no seccomp here, or system calls of an architecture that are not known")
        sys.exit(SKIPPED)
    confined = Path(sys.argv.pop(1)).resolve()
    unittest.main()
