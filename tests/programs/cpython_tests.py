"""cpython_tests.py: CPython's own regression tests on hakmem, with PYTHONMALLOC=malloc.

    cpython_tests.py --lib LIBRARY [--long] [--jobs N] [MODULE...]

Each module runs in a process of its own, which must prove that it ran on hakmem. A module that doesn't pass is run on
glibc too: only what fails there as well (a sandbox without network, say) is excused, test by test. A crash is excused
by a crash alone. Debian keeps the modules in a package of their own, libpython3.X-testsuite; the interpreters that
python.org, pyenv and others build have them. Without any: exit status 77, "skipped"."""
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, FrozenSet, Optional, Sequence

from on_hakmem import GLIBC, SKIPPED, Allocator, Failure, LabError, count, ending, hakmem, process, programs

# What one Python version lacks or calls by another name is left out.
MODULES = """test_array test_bytes test_collections test_deque test_dict test_float test_gc test_generators test_io
    test_json test_list test_long test_memoryview test_pickle test_re test_set test_sort test_sqlite3 test_str
    test_string test_struct test_subprocess test_thread test_threading test_tuple test_unicode test_weakref
    test_xml_etree test_xml_etree_c test_zlib""".split()
LONG_MODULES = MODULES + """test_ast test_bigmem test_binascii test_builtin test_bz2 test_capi test_class test_cmath
    test_codecs test_compile test_complex test_concurrent_futures test_configparser test_copy test_coroutines
    test_csv test_ctypes test_dataclasses test_datetime test_decimal test_deepcopy test_descr test_difflib
    test_email test_enum test_exceptions test_faulthandler test_fork1 test_format test_fractions test_fstring
    test_functools test_grammar test_hashlib test_heapq test_importlib test_inspect test_itertools test_logging
    test_lzma test_mailbox test_marshal test_math test_minidom test_mmap test_multiprocessing_fork
    test_multiprocessing_spawn test_optparse test_ordered_dict test_os test_pickletools test_pprint test_pyexpat
    test_queue test_random test_richcmp test_sax test_shelve test_signal test_slice test_statistics test_sys
    test_tarfile test_tempfile test_threadedtempfile test_threading_local test_threadsignals test_tokenize
    test_traceback test_typing test_unittest test_userdict test_warnings test_weakset test_zipfile""".split()
TIMEOUT_S, LONG_TIMEOUT_S = 1200, 3600


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    passed: bool
    failed: FrozenSet[str]  # names of single tests
    last_lines: str


def read_outcome(run: process.Run) -> Outcome:
    text = (run.stdout + run.stderr).decode(errors="replace")
    return Outcome(run.status, run.status == 0 and re.search(r"^(All )?1 test OK\.", text, re.MULTILINE) is not None,
                   frozenset(re.findall(r"^(?:FAIL|ERROR): (.+)$", text, re.MULTILINE)), text.strip()[-3000:])


def judge(hakmem: Outcome, glibc: Optional[Outcome]) -> str:
    """The verdict on one module in a few words; raises Failure where hakmem alone is wrong."""
    if hakmem.passed:
        return "passed"
    if glibc is None or glibc.passed:
        raise Failure(f"{ending(hakmem.status)}, passes on glibc\n{hakmem.last_lines}")
    if hakmem.status < 0 and hakmem.status != glibc.status:
        raise Failure(f"{ending(hakmem.status)}, on glibc {ending(glibc.status)}\n{hakmem.last_lines}")
    if hakmem.failed - glibc.failed:
        names = ", ".join(sorted(hakmem.failed - glibc.failed))
        raise Failure(f"fails on hakmem only: {names}\n{hakmem.last_lines}")
    if hakmem.status != glibc.status:
        raise Failure(f"{ending(hakmem.status)}, on glibc {ending(glibc.status)}\n{hakmem.last_lines}")
    return (f"excused: on glibc too {ending(glibc.status)}"
            + (f", {count(len(hakmem.failed), 'test')} fail" if hakmem.failed else ", no test runs"))


def run_module(python: str, module: str, own: Allocator, timeout_s: float) -> str:
    """Takeover is proved by process.run: the interpreter's own malloc must be the library's."""
    command = [python, "-m", "test", "-v", module]
    with tempfile.TemporaryDirectory() as home:
        environment = {**programs.environment(Path(home)), "LC_ALL": "C.UTF-8"}

        def run(allocator: Allocator) -> process.Run:
            return process.run(command, allocator, environment=environment, timeout_s=timeout_s, cwd=Path(home))

        done = run(own)
        if not done.processes:
            raise Failure(f"takeover not proved: {ending(done.status)}")
        outcome = read_outcome(done)
        glibc = None if outcome.passed else read_outcome(run(GLIBC))
    return judge(outcome, glibc) + f", {done.wall_s:.1f} s"


def find_modules(modules: Sequence[str]) -> Dict[str, str]:
    """The first interpreter that has the module, for each module that one has."""
    ask = ("import importlib.util as u, sys, test.libregrtest; print(sys.executable, "
           "*[m for m in sys.argv[1:] if u.find_spec('test.' + m)])")
    found: Dict[str, str] = {}
    for candidate in (programs.PYTHON, sys.executable, "python3"):
        done = subprocess.run([candidate, "-c", ask, *modules], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True)
        if done.returncode == 0:
            python, *names = done.stdout.split()
            found.update({name: python for name in names if name not in found})
    return {name: found[name] for name in modules if name in found}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("--long", action="store_true", help="many more modules")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1))
    parser.add_argument("modules", nargs="*")
    arguments = parser.parse_args()
    modules = find_modules(arguments.modules or (LONG_MODULES if arguments.long else MODULES))
    if not modules:
        version = subprocess.run([programs.PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                 stdout=subprocess.PIPE, text=True).stdout.strip()
        print(f"skipped: no Python here has its tests (Debian's package libpython{version}-testsuite)")
        return SKIPPED
    timeout_s, failures = LONG_TIMEOUT_S if arguments.long else TIMEOUT_S, 0
    own = hakmem(arguments.lib)
    print(f"{count(len(modules), 'module')} of {', '.join(sorted(set(modules.values())))} on {own.library}", flush=True)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        jobs = {pool.submit(run_module, python, name, own, timeout_s): name for name, python in modules.items()}
        for job in concurrent.futures.as_completed(jobs):
            try:
                outcome = job.result()
            except LabError as failure:
                failures, outcome = failures + 1, f"FAILED: {failure}"
            print(f"{jobs[job]}: {outcome}", flush=True)
    if failures:
        print(f"FAILED: {failures} of {count(len(modules), 'module')}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
