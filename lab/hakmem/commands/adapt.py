"""hakmem adapt: what the controller is worth while a program runs."""

from __future__ import annotations

import click

from hakmem import arguments, output, places
from hakmem.finite import FiniteRange, WholeRange

rounds_option = click.option(
    "-n", "--rounds", type=WholeRange(min=1), default=10, show_default=True, help="runs of each side"
)
settings_option = click.option(
    "--set",
    "given",
    multiple=True,
    metavar="NAME=VALUE",
    type=arguments.SETTINGS,
    help="a setting of hakmem for the sides, without HAKMEM_",
)


@click.group()
def command() -> None:
    """Measures the controller at work, against settings that stay as they are."""


@command.command("switching")
@click.option("--seconds", type=FiniteRange(0.01), default=10.0, show_default=True, help="of a visit")
@click.option("--visits", type=WholeRange(min=1), default=3, show_default=True, help="to each behaviour")
@click.option("--best", multiple=True, metavar="BEHAVIOUR=KNOB=NUMBER[:...]", help="its best fixed setting")
@settings_option
@rounds_option
@places.option
@output.options
def switching(
    seconds: float,
    visits: int,
    best: tuple[str, ...],
    given: tuple[str, ...],
    rounds: int,
    on: str | None,
    **files: str | None,
) -> int:
    """A program that switches between six behaviours: the controller, the default that stays, and an oracle that has
    each behaviour's best fixed setting (--best, as `hakmem sweep` finds it) in force at once.

    All have hakmem's thread (HAKMEM_BACKGROUND=1), and with it the controller counts processor time, as the kernel
    does; in a program that nothing is set for it has the clock, and an estimate of the kernel's time.

    A run takes seconds x visits x 6; there are as many runs in a round as there are settings, and one round more to
    warm up. --set, such as ACE_FAST_MS=50 ACE_SLOW_MS=3000, is the controller's: all of it at a tenth of the time.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from hakmem import adapt, ledger, machine, measure, native, progress, settings, sweep

    sweep.expect_no_knobs()
    chosen = adapt.best_of(best)
    own = settings.parse(given, native.library())
    for variant in chosen.values():
        if sweep.KNOBS in variant.settings:
            settings.parse([f"KNOBS={variant.settings[sweep.KNOBS]}"], native.library())
    default = adapt.fixed(sweep.DEFAULT, {})
    fixed = {variant.name: variant for variant in (default, *chosen.values())}
    start = machine.facts()
    sides = [*fixed.values(), adapt.adaptive(own)]
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure([adapt.switching(seconds, visits)], sides, rounds, on_step=on_step, place=place)
    record = ledger.from_measurement(adapt.by_behaviour(done, chosen, visits), "adapt", start=start)
    output.finish(record, lambda kept: adapt.switching_report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0


@command.command("excursion", context_settings={"allow_interspersed_args": False})
@click.option("--try", "assignment", required=True, metavar="KNOB=VALUE", help="a bad value among those it may give")
@settings_option
@rounds_option
@places.option
@output.options
@click.argument("words", nargs=-1, required=True, metavar="-- COMMAND...", type=arguments.WORDS)
def excursion(
    assignment: str,
    given: tuple[str, ...],
    rounds: int,
    on: str | None,
    words: tuple[str, ...],
    **files: str | None,
) -> int:
    """A command, with and without a bad candidate that is forced on its controller: how long it was tried until it was
    rolled back, and what that has cost of the whole.

    The command does the same work in every run, and goes on for longer than the controller learns.

    Exit status: 0 when it was rolled back in every run, 1 when one failed, 130 when interrupted.
    """
    from hakmem import adapt, ledger, machine, measure, native, process, progress, settings

    if on is None:
        process.expect_command(words)
    case = adapt.ExcursionCase(words, assignment=assignment)
    variants = adapt.excursion_variants(settings.parse(given, native.library()))
    start = machine.facts()
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure([case], variants, rounds, warmup=0, on_step=on_step, place=place)
    record = ledger.from_measurement(done, "adapt", start=start, warmup=0)
    output.finish(record, lambda kept: adapt.excursion_report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0


@command.command("policy")
@click.option("--seconds", type=FiniteRange(0.01), default=1.0, show_default=True, help="of a visit")
@click.option("--visits", type=WholeRange(min=3), default=120, show_default=True, help="of the side that learns")
@settings_option
@rounds_option
@places.option
@output.options
@click.argument("name", metavar="BEHAVIOUR")
def policy(
    seconds: float,
    visits: int,
    given: tuple[str, ...],
    rounds: int,
    on: str | None,
    name: str,
    **files: str | None,
) -> int:
    """A behaviour of bench_switching from the first second of a policy on, which comes from a run of its own on this
    machine: against the default that stays, and against a side that has learned for all of its visits. But for the
    first visit's, figures are of the last one, which is the second but where a side learns.

    All have hakmem's thread (HAKMEM_BACKGROUND=1), and with it the controller counts processor time, as the kernel
    does; in a program that nothing is set for it has the clock, and an estimate of the kernel's time.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from dataclasses import replace

    from hakmem import adapt, behaviours, ledger, machine, measure, native, progress, settings
    from hakmem.errors import LabError

    if name not in behaviours.NAMES:
        raise LabError(f"no behaviour {name!r}; there are {', '.join(behaviours.NAMES)}")
    own = settings.parse(given, native.library())
    case = adapt.LearningCase(name, seconds, visits)
    start = machine.facts()
    text, note = adapt.learn_policy(case, own)
    case = replace(case, policy=text)
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure([case], adapt.policy_variants(own), rounds, warmup=0, on_step=on_step, place=place)
    done.notes += [note, case.ages]
    record = ledger.from_measurement(done, "adapt", start=start, warmup=0)
    output.finish(record, lambda kept: adapt.policy_report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0


@command.command("elo")
@click.option("--seconds", type=FiniteRange(0.01), default=90.0, show_default=True, help="that a service is kept busy")
@settings_option
@rounds_option
@places.option
@output.options
@click.argument("names", nargs=-1, metavar="[SERVICE]...")
def elo(
    seconds: float,
    given: tuple[str, ...],
    rounds: int,
    on: str | None,
    names: tuple[str, ...],
    **files: str | None,
) -> int:
    """Services that are kept busy (python3, redis and node; all unless told), with the controller as a program has it
    that is told nothing, and without: matches of the values that are rated by them, when a verdict has fallen, what is
    left at the end, and what all that has cost in time and memory.

    Their answers are checked. A run takes --seconds and some more; --set is for both sides.

    Exit status: 0 when all was compared, 1 when a side failed, 130 when interrupted.
    """
    from hakmem import adapt, ledger, machine, measure, native, progress, settings

    cases = adapt.elo_cases(names, seconds)
    variants = adapt.elo_variants(settings.parse(given, native.library()))
    start = machine.facts()
    with places.opened(on) as place, progress.shown() as on_step:
        done = measure.measure(cases, variants, rounds, warmup=0, on_step=on_step, place=place)
    record = ledger.from_measurement(done, "adapt", start=start, warmup=0)
    output.finish(record, lambda kept: adapt.elo_report(record, kept), **files)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0
