"""small_programs.py: what hakmem adds to a program that hardly allocates. Two tests:

    small_programs.py --lib LIBRARY silence      stdout, stderr and exit status are glibc's, byte for byte
    small_programs.py --lib LIBRARY peak         the peak RSS is at most glibc's + 1 MiB, medians of 5 runs each
"""
import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import demo

ALLOWANCE_MIB = 1.0
RUNS = 5
FOLDER = next(path for path in ("/usr/include", str(demo.ROOT)) if Path(path).is_dir())
COMMANDS = (["true"], ["ls", "-R", FOLDER], [demo.PYTHON, "-c", "pass"], ["sort", str(demo.INPUTS / "headers.cpp")],
            ["sh", "-c", "echo out; echo err >&2; exit 3"])


def prove(runner: demo.Runner, command: list, library: str) -> None:
    with tempfile.TemporaryDirectory(dir=runner.work) as reports:
        run = runner.run(command, library, {"HAKMEM_STATS": f"json:{reports}/%p.json"})
        if command[0] != "sh":  # a shell ends by _exit and leaves no report
            demo.read_proof(Path(reports), run.pid, allocations=0)


def silence(runner: demo.Runner, command: list, library: str) -> str:
    demo.check(runner.run(command), runner.run(command, library))
    return "identical"


def peak(runner: demo.Runner, command: list, library: str) -> str:
    pairs = [(runner.run(command).peak_mib, runner.run(command, library).peak_mib) for _ in range(RUNS)]
    glibc, hakmem = (statistics.median(peaks) for peaks in zip(*pairs))
    told = f"peak RSS {hakmem:.2f} MiB, glibc's {glibc:.2f}"
    if hakmem > glibc + ALLOWANCE_MIB:
        raise demo.Failure(f"{told}: more than {ALLOWANCE_MIB} MiB above")
    return told


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True)
    parser.add_argument("test", choices=("silence", "peak"))
    arguments = parser.parse_args()
    test, failures = {"silence": silence, "peak": peak}[arguments.test], 0
    try:
        with demo.new_runner() as runner:
            library = demo.find_library(arguments.lib, runner.work)
            demo.read_version(runner, library)
            for command in COMMANDS:
                try:
                    prove(runner, command, library)
                    outcome = test(runner, command, library)
                except demo.Failure as failure:
                    failures, outcome = failures + 1, f"FAILED: {failure}"
                print(f"{' '.join(command)}: {outcome}", flush=True)
    except demo.Failure as failure:
        print(failure, file=sys.stderr)
        return 1
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
