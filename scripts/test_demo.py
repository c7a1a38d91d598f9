"""Tests of demo.py: its judgements on fabricated runs, then whole demos under a library that stands in for hakmem:
glibc's allocator with a counter, and the same with one fault each. Run: python3 -m unittest discover -s scripts"""
from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path
from typing import List, Tuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import demo

DOUBLE = r"""
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void __libc_free(void *);
static atomic_long allocations;
void *malloc(size_t size) { allocations++; return __libc_malloc(size); }
void *calloc(size_t count, size_t size) { allocations++; return __libc_calloc(count, size); }
void *realloc(void *block, size_t size) { allocations++; return __libc_realloc(block, size); }
void free(void *block) { __libc_free(block); }
size_t malloc_usable_size(void *block) {
    static size_t (*glibc)(void *);
    if (!glibc) glibc = (size_t (*)(void *))dlsym(dlopen("libc.so.6", RTLD_LAZY), "malloc_usable_size");
    return glibc(block);
}
const char *hak_version(void) { return "0.1.0"; }
__attribute__((constructor)) static void start(void) {
#ifdef NOISY
    write(1, "hello\n", 6);
#endif
#ifdef CRASHES
    if (!getenv("HAKMEM_STATS")) abort();
#endif
}
__attribute__((destructor)) static void stop(void) {
    const char *target = getenv("HAKMEM_STATS");
#ifdef MUTE
    return;
#endif
    if (target && strncmp(target, "json:", 5) == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%.*s%d.json", (int)(strstr(target, "%p") - target - 5), target + 5, getpid());
        FILE *file = fopen(path, "w");
        if (!file) return;
        fprintf(file, "{\"hakmem\": \"0.1.0\", \"pid\": %d, \"allocations\": %ld}\n", getpid(), (long)allocations);
        fclose(file);
    }
}
"""


def build_double(folder: Path, fault: str = "") -> Path:
    library = folder / f"lib{fault.lower()}.so"
    source = folder / "double.c"
    source.write_text(DOUBLE)
    flags = [f"-D{fault}"] if fault else []
    compile = ["cc", "-w", "-O1", "-fPIC", "-shared", "-fno-builtin-malloc", *flags]
    subprocess.run([*compile, "-o", str(library), str(source)], check=True)
    return library


def python_program(code: str, **changes: object) -> demo.Program:
    fields = dict(name="sample", package="python3", needs=((demo.PYTHON,),), command=("{exe}", "-c", code),
                  allocations=100)
    return demo.Program(**{**fields, **changes})  # type: ignore[arg-type]


def finished(stdout: bytes = b"", status: int = 0, stderr: bytes = b"", wall_s: float = 1.0) -> demo.Run:
    return demo.Run(1, status, wall_s, wall_s, 10.0, 100, {"stdout": stdout, "stderr": stderr})


class Difference(unittest.TestCase):
    def test_equal(self) -> None:
        self.assertIsNone(demo.first_difference(b"a\nb\n", b"a\nb\n"))

    def test_line_is_named(self) -> None:
        told = demo.first_difference(b"a\nb\nc\n", b"a\nB\nc\n")
        self.assertTrue(told and told.startswith("line 2\n"), told)
        self.assertIn("'b\\n'", told or "")
        self.assertIn("'B\\n'", told or "")

    def test_shorter_longer_and_last_newline(self) -> None:
        for expected, actual, line in ((b"a\nb\n", b"a\n", 2), (b"", b"x", 1), (b"a\n", b"a", 1)):
            self.assertIn(f"line {line}\n", demo.first_difference(expected, actual) or "")


class Check(unittest.TestCase):
    def fails(self, run: demo.Run, words: str) -> None:
        with self.assertRaisesRegex(demo.Failure, words):
            demo.check(finished(b"one\n"), run)

    def test_identical(self) -> None:
        demo.check(finished(b"one\n"), finished(b"one\n", wall_s=9.0))

    def test_every_output_counts(self) -> None:
        self.fails(finished(b"two\n"), "stdout differs from glibc's at line 1")
        self.fails(finished(b"one\n", stderr=b"?"), "stderr differs")
        self.fails(finished(b"one\n", status=3), "exit status 3, expected exit status 0")
        self.fails(finished(b"one\n", status=-signal.SIGSEGV, stderr=b"x\nlast"), "killed by SIGSEGV, .*: last")

    def test_files_count(self) -> None:
        reference, run = finished(), finished()
        reference.outputs["a.o"], run.outputs["a.o"] = b"\x7fELF", b""
        with self.assertRaisesRegex(demo.Failure, "a.o differs"):
            demo.check(reference, run)

    def test_preload_that_failed(self) -> None:
        line = b"ERROR: ld.so: object 'x.so' from LD_PRELOAD cannot be preloaded (cannot open ...): ignored.\n"
        self.fails(finished(b"one\n", stderr=line), "ran on glibc")

    def test_filter_makes_equal(self) -> None:
        demo.check(finished(b"pid 12"), finished(b"pid 345"), lambda text: text[:3])

    def test_redis_filter(self) -> None:
        keep = next(program for program in demo.programs() if program.name == "redis").stdout_filter
        assert keep
        first = b"123:C 21 Nov 2025 21:45:01.123 # Redis is starting\n123:M 21 Nov 2025 21:45:01.124 * port=4000.\n"
        other = b"99:C 01 Dec 2025 00:00:00.001 # Redis is starting\n99:M 01 Dec 2025 00:00:00.002 * port=51234.\n"
        self.assertEqual(keep(first), keep(other))
        self.assertNotEqual(keep(first), keep(other.replace(b"starting", b"failing")))


class Proof(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def report(self, pid: int, allocations: object = 50, name: str = "", **changes: object) -> None:
        text = json.dumps({"hakmem": "0.1.0", "pid": pid, "allocations": allocations, **changes})
        (self.folder / f"{name or pid}.json").write_text(text)

    def refused(self, words: str, main: int = 7, **wanted: int) -> None:
        with self.assertRaisesRegex(demo.Failure, f"takeover not proved: .*{words}"):
            demo.read_proof(self.folder, main, **wanted)

    def test_proved(self) -> None:
        self.report(7)
        self.report(8, 25)
        self.assertEqual(demo.read_proof(self.folder, 7, 2, 75), demo.Proof("0.1.0", 2, 75))

    def test_no_report(self) -> None:
        self.refused("pid 7 left no statistics")

    def test_only_a_child(self) -> None:
        self.report(8)
        self.refused("pid 7 left no statistics")

    def test_no_allocation(self) -> None:
        self.report(7, 0)
        self.report(8, 1000)
        self.refused("0 by pid 7")
        demo.read_proof(self.folder, 7, allocations=0)

    def test_too_few(self) -> None:
        self.report(7)
        self.refused("1 processes on hakmem, expected 3", processes=3)
        self.refused("50 allocations on hakmem .*expected 51", allocations=51)

    def test_pid_of_another(self) -> None:
        self.report(9, name="7")
        self.refused("7.json says it is of pid 9")

    def test_damaged(self) -> None:
        for text in ("", "{", "[]", '{"hakmem": "1", "pid": 7}', '{"hakmem": "1", "pid": 7, "allocations": null}'):
            (self.folder / "7.json").write_text(text)
            self.refused("7.json is no report")


class Table(unittest.TestCase):
    def result(self, name: str, scale: float) -> demo.Result:
        def runs(times: float) -> List[demo.Run]:
            return [demo.Run(1, 0, wall * times, wall * times, 12345.6 * times, int(9876543 * times), {})
                    for wall in (90.0, 100.0, 500.0)]
        return demo.Result(name, demo.Proof("0.1.0", 1, 1), runs(1.0), runs(scale))

    def test_medians_ratios_and_width(self) -> None:
        text = demo.table([self.result("python", 0.5), self.result("sqlite", 0.9)])
        self.assertLessEqual(max(map(len, text.splitlines())), 100)
        row = text.splitlines()[2].split()
        self.assertEqual(row[:4], ["python", "100.00", "50.00", "0.50"])
        self.assertEqual(len(row), 13)
        self.assertEqual(text.splitlines()[-1].split()[:2], ["geomean", "0.67"])

    def test_one_program_has_no_mean(self) -> None:
        self.assertNotIn("geomean", demo.table([self.result("python", 1.0)]))

    def test_figures_of_zero(self) -> None:
        idle = demo.Result("idle", demo.Proof("0.1.0", 1, 1), [finished(wall_s=0.0)], [finished(wall_s=0.0)])
        self.assertIn("1.00", demo.table([idle]))


class Whole(unittest.TestCase):
    """Demos of small programs under the stand-in."""

    @classmethod
    def setUpClass(cls) -> None:
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.double = build_double(Path(cls.folder.name))

    def demo(self, library: Path, *programs: demo.Program, options: Tuple[str, ...] = ()) -> Tuple[int, str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            status = demo.main(["--lib", str(library), *options], programs)
        return status, said.getvalue()

    def test_proved_and_measured(self) -> None:
        child = "import subprocess, sys; print(1); subprocess.run([sys.executable, '-c', 'pass'])"
        status, said = self.demo(self.double, python_program("print([i for i in range(9)])"),
                                 python_program(child, name="tree", processes=2))
        self.assertEqual(status, 0, said)
        self.assertRegex(said.splitlines()[-1], r"^proved: 2 programs, 3 processes on hakmem .* identical to glibc's$")
        self.assertIn("geomean", said)
        self.assertLessEqual(max(map(len, said.splitlines()[2:])), 100)

    def test_check_measures_nothing(self) -> None:
        status, said = self.demo(self.double, python_program("print(1)"), options=("--check",))
        self.assertEqual(status, 0, said)
        self.assertNotIn("wall", said)

    def test_library_that_does_not_exist(self) -> None:
        status, said = self.demo(Path("/nonexistent/libhakmem.so"), python_program("print(1)"))
        self.assertEqual((status, said), (1, "demo: no library at /nonexistent/libhakmem.so: ./dev build makes it\n"))

    def test_library_that_cannot_be_loaded(self) -> None:
        broken = Path(self.folder.name) / "broken.so"
        broken.write_bytes(b"not ELF")
        status, said = self.demo(broken, python_program("print(1)"))
        self.assertEqual(status, 1)
        self.assertIn("doesn't run on hakmem", said)

    def test_library_path_with_a_space(self) -> None:
        spaced = Path(self.folder.name) / "a b" / "lib.so"
        spaced.parent.mkdir()
        spaced.symlink_to(self.double)
        status, said = self.demo(spaced, python_program("print(1)"), options=("--check",))
        self.assertEqual(status, 0, said)

    def test_faulty_libraries(self) -> None:
        noise = "stdout differs from glibc's at line 1\n    expected: '1\\\\n'\n    received: 'hello"
        for fault, words in (("NOISY", noise),
                             ("MUTE", "takeover not proved: pid [0-9]+ left no statistics")):
            status, said = self.demo(build_double(Path(self.folder.name), fault), python_program("print(1)"))
            self.assertEqual(status, 1, said)
            self.assertRegex(said, "sample: FAILED: .*" + words)
            self.assertNotIn("proved:", said.replace("not proved:", ""))

    def test_library_that_fails_only_unwatched(self) -> None:
        status, said = self.demo(build_double(Path(self.folder.name), "CRASHES"), python_program("print(1)"))
        self.assertEqual(status, 1)
        self.assertIn("SIGABRT", said)

    def test_program_that_fails_on_glibc(self) -> None:
        status, said = self.demo(self.double, python_program("raise SystemExit('no')"))
        self.assertEqual(status, 1)
        self.assertIn("exit status 1 on glibc: no", said)

    def test_program_that_is_not_installed(self) -> None:
        absent = python_program("", needs=(("no-such-program",),))
        status, said = self.demo(self.double, absent)
        self.assertEqual(status, demo.NOTHING_TO_RUN)
        self.assertIn("sample: skipped: not installed (./dev demo --all installs it)", said)

    def test_install_without_rights_says_what_to_type(self) -> None:
        absent = python_program("", needs=(("no-such-program",),), package="such")
        with unittest.mock.patch("os.geteuid", return_value=1000), \
                unittest.mock.patch("shutil.which", lambda name: f"/bin/{name}" if name in ("apt-get", "cc") else None):
            status, said = self.demo(self.double, absent, options=("--all",))
        self.assertEqual(status, 1)
        self.assertRegex(said, "^demo: not root; type this first: sudo .* such\n$")

    def test_environment_does_not_leak_in(self) -> None:
        seen = {"LD_PRELOAD": str(self.double), "HAKMEM_TRACE": "1", "GIT_DIR": "/", "MALLOC_ARENA_MAX": "1"}
        code = "import os; print([name for name in os.environ if name[:3] in ('HAK', 'GIT', 'MAL')])"
        with unittest.mock.patch.dict(os.environ, seen), demo.new_runner() as runner:
            self.assertEqual(runner.run([demo.PYTHON, "-c", code]).outputs["stdout"], b"[]\n")

    def test_peak_is_the_program_s_own(self) -> None:
        with demo.new_runner() as runner:
            self.assertLess(runner.run(["true"]).peak_mib, 4)
            self.assertGreater(runner.run([demo.PYTHON, "-c", "x = b'x' * (64 << 20)"]).peak_mib, 64)

    def test_statuses_and_timeout(self) -> None:
        with demo.new_runner() as runner:
            self.assertEqual(runner.run(["sh", "-c", "exit 3"]).status, 3)
            self.assertEqual(runner.run(["sh", "-c", "kill -9 $$"]).status, -9)
            self.assertEqual(runner.run(["/no/such/program"]).status, 127)
            with self.assertRaisesRegex(demo.Failure, "still running after 0 s"):
                runner.run(["sleep", "60"], timeout_s=0.2)

    def test_interrupt_ends_everything(self) -> None:
        place = Path(self.folder.name) / "interrupted"
        place.mkdir()
        script = ("import sys; sys.path.insert(0, sys.argv[1]); import demo; "
                  "program = demo.Program('nap', '', (('sleep',),), ('{exe}', '61.25')); "
                  "sys.exit(demo.main(['--lib', sys.argv[2]], (program,)))")
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
            command = [sys.executable, "-c", script, str(Path(demo.__file__).parent), str(self.double)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=place,
                                       env={**os.environ, "TMPDIR": str(place)})
            deadline = time.monotonic() + 20
            while not self.sleepers(place) and time.monotonic() < deadline:
                time.sleep(0.02)
            self.assertTrue(self.sleepers(place))
            process.send_signal(number)
            process.communicate(timeout=20)
            self.assertEqual(process.returncode, status)
            self.assertEqual(self.sleepers(place), [])
            self.assertEqual(list(place.iterdir()), [])

    def sleepers(self, place: Path) -> List[int]:
        """The processes that sleep inside the place."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cmdline").read_bytes().endswith(b"sleep\x0061.25\0") \
                        and os.readlink(process / "cwd").startswith(str(place)):
                    found.append(int(process.name))
        return found


if __name__ == "__main__":
    unittest.main()
