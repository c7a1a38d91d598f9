"""The table of forks in README.md: each public name stands in a row, each harness too, and each is there.

    fork_table.py --harnesses PROGRAM --symbols FILE --readme FILE

PROGRAM lists its harnesses with --list. Exit code 1 with the findings.
"""
import argparse
import re
import subprocess
import sys


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("--harnesses", "--symbols", "--readme"):
        parser.add_argument(name, required=True)
    given = parser.parse_args()
    listed = subprocess.run([given.harnesses, "--list"], check=True, capture_output=True, text=True).stdout
    harnesses = set(re.findall(r"^  fork_at_(\w+)$", listed, re.M))
    with open(given.symbols, encoding="utf-8") as file:
        symbols = {line.strip() for line in file if line.strip() and not line.startswith("#")}
    with open(given.readme, encoding="utf-8") as file:
        section = file.read().partition("\n## Forks\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*?) \| (.*?) \| (.*?) \|$", section, re.M)
    named, covered = set(), set()
    for _, names, forks in rows:
        named |= set(re.findall(r"`(\w+)`", names))
        covered |= set(re.findall(r"`(\w+)`", forks))
    findings = [f"no row of README.md has the public name {name}" for name in sorted(symbols - named)]
    findings += [f"README.md has {name}, which is no public name" for name in sorted(named - symbols)]
    findings += [f"no row of README.md has the harness fork_at_{name}" for name in sorted(harnesses - covered)]
    findings += [f"README.md has fork_at_{name}, which is no harness" for name in sorted(covered - harnesses)]
    print("\n".join(findings) or f"{len(symbols)} names and {len(harnesses)} harnesses are in the table")
    return 1 if findings or not harnesses else 0


if __name__ == "__main__":
    sys.exit(main())
