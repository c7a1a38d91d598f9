"""From a command line to a dossier: the plan, the rule, the measurement, the record."""

from __future__ import annotations

import datetime
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import msgspec

from hakmem import allocators, extras, files, ledger, machine, measure, output, process, progress
from hakmem.allocators import SYSTEM, Allocator
from hakmem.dossier import cases, page
from hakmem.dossier import rule as rules
from hakmem.errors import LabError
from hakmem.ledger import Record
from hakmem.measure import Failure, Measurement, Variant
from hakmem.report.model import Report

ARENAS = {"MALLOC_ARENA_MAX": "2"}
HUGE = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
HUGE_SINCE = (2, 35)  # glibc's version
TIMES_OF_A_COMMAND = ("wall_s", "cpu_s", "user_s", "system_s", "cold_s")  # that a rule may go by; the usual one first
TIMES_OF_A_SERVICE = (cases.LATENCY, "measured_s", "cpu_s", "user_s", "system_s", "cold_s")
USUAL_ROUNDS = 10
ROUNDS_MORE = 3  # than an interval needs to have ends: one odd round is then no end of all


@dataclass(frozen=True)
class Plan:
    folder: Path
    commands: tuple[tuple[str, ...], ...]
    outputs: tuple[Path, ...]
    client: tuple[str, ...]
    idle_s: float
    rounds: int | None  # None: as many as an answer needs, and some
    warmup: int
    timeout_s: float | None
    time: str
    gain: float
    loss: float


def words_of(text: str, option: str) -> tuple[str, ...]:
    """A command that is one word of a command line."""
    try:
        found = tuple(shlex.split(text))
    except ValueError as error:
        raise LabError(f"{option} {text}: {error}") from None
    if not found:
        raise LabError(f"{option} {text!r}: expected a command")
    return found


def contestants(allocators: Sequence[Allocator]) -> list[Variant]:
    """One of each, and glibc also as its users set it."""
    found = measure.variants(allocators)
    at = next((number for number, one in enumerate(found) if one.name == SYSTEM), None)
    if at is None:
        return found
    tuned = [Variant("glibc-2-arenas", found[at].allocator, ARENAS)]
    if has_huge_pages():
        tuned.append(Variant("glibc-huge-pages", found[at].allocator, HUGE))
    return [*found[: at + 1], *tuned, *found[at + 1 :]]


def has_huge_pages() -> bool:
    """Whether glibc's malloc has its setting for huge pages."""
    try:
        said = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except ValueError:
        return False
    version = re.match(r"glibc (\d+)\.(\d+)", said)
    return version is not None and (int(version[1]), int(version[2])) >= HUGE_SINCE


def run(plan: Plan, names: Sequence[str], incumbent: str | None, results: dict[str, Path | str | None]) -> int:
    """All of `hakmem compare --dossier`; its exit status."""
    extras.expect("plots", "--dossier")
    variants = contestants(allocators.resolve(names or ("all",)))
    known = [variant.name for variant in variants]
    measure.expect_baseline(incumbent, variants)
    if incumbent is None:
        incumbent = SYSTEM if SYSTEM in known else known[0]
    if len(known) < 2:
        raise LabError(f"--with {known[0]}: nothing to compare it with")
    process.expect_command(plan.commands[0])
    for words in (*plan.commands[1:], *([plan.client] if plan.client else [])):
        process.expect_program(words)
    twice = next((words for number, words in enumerate(plan.commands) if words in plan.commands[:number]), None)
    if twice is not None:
        raise LabError(f"--also {shlex.join(twice)}: named twice; expected another size of the work")
    from hakmem.report import html, markdown  # not before plots are known to be there

    record, rule, digest, status = make(plan, variants, incumbent)
    kept: str | None = None

    def shown(name: str | None) -> Report:
        return page.report(record, rule, digest, name or kept)

    try:
        kept = ledger.keep(record, plan.folder).stem
        files.write(plan.folder / "dossier.md", markdown.render(shown(None)))
        files.write(plan.folder / "dossier.html", html.render(shown(None)))
        click.echo(f"hakmem: the dossier is {plan.folder / 'dossier.html'}", err=True)
    finally:  # what was measured is shown all the same
        output.finish(record, shown, **results)  # type: ignore[arg-type]
    return status


def make(plan: Plan, variants: Sequence[Variant], incumbent: str) -> tuple[Record, rules.Rule, str, int]:
    """Writes the rule, runs everything, and returns the record, the rule and its hash, and the exit status. Ctrl-C
    keeps whole rounds."""
    refusal = cases.strace_refusal()
    idle_s = plan.idle_s if plan.client else 0
    made = [
        cases.DossierCase(
            *(command, plan.outputs, plan.client, idle_s, plan.timeout_s),
            counts_calls=refusal is None,
            goes_by_latency=plan.time == cases.LATENCY,
        )
        for command in plan.commands
    ]
    rule = _rule(plan, [case.name for case in made], variants, incumbent)
    start = machine.facts()
    digest = rules.write(rule, plan.folder)
    _tell(rule)
    with progress.shown() as on_step:
        done = measure.measure(made, list(variants), rule.rounds, warmup=rule.warmup, on_step=on_step)
    compare_outputs(done, incumbent)
    now = {variant.name: ledger.facts_of(variant) for variant in variants}
    if not rules.is_unchanged(plan.folder, digest) or now != rule.contestants:
        done.notes.append(rules.CHANGED)
    if refusal is not None:
        done.notes.append(f"{page.UNMEASURED}system calls: {refusal}")
    if not has_huge_pages():
        done.notes.append(f"{page.UNMEASURED}glibc with huge pages: this C library's malloc has no setting for them")
    done.notes.append(f"rule: SHA-256 {digest}")
    record = ledger.from_measurement(done, "dossier", warmup=rule.warmup, start=start)
    return record, rule, digest, 130 if done.interrupted else 1 if done.failures else 0


def _rule(plan: Plan, commands: list[str], variants: Sequence[Variant], incumbent: str) -> rules.Rule:
    now = datetime.datetime.now(datetime.timezone.utc).replace(microsecond=0)
    rule = rules.Rule(
        date=now.isoformat(),
        incumbent=incumbent,
        contestants={variant.name: ledger.facts_of(variant) for variant in variants},
        commands=commands,
        client=shlex.join(plan.client) if plan.client else None,
        outputs=[str(path) for path in plan.outputs],
        idle_s=plan.idle_s if plan.client else 0,
        rounds=plan.rounds or 1,
        warmup=plan.warmup,
        time=plan.time,
        gain=plan.gain,
        loss=plan.loss,
    )
    needed = max(USUAL_ROUNDS, rule.least_rounds + ROUNDS_MORE)
    return rule if plan.rounds else msgspec.structs.replace(rule, rounds=needed)


def _tell(rule: rules.Rule) -> None:
    """What the user may want to stop for."""
    if rule.rounds < rule.least_rounds:
        click.echo(
            f"hakmem: {rule.rounds} rounds can't tell; with so many contestants and commands it takes "
            f"{rule.least_rounds} at least",
            err=True,
        )
    idle_s = rule.idle_s * len(rule.contestants) * len(rule.commands) * (rule.rounds + rule.warmup)
    if idle_s >= 60:
        click.echo(f"hakmem: idling will take {idle_s / 60:.0f} minutes in all; --idle SECONDS says how long", err=True)


def compare_outputs(done: Measurement, incumbent: str) -> None:
    """Who prints something else than the incumbent has failed. Where the incumbent itself differs from run to run, its
    output tells nothing."""
    done.notes = [note for note in done.notes if measure.PRINTED not in note]
    for case, by_variant in done.samples.items():
        usual = {digest for sample in by_variant.get(incumbent, []) for digest in sample.digest.split()}
        if len(usual) != 1:
            if usual:
                done.notes.append(f"{page.UNMEASURED}output: {incumbent}'s differs from run to run, of {case}")
            continue
        for name, samples in by_variant.items():
            if any({*sample.digest.split()} - usual for sample in samples):
                done.failures.append(Failure(case, name, done.rounds, f"{rules.OTHER_OUTPUT} {incumbent}"))
