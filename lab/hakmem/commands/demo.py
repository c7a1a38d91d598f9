"""hakmem demo: programs everybody knows, on glibc's malloc and on hakmem, side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import click

from hakmem import allocators, files, ledger, machine, measure, native, programs, progress, statistics, words
from hakmem.finite import WholeRange

METRICS = {"wall time": "wall_s", "CPU time": "cpu_s", "peak RSS": "peak_rss_bytes", "page faults": "minor_faults"}
USUAL = ("python3", "sqlite3", "gcc", "git")  # what a developer's machine has


@click.command()
@click.option("--all", "every", is_flag=True, help="also servers and other languages; says which packages are missing")
@click.option("--only", multiple=True, metavar="NAME", help="one program, as often as wanted")
@click.option("-n", "--rounds", type=WholeRange(min=1), default=6, show_default=True, help="timed rounds")
@files.json_option("the record")
@click.option("--check", is_flag=True, help="one untimed run of each: outputs and takeover, no figures")
def command(every: bool, only: tuple[str, ...], rounds: int, json_file: Path | None, check: bool) -> int:
    """Programs you know on glibc and on hakmem: equal outputs, proof of takeover, one table.

    Every run must prove whose malloc it ran on, and print what the runs on glibc print. Ratios below 1 mean that
    hakmem needs less. Exit status 1 when a program fails on hakmem or prints something else, 77 when none of them is
    installed.
    """
    if only:
        wanted = [programs.by_name(name) for name in only]
    else:
        wanted = [row for row in programs.PROGRAMS if (row.group == programs.GROUP if every else row.name in USUAL)]
    cases, missing = programs.cases(wanted)
    said = sys.stderr if files.takes_output(json_file) else sys.stdout
    for program in missing:
        print(f"{program.name}: skipped, it is not installed (Debian's package {program.package})", file=said)
    if not cases:
        return 77
    start = machine.facts()
    version = native.version(native.library())
    how = "outputs only" if check else f"{words.interleaved(rounds)}, after a warm-up"
    print(f"hakmem {version} and {start.libc}, {how}\n{words.machine(start)}\n", file=said, flush=True)
    variants = measure.variants([allocators.glibc(), allocators.hakmem()])
    with progress.shown() as on_step:
        done = measure.measure(cases, variants, 1 if check else rounds, warmup=0 if check else 1, on_step=on_step)
    record = ledger.from_measurement(done, "demo", start=start, warmup=0 if check else 1)
    if json_file:
        files.write(json_file, ledger.dump(record))
    if not check:
        print(_table(record) + "\n", file=said)
    failed = {failure.case for failure in done.failures}
    for failure in done.failures:
        print(f"FAILED: {failure.case} on {failure.variant}: {failure.reason}", file=sys.stderr)
    passed = len(cases) - len(failed)
    if done.interrupted:
        print("interrupted: what finished stands above", file=sys.stderr)
        return 130
    print(
        f"proved: {passed} of {len(cases)} programs ran on hakmem, with the outputs of their runs on glibc", file=said
    )
    return 1 if failed else 0


CHANCE = (
    "Ratios are of rounds in pairs, not of the medians. ?: may be chance, the 95 % interval of the ratio holds 1, or "
    "there are too few rounds for one. So may be one in twenty of the others. -: a figure is 0."
)


def _table(record: ledger.Record) -> str:
    """A line per program: medians of both, and the ratio of hakmem's runs to glibc's."""
    lines: list[list[str]] = []
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {name: {} for name in METRICS.values()}
    for case in record.cases:
        line = [case]
        for metric, pairs in found.items():
            glibc, own = (record.values(case, variant, metric) for variant in ("glibc", "hakmem"))
            if not (glibc and own):
                line += ["", "", "failed"]
                continue
            pairs[case] = own, glibc
            unit = measure.METRICS[metric].unit.replace("faults", "")
            medians = (words.amount(statistics.summary(values).median, unit) for values in (glibc, own))
            line += [*medians, _ratio({case: pairs[case]})]
        lines.append(line)
    if all(found.values()):
        fewest = min(map(len, found.values()))
        over = "" if fewest == len(record.cases) else f" of {fewest} of {len(record.cases)}"
        lines.append([f"geometric mean{over}", *(word for pairs in found.values() for word in ("", "", _ratio(pairs)))])
    return words.grouped_table("program", METRICS, ("glibc", "hakmem", "ratio"), lines) + f"\n{CHANCE}"


def _ratio(pairs: Mapping[str, tuple[list[float], list[float]]]) -> str:
    """Of rounds in pairs."""
    if min(min(*own, *glibc) for own, glibc in pairs.values()) <= 0:
        return "-"
    found = statistics.geometric_mean_ratio(pairs)
    shown = words.places(found, found.estimate, least=2)
    return f"{'?' if found.holds(1) else ''}{found.estimate:.{shown}f}"
