"""hakmem services: what services hold of memory while they work and after they rest, under each allocator."""

from __future__ import annotations

import shlex
import sys

import click

from hakmem import arguments, output
from hakmem.errors import LabError
from hakmem.finite import FiniteRange, WholeRange


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-n", "--rounds", type=WholeRange(min=1), default=1, show_default=True, help="runs of each")
@click.option(
    "--only", multiple=True, metavar="NAME", type=arguments.SERVICES, help="one of the ten services, as often as wanted"
)
@arguments.allocators_option(f"{arguments.NAMES}  [default: glibc and those that are built]")
@click.option(
    "--rest",
    "rest_s",
    type=FiniteRange(min=0),
    metavar="SECONDS",
    default=20,
    show_default=True,
    help="that a service rests before its memory is read",
)
@click.option(
    "--load", metavar="COMMAND", help="of your own service: a command that gives it work, and ends; in quotes"
)
@output.options
@click.argument("command_words", nargs=-1, type=arguments.WORDS, metavar="[-- COMMAND [ARGUMENT]...]")
def command(
    rounds: int,
    only: tuple[str, ...],
    names: tuple[str, ...],
    rest_s: float,
    load: str | None,
    command_words: tuple[str, ...],
    **results: str | None,
) -> int:
    """Ten services, as Debian packages them, under each allocator: their memory at work, and after a rest.

    MariaDB, PostgreSQL, Redis, a Python web service, Pillow, node, Ruby, Java, a C++ pool and pandas. Those that are
    not installed are named and left out. Each gets the same work in every run, and its answers must be the same. A
    server runs in a folder of its own, as its package's user where you are root, and ends with this command.

    The figures are of anonymous memory: what is in the processes and in no file, each page once. The peak and the mean
    are those of five looks a second. A round of all ten takes some ten minutes, with all allocators.

    With -- COMMAND and --load, the same for a service of your own: it is started, loaded, left alone, and ended by
    SIGTERM. It has to stay in the foreground. The load has to try again until the service takes connections.

    Exit status: 0 when all was compared, 1 when a service failed under some allocators, 2 under all, 77 when none is
    installed, 130 when interrupted: services that all allocators have finished are shown.
    """
    from hakmem import allocators, ledger, machine, measure, process, progress, resting, services

    own = _own(command_words, load, only)
    place = resting.OneAtWork()
    if names:
        variants = measure.variants(allocators.resolve(names))
    else:
        variants, not_built = services.sides()
        if not_built:
            print(f"hakmem: left out: {', '.join(not_built)} (hakmem peers install)", file=sys.stderr)
    cases: list[measure.Case] = []
    if own:
        process.expect_command(command_words)
        process.expect_program(own)
        cases.append(services.OwnCase(command_words, load=own, place=place, rest_s=rest_s))
    else:
        ready, missing = services.cases(only, place, rest_s)
        cases += ready
        if missing:
            packages = " ".join(program.package for program in missing)
            print(f"hakmem: left out: {', '.join(program.name for program in missing)}", file=sys.stderr)
            print(f"hakmem: to have them: apt-get install --no-install-recommends {packages}", file=sys.stderr)
    if not cases:
        return 77
    start = machine.facts()
    with progress.shown() as on_step:
        done = measure.measure(cases, variants, rounds, warmup=0, on_step=on_step, place=place, keeps_parts=True)
    record = ledger.from_measurement(done, "services", warmup=0, start=start)
    output.finish(record, lambda kept: services.report(record, kept), **results)  # type: ignore[arg-type]
    return 130 if done.interrupted else 1 if done.failures else 0


def _own(words: tuple[str, ...], load: str | None, only: tuple[str, ...]) -> tuple[str, ...]:
    """The load of a service of the user's; empty where there is none."""
    if not words and load is None:
        return ()
    if not words or not load:
        raise LabError("for a service of your own: expected `hakmem services --load COMMAND -- COMMAND [ARGUMENT]...`")
    if only:
        raise LabError("--only is for the ten services: expected it without a command")
    try:
        found = tuple(shlex.split(load))
    except ValueError as error:
        raise LabError(f"--load {load}: {error}") from None
    if not found:
        raise LabError("--load: expected a command")
    return found
