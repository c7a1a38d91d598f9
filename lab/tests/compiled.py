"""Small programs and libraries that tests compile for themselves, and what a terminal does to programs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hakmem import ctl

PRINTS = """
#include <stdio.h>
#include <stdlib.h>
int main(void) { char *block = malloc(9); free(block); puts("main"); return 3; }
"""

# Enough of an allocator to be one: never frees, as simple as can be.
OWN_MALLOC = """
#include <stddef.h>
#include <string.h>
static _Alignas(16) char pool[1 << 20];
static size_t used;
SCOPE void *malloc(size_t n) { void *p = pool + used; used += (n + 31) & ~(size_t)15; return p; }
SCOPE void free(void *p) { (void)p; }
SCOPE void *calloc(size_t n, size_t m) { return malloc(n * m); }
SCOPE void *realloc(void *p, size_t n) { void *q = malloc(n); return p ? memcpy(q, p, n) : q; }
"""
EXPORTED = OWN_MALLOC.replace("SCOPE ", "")
HIDDEN = OWN_MALLOC.replace("SCOPE", '__attribute__((visibility("hidden")))')

# What tells a file that has hakmem in it.
NOTED = """
static __attribute__((used)) char landmarks[512];
__asm__(".pushsection .note.hakmem, \\"a\\", %note\\n.balign 4\\n.long 7, 8, 0x68616b31\\n.asciz \\"hakmem\\"\\n"
        ".balign 4\\n.quad landmarks - .\\n.popsection\\n");
"""


def compile_c(output: Path, source: str, *options: str, compiler: str = "cc") -> Path:
    """Skips the test where the compiler can't do that here: no static C library, no sanitizer, no such compiler. The
    test fails where it is the source that doesn't compile."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    done = _compile(output, source, *options, compiler=compiler)
    if done.returncode != 0 and options:
        error = _compile(output, "int main(void) { return 0; }\n", *options, compiler=compiler).stderr
        if error:
            pytest.skip(f"{compiler} {' '.join(options)} does not work here: {error.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return output


def _compile(output: Path, source: str, *options: str, compiler: str) -> subprocess.CompletedProcess[str]:
    file = output.with_name(output.name + ".c")
    file.write_text(source)
    command = [compiler, "-O1", "-fno-builtin", "-o", str(output), str(file), *options]
    return subprocess.run(command, capture_output=True, text=True)


def wait_for_control(pid: int) -> None:
    """Until a process that was started with HAKMEM_CTL=1 has its control thread."""
    for _ in range(15000):
        if ctl.find_channel(pid):
            return
        time.sleep(0.02)
    raise AssertionError(f"process {pid} has no control thread")


def interrupt(group: int, ready: Path, number: int = signal.SIGINT) -> None:
    """Ctrl-C in a terminal (Ctrl-\\ with SIGQUIT), once the program has made the file `ready`."""
    deadline = time.monotonic() + 300
    while not ready.exists():
        assert time.monotonic() < deadline, "the program does not begin"
        time.sleep(0.01)
    os.killpg(group, number)
