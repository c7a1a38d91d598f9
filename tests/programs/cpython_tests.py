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
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, FrozenSet, Optional, Sequence

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import demo

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
TIMEOUT_S, LONG_TIMEOUT_S = 120, 900
ALLOCATIONS = 10_000  # of the main process; each makes a hundred times more


@dataclasses.dataclass(frozen=True)
class Outcome:
    status: int
    passed: bool
    failed: FrozenSet[str]  # names of single tests
    last_lines: str


def read_outcome(run: demo.Run) -> Outcome:
    text = (run.outputs["stdout"] + run.outputs["stderr"]).decode(errors="replace")
    return Outcome(run.status, run.status == 0 and re.search(r"^(All )?1 test OK\.", text, re.MULTILINE) is not None,
                   frozenset(re.findall(r"^(?:FAIL|ERROR): (.+)$", text, re.MULTILINE)), text.strip()[-3000:])


def judge(hakmem: Outcome, glibc: Optional[Outcome]) -> str:
    """The verdict on one module in a few words; raises Failure where hakmem alone is wrong."""
    if hakmem.passed:
        return "passed"
    if glibc is None or glibc.passed:
        raise demo.Failure(f"{demo.ending(hakmem.status)}, passes on glibc\n{hakmem.last_lines}")
    if hakmem.status < 0 and hakmem.status != glibc.status:
        raise demo.Failure(f"{demo.ending(hakmem.status)}, on glibc {demo.ending(glibc.status)}\n{hakmem.last_lines}")
    if hakmem.failed - glibc.failed:
        names = ", ".join(sorted(hakmem.failed - glibc.failed))
        raise demo.Failure(f"fails on hakmem only: {names}\n{hakmem.last_lines}")
    if hakmem.status != glibc.status:
        raise demo.Failure(f"{demo.ending(hakmem.status)}, on glibc {demo.ending(glibc.status)}\n{hakmem.last_lines}")
    return (f"excused: on glibc too {demo.ending(glibc.status)}"
            + (f", {demo.count(len(hakmem.failed), 'test')} fail" if hakmem.failed else ", no test runs"))


def run_module(runner: demo.Runner, python: str, module: str, library: str, timeout_s: float) -> str:
    command = [python, "-m", "test", "-v", module]
    settings = {"PYTHONMALLOC": "malloc", "LC_ALL": "C.UTF-8"}
    with tempfile.TemporaryDirectory(prefix="proof-", dir=runner.work) as reports:
        # One process's statistics: children that a test kills may leave half a report.
        run = runner.run(command, library, {**settings, "HAKMEM_STATS": f"json:{reports}/%p.json"}, timeout_s)
        outcome = read_outcome(run)
        if run.status >= 0 and demo.read_report(Path(reports) / f"{run.pid}.json").allocations < ALLOCATIONS:
            raise demo.Failure(f"takeover not proved: fewer than {ALLOCATIONS} allocations on hakmem")
    glibc = None if outcome.passed else read_outcome(runner.run(command, "", settings, timeout_s))
    return judge(outcome, glibc) + f", {run.wall_s:.1f} s"


def find_modules(modules: Sequence[str]) -> Dict[str, str]:
    """The first interpreter that has the module, for each module that one has."""
    ask = ("import importlib.util as u, sys, test.libregrtest; print(sys.executable, "
           "*[m for m in sys.argv[1:] if u.find_spec('test.' + m)])")
    found: Dict[str, str] = {}
    for candidate in (demo.PYTHON, sys.executable, "python3"):
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    modules = find_modules(arguments.modules or (LONG_MODULES if arguments.long else MODULES))
    if not modules:
        version = subprocess.run([demo.PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                 stdout=subprocess.PIPE, text=True).stdout.strip()
        print(f"skipped: no Python here has its tests (apt-get install libpython{version}-testsuite)")
        return demo.NOTHING_TO_RUN
    timeout_s, failures = LONG_TIMEOUT_S if arguments.long else TIMEOUT_S, 0
    try:
        with demo.new_runner() as runner:
            library = demo.find_library(arguments.lib, runner.work)
            print(f"{demo.count(len(modules), 'module')} of {', '.join(sorted(set(modules.values())))} "
                  f"on hakmem {demo.read_version(runner, library)}", flush=True)
            with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
                try:
                    jobs = {pool.submit(run_module, runner, python, name, library, timeout_s): name
                            for name, python in modules.items()}
                    for job in concurrent.futures.as_completed(jobs):
                        try:
                            outcome = job.result()
                        except demo.Failure as failure:
                            failures, outcome = failures + 1, f"FAILED: {failure}"
                        print(f"{jobs[job]}: {outcome}", flush=True)
                except BaseException:
                    runner.close()
                    raise
    except demo.Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    if failures:
        print(f"FAILED: {failures} of {demo.count(len(modules), 'module')}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
