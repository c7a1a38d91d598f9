"""small_programs.py: what hakmem adds to a program that hardly allocates. Three tests:

    small_programs.py --lib LIBRARY silence      stdout, stderr and exit status are glibc's, byte for byte
    small_programs.py --lib LIBRARY plugins      the same of PHP, which loads its extensions with RTLD_DEEPBIND
    small_programs.py --lib LIBRARY peak         the peak RSS is at most glibc's + 1 MiB, medians of 5 runs each
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from pathlib import Path

from on_hakmem import GLIBC, Allocator, Failure, LabError, ending, hakmem, process, programs

ALLOWANCE_MIB = 1.0
RUNS = 5
FOLDER = "/usr/include" if Path("/usr/include").is_dir() else str(programs.INPUTS)
COMMANDS = (
    ["true"],
    ["ls", "-R", FOLDER],
    [programs.PYTHON, "-c", "pass"],
    ["sort", str(programs.INPUTS / "headers.cpp")],
    ["sh", "-c", "echo out; echo err >&2; exit 3"],
)
SCRIPT = """
$document = new DOMDocument;
$document->loadXML('<list><entry at="1">text</entry></list>');
echo $document->saveXML(), mb_strtoupper("text"), json_encode(range(1, 1000)), PHP_EOL;
"""
PLUGINS = (["php", "-m"], ["php", "-r", SCRIPT])
SKIPPED = 77


def run(command: list[str], allocator: Allocator) -> process.Run:
    return process.run(command, allocator, environment=programs.environment(programs.INPUTS))


def silence(command: list[str], own: Allocator) -> str:
    expected, found = run(command, GLIBC), run(command, own)
    if (found.status, found.stdout, found.stderr) != (expected.status, expected.stdout, expected.stderr):
        raise Failure(f"{ending(found.status)}, stderr {found.stderr[:200]!r}; on glibc {ending(expected.status)}")
    return "identical"


def peak(command: list[str], own: Allocator) -> str:
    pairs = [(run(command, GLIBC).peak_rss_bytes, run(command, own).peak_rss_bytes) for _ in range(RUNS)]
    glibc, ours = (statistics.median(peaks) / (1 << 20) for peaks in zip(*pairs))
    told = f"peak RSS {ours:.2f} MiB, glibc's {glibc:.2f}"
    if ours > glibc + ALLOWANCE_MIB:
        raise Failure(f"{told}: more than {ALLOWANCE_MIB} MiB above")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    tests = {"silence": (silence, COMMANDS), "plugins": (silence, PLUGINS), "peak": (peak, COMMANDS)}
    parser.add_argument("test", choices=tests)
    arguments = parser.parse_args()
    (test, commands), failures = tests[arguments.test], 0
    if commands is PLUGINS and (
        shutil.which("php") is None or "dom" not in run(PLUGINS[0], GLIBC).stdout.decode()
    ):
        print("skipped: not installed: Debian's packages php-cli, php-xml and php-mbstring")
        return SKIPPED
    for command in commands:
        try:
            outcome = test(command, hakmem(arguments.lib))
        except LabError as failure:
            failures, outcome = failures + 1, f"FAILED: {failure}"
        print(f"{' '.join(command)}: {outcome}", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
