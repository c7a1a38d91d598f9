"""hakmem demo: programs everybody knows and a service, on glibc's malloc and on hakmem, side by side."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import click

from hakmem import (
    allocators,
    arguments,
    comparison,
    files,
    ledger,
    machine,
    measure,
    native,
    programs,
    progress,
    resting,
    statistics,
    words,
)
from hakmem.errors import InterruptedEarly, LabError
from hakmem.finite import WholeRange
from hakmem.measure import Measurement, Variant

METRICS = {"CPU time": "cpu_s", "peak memory": "peak_rss_bytes"}
ALL_METRICS = {"wall time": "wall_s", **METRICS, "page faults": "minor_faults"}
REST = "idle_bytes"
FEW_ROUNDS = statistics.minimum_rounds()  # for a ratio with an interval
FEW = ("python3", "sqlite3"), ("gcc", "git")  # both, and the first of these that is there


@click.command()
@click.option("--all", "every", is_flag=True, help="all programs at full size, servers and other languages too")
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    type=arguments.PROGRAMS,
    help="one program at full size, as often as wanted",
)
@click.option("-n", "--rounds", type=WholeRange(min=1), default=FEW_ROUNDS, show_default=True, help="timed rounds")
@files.json_option("the record")
@click.option("--check", is_flag=True, help="one untimed run of each: outputs and takeover, no figures")
def command(every: bool, only: tuple[str, ...], rounds: int, json_file: Path | None, check: bool) -> int:
    """Programs you know, and a service, on glibc and on hakmem: time, memory, proof of takeover.

    Three programs run in turns, for a quarter of a minute. Then a service works in bursts and rests: its memory after
    ten seconds of rest decides what a machine of services needs. Services of six rounds rest side by side, then those
    of the next six. Every run must prove whose malloc it ran on, and print what the runs on glibc print. Ratios below 1
    mean that hakmem needs less. Exit status 1 when a program fails on hakmem or prints something else, 77 when none of
    them is installed.
    """
    said = sys.stderr if files.takes_output(json_file) else sys.stdout
    is_short = not (every or only or check)
    wanted, missing = _few() if is_short else _full(every, only)
    for program in missing:
        print(f"{program.name}: skipped, it is not installed (Debian's package {program.package})", file=said)
    if not wanted:
        return 77
    start = machine.facts()
    version = native.version(native.library())
    how = "outputs only" if check else f"{words.interleaved(rounds)}, after a warm-up"
    how += " (half a minute)" if is_short and rounds <= FEW_ROUNDS else ""
    print(f"hakmem {version} and {start.libc}, {how}\n{words.machine(start)}\n", file=said, flush=True)
    variants = measure.variants([allocators.glibc(), allocators.hakmem()])
    warmup = 0 if check else 1
    with progress.shown() as on_step:
        timed = 1 if check else rounds
        done = measure.measure(wanted, variants, timed, warmup=warmup, on_step=on_step, keeps_parts=True)
    without = ""
    if is_short and not done.interrupted:
        print("hakmem: a service works, then rests for 10 s", file=sys.stderr, flush=True)
        without = _add_service(done, variants, rounds)
    record = ledger.from_measurement(done, "demo", start=start, warmup=warmup)
    metrics = {} if check else METRICS if is_short else ALL_METRICS
    try:
        status = _show(done, record, metrics, said, without)
    except BrokenPipeError:  # who interrupts may have ended the reader, too
        if not done.interrupted:
            raise
        status = 130
    finally:
        if json_file:
            files.write(json_file, ledger.dump(record))
    return status


def _show(done: Measurement, record: ledger.Record, metrics: Mapping[str, str], said: TextIO, without: str = "") -> int:
    """The figures, if any are asked for, what failed, and the proof; the exit status. `without`: why there are none of
    the service."""
    is_short = metrics is METRICS
    interrupted = [note for note in done.notes if note.startswith("interrupted")]
    for note in interrupted:
        print(f"{note}\n", file=said)
    for note in comparison.of_environment(record):
        print(f"{note}\n", file=said)
    if metrics:
        print(_table(record, metrics) + ("" if is_short else "\n"), file=said)
    if is_short:
        print("\n".join([POOLS, "", *_verdicts(record), ""]), file=said)
    for failure in done.failures:
        print(f"FAILED: {failure.case} on {failure.variant}: {failure.reason}", file=sys.stderr)
    if without:
        print(f"FAILED: {resting.NAME}: {without}", file=sys.stderr)
    if done.interrupted:
        print("\n".join(interrupted or ["interrupted: what was finished stands above"]), file=sys.stderr)
        return 130
    failed = {failure.case for failure in done.failures}
    passed, wanted = len(done.cases) - len(failed), len(done.cases) + bool(without)
    proof = "programs ran on hakmem, with the outputs of their runs on glibc"
    print(f"proved: {passed} of {wanted} {proof}", file=said)
    if metrics:
        hakmem = ".venv/bin/hakmem" if native.checkout() else "hakmem"
        print(f"your own program: {hakmem} compare -- PROGRAM ARGUMENTS", file=said)
    return 1 if failed or without else 0


Wanted = tuple[Sequence[programs.ProgramCase], Sequence[programs.Program]]  # what is installed, and what isn't


def _few() -> Wanted:
    both, either = (programs.cases(map(programs.short, names)) for names in FEW)
    return both[0] + either[0][:1], both[1] + (either[1] if not either[0] else [])


def _full(every: bool, only: Sequence[str]) -> Wanted:
    if only:
        return programs.cases(programs.by_name(name) for name in only)
    usual = [name for names in FEW for name in names]
    return programs.cases(
        row for row in programs.PROGRAMS if (row.group == programs.GROUP if every else row.name in usual)
    )


def _add_service(done: Measurement, variants: Sequence[Variant], rounds: int) -> str:
    """Measures the service as one more case. Where that is interrupted, or fails for the reason that is returned, the
    programs' figures are kept."""
    try:
        with progress.shown() as on_step:
            service = resting.measured(variants, rounds, on_step=on_step)
        service.expect_whole()
    except (KeyboardInterrupt, InterruptedEarly):
        done.interrupted = True
        return ""
    except (LabError, OSError, RuntimeError) as error:  # the last one where no thread can be started
        done.notes.append(f"{resting.NAME}: {error}")
        return str(error)
    done.cases += service.cases
    done.samples |= service.samples
    done.failures += service.failures
    done.notes += service.notes
    return ""


DOUBT = "?: may be chance, and so may one in twenty of the others. Ratios are hakmem's to glibc's, of runs in pairs."
POOLS = "python3 and sqlite3 run with PYTHONMALLOC=malloc: Python's own pools hide some of the work from any malloc."
NOTHING = "-"  # in place of a ratio where a figure is 0


def _table(record: ledger.Record, metrics: Mapping[str, str]) -> str:
    """Two metrics beside each other: so many fit into eighty columns."""
    names = list(metrics)
    parts = [{name: metrics[name] for name in names[first : first + 2]} for first in range(0, len(names), 2)]
    return "\n\n".join(_part(record, part) for part in parts) + f"\n{DOUBT}"


def _part(record: ledger.Record, metrics: Mapping[str, str]) -> str:
    """A line per program: medians of both, and the ratio of hakmem's runs to glibc's. The service has one more."""
    lines: list[list[str]] = []
    found: dict[str, dict[str, tuple[list[float], list[float]]]] = {name: {} for name in metrics.values()}
    for case in record.cases:
        line = [case]
        for metric, pairs in found.items():
            own, glibc = _pair(record, case, metric)
            if own and glibc:
                pairs[case] = own, glibc
            line += _cells(own, glibc, metric)
        lines.append(line)
        own, glibc = _pair(record, case, REST)
        if own and glibc:
            blank = [""] * 3 * (len(metrics) - 1)
            lines.append([f"  after {resting.REST_S:.0f} s of rest", *blank, *_cells(own, glibc, REST)])
    if all(found.values()) and resting.NAME not in record.cases:
        fewest = min(map(len, found.values()))
        over = "" if fewest == len(record.cases) else f" of {fewest} of {len(record.cases)}"
        lines.append([f"geometric mean{over}", *(word for pairs in found.values() for word in ("", "", _ratio(pairs)))])
    return words.grouped_table("program", metrics, ("glibc", "hakmem", "ratio"), lines)


def _pair(record: ledger.Record, case: str, metric: str) -> tuple[list[float], list[float]]:
    own, glibc = (record.values(case, variant, metric) for variant in ("hakmem", "glibc"))
    return own, glibc


def _cells(own: list[float], glibc: list[float], metric: str) -> list[str]:
    if not (own and glibc):
        return ["", "", "failed"]
    return [_median(glibc, metric), _median(own, metric), _ratio({"": (own, glibc)})]


def _median(values: list[float], metric: str) -> str:
    return words.amount(statistics.summary(values).median, measure.METRICS[metric].unit.replace("faults", ""))


def _ratio(pairs: Mapping[str, tuple[list[float], list[float]]]) -> str:
    """Of rounds in pairs."""
    if min(min(*own, *glibc) for own, glibc in pairs.values()) <= 0:
        return NOTHING
    found = statistics.geometric_mean_ratio(pairs)
    shown = words.places(found, found.estimate, least=2)
    return f"{'?' if found.holds(1) else ''}{found.estimate:.{shown}f}"


def _verdicts(record: ledger.Record) -> list[str]:
    """A sentence for each program, and one for the service at rest."""
    if record.rounds < FEW_ROUNDS:
        return [f"No verdict: {words.few_rounds(record.rounds, FEW_ROUNDS)}."]
    said: list[str] = []
    for case in record.cases:
        rest, rest_of_glibc = _pair(record, case, REST)
        if rest and rest_of_glibc:
            holds = f"hakmem holds {_median(rest, REST)}, glibc {_median(rest_of_glibc, REST)}"
            doubt = ", which may be chance" if statistics.ratio(rest, rest_of_glibc).holds(1) else ""
            said.append(f"{case}: after {resting.REST_S:.0f} s of rest {holds}{doubt}.")
            continue
        time, peak = (_pair(record, case, metric) for metric in ("cpu_s", "peak_rss_bytes"))
        if all(time) and all(peak):
            of_time = _change(*time, "takes {} less time", "takes {} more time", "time")
            of_peak = _change(*peak, "has a peak {} lower", "has a peak {} higher", "peak")
            said.append(f"{case}: {of_time}; {of_peak}.")
    return said


def _change(own: list[float], glibc: list[float], less: str, more: str, what: str) -> str:
    """By how much hakmem's figures differ from glibc's, in words; or that chance may be the cause."""
    found = statistics.ratio(own, glibc)
    if found.holds(1):
        return f"the difference in {what} may be chance"
    percent = abs(found.estimate - 1) * 100
    by = f"{percent:.0f} %" if percent >= 0.5 else "less than 1 %"
    return "hakmem " + (less if found.estimate < 1 else more).format(by)
