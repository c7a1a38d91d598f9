"""What becomes of misuse: a program of outcome.h, the table of what to expect of it, and a page that sums that up.

    outcomes.py TABLE --page PAGE --program P --library L --secure S [--toy Q] [--write | --behind]

Runs P on the C library's malloc, with hakmem preloaded, so with HAKMEM_PROFILE=hardened, and on the secure build; and Q, the same program
with a malloc of its own. TABLE has a row for each cell and a column for each run. Prints each cell that came out
otherwise than it says, and fails if there is one, or if the part of PAGE between `<!-- outcomes: NAME OF TABLE -->` and
`<!-- until here -->` isn't what the table sums up to. --write makes both anew. --behind prints the cells in which the C
library ends the program and hakmem doesn't.

The column of the C library holds for the version in its name, at the same addresses every time (setarch -R): it is
compared where both are to be had.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

GLIBC = "glibc 2.36"
STRAYS = ("HAKMEM_", "LD_PRELOAD", "MALLOC_", "GLIBC_TUNABLES")  # of the environment, which would change outcomes
ENVIRONMENTS = {"default": {}, "hardened": {"HAKMEM_PROFILE": "hardened"}}
SECURE = {"HAKMEM_SEED": "1"}  # the same choice each time
KINDS = ((r"later-\d+|at-exit", "stopped later"), ("faulted|faulted-later|hung", "crash"))
ENDS_IT = {"named", "stopped", *(kind for _, kind in KINDS)}

Table = dict[str, dict[str, str]]  # cell -> column -> outcome


def run(program: Path, library: Path | None, settings: dict[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(STRAYS)}
    preload = {"LD_PRELOAD": str(library)} if library else {}
    ran = subprocess.run([program, "--all"], env={**environment, **preload, **settings}, capture_output=True, text=True)
    if ran.returncode != 0:
        sys.exit(f"{program.name}: status {ran.returncode}\n{ran.stderr}")
    return dict(line.split("\t") for line in ran.stdout.splitlines())


def run_all(options: argparse.Namespace) -> Table:
    columns = {"toy": run(options.toy, None, {})} if options.toy else {}
    columns[GLIBC] = run(options.program, None, {})
    columns |= {name: run(options.program, options.library, settings) for name, settings in ENVIRONMENTS.items()}
    columns["secure"] = run(options.program, options.secure, SECURE)
    return {cell: {name: outcomes[cell] for name, outcomes in columns.items()} for cell in columns[GLIBC]}


def read(file: Path) -> Table:
    with file.open(newline="", encoding="utf-8") as text:
        return {row.pop("cell"): row for row in csv.DictReader(text, delimiter="\t")}


def write(file: Path, table: Table) -> None:
    with file.open("w", newline="", encoding="utf-8") as text:
        writer = csv.writer(text, delimiter="\t", lineterminator="\n")
        writer.writerow(["cell", *next(iter(table.values()))])
        writer.writerows([cell, *outcomes.values()] for cell, outcomes in table.items())


def differences(expected: Table, found: Table, is_comparable: bool) -> list[str]:
    lines = [f"{cell}: not in the table" for cell in found if cell not in expected]
    for cell, outcomes in expected.items():
        for column, outcome in outcomes.items():
            now = found.get(cell, {}).get(column, "no such cell")
            if now != outcome and (is_comparable or column != GLIBC):
                lines.append(f"{cell}: {column}: {now}, where the table says {outcome}")
    return lines


def is_glibc_comparable() -> bool:
    if os.confstr("CS_GNU_LIBC_VERSION") != GLIBC:
        return False
    return subprocess.run(["setarch", "-R", "true"], stderr=subprocess.DEVNULL).returncode == 0


def kind(outcome: str) -> str:
    return next((name for pattern, name in KINDS if re.fullmatch(pattern, outcome)), outcome.replace("-", " "))


def is_behind(outcomes: dict[str, str]) -> bool:
    return kind(outcomes[GLIBC]) in ENDS_IT and kind(outcomes["default"]) not in ENDS_IT


def row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def summary(table: Table) -> str:
    """A row for each misuse: how many of its cells came to what; or to what it came where each has but one."""
    groups: dict[str, list[dict[str, str]]] = {}
    for cell, outcomes in table.items():
        groups.setdefault(cell.partition("/")[0], []).append(outcomes)
    columns, is_sum = list(next(iter(table.values()))), len(groups) < len(table)
    heads = ["misuse", *(["cells"] if is_sum else []), *columns, *(["glibc alone ends it"] if is_sum else [])]
    lines = [row(heads), "|---" * len(heads) + "|"]
    for name, cells in groups.items():
        counts = [Counter(kind(outcomes[column]) for outcomes in cells).most_common() for column in columns]
        texts = [", ".join(f"{word} {n}" if len(each) > 1 else word for word, n in each) for each in counts]
        behind = str(sum(map(is_behind, cells)) or "")
        lines.append(row([f"`{name}`", *([str(len(cells))] if is_sum else []), *texts, *([behind] if is_sum else [])]))
    return "\n".join(lines)


def with_summary(page: str, name: str, table: Table) -> str:
    part = re.compile(rf"(<!-- outcomes: {re.escape(name)} -->\n\n).*?(\n\n<!-- until here -->)", re.DOTALL)
    if not part.search(page):
        sys.exit(f"the page has no part for {name}")
    return part.sub(lambda match: match[1] + summary(table) + match[2], page)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--secure", type=Path, required=True)
    parser.add_argument("--toy", type=Path)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--behind", action="store_true")
    options = parser.parse_args()
    if options.behind:
        print("\n".join("\t".join([cell, *outcomes.values()]) for cell, outcomes in read(options.table).items()
                        if is_behind(outcomes)))
        return 0
    found = run_all(options)
    if options.write:
        write(options.table, found)
    page = options.page.read_text(encoding="utf-8")
    table = read(options.table)
    lines = differences(table, found, is_glibc_comparable())
    if (wanted := with_summary(page, options.table.name, table)) != page:
        if options.write:
            options.page.write_text(wanted, encoding="utf-8")
        else:
            lines.append(f"{options.page.name} does not sum up {options.table.name}")
    if lines:
        print("\n".join([*lines, f"To make both anew: {' '.join(sys.argv)} --write"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
